//! What a graph refuses, and per-example norms of a small text model against batches of one.

use veilgrad::cpu::CpuEngine;
use veilgrad::error::Error;
use veilgrad::graph::{Graph, Init, Mode, Options, ParamSpec, Plan, Value};
use veilgrad::model::Net;
use veilgrad::ops::{
    Tensor, add_table::AddTable, batch_norm::BatchNorm, cross_entropy::CrossEntropy, embedding::Embedding,
    mean_tokens::MeanTokens, prepend_token::PrependToken,
};
use veilgrad::record::Session;
use veilgrad::rng::{Key, normal};

const LOSS: CrossEntropy = CrossEntropy { ignore: Some(0), smoothing: 0.0 };

fn lower(graph: &Graph, mode: Mode) -> veilgrad::Result<Plan> {
    graph.lower(&Options::new(mode, &CpuEngine::<f64>::new()))
}

/// Classifies x (2, 3) after `layer`.
fn classifier(layer: impl Fn(&mut Net<'_>, Value) -> Value) -> (Graph, Value) {
    let mut graph = Graph::new(2);
    let x = graph.input("x", Tensor::float([2, 3])).unwrap();
    let target = graph.input("target", Tensor::uint([2])).unwrap();
    let mut net = Net { graph: &mut graph, eps: 1e-6 };
    let h = layer(&mut net, x);
    let logits = net.linear("head", h, 4, true).unwrap();
    let loss = graph.apply("loss", LOSS, &[logits, target]).unwrap();
    (graph, loss)
}

#[test]
fn an_op_that_mixes_examples_is_for_plain_training_alone() {
    let (graph, loss) = classifier(|net, x| net.graph.apply("norm", BatchNorm { eps: 1e-6 }, &[x]).unwrap());
    let refused = lower(&graph, Mode::PerExample { loss });
    assert!(matches!(&refused, Err(Error::Mixes { op, why })
        if op.contains("batch_norm (norm)") && why.contains("layer_norm")));
    assert!(lower(&graph, Mode::Plain { loss }).is_ok());
}

#[test]
fn what_is_computed_is_no_parameter() {
    // The class scores of the batch, (2, 4), in the place of a position table (2, 4) of two tokens.
    let mut graph = Graph::new(2);
    let x = graph.input("x", Tensor::float([2, 2, 4])).unwrap();
    let y = graph.input("y", Tensor::float([2, 3])).unwrap();
    let target = graph.input("target", Tensor::uint([2])).unwrap();
    let table = Net { graph: &mut graph, eps: 1e-6 }.linear("table", y, 4, true).unwrap();
    let h = graph.apply("add", AddTable, &[x, table]).unwrap();
    let logits = graph.apply("mean", MeanTokens { skip: 0 }, &[h]).unwrap();
    let loss = graph.apply("loss", LOSS, &[logits, target]).unwrap();
    assert!(matches!(lower(&graph, Mode::PerExample { loss }), Err(Error::Mixes { .. })));
    assert!(matches!(lower(&graph, Mode::Plain { loss }), Err(Error::Shape { .. })));
}

const TOKENS: usize = 5;
const VOCABULARY: usize = 7;
const WIDTH: usize = 6;

/// Predicts every next token from a token before it: embedding, class token, positions, head.
fn language_model(batch: usize) -> (Graph, Value) {
    let mut graph = Graph::new(batch);
    let ids = graph.input("ids", Tensor::uint([batch, TOKENS])).unwrap();
    let targets = graph.input("targets", Tensor::uint([batch, TOKENS + 1])).unwrap();
    let mut net = Net { graph: &mut graph, eps: 1e-5 };
    let mut param = |name: &str, shape: &[usize]| {
        let spec = ParamSpec {
            name: name.into(),
            shape: veilgrad::shape::Shape::new(shape),
            init: Init::Normal(1.0),
            trainable: true,
        };
        net.graph.param(&spec).unwrap()
    };
    let table = param("embedding", &[VOCABULARY, WIDTH]);
    let token = param("token", &[WIDTH]);
    let positions = param("positions", &[TOKENS + 1, WIDTH]);
    let h = net.graph.apply("embed", Embedding, &[table, ids]).unwrap();
    let h = net.graph.apply("prepend", PrependToken, &[token, h]).unwrap();
    let h = net.graph.apply("position", AddTable, &[h, positions]).unwrap();
    let h = net.layer_norm("norm", h).unwrap();
    let logits = net.linear("head", h, VOCABULARY, true).unwrap();
    let loss = graph.apply("loss", LOSS, &[logits, targets]).unwrap();
    (graph, loss)
}

/// Ids with repeats; targets with padding, the last example's all of it.
fn examples() -> Vec<([u32; TOKENS], [u32; TOKENS + 1])> {
    vec![
        ([1, 2, 2, 1, 3], [1, 2, 2, 1, 3, 0]),
        ([4, 4, 4, 4, 4], [4, 5, 6, 1, 0, 0]),
        ([6, 5, 4, 3, 2], [6, 5, 4, 3, 2, 1]),
        ([1, 1, 2, 2, 3], [0, 0, 0, 0, 0, 0]),
    ]
}

fn session(plan: &Plan, members: &[([u32; TOKENS], [u32; TOKENS + 1])]) -> impl Session + use<> {
    let mut session = CpuEngine::<f64>::new().session(&plan.layout);
    for (i, slot) in plan.params.iter().enumerate() {
        let mut rng = Key::from_seed(7).stream(i as u64);
        let values: Vec<f32> = (0..slot.values.len).map(|_| normal(&mut rng) as f32).collect();
        session.write(slot.values, &values).unwrap();
    }
    if let Some((slice, words)) = &plan.segments {
        session.write_u32(*slice, words).unwrap();
    }
    session.write(plan.weights.unwrap(), &vec![1.0; members.len()]).unwrap();
    session
        .write_u32(plan.input("ids").unwrap(), &members.iter().flat_map(|m| m.0).collect::<Vec<_>>())
        .unwrap();
    let targets: Vec<u32> = members.iter().flat_map(|m| m.1).collect();
    session.write_u32(plan.input("targets").unwrap(), &targets).unwrap();
    for recording in [&plan.zero, &plan.forward, &plan.backward] {
        let program = session.prepare(recording).unwrap();
        session.run(program).unwrap();
    }
    session
}

#[test]
fn norms_of_a_text_model_are_those_of_batches_of_one() {
    let (graph, loss) = language_model(4);
    let plan = lower(&graph, Mode::PerExample { loss }).unwrap();
    let mut together = session(&plan, &examples());
    let norms = together.read(plan.norms.unwrap()).unwrap();
    for (i, example) in examples().into_iter().enumerate() {
        let (graph, loss) = language_model(1);
        let one = lower(&graph, Mode::Plain { loss }).unwrap();
        let mut alone = session(&one, &[example]);
        let sums = alone.prepare(&one.sums).unwrap();
        alone.run(sums).unwrap();
        let mut want = 0.0;
        for slot in &one.params {
            let g = alone.read(slot.grad.unwrap()).unwrap();
            want += g.iter().map(|&g| g as f64 * g as f64).sum::<f64>();
        }
        let got: f64 = norms.iter().skip(i).step_by(plan.stride).map(|&n| n as f64).sum();
        assert!((got - want).abs() <= 1e-5 * want, "example {i}: {got}, alone {want}");
        assert_eq!(want == 0.0, i == 3, "example {i}");
    }
}
