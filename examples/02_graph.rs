//! A graph and its gradient: one linear layer, a squared error per example, and the norm of every example's gradient
//! without storing that gradient.
//!
//! Success looks like: `loss 0.5000 8.0000`, `norms 2.0000 11.3137`, and the weighted gradient sum `[9.0, 1.0]`.

use veilgrad::cpu::CpuEngine;
use veilgrad::graph::{Graph, Init, Mode, Options, ParamSpec};
use veilgrad::ops::{Tensor, linear::Linear, masked_mse::MaskedMse};
use veilgrad::record::Engine;

fn main() -> veilgrad::Result<()> {
    // Two examples of one token with two features; the model is y = w . x.
    let mut graph = Graph::new(2);
    let x = graph.input("x", Tensor::float([2, 1, 2]))?;
    let wanted = graph.input("wanted", Tensor::float([2, 1, 1]))?;
    let mask = graph.input("mask", Tensor::float([2, 1]))?;
    let spec =
        ParamSpec { name: "w".into(), shape: [1, 2].into(), init: Init::Constant(0.5), trainable: true };
    let w = graph.param(&spec)?;
    let y = graph.apply("layer", Linear { bias: false }, &[x, w])?;
    let loss = graph.apply("loss", MaskedMse { skip: 0 }, &[y, wanted, mask])?;

    // Lowered for per-example training: forward, backward with norms, and sums weighted by factors.
    let engine = CpuEngine::<f32>::new();
    let plan = graph.lower(&Options::new(Mode::PerExample { loss }, &engine).fetch(&[loss]))?;
    println!("planned memory: {}", plan.memory);
    let mut session = engine.open(&plan.layout)?;
    session.write(plan.params[0].values, &[0.5, 0.5])?;
    session.write(plan.input("x")?, &[1.0, 1.0, 2.0, 0.0])?;
    session.write(plan.input("wanted")?, &[1.0 - 0.5f32.sqrt(), 1.0 - 8f32.sqrt()])?;
    session.write(plan.input("mask")?, &[1.0, 1.0])?;
    session.write(plan.weights.expect("training plan"), &[1.0, 1.0])?;
    for recording in [&plan.forward, &plan.backward] {
        let program = session.prepare(recording)?;
        session.run(program)?;
    }
    let losses = session.read(plan.fetched[0])?;
    println!("loss {:.4} {:.4}", losses[0], losses[1]);
    let norms = session.read(plan.norms.expect("per-example plan"))?;
    println!("norms {:.4} {:.4}", norms[0].sqrt(), norms[1].sqrt());

    // Factors of 1 give the sum of both gradients; a clip would write smaller ones.
    let slice = plan.factors.expect("per-example plan");
    session.write(slice, &[0.5f32.sqrt(), 0.5f32.sqrt()])?;
    let program = session.prepare(&plan.sums)?;
    session.run(program)?;
    let gradient = session.read(plan.params[0].grad.expect("trained"))?;
    println!("weighted gradient sum [{:.1}, {:.1}]", gradient[0], gradient[1]);
    Ok(())
}
