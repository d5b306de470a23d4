use veilgrad::graph::{Graph, Init as Start, Mode, Options, ParamSpec, Plan, Value};
use veilgrad::ops::cross_entropy::CrossEntropy;
use veilgrad::ops::head_loss::HeadLoss;
use veilgrad::ops::linear::Linear;
use veilgrad::ops::{Op, Tensor};
use veilgrad::record::Engine;
use veilgrad::rng::{Key, normal};

use crate::harness::{Case, Init, engines};
use crate::lab::assert_close;

/// One example a block, where bindings allow it.
const SMALL: HeadLoss = HeadLoss { ignore: 0, block_bytes: 1 };

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in [SMALL, HeadLoss::default()] {
        for (b, t, d, v) in [(1, 1, 1, 2), (3, 2, 32, 5), (5, 4, 16, 17), (3, 17, 64, 65), (2, 3, 64, 1003)] {
            cases.push(
                Case::new(op, format!("{op:?} {b}x{t}x{d} over {v}"))
                    .example([b, t, d], Init::Normal)
                    .shared([v, d], Init::Normal)
                    .shared([v], Init::Normal)
                    .example([b, t], Init::Ids(v as u32 + 1))
                    .reduction(v.max(t) * d),
            );
        }
    }
    cases
}

const B: usize = 5;
const T: usize = 4;
const D: usize = 32;
const V: usize = 19;

/// `fused` or the two ops that it stands for, after a layer that gives dx something to do.
fn graph(fused: bool) -> (Graph, Value) {
    let mut graph = Graph::new(B);
    let x = graph.input("x", Tensor::float([B, T, D])).unwrap();
    let targets = graph.input("targets", Tensor::uint([B, T])).unwrap();
    let mut param = |name: &str, shape: &[usize]| {
        let shape = veilgrad::shape::Shape::new(shape);
        let spec = ParamSpec { name: name.into(), shape, init: Start::Constant(0.0), trainable: true };
        graph.param(&spec).unwrap()
    };
    let before = param("before", &[D, D]);
    let (weight, bias) = (param("weight", &[V, D]), param("bias", &[V]));
    let h = graph.apply("before", Linear { bias: false }, &[x, before]).unwrap();
    let loss = if fused {
        graph.apply("head", SMALL, &[h, weight, bias, targets]).unwrap()
    } else {
        let logits = graph.apply("head", Linear { bias: true }, &[h, weight, bias]).unwrap();
        let op = CrossEntropy { ignore: Some(0), smoothing: 0.0 };
        graph.apply("loss", op, &[logits, targets]).unwrap()
    };
    (graph, loss)
}

struct Outcome {
    losses: Vec<f32>,
    /// Name and its norms (B).
    norms: Vec<(String, Vec<f32>)>,
    /// Name and its sum.
    sums: Vec<(String, Vec<f32>)>,
}

fn outcome(engine: &dyn Engine, fused: bool, private: bool) -> Outcome {
    let (graph, loss) = graph(fused);
    let mode = if private { Mode::PerExample { loss } } else { Mode::Plain { loss } };
    let plan: Plan = graph.lower(&Options::new(mode, engine).fetch(&[loss])).unwrap();
    let mut session = engine.open(&plan.layout).unwrap();
    let random = |n: usize, stream: u64| -> Vec<f32> {
        let mut rng = Key::from_seed(3).stream(stream);
        (0..n).map(|_| normal(&mut rng) as f32).collect()
    };
    session.write(plan.input("x").unwrap(), &random(B * T * D, 0)).unwrap();
    let targets: Vec<u32> = (0..B * T).map(|i| if i < T { 0 } else { (i * 7 % (V + 1)) as u32 }).collect();
    session.write_u32(plan.input("targets").unwrap(), &targets).unwrap();
    session.write(plan.weights.unwrap(), &[1.0, 1.0, 0.0, 1.0, 1.0]).unwrap();
    for (i, name) in ["before", "weight", "bias"].into_iter().enumerate() {
        let slot = plan.param(name).unwrap();
        session.write(slot.values, &random(slot.values.len, 1 + i as u64)).unwrap();
    }
    if let Some((slice, words)) = &plan.segments {
        session.write_u32(*slice, words).unwrap();
    }
    if let Some(factors) = plan.factors {
        session.write(factors, &[0.5, 1.0, 1.0, 0.25, 0.0]).unwrap();
    }
    for recording in [&plan.zero, &plan.forward, &plan.backward, &plan.sums] {
        let program = session.prepare(recording).unwrap();
        session.run(program).unwrap();
    }
    let losses = session.read(plan.fetched[0]).unwrap();
    let norms = plan.norms.map(|all| session.read(all).unwrap()).unwrap_or_default();
    let rows = norms.chunks(plan.stride).map(|row| row[..B].to_vec());
    let mut norms: Vec<(String, Vec<f32>)> = plan.norm_names.iter().cloned().zip(rows).collect();
    norms.sort_by(|a, b| a.0.cmp(&b.0));
    let sums = ["before", "weight", "bias"]
        .map(|name| (name.to_owned(), session.read(plan.param(name).unwrap().grad.unwrap()).unwrap()));
    Outcome { losses, norms, sums: sums.into() }
}

#[test]
fn it_equals_a_linear_layer_and_its_cross_entropy() {
    for engine in engines() {
        for private in [true, false] {
            let (got, want) =
                (outcome(engine.as_ref(), true, private), outcome(engine.as_ref(), false, private));
            let what = format!("{} private {private}", engine.describe());
            let close = |name: &str, got: &[f32], want: &[f32]| {
                let [got, want] = [got, want].map(|x| x.iter().map(|&x| x as f64).collect::<Vec<_>>());
                let size = want.iter().fold(1e-6f64, |m, w| m.max(w.abs()));
                assert_close(&format!("{what} {name}"), &got, &want, |_| 2e-5 * size);
            };
            close("losses", &got.losses, &want.losses);
            assert_eq!(got.norms.len(), if private { 3 } else { 0 }, "{what}");
            assert_eq!(want.norms.len(), got.norms.len(), "{what}");
            for (g, w) in got.norms.iter().zip(&want.norms).chain(got.sums.iter().zip(&want.sums)) {
                assert_eq!(g.0, w.0, "{what}");
                close(&g.0, &g.1, &w.1);
            }
            // The first example has no target, the third is padding.
            assert!(got.norms.iter().all(|(_, n)| n[0] == 0.0 && n[2] == 0.0 && n[1] > 0.0), "{what}");
            assert!(got.sums.iter().all(|(_, s)| s.iter().any(|x| *x != 0.0)), "{what}");
        }
    }
}

#[test]
fn a_parameter_of_the_head_is_not_shared() {
    // Tied to the layer before it: the norm of the sum needs both uses at once.
    let mut graph = Graph::new(B);
    let x = graph.input("x", Tensor::float([B, T, D])).unwrap();
    let targets = graph.input("targets", Tensor::uint([B, T])).unwrap();
    let mut param = |name: &str, shape: &[usize]| {
        let shape = veilgrad::shape::Shape::new(shape);
        graph
            .param(&ParamSpec { name: name.into(), shape, init: Start::Constant(0.0), trainable: true })
            .unwrap()
    };
    let (weight, bias) = (param("weight", &[D, D]), param("bias", &[D]));
    let h = graph.apply("before", Linear { bias: false }, &[x, weight]).unwrap();
    let loss = graph.apply("head", SMALL, &[h, weight, bias, targets]).unwrap();
    let engine = veilgrad::cpu::CpuEngine::<f32>::new();
    for mode in [Mode::PerExample { loss }, Mode::Plain { loss }] {
        let refused = graph.lower(&Options::new(mode, &engine));
        assert!(
            matches!(refused, Err(veilgrad::Error::Mixes { .. })),
            "{refused:?}",
            refused = refused.err()
        );
    }
}

#[test]
fn refuses_what_does_not_fit() {
    for shapes in [
        vec![[2, 3, 4].into(), [5, 4].into(), [5].into()],
        vec![[2, 3, 4].into(), [5, 3].into(), [5].into(), [2, 3].into()],
        vec![[2, 3, 4].into(), [5, 4].into(), [4].into(), [2, 3].into()],
        vec![[2, 3, 4].into(), [5, 4].into(), [5].into(), [2, 4].into()],
    ] {
        assert!(SMALL.outputs(&shapes).is_err(), "{shapes:?}");
    }
}
