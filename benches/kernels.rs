//! Speed of the products and gradient rules at the shapes of a ViT: `cargo bench --bench kernels [-- FILTER]`.
//!
//! Per weight: forward `x W^T + b`, backward `dy W`, per-example norms, weighted sum, in GFLOP/s of the product's
//! own count, so that the columns compare; norms also as a share of the time of the other three.

use std::time::Instant;

use veilgrad::cpu::CpuEngine;
use veilgrad::ops::matmul::{self, Extras, Spec};
use veilgrad::ops::{row_grad, weight_grad};
use veilgrad::record::{DType, Engine, Layout, Recording, Session};

/// (name, examples, tokens, in, out).
const SHAPES: [(&str, usize, usize, usize, usize); 9] = [
    ("micro encoder qkv", 64, 17, 128, 384),
    ("micro encoder proj", 64, 17, 128, 128),
    ("micro encoder fc1", 64, 17, 128, 512),
    ("micro encoder fc2", 64, 17, 512, 128),
    ("micro decoder fc1", 64, 65, 64, 256),
    ("nano decoder qkv", 64, 65, 128, 384),
    ("nano fc1", 64, 65, 192, 768),
    ("small fc1", 8, 197, 384, 1536),
    ("base fc1", 4, 197, 768, 3072),
];

fn main() {
    // `cargo bench` passes flags of its own.
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let engine = CpuEngine::<f32>::new();
    println!("{}", engine.describe());
    println!(
        "{:20} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  norm/product",
        "GFLOP/s", "sgemm", "forward", "backward", "sum", "sum f=1", "norm"
    );
    for (name, batch, tokens, width_in, width_out) in SHAPES {
        if name.contains(&filter) {
            run(&engine, name, weight_grad::Dims { batch, tokens, width_in, width_out });
        }
    }
}

fn run(engine: &dyn Engine, name: &str, d: weight_grad::Dims) {
    let rows = d.batch * d.tokens;
    let mut layout = Layout::default();
    let x = layout.add("x", DType::F32, rows * d.width_in);
    let w = layout.add("w", DType::F32, d.width_out * d.width_in);
    let bias = layout.add("bias", DType::F32, d.width_out);
    let y = layout.add("y", DType::F32, rows * d.width_out);
    let dx = layout.add("dx", DType::F32, rows * d.width_in);
    let dw = layout.add("dw", DType::F32, d.width_out * d.width_in);
    let factors = layout.add("factors", DType::F32, d.batch);
    let ones = layout.add("ones", DType::F32, d.batch);
    let norms = layout.add("norms", DType::F32, d.batch);
    let scratch: Vec<_> =
        weight_grad::scratch(d).iter().map(|t| layout.add("scratch", t.dtype, t.shape.len())).collect();
    let mut session = engine.open(&layout).expect("session");
    let noise = |n: usize| -> Vec<f32> {
        (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 16_777_216.0 - 0.5).collect()
    };
    session.write(x, &noise(x.len)).expect("write");
    session.write(w, &noise(w.len)).expect("write");
    session.write(factors, &vec![0.7; d.batch]).expect("write");
    session.write(ones, &vec![1.0; d.batch]).expect("write");
    let mut programs = Vec::new();
    let mut program = |record: &dyn Fn(&mut Recording) -> veilgrad::Result<()>| {
        let mut rec = Recording::new();
        record(&mut rec).expect("records");
        programs.push(session.prepare(&rec).expect("prepare"));
    };
    let plain = Extras::default();
    let forward = Spec::new(rows, d.width_out, d.width_in, false, true);
    let backward = Spec::new(rows, d.width_in, d.width_out, false, false);
    program(&|rec| matmul::record(rec, &forward, x, w, y, &Extras { bias: Some(bias), ..plain }));
    program(&|rec| matmul::record(rec, &backward, y, w, dx, &plain));
    program(&|rec| weight_grad::record_sum(rec, d, x, y, factors, dw));
    program(&|rec| weight_grad::record_sum(rec, d, x, y, ones, dw));
    program(&|rec| weight_grad::record_sq_norm(rec, d, x, y, norms, &scratch));
    program(&|rec| row_grad::record_sq_norm_single(rec, x, d.batch, d.tokens * d.width_in, norms));
    let seconds: Vec<f64> = programs.iter().map(|&p| time(session.as_mut(), p)).collect();
    let giga = forward.flops() as f64 / 1e9;
    print!("{name:20} {:9.1}", roof(&forward));
    for s in &seconds[..5] {
        print!(" {:9.1}", giga / s);
    }
    let product = seconds[..3].iter().sum::<f64>();
    println!(
        "  {:6.3} ({:?})  reading x {:.1} GB/s",
        seconds[4] / product,
        d.rule(),
        4e-9 * x.len as f64 / seconds[5]
    );
}

/// The product by `matrixmultiply` alone, on one thread, times the threads.
fn roof(s: &Spec) -> f64 {
    let (a, b, mut c) = (vec![0.5f32; s.m * s.k], vec![0.5f32; s.k * s.n], vec![0.0f32; s.m * s.n]);
    let mut best = f64::MAX;
    for _ in 0..20 {
        let t = Instant::now();
        // SAFETY: dense operands of these extents.
        unsafe {
            let (m, k, n) = (s.m, s.k, s.n);
            let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
            matrixmultiply::sgemm(m, k, n, 1.0, a, k as isize, 1, b, 1, k as isize, 0.0, c, n as isize, 1);
        }
        best = best.min(t.elapsed().as_secs_f64());
    }
    s.flops() as f64 / best / 1e9 * rayon::current_num_threads() as f64
}

/// Best of several runs: other work on the machine only adds.
fn time(session: &mut dyn Session, program: veilgrad::record::Program) -> f64 {
    let mut best = f64::MAX;
    let start = Instant::now();
    let mut runs = 0;
    while runs < 5 || (start.elapsed().as_secs_f64() < 0.3 && runs < 200) {
        let t = Instant::now();
        session.run(program).expect("run");
        session.wait().expect("wait");
        best = best.min(t.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}
