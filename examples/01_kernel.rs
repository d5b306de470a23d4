//! A kernel by itself: a layout, a recording, a session. Runs GELU on the CPU engine and, if there is one, on a Vulkan,
//! Metal or DX12 adapter (name it: `cargo run --example 01_kernel -- lavapipe`).
//!
//! Success looks like: two lines with the same numbers, `-0.1587 0.0000 0.8413`.

use veilgrad::cpu::CpuEngine;
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::ops::gelu::Gelu;
use veilgrad::ops::{Forward, Op};
use veilgrad::record::{DType, Engine, Layout, Recording};

fn run(engine: &dyn Engine) -> veilgrad::Result<Vec<f32>> {
    let input = [-1.0, 0.0, 1.0];

    // The buffers, decided on the host.
    let mut layout = Layout::default();
    let x = layout.add("x", DType::F32, input.len());
    let y = layout.add("y", DType::F32, input.len());

    // What is to be computed, as plain data: it can be printed before any device is touched.
    let mut recording = Recording::new();
    let io = Forward { shapes: &[[1, 3].into()], inputs: &[x], outputs: &[y], scratch: &[] };
    Gelu.forward(&mut recording, &io)?;
    print!("{recording}");

    // Memory and programs of one layout on one device.
    let mut session = engine.open(&layout)?;
    let program = session.prepare(&recording)?;
    session.write(x, &input)?;
    session.run(program)?;
    session.read(y)
}

fn main() -> veilgrad::Result<()> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(CpuEngine::<f32>::new())];
    if let Some(name) = std::env::args().nth(1) {
        engines.push(Box::new(GpuEngine::open(&Selector::named(name))?));
    }
    for engine in engines {
        let y = run(engine.as_ref())?;
        println!("{:.4} {:.4} {:.4}  on {}", y[0], y[1], y[2], engine.describe());
    }
    Ok(())
}
