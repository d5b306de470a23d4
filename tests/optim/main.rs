//! Optimisers against the published formulas, in f64 and element by element.

use std::sync::OnceLock;

use rand_core::Rng;
use veilgrad::cpu::CpuEngine;
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::graph::{Graph, Init, Mode, Options, ParamSpec, Plan};
use veilgrad::ops::{Tensor, linear::Linear, masked_mse::MaskedMse};
use veilgrad::optim::{Update, adamw::AdamW, sgd::Sgd};
use veilgrad::privacy::clip::{ClipRule, Clipped};
use veilgrad::privacy::config::{Noise, PrivacyConfig};
use veilgrad::privacy::noise::{Gradient, NoisyGrad, PlainGrad};
use veilgrad::record::{Engine, Session};
use veilgrad::rng::{Key, Purpose, normal};
use veilgrad::shape::Shape;

/// Every engine that must agree: CPU at both precisions, GPU at the least limits.
fn engines() -> [&'static dyn Engine; 3] {
    static ENGINES: OnceLock<(CpuEngine<f32>, CpuEngine<f64>, GpuEngine)> = OnceLock::new();
    let gpu = || GpuEngine::open_portable(&Selector::named("lavapipe")).expect("lavapipe is installed");
    let (single, double, gpu) = ENGINES.get_or_init(|| (CpuEngine::new(), CpuEngine::new(), gpu()));
    [single, double, gpu]
}

const EXPECTED_BATCH: f64 = 24.0;
const STEPS: u64 = 10;

/// A dense layer with weight (65, 33) and bias (65), its loss on top, lowered for an optimiser.
struct Bench {
    plan: Plan,
    gradient: Gradient,
    /// Standard deviation of the noise on the sum.
    std: f64,
}

fn key() -> Key {
    Key::from_seed(77)
}

fn bench(engine: &dyn Engine, private: bool) -> Bench {
    let mut graph = Graph::new(2);
    let x = graph.input("x", Tensor::float([2, 1, 33])).unwrap();
    let spec = |name: &str, shape: Shape| ParamSpec {
        name: name.into(),
        shape,
        init: Init::Constant(0.0),
        trainable: true,
    };
    let w = graph.param(&spec("weight", [65, 33].into())).unwrap();
    let b = graph.param(&spec("bias", [65].into())).unwrap();
    let y = graph.apply("fc", Linear { bias: true }, &[x, w, b]).unwrap();
    let target = graph.input("target", Tensor::float([2, 1, 65])).unwrap();
    let mask = graph.input("mask", Tensor::float([2, 1])).unwrap();
    let loss = graph.apply("loss", MaskedMse { skip: 0 }, &[y, target, mask]).unwrap();
    if !private {
        let plan = graph.lower(&Options::new(Mode::Plain { loss }, engine)).unwrap();
        let gradient = PlainGrad::not_private(&plan.chunks, EXPECTED_BATCH).into();
        return Bench { plan, gradient, std: 0.0 };
    }
    let rule = ClipRule::Flat { norm: 0.5 };
    let mut plan = graph.lower(&Options::new(Mode::PerExample { loss }, engine)).unwrap();
    let config = PrivacyConfig::new(500, EXPECTED_BATCH, STEPS, rule, Noise::Multiplier(1.5), None).unwrap();
    let sum = Clipped::new(&mut plan, rule).unwrap().sum;
    let noisy = NoisyGrad::new(sum, &config, &mut plan.layout, &key()).unwrap();
    Bench { plan, gradient: noisy.into(), std: 0.75 }
}

/// Gradient sum of a step, arena element by arena element.
fn sums(step: u64, n: usize) -> Vec<f32> {
    let mut rng = Key::from_seed(1).stream(step);
    (0..n).map(|_| (3.0 * normal(&mut rng)) as f32).collect()
}

/// The noise of a step by the definition; no radius word of these steps is small enough to be lengthened.
fn noise(step: u64, n: usize) -> Vec<f64> {
    let mut rng = key().derive(Purpose::Noise).stream(step);
    (0..n.div_ceil(2))
        .flat_map(|_| {
            let (a, b) = (rng.next_u32(), rng.next_u32());
            assert!(a >= 1 << 16);
            let r = (-2.0 * ((a as f64 + 1.0) / 2f64.powi(32)).ln()).sqrt();
            let angle = std::f64::consts::TAU * b as f64 / 2f64.powi(32);
            [r * angle.cos(), r * angle.sin()]
        })
        .take(n)
        .collect()
}

/// Learning rate of a step.
fn rate(step: u64) -> f64 {
    0.05 * (step + 1) as f64 / STEPS as f64
}

/// Runs ten steps with given gradient sums; parameters of the arena before the first step and after each.
fn run(engine: &dyn Engine, bench: &Bench, mut update: Update) -> Vec<Vec<f64>> {
    let chunk = bench.plan.chunks[0];
    assert_eq!((bench.plan.chunks.len(), chunk.base), (1, 0));
    let mut session = engine.open(&bench.plan.layout).unwrap();
    let program = session.prepare(&update.recording).unwrap();
    let start: Vec<f32> = sums(1000, chunk.params.len).into_iter().map(|x| 0.1 * x).collect();
    session.write(chunk.params, &start).unwrap();
    let read = |session: &mut dyn Session| {
        session.read(chunk.params).unwrap().into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    let mut out = vec![read(session.as_mut())];
    for step in 0..STEPS {
        session.write(chunk.grads, &sums(step, chunk.grads.len)).unwrap();
        update.begin_step(session.as_mut(), step, rate(step)).unwrap();
        session.run(program).unwrap();
        out.push(read(session.as_mut()));
    }
    out
}

/// Gradients that the steps must have seen.
fn gradients(bench: &Bench) -> Vec<Vec<f64>> {
    let n = bench.plan.chunks[0].grads.len;
    let of = |step| {
        let z = noise(step, n);
        let sum = sums(step, n);
        (0..n).map(|k| (sum[k] as f64 + bench.std * z[k]) / EXPECTED_BATCH).collect()
    };
    (0..STEPS).map(of).collect()
}

/// Arena ranges of the tensors, with their number of axes.
fn tensors(bench: &Bench) -> Vec<(std::ops::Range<usize>, usize)> {
    let of = |p: &veilgrad::graph::ParamSlot| {
        (p.values.offset..p.values.offset + p.values.len, p.spec.shape.rank())
    };
    bench.plan.params.iter().map(of).collect()
}

fn compare(got: &[Vec<f64>], want: &[Vec<f64>], bench: &Bench, name: &str) {
    for (step, (got, want)) in got.iter().zip(want).enumerate() {
        for (range, _) in tensors(bench) {
            for k in range {
                let (g, w) = (got[k], want[k]);
                assert!((g - w).abs() <= 3e-6 * (0.1 + w.abs()), "{name} step {step} [{k}]: {g} against {w}");
            }
        }
    }
}

#[test]
fn adamw_follows_its_formula_with_noise_and_without() {
    for private in [false, true] {
        for engine in engines() {
            for (weight_decay, betas) in [(0.0, [0.9, 0.95]), (0.3, [0.8, 0.999])] {
                let mut bench = bench(engine, private);
                let adamw = AdamW { weight_decay, betas, eps: 1e-8 };
                let update = adamw.record(&mut bench.plan.layout, &bench.gradient).unwrap();
                let got = run(engine, &bench, update);
                let n = got[0].len();
                let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
                let mut want = vec![got[0].clone()];
                for (t, g) in gradients(&bench).iter().enumerate() {
                    let mut p = want[t].clone();
                    let [power1, power2] = betas.map(|b: f64| b.powi(t as i32 + 1));
                    for k in 0..n {
                        m[k] = betas[0] * m[k] + (1.0 - betas[0]) * g[k];
                        v[k] = betas[1] * v[k] + (1.0 - betas[1]) * g[k] * g[k];
                        let (m, v) = (m[k] / (1.0 - power1), v[k] / (1.0 - power2));
                        p[k] -= rate(t as u64) * weight_decay * p[k];
                        p[k] -= rate(t as u64) * m / (v.sqrt() + 1e-8);
                    }
                    want.push(p);
                }
                let name = format!("private {private}, decay {weight_decay}, {}", engine.describe());
                compare(&got, &want, &bench, &name);
            }
        }
    }
}

#[test]
fn sgd_and_lars_follow_their_formulas_with_noise_and_without() {
    let rules = [
        Sgd { momentum: 0.0, weight_decay: 0.0, trust: 0.0 },
        Sgd { momentum: 0.9, weight_decay: 0.1, trust: 0.0 },
        Sgd { momentum: 0.9, weight_decay: 0.1, trust: 0.02 },
        Sgd::lars(),
    ];
    for private in [false, true] {
        for engine in engines() {
            for sgd in rules {
                let mut bench = bench(engine, private);
                let params = bench.plan.params.clone();
                let update = sgd.record(&mut bench.plan.layout, &bench.gradient, &params).unwrap();
                let got = run(engine, &bench, update);
                let mut mu = vec![0.0; got[0].len()];
                let mut want = vec![got[0].clone()];
                for (t, g) in gradients(&bench).iter().enumerate() {
                    let mut p = want[t].clone();
                    for (range, rank) in tensors(&bench) {
                        let g: Vec<f64> = range.clone().map(|k| g[k] + sgd.weight_decay * p[k]).collect();
                        let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
                        let trust = match sgd.trust * norm(&p[range.clone()]) / norm(&g) {
                            ratio if rank > 1 && ratio > 0.0 => ratio,
                            _ => 1.0,
                        };
                        for (k, g) in range.zip(g) {
                            mu[k] = sgd.momentum * mu[k] + trust * g;
                            p[k] -= rate(t as u64) * mu[k];
                        }
                    }
                    want.push(p);
                }
                let name = format!("private {private}, {sgd:?}, {}", engine.describe());
                compare(&got, &want, &bench, &name);
            }
        }
    }
}

#[test]
fn lars_without_parameter_or_gradient_takes_a_plain_step() {
    for engine in engines() {
        let mut bench = bench(engine, false);
        let params = bench.plan.params.clone();
        let mut update = Sgd::lars().record(&mut bench.plan.layout, &bench.gradient, &params).unwrap();
        let mut session = engine.open(&bench.plan.layout).unwrap();
        let program = session.prepare(&update.recording).unwrap();
        let chunk = bench.plan.chunks[0];
        session.write(chunk.grads, &vec![24.0; chunk.grads.len]).unwrap();
        update.begin_step(session.as_mut(), 0, 0.5).unwrap();
        session.run(program).unwrap();
        let weight = bench.plan.param("weight").unwrap().values;
        assert!(session.read(weight).unwrap().iter().all(|x| *x == -0.5));
        // A gradient of zero next: what moves is the momentum, 0.9 of the last update.
        session.write(chunk.grads, &vec![0.0; chunk.grads.len]).unwrap();
        update.begin_step(session.as_mut(), 1, 0.5).unwrap();
        session.run(program).unwrap();
        assert!(session.read(weight).unwrap().iter().all(|x| (x + 0.95).abs() <= 1e-6));
    }
}

#[test]
fn a_step_gives_the_same_bytes_twice() {
    for engine in engines() {
        let once = || {
            let mut bench = bench(engine, true);
            let update = AdamW::default().record(&mut bench.plan.layout, &bench.gradient).unwrap();
            run(engine, &bench, update)
        };
        assert_eq!(once(), once(), "{}", engine.describe());
    }
}

#[test]
fn a_plain_step_may_be_repeated() {
    let engine = CpuEngine::<f32>::new();
    let mut bench = bench(&engine, false);
    let mut update = AdamW::default().record(&mut bench.plan.layout, &bench.gradient).unwrap();
    let mut session = engine.open(&bench.plan.layout).unwrap();
    update.begin_step(session.as_mut(), 3, 0.1).unwrap();
    update.begin_step(session.as_mut(), 3, 0.1).unwrap();
}
