//! A small perceptron in a session, and an independent draw of the noise.

use std::sync::OnceLock;

use rand_core::Rng;
use veilgrad::cpu::CpuEngine;
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::graph::{Graph, Mode, Options, Plan, Value};
use veilgrad::model::Net;
use veilgrad::ops::{Tensor, gelu::Gelu, masked_mse::MaskedMse};
use veilgrad::privacy::clip::ClipRule;
use veilgrad::privacy::config::{Noise, PrivacyConfig};
use veilgrad::record::{Engine, Session};
use veilgrad::rng::{Key, Purpose, normal};

/// Every engine that must agree: CPU at both precisions, GPU at the least limits.
pub fn engines() -> [&'static dyn Engine; 3] {
    static ENGINES: OnceLock<(CpuEngine<f32>, CpuEngine<f64>, GpuEngine)> = OnceLock::new();
    let gpu = || GpuEngine::open_portable(&Selector::named("lavapipe")).expect("lavapipe is installed");
    let (single, double, gpu) = ENGINES.get_or_init(|| (CpuEngine::new(), CpuEngine::new(), gpu()));
    [single, double, gpu]
}

pub const TOKENS: usize = 3;

/// Two dense layers with biases between x (B, 3, `widths[0]`) and a squared error.
pub fn perceptron(batch: usize, widths: [usize; 3]) -> (Graph, Value) {
    let mut graph = Graph::new(batch);
    let x = graph.input("x", Tensor::float([batch, TOKENS, widths[0]])).unwrap();
    let target = graph.input("target", Tensor::float([batch, TOKENS, widths[2]])).unwrap();
    let mask = graph.input("mask", Tensor::float([batch, TOKENS])).unwrap();
    let mut net = Net { graph: &mut graph, eps: 1e-5 };
    let h = net.linear("fc1", x, widths[1], true).unwrap();
    let h = net.graph.apply("act", Gelu, &[h]).unwrap();
    let y = net.linear("fc2", h, widths[2], true).unwrap();
    let loss = graph.apply("loss", MaskedMse { skip: 0 }, &[y, target, mask]).unwrap();
    (graph, loss)
}

pub fn lower(engine: &dyn Engine, graph: &Graph, mode: Mode, rule: Option<ClipRule>, binding: u64) -> Plan {
    let mut options = Options::new(mode, engine);
    options.max_binding_bytes = options.max_binding_bytes.min(binding);
    options.per_layer = rule.is_some_and(|r| r.per_layer());
    graph.lower(&options).unwrap()
}

/// Opens a plan with its constant tables.
pub fn open(engine: &dyn Engine, plan: &Plan) -> Box<dyn Session> {
    let mut session = engine.open(&plan.layout).unwrap();
    if let Some((slice, words)) = &plan.segments {
        session.write_u32(*slice, words).unwrap();
    }
    session
}

pub fn config(rule: ClipRule, sigma: f64, batch: f64) -> PrivacyConfig {
    PrivacyConfig::new(1000, batch, 100, rule, Noise::Multiplier(sigma), None).unwrap()
}

/// Numbers from a stream.
pub fn normals(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Key::from_seed(seed).stream(0);
    (0..n).map(|_| normal(&mut rng) as f32).collect()
}

/// Arena element `e` of a step's noise, from `rand_chacha` and the definition alone.
pub fn noise(run_key: &Key, step: u64, e: u64) -> f64 {
    let mut rng = run_key.derive(Purpose::Noise).stream(step);
    let (block, word) = ((e / 16) as u128, (e % 16 / 2 * 2) as u128);
    rng.set_word_pos(block * 16 + word);
    let (a, b) = (rng.next_u32() as f64, rng.next_u32() as f64);
    let mut u = (a + 1.0) / 2f64.powi(32);
    if a < 65536.0 {
        rng.set_word_pos(((1 << 63) + block) * 16 + word);
        u = (a * 2f64.powi(32) + rng.next_u32() as f64 + 1.0) / 2f64.powi(64);
    }
    let angle = std::f64::consts::TAU * b / 2f64.powi(32);
    (-2.0 * u.ln()).sqrt() * if e.is_multiple_of(2) { angle.cos() } else { angle.sin() }
}
