//! The rules of a lookup table's per-example gradient against that gradient, written out.

use veilgrad::ops::lookup_grad::{Dims, record_sq_norm, record_sum, scratch};
use veilgrad::record::Recording;

use crate::harness::engines;
use crate::lab::{Lab, assert_close, rounding};

fn shapes() -> Vec<Dims> {
    let mut shapes = Vec::new();
    for tokens in [1, 2, 17, 65, 130] {
        for (width, vocabulary) in [(1, 3), (7, 5), (64, 2), (65, 300), (130, 1)] {
            shapes.push(Dims { batch: 3, tokens, width, vocabulary });
        }
    }
    shapes
}

/// dE_i, ids past the table left out.
fn explicit(d: Dims, ids: &[u32], g: &[f64], i: usize) -> Vec<f64> {
    let mut de = vec![0.0; d.vocabulary * d.width];
    for t in i * d.tokens..(i + 1) * d.tokens {
        if (ids[t] as usize) < d.vocabulary {
            for c in 0..d.width {
                de[ids[t] as usize * d.width + c] += g[t * d.width + c];
            }
        }
    }
    de
}

#[test]
fn norms_and_sums_are_those_of_the_explicit_gradient() {
    let mut lab = Lab::new(1);
    let mut rec = Recording::new();
    let (mut written, mut items) = (Vec::new(), Vec::new());
    for (n, d) in shapes().into_iter().enumerate() {
        // Every third shape has ids past the table.
        let bound = d.vocabulary as u32 + (n % 3 == 0) as u32;
        let ids = lab.ids(d.batch * d.tokens, bound);
        let g = lab.normal(d.batch * d.tokens * d.width);
        let (out, scratch) = (lab.blank(d.batch), lab.scratch(scratch(d)));
        let factors = lab.given(&[[1.0, 1.0, 1.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]][n % 3]);
        let de = lab.normal(d.vocabulary * d.width);
        record_sq_norm(&mut rec, d, ids, g, out, &scratch).expect("records");
        record_sum(&mut rec, d, ids, g, factors, de).expect("records");
        written.extend(scratch);
        written.extend([out, de]);
        items.push((d, ids, g, factors, out, de));
    }
    let oracle = lab.oracle(&rec);
    let runs: Vec<_> = engines().iter().map(|e| lab.run(e.as_ref(), &rec, &written)).collect();
    for (d, ids, g, factors, out, de) in items {
        let (ids, g, f) = (lab.values_u32(ids), lab.values(g), lab.values(factors));
        let gradients: Vec<Vec<f64>> = (0..d.batch).map(|i| explicit(d, ids, g, i)).collect();
        let norms: Vec<f64> = gradients.iter().map(|de| de.iter().map(|x| x * x).sum()).collect();
        let mut want = lab.values(de).to_vec();
        for (gradient, factor) in gradients.iter().zip(f) {
            want.iter_mut().zip(gradient).for_each(|(w, x)| *w += factor * x);
        }
        let what = format!("{d:?}");
        // Magnitudes of the terms: at most all tokens in one row.
        let size = (d.batch * d.tokens) as f64 * 5.0;
        let sq_size = (d.width * d.tokens * d.tokens) as f64 * 5.0;
        assert_close(&what, oracle.values(out), &norms, |_| 1e-12 * sq_size);
        assert_close(&what, oracle.values(de), &want, |_| 1e-12 * size);
        for run in &runs {
            assert_close(&what, run.values(out), &norms, |i| 1e-6 * sq_size.min(100.0 * (1.0 + norms[i])));
            assert_close(&what, run.values(de), &want, |_| rounding(d.batch * d.tokens) * size);
        }
    }
}

#[test]
fn repeated_ids_interact() {
    // Two equal tokens of gradient 1 make 4, two different ones 2, opposite ones 0.
    let d = Dims { batch: 3, tokens: 2, width: 1, vocabulary: 9 };
    let mut lab = Lab::new(2);
    let (ids, g) = (lab.uints(&[7, 7, 7, 8, 7, 7]), lab.given(&[1.0, 1.0, 1.0, 1.0, 1.0, -1.0]));
    let (out, scratch) = (lab.blank(3), lab.scratch(scratch(d)));
    let mut rec = Recording::new();
    record_sq_norm(&mut rec, d, ids, g, out, &scratch).expect("records");
    let written: Vec<_> = scratch.iter().copied().chain([out]).collect();
    for engine in engines() {
        assert_eq!(lab.run(engine.as_ref(), &rec, &written).values(out), [4.0, 2.0, 0.0]);
    }
}

#[test]
fn lost_examples_are_seen_and_leave_no_trace() {
    let d = Dims { batch: 4, tokens: 9, width: 70, vocabulary: 6 };
    let run = |poison: f64| {
        let mut lab = Lab::new(3);
        let (ids, g) = (lab.ids(36, 6), lab.normal(36 * 70));
        lab.values_mut(g)[9 * 70..18 * 70].fill(poison);
        let (out, scratch) = (lab.blank(4), lab.scratch(scratch(d)));
        let (factors, de) = (lab.given(&[1.0, 0.0, 0.3, 1.0]), lab.normal(6 * 70));
        let mut rec = Recording::new();
        record_sq_norm(&mut rec, d, ids, g, out, &scratch).expect("records");
        record_sum(&mut rec, d, ids, g, factors, de).expect("records");
        let written: Vec<_> = scratch.iter().copied().chain([out, de]).collect();
        let mut bits = Vec::new();
        for engine in engines() {
            let run = lab.run(engine.as_ref(), &rec, &written);
            let norms = run.values(out);
            assert_eq!(norms[1].is_finite(), poison == 0.0, "norm {} for {poison}", norms[1]);
            bits.push((run.bits(de), norms[0].to_bits(), norms[2].to_bits(), norms[3].to_bits()));
        }
        bits
    };
    let clean = run(0.0);
    for poison in [f64::NAN, f64::INFINITY, 3e38] {
        assert_eq!(clean, run(poison), "{poison}");
    }
}

#[test]
fn more_tokens_than_one_dimension_of_groups() {
    let d = Dims { batch: 65_540, tokens: 1, width: 1, vocabulary: 100 };
    let mut lab = Lab::new(4);
    let (ids, g) = (lab.ids(d.batch, 100), lab.normal(d.batch));
    let (out, scratch) = (lab.blank(d.batch), lab.scratch(scratch(d)));
    let mut rec = Recording::new();
    record_sq_norm(&mut rec, d, ids, g, out, &scratch).expect("records");
    let written: Vec<_> = scratch.iter().copied().chain([out]).collect();
    let want: Vec<f64> = lab.values(g).iter().map(|g| g * g).collect();
    for engine in engines() {
        let run = lab.run(engine.as_ref(), &rec, &written);
        assert_close("norm", run.values(out), &want, |i| 1e-6 * want[i]);
    }
}
