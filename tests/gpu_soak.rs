//! Memory of the process over many steps on the GPU engine. Alone in its binary, so that nothing else allocates.

use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::kernel::{Args, Kernel, Real};
use veilgrad::record::{DType, Engine, Layout, Recording};

static INCREMENT: Kernel = veilgrad::kernel!("test/probe", "increment", increment);

fn increment<F: Real>(a: &mut Args<'_, F>) {
    let step = a.f("step");
    a.output("x").iter_mut().for_each(|x| *x += step);
}

/// Resident memory in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc");
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages") * 4096
}

#[cfg(target_os = "linux")]
#[test]
fn memory_stays_flat_over_two_thousand_steps() {
    let engine = GpuEngine::open(&Selector::named("lavapipe")).expect("adapter");
    let mut layout = Layout::default();
    let x = layout.add("x", DType::F32, 16_384);
    let mut session = engine.open(&layout).unwrap();
    let mut rec = Recording::new();
    for _ in 0..3 {
        rec.dispatch(&INCREMENT)
            .bind("x", x)
            .n("n", x.len)
            .n("base", 0)
            .param("step", 1.0)
            .threads(x.len)
            .unwrap();
    }
    let program = session.prepare(&rec).unwrap();
    let data = vec![1.0; x.len];
    let mut early = 0;
    for step in 0..2000 {
        session.write(x, &data).unwrap();
        session.run(program).unwrap();
        if step % 100 == 0 {
            assert_eq!(session.read(x.part(0, 64)).unwrap(), [4.0; 64]);
        }
        if step == 300 {
            early = resident();
        }
    }
    session.wait().unwrap();
    let grown = resident().saturating_sub(early);
    // The uploads after step 300 come to 111 MiB.
    assert!(grown <= 8 << 20, "grew by {} KiB", grown / 1024);
}
