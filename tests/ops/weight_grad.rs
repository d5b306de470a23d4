//! The rules of a weight's per-example gradient against that gradient, written out.

use veilgrad::ops::weight_grad::{
    Dims, Rule, record_sq_norm, record_sq_norm_as, record_sum, scratch, scratch_as,
};
use veilgrad::record::Recording;

use crate::harness::engines;
use crate::lab::{Lab, assert_close, rounding};

fn shapes() -> Vec<Dims> {
    let mut shapes = Vec::new();
    for tokens in [1, 2, 3, 7, 8, 9, 17, 33, 65] {
        for (width_in, width_out) in
            [(1, 1), (4, 4), (5, 3), (8, 36), (31, 33), (64, 12), (132, 68), (17, 128)]
        {
            shapes.push(Dims { batch: 3, tokens, width_in, width_out });
        }
    }
    shapes.push(Dims { batch: 2, tokens: 197, width_in: 32, width_out: 64 });
    shapes.push(Dims { batch: 2, tokens: 257, width_in: 20, width_out: 20 });
    shapes
}

/// dW_i and the sums of the magnitudes of its terms.
fn explicit(d: Dims, x: &[f64], g: &[f64], i: usize) -> (Vec<f64>, Vec<f64>) {
    let n = d.width_in * d.width_out;
    let (mut dw, mut size) = (vec![0.0; n], vec![0.0; n]);
    for t in i * d.tokens..(i + 1) * d.tokens {
        for o in 0..d.width_out {
            for k in 0..d.width_in {
                let term = g[t * d.width_out + o] * x[t * d.width_in + k];
                dw[o * d.width_in + k] += term;
                size[o * d.width_in + k] += term.abs();
            }
        }
    }
    (dw, size)
}

fn sq_norm(dw: &[f64]) -> f64 {
    dw.iter().map(|x| x * x).sum()
}

#[test]
fn norms_are_those_of_the_explicit_gradient() {
    let mut lab = Lab::new(1);
    let mut rec = Recording::new();
    let mut written = Vec::new();
    let mut items = Vec::new();
    for d in shapes() {
        let (x, g) =
            (lab.normal(d.batch * d.tokens * d.width_in), lab.normal(d.batch * d.tokens * d.width_out));
        for rule in [Rule::Ghost, Rule::Direct] {
            let (out, scratch) = (lab.blank(d.batch), lab.scratch(scratch_as(d, rule)));
            record_sq_norm_as(&mut rec, rule, d, x, g, out, &scratch).expect("records");
            written.extend(scratch);
            written.push(out);
            items.push((d, rule, x, g, out));
        }
        let (out, scratch) = (lab.blank(d.batch), lab.scratch(scratch(d)));
        record_sq_norm(&mut rec, d, x, g, out, &scratch).expect("records");
        written.extend(scratch);
        written.push(out);
        items.push((d, d.rule(), x, g, out));
    }
    let oracle = lab.oracle(&rec);
    let runs: Vec<_> = engines().iter().map(|e| lab.run(e.as_ref(), &rec, &written)).collect();
    for (d, rule, x, g, out) in items {
        let (x, g) = (lab.values(x), lab.values(g));
        let want: Vec<f64> = (0..d.batch).map(|i| sq_norm(&explicit(d, x, g, i).0)).collect();
        // Rounding is relative to the terms of the ghost sum: sum_(t, s) |x_t||x_s||g_t||g_s|.
        let row = |v: &[f64], width: usize, t: usize| sq_norm(&v[t * width..(t + 1) * width]).sqrt();
        let size = |i: usize| {
            let tokens = i * d.tokens..(i + 1) * d.tokens;
            tokens.map(|t| row(x, d.width_in, t) * row(g, d.width_out, t)).sum::<f64>().powi(2)
        };
        let terms = d.width_in.max(d.width_out).max(d.tokens);
        assert_close(&format!("oracle {d:?} {rule:?}"), oracle.values(out), &want, |i| 1e-12 * size(i));
        for run in &runs {
            let what = format!("{d:?} {rule:?}");
            assert_close(&what, run.values(out), &want, |i| rounding(terms) * size(i));
            assert_close(&what, run.values(out), &want, |i| 1e-4 * want[i].max(1e-2 * size(i)));
        }
    }
}

#[test]
fn extreme_examples_keep_their_meaning() {
    for rule in [Rule::Ghost, Rule::Direct] {
        for (width_in, width_out) in [(8, 12), (5, 7)] {
            let d = Dims { batch: 8, tokens: 9, width_in, width_out };
            let mut lab = Lab::new(2);
            let (x, g) = (lab.normal(72 * width_in), lab.normal(72 * width_out));
            let example = 9 * width_out;
            lab.values_mut(g)[0] = f64::NAN;
            lab.values_mut(g)[2 * example - 1] = f64::INFINITY;
            lab.values_mut(g)[2 * example] = f64::NEG_INFINITY;
            lab.values_mut(x)[3 * 9 * width_in + 4] = f64::NAN;
            lab.values_mut(g)[4 * example..5 * example].fill(0.0);
            for v in &mut lab.values_mut(g)[5 * example..6 * example] {
                *v = (*v * 1e30) as f32 as f64;
            }
            for v in &mut lab.values_mut(g)[6 * example..7 * example] {
                *v = (*v * 1e-10) as f32 as f64;
            }
            let (out, scratch) = (lab.blank(8), lab.scratch(scratch_as(d, rule)));
            let mut rec = Recording::new();
            record_sq_norm_as(&mut rec, rule, d, x, g, out, &scratch).expect("records");
            let written: Vec<_> = scratch.iter().copied().chain([out]).collect();
            let tiny = sq_norm(&explicit(d, lab.values(x), lab.values(g), 6).0);
            let plain = sq_norm(&explicit(d, lab.values(x), lab.values(g), 7).0);
            for engine in engines() {
                let run = lab.run(engine.as_ref(), &rec, &written);
                let out = run.values(out);
                for (i, norm) in out.iter().enumerate() {
                    let lost = i < 4 || i == 5;
                    assert_eq!(norm.is_finite(), !lost, "{rule:?}: norm {i} is {norm}");
                }
                assert_eq!(out[4], 0.0);
                assert!((out[6] - tiny).abs() <= 1e-4 * tiny, "{} for {tiny}", out[6]);
                assert!((out[7] - plain).abs() <= 1e-4 * plain, "{} for {plain}", out[7]);
            }
        }
    }
}

#[test]
fn a_cancelling_gradient_has_no_negative_norm() {
    // g_t sums to zero while x is the same at every token: dW_i = 0, by terms of both signs.
    for (tokens, width) in [(16, 64), (17, 33), (64, 128)] {
        let d = Dims { batch: 4, tokens, width_in: width, width_out: width };
        let mut lab = Lab::new(3);
        let (x, g) = (lab.normal(4 * tokens * width), lab.normal(4 * tokens * width));
        for i in 0..4 {
            let first: Vec<f64> = lab.values(x)[i * tokens * width..][..width].to_vec();
            for t in 0..tokens {
                lab.values_mut(x)[(i * tokens + t) * width..][..width].copy_from_slice(&first);
            }
            for o in 0..width {
                for t in (1..tokens).step_by(2) {
                    let at = (i * tokens + t) * width + o;
                    lab.values_mut(g)[at] = -lab.values(g)[at - width];
                }
                if tokens % 2 == 1 {
                    lab.values_mut(g)[(i * tokens + tokens - 1) * width + o] = 0.0;
                }
            }
        }
        let (out, scratch) = (lab.blank(4), lab.scratch(scratch_as(d, Rule::Ghost)));
        let mut rec = Recording::new();
        record_sq_norm_as(&mut rec, Rule::Ghost, d, x, g, out, &scratch).expect("records");
        let written: Vec<_> = scratch.iter().copied().chain([out]).collect();
        for engine in engines() {
            let run = lab.run(engine.as_ref(), &rec, &written);
            assert!(run.values(out).iter().all(|&n| n >= 0.0 && n.is_finite()), "{:?}", run.values(out));
        }
    }
}

#[test]
fn a_cancelling_norm_is_not_too_small() {
    // Tokens that are nearly the same and gradients that nearly cancel: ||dW_i||^2 is 1e-4 to 1e-6 of its terms.
    let mut least = f64::MAX;
    for (seed, (tokens, width_in, width_out)) in
        [(17, 128, 384), (16, 64, 64), (65, 33, 20), (64, 192, 64), (197, 64, 64)].into_iter().enumerate()
    {
        let d = Dims { batch: 8, tokens, width_in, width_out };
        let mut lab = Lab::new(100 + seed as u64);
        let (x, g) = (lab.normal(8 * tokens * width_in), lab.normal(8 * tokens * width_out));
        for i in 0..8 {
            let small = [1e-1, 1e-2][i % 2];
            for t in (0..tokens).rev() {
                for (slice, width, sign) in [(x, width_in, 1.0), (g, width_out, [1.0, -1.0][t % 2])] {
                    let at = (i * tokens + t) * width;
                    for k in 0..width {
                        let first = lab.values(slice)[i * tokens * width + k];
                        let v = sign * first + small * lab.values(slice)[at + k];
                        lab.values_mut(slice)[at + k] = if t == 0 { first } else { v as f32 as f64 };
                    }
                }
            }
        }
        let (out, scratch) = (lab.blank(8), lab.scratch(scratch_as(d, Rule::Ghost)));
        let mut rec = Recording::new();
        record_sq_norm_as(&mut rec, Rule::Ghost, d, x, g, out, &scratch).expect("records");
        let written: Vec<_> = scratch.iter().copied().chain([out]).collect();
        for engine in engines() {
            let run = lab.run(engine.as_ref(), &rec, &written);
            for i in 0..8 {
                let want = sq_norm(&explicit(d, lab.values(x), lab.values(g), i).0);
                least = least.min(run.values(out)[i] / want);
            }
        }
    }
    assert!(least >= 1.0 - 2e-5, "a squared norm is {least} of what it should be");
}

#[test]
fn sums_are_those_of_the_explicit_gradients() {
    for factors in [[1.0; 3], [0.0; 3], [0.5, 0.0, 1.0], [0.0, 0.3, 0.7]] {
        let mut lab = Lab::new(4);
        let mut rec = Recording::new();
        let mut items = Vec::new();
        for d in shapes() {
            let rows = d.batch * d.tokens;
            let (x, g) = (lab.normal(rows * d.width_in), lab.normal(rows * d.width_out));
            let (dw, f) = (lab.normal(d.width_in * d.width_out), lab.given(&factors[..d.batch]));
            record_sum(&mut rec, d, x, g, f, dw).expect("records");
            items.push((d, x, g, f, dw));
        }
        let written: Vec<_> = items.iter().map(|i| i.4).collect();
        let oracle = lab.oracle(&rec);
        let runs: Vec<_> = engines().iter().map(|e| lab.run(e.as_ref(), &rec, &written)).collect();
        for (d, x, g, f, dw) in items {
            let mut want = lab.values(dw).to_vec();
            let mut size: Vec<f64> = want.iter().map(|x| x.abs()).collect();
            for i in 0..d.batch {
                let factor = lab.values(f)[i];
                let (gradient, magnitude) = explicit(d, lab.values(x), lab.values(g), i);
                for e in 0..want.len() {
                    want[e] += factor * gradient[e];
                    size[e] += factor * magnitude[e];
                }
            }
            assert_close(&format!("oracle {d:?}"), oracle.values(dw), &want, |e| 1e-12 * size[e]);
            for run in &runs {
                let bound = rounding(d.batch * d.tokens);
                assert_close(&format!("{d:?}"), run.values(dw), &want, |e| bound * size[e]);
            }
        }
    }
}

#[test]
fn an_example_of_factor_zero_leaves_no_trace() {
    for (tokens, width_in, width_out) in [(17, 24, 16), (5, 7, 9), (64, 64, 128)] {
        let d = Dims { batch: 4, tokens, width_in, width_out };
        let run = |poison_x: f64, poison_g: f64| {
            let mut lab = Lab::new(5);
            let (x, g) = (lab.normal(4 * tokens * width_in), lab.normal(4 * tokens * width_out));
            lab.values_mut(x)[tokens * width_in..2 * tokens * width_in].fill(poison_x);
            lab.values_mut(g)[tokens * width_out..2 * tokens * width_out].fill(poison_g);
            let (dw, factors) = (lab.normal(width_in * width_out), lab.given(&[1.0, 0.0, 0.3, 1.0]));
            let mut rec = Recording::new();
            record_sum(&mut rec, d, x, g, factors, dw).expect("records");
            engines().iter().map(|e| lab.run(e.as_ref(), &rec, &[dw]).bits(dw)).collect::<Vec<_>>()
        };
        let clean = run(0.0, 0.0);
        for (x, g) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::INFINITY, f64::INFINITY), (3e38, -3e38)] {
            assert_eq!(clean, run(x, g), "x {x}, g {g}");
        }
    }
}

#[test]
fn the_cheaper_rule_is_taken() {
    let rule = |tokens, width_in, width_out| Dims { batch: 1, tokens, width_in, width_out }.rule();
    assert_eq!(rule(197, 384, 1536), Rule::Ghost);
    assert_eq!(rule(17, 128, 384), Rule::Ghost);
    assert_eq!(rule(1, 2, 2), Rule::Ghost);
    assert_eq!(rule(197, 192, 192), Rule::Direct);
    assert_eq!(rule(577, 384, 1536), Rule::Ghost);
    assert_eq!(rule(785, 384, 1536), Rule::Direct);
}

#[test]
fn more_examples_than_one_dimension_of_groups() {
    let d = Dims { batch: 65_540, tokens: 1, width_in: 4, width_out: 4 };
    let mut lab = Lab::new(6);
    let (x, g) = (lab.normal(4 * d.batch), lab.normal(4 * d.batch));
    let mut rec = Recording::new();
    let mut written = Vec::new();
    let mut outs = Vec::new();
    for rule in [Rule::Ghost, Rule::Direct] {
        let (out, scratch) = (lab.blank(d.batch), lab.scratch(scratch_as(d, rule)));
        record_sq_norm_as(&mut rec, rule, d, x, g, out, &scratch).expect("records");
        written.extend(scratch);
        written.push(out);
        outs.push(out);
    }
    let want: Vec<f64> =
        lab.values(x).chunks(4).zip(lab.values(g).chunks(4)).map(|(x, g)| sq_norm(x) * sq_norm(g)).collect();
    for engine in engines() {
        let run = lab.run(engine.as_ref(), &rec, &written);
        for out in &outs {
            assert_close("norm", run.values(*out), &want, |i| 1e-5 * want[i]);
        }
    }
}
