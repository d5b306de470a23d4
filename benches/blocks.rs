//! Speed of what stands between the products of a ViT: `cargo bench --bench blocks [-- FILTER]`, on the CPU or, with
//! the environment's `DEVICE=NAME`, on the GPU of that name.
//!
//! Attention as a share of the machine's rate of small products; LayerNorm and GELU as multiples of the time that
//! copying as many bytes takes.

use std::time::Instant;

use veilgrad::cpu::CpuEngine;
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::ops::attention::Attention;
use veilgrad::ops::gelu::Gelu;
use veilgrad::ops::layer_norm::LayerNorm;
use veilgrad::ops::{Backward, Forward, Grad, Op, ParamGrad};
use veilgrad::record::{Engine, Layout, Program, Recording, Session};
use veilgrad::shape::Shape;

fn main() {
    // `cargo bench` passes flags of its own.
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let engine: Box<dyn Engine> = match std::env::var("DEVICE") {
        Ok(name) => Box::new(GpuEngine::open(&Selector::named(name)).expect("adapter")),
        Err(_) => Box::new(CpuEngine::<f32>::new()),
    };
    let engine = engine.as_ref();
    println!("{}", engine.describe());
    // (name, examples, tokens, heads, head dim)
    for (name, b, t, heads, head) in [
        ("micro32 encoder", 64, 17, 4, 32),
        ("micro32 decoder", 16, 65, 4, 16),
        ("base encoder", 4, 50, 12, 64),
        ("base decoder", 2, 197, 16, 32),
    ] {
        let name = format!("attention {name}");
        if name.contains(&filter) {
            let op = Attention::full(heads);
            let shape = Shape::from([b, t, 3 * heads * head]);
            let (forward, backward) = time_op(engine, &op, std::slice::from_ref(&shape));
            let giga = op.flops(&[shape]) as f64 / 1e9;
            // Forward is two products of this size, backward five.
            println!(
                "{name:26} forward {:7.1} GFLOP/s {:8.1} us   backward {:7.1} GFLOP/s {:8.1} us",
                giga / forward,
                forward * 1e6,
                2.5 * giga / backward,
                backward * 1e6
            );
        }
    }
    // (name, examples, tokens, width)
    for (name, b, t, width) in [
        ("micro32 encoder", 64, 17, 128),
        ("micro32 decoder", 64, 65, 64),
        ("micro32 hidden", 64, 17, 512),
        ("base encoder", 32, 50, 768),
        ("base decoder", 16, 197, 512),
        ("base hidden", 16, 50, 3072),
    ] {
        let x = Shape::from([b, t, width]);
        let vector = Shape::from([width]);
        let bytes = 4.0 * x.len() as f64;
        let row = |op: &dyn Op, shapes: &[Shape], reads: f64| {
            let name = format!("{} {name}", op.name());
            if !name.contains(&filter) {
                return;
            }
            let (forward, backward) = time_op(engine, op, shapes);
            let (copy, copy_backward) = (copy(2.0 * bytes), copy((reads + 1.0) * bytes));
            println!(
                "{name:26} forward {:5.2} x copy {:8.1} us   backward {:5.2} x copy {:8.1} us",
                forward / copy,
                forward * 1e6,
                backward / copy_backward,
                backward * 1e6
            );
        };
        row(&Gelu, std::slice::from_ref(&x), 2.0);
        row(&LayerNorm { eps: 1e-6 }, &[x.clone(), vector.clone(), vector], 4.0);
    }
}

/// Seconds of forward and of backward with all gradients.
fn time_op(engine: &dyn Engine, op: &dyn Op, shapes: &[Shape]) -> (f64, f64) {
    let mut layout = Layout::default();
    let mut add = |tensors: Vec<(veilgrad::record::DType, usize)>| -> Vec<_> {
        tensors.into_iter().map(|(dtype, len)| layout.add("tensor", dtype, len)).collect()
    };
    let of =
        |tensors: Vec<veilgrad::ops::Tensor>| tensors.into_iter().map(|t| (t.dtype, t.shape.len())).collect();
    let batch = shapes[0].dims()[0];
    let inputs = add((0..shapes.len()).map(|i| (op.input_dtype(i), shapes[i].len())).collect());
    let outputs = add(of(op.outputs(shapes).expect("shapes")));
    let dy = add(vec![(outputs[0].dtype, outputs[0].len)])[0];
    let rows = |i: usize| if op.param_grad(i) == ParamGrad::Rows { batch } else { 1 };
    let dx = add((0..shapes.len()).map(|i| (outputs[0].dtype, rows(i) * shapes[i].len())).collect());
    let scratch = add(of(op.scratch(shapes)));
    let scratch_backward = add(of(op.scratch_backward(shapes)));
    let mut session = engine.open(&layout).expect("session");
    for slice in inputs.iter().chain([&dy]) {
        let noise = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 16_777_216.0 - 0.5;
        session.write(*slice, &(0..slice.len as u32).map(noise).collect::<Vec<_>>()).expect("write");
    }
    let mut forward = Recording::new();
    let io = Forward { shapes, inputs: &inputs, outputs: &outputs, scratch: &scratch };
    op.forward(&mut forward, &io).expect("forward");
    let mut backward = Recording::new();
    let dx: Vec<_> = dx.into_iter().map(|slice| Some(Grad { slice, accumulate: false })).collect();
    let scratch = &scratch_backward;
    let io = Backward { shapes, inputs: &inputs, outputs: &outputs, dy, dx: &dx, norms: &[], scratch };
    op.backward(&mut backward, &io).expect("backward");
    let [forward, backward] = [forward, backward].map(|rec| session.prepare(&rec).expect("prepare"));
    (time(session.as_mut(), forward), time(session.as_mut(), backward))
}

/// Seconds to copy so many bytes on all threads, counting those read and those written.
fn copy(bytes: f64) -> f64 {
    use rayon::prelude::*;
    let n = bytes as usize / 8;
    let (from, mut to) = (vec![1.0f32; n], vec![0.0f32; n]);
    best(|| {
        to.par_chunks_mut(16_384)
            .zip(from.par_chunks(16_384))
            .for_each(|(to, from)| to.copy_from_slice(from));
    })
}

fn time(session: &mut dyn Session, program: Program) -> f64 {
    best(|| {
        session.run(program).expect("run");
        session.wait().expect("wait");
    })
}

/// Best of several runs: other work on the machine only adds.
fn best(mut run: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let start = Instant::now();
    let mut runs = 0;
    while runs < 5 || (start.elapsed().as_secs_f64() < 0.5 && runs < 2000) {
        let t = Instant::now();
        run();
        best = best.min(t.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}
