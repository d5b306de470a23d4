use veilgrad::ops::attention::Attention;
use veilgrad::ops::{Backward, Forward, Grad, Op};
use veilgrad::record::{Recording, Slice};
use veilgrad::shape::Shape;

use crate::harness::{Case, Init, engines};
use crate::lab::Lab;
use crate::run;

const B: usize = 2;

/// Full, causal, and cross with more and fewer keys than queries.
fn variants(batch: usize, t: usize, heads: usize, head: usize) -> Vec<Case> {
    let (w, name) = (heads * head, format!("{batch}x{t} {heads}x{head}"));
    let packed = |op: Attention, kind: &str| {
        Case::new(op, format!("{kind} {name}")).example([batch, t, 3 * w], Init::Normal).reduction(t + head)
    };
    let cross = |op: Attention, kind: &str, keys: usize| {
        Case::new(op, format!("{kind} {keys} {name}"))
            .example([batch, t, w], Init::Normal)
            .example([batch, keys, 2 * w], Init::Normal)
            .reduction(t + keys + head)
    };
    vec![
        packed(Attention::full(heads), "full"),
        packed(Attention::causal(heads), "causal"),
        cross(Attention::cross(heads), "cross", t + 3),
        cross(Attention::cross(heads), "cross", t.div_ceil(2)),
        cross(Attention::cross_causal(heads), "cross causal", t + 2),
        cross(Attention::cross_causal(heads), "cross causal", t.div_ceil(2)),
    ]
}

pub fn cases() -> Vec<Case> {
    let sizes = [(2, 1, 1, 1), (2, 5, 2, 3), (3, 17, 4, 8), (2, 33, 3, 16), (1, 65, 1, 7), (3, 34, 2, 32)];
    sizes.into_iter().flat_map(|(b, t, heads, head)| variants(b, t, heads, head)).collect()
}

#[test]
fn every_length() {
    let lengths = (1..=70).chain([197, 257]);
    run(lengths
        .flat_map(|t| {
            let case = |op| Case::new(op, format!("length {t}")).example([B, t, 3 * 4], Init::Normal);
            [Attention::full(1), Attention::causal(1)].map(|op| case(op).reduction(t))
        })
        .collect());
}

#[test]
fn every_head_dim() {
    let dims = (1..=17).chain([20, 32, 48, 64, 80]);
    run(dims.flat_map(|head| variants(B, 9, 2, head)).collect());
}

#[test]
fn large_scores() {
    // Scores of some hundreds: probabilities 0 and 1, whose relative error is the score's absolute one.
    let case = |op, name: &str| {
        Case::new(op, name).example([B, 19, 3 * 2 * 8], Init::Scaled(8.0, 0.0)).reduction(19).slack(200.0)
    };
    run(vec![case(Attention::full(2), "large full"), case(Attention::causal(2), "large causal")]);
}

/// An op recorded in a lab: forward and backward.
struct Setup {
    lab: Lab,
    rec: Recording,
    y: Slice,
    lse: Slice,
    dx: Vec<Slice>,
    written: Vec<Slice>,
}

fn setup(op: Attention, shapes: &[Shape], fill: impl Fn(&mut Lab, usize, usize) -> Slice) -> Setup {
    wanting(op, shapes, fill, |_| true)
}

/// With gradients for the inputs that are wanted alone.
fn wanting(
    op: Attention,
    shapes: &[Shape],
    fill: impl Fn(&mut Lab, usize, usize) -> Slice,
    wanted: impl Fn(usize) -> bool,
) -> Setup {
    let mut lab = Lab::new(7);
    let inputs: Vec<Slice> = shapes.iter().enumerate().map(|(i, s)| fill(&mut lab, i, s.len())).collect();
    let outputs = lab.scratch(op.outputs(shapes).expect("shapes"));
    let dy = lab.normal(outputs[0].len);
    let dx: Vec<Slice> = shapes.iter().map(|s| lab.blank(s.len())).collect();
    let scratch = [lab.scratch(op.scratch(shapes)), lab.scratch(op.scratch_backward(shapes))];
    let mut rec = Recording::new();
    op.forward(&mut rec, &Forward { shapes, inputs: &inputs, outputs: &outputs, scratch: &scratch[0] })
        .expect("forward");
    let grads: Vec<Option<Grad>> = dx
        .iter()
        .enumerate()
        .map(|(i, &slice)| wanted(i).then_some(Grad { slice, accumulate: false }))
        .collect();
    let io = Backward {
        shapes,
        inputs: &inputs,
        outputs: &outputs,
        dy,
        dx: &grads,
        norms: &[],
        scratch: &scratch[1],
    };
    op.backward(&mut rec, &io).expect("backward");
    let given = dx.iter().enumerate().filter(|(i, _)| wanted(*i)).map(|(_, s)| *s);
    let written = outputs.iter().chain(&scratch[1]).copied().chain(given).collect();
    Setup { y: outputs[0], lse: outputs[1], lab, rec, dx, written }
}

fn normal(lab: &mut Lab, _: usize, n: usize) -> Slice {
    lab.normal(n)
}

#[test]
fn equal_values_come_back() {
    let (t, w) = (37, 12);
    for op in [Attention::full(3), Attention::causal(3)] {
        let setup = setup(op, &[Shape::from([B, t, 3 * w])], |lab, _, n| {
            let qkv = lab.normal(n);
            for row in lab.values_mut(qkv).chunks_mut(3 * w) {
                row[2 * w..].fill(0.75);
            }
            qkv
        });
        for engine in engines() {
            let run = setup.lab.run(engine.as_ref(), &setup.rec, &setup.written);
            for y in run.values(setup.y) {
                assert!(
                    (y - 0.75).abs() <= 1e-6,
                    "{}: {y}: probabilities do not add up to 1",
                    engine.describe()
                );
            }
        }
    }
}

#[test]
fn the_order_of_keys_does_not_matter() {
    let (tq, tk, w) = (6, 41, 8);
    let shapes = [Shape::from([B, tq, w]), Shape::from([B, tk, 2 * w])];
    let plain = setup(Attention::cross(2), &shapes, normal);
    let turned = setup(Attention::cross(2), &shapes, |lab, i, n| {
        let slice = lab.normal(n);
        if i == 1 {
            lab.values_mut(slice).chunks_mut(tk * 2 * w).for_each(|kv| kv.rotate_left(13 * 2 * w));
        }
        slice
    });
    for engine in engines() {
        let [a, b] = [&plain, &turned].map(|s| s.lab.run(engine.as_ref(), &s.rec, &s.written));
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-5;
        assert!(a.values(plain.y).iter().zip(b.values(turned.y)).all(|(&a, &b)| close(a, b)));
        assert!(a.values(plain.dx[0]).iter().zip(b.values(turned.dx[0])).all(|(&a, &b)| close(a, b)));
        let (back, turned_back) = (a.values(plain.dx[1]), b.values(turned.dx[1]));
        for (back, turned) in back.chunks(tk * 2 * w).zip(turned_back.chunks(tk * 2 * w)) {
            let mut back = back.to_vec();
            back.rotate_left(13 * 2 * w);
            assert!(back.iter().zip(turned).all(|(&a, &b)| close(a, b)), "{}", engine.describe());
        }
    }
}

#[test]
fn one_token_sees_itself() {
    let shapes = [Shape::from([3, 1, 3 * 10])];
    for op in [Attention::full(2), Attention::causal(2)] {
        let setup = setup(op, &shapes, normal);
        for engine in engines() {
            let run = setup.lab.run(engine.as_ref(), &setup.rec, &setup.written);
            // The probability is 1: y is v, and nothing comes back to q and k.
            let y = run.values(setup.y);
            assert!(y.iter().all(|y| y.is_finite()));
            for row in run.values(setup.dx[0]).chunks(30) {
                assert!(row[..20].iter().all(|g| g.abs() <= 1e-6), "{}", engine.describe());
            }
        }
    }
}

#[test]
fn queries_without_keys_give_zero() {
    // Five queries continue a sequence of two keys: the first three see none.
    let (tq, tk, w) = (5, 2, 8);
    let shapes = [Shape::from([B, tq, w]), Shape::from([B, tk, 2 * w])];
    let setup = setup(Attention::cross_causal(2), &shapes, normal);
    for engine in engines() {
        let run = setup.lab.run(engine.as_ref(), &setup.rec, &setup.written);
        for rows in [run.values(setup.y), run.values(setup.dx[0])] {
            for example in rows.chunks(tq * w) {
                assert!(example[..3 * w].iter().all(|x| *x == 0.0), "{}", engine.describe());
                assert!(example[3 * w..].iter().any(|x| *x != 0.0), "{}", engine.describe());
            }
        }
        let all = [setup.y, setup.lse, setup.dx[0], setup.dx[1]];
        assert!(all.iter().all(|s| run.values(*s).iter().all(|x| x.is_finite())), "{}", engine.describe());
    }
}

#[test]
fn unwanted_gradients_are_not_written() {
    let shapes = [Shape::from([B, 5, 12]), Shape::from([B, 7, 24])];
    let whole = setup(Attention::cross(3), &shapes, normal);
    for only in [0, 1] {
        let part = wanting(Attention::cross(3), &shapes, normal, |i| i == only);
        for engine in engines() {
            // `run` fails where anything but `written` has changed.
            let [a, b] = [&whole, &part].map(|s| s.lab.run(engine.as_ref(), &s.rec, &s.written));
            assert_eq!(a.bits(whole.dx[only]), b.bits(part.dx[only]), "{}", engine.describe());
        }
        let [a, b] = [&whole, &part].map(|s| s.lab.oracle(&s.rec));
        assert_eq!(a.bits(whole.dx[only]), b.bits(part.dx[only]));
    }
}

#[test]
fn many_heads() {
    // More rows of heads than one dimension of a dispatch holds.
    let (batch, heads) = (8193, 8);
    let shapes = [Shape::from([batch, 1, 3 * heads])];
    let setup = setup(Attention::full(heads), &shapes, normal);
    let want = setup.lab.oracle(&setup.rec);
    for engine in engines() {
        let run = setup.lab.run(engine.as_ref(), &setup.rec, &setup.written);
        for slice in [setup.y, setup.dx[0]] {
            let pairs = run.values(slice).iter().zip(want.values(slice));
            assert!(pairs.into_iter().all(|(g, w)| (g - w).abs() <= 1e-5), "{}", engine.describe());
        }
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let shapes = |dims: &[&[usize]]| dims.iter().map(|d| Shape::new(*d)).collect::<Vec<_>>();
    for (op, dims) in [
        (Attention::full(3), shapes(&[&[2, 5, 24]])),
        (Attention::full(2), shapes(&[&[2, 5, 25]])),
        (Attention::full(0), shapes(&[&[2, 5, 24]])),
        (Attention::full(2), shapes(&[&[5, 24]])),
        (Attention::cross(2), shapes(&[&[2, 5, 8], &[3, 5, 16]])),
        (Attention::cross(2), shapes(&[&[2, 5, 8], &[2, 5, 8]])),
        (Attention::cross(2), shapes(&[&[2, 5, 8], &[2, 0, 16]])),
        (Attention::cross(2), shapes(&[&[2, 5, 24]])),
    ] {
        assert!(op.outputs(&dims).is_err(), "{op:?} of {dims:?}");
    }
}
