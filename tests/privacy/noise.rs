//! The noise that reaches the parameters: word for word, in distribution, and whatever the cut of the arena.

use std::collections::BTreeMap;

use veilgrad::cpu::CpuEngine;
use veilgrad::graph::Mode;
use veilgrad::optim::sgd::Sgd;
use veilgrad::privacy::clip::{ClipRule, Clipped};
use veilgrad::privacy::noise::{Gradient, NoisyGrad};
use veilgrad::record::Engine;
use veilgrad::rng::Key;

use crate::rig::{config, engines, lower, noise, open, perceptron};

/// The noise of one step as it reaches zero parameters by a plain gradient step of rate -1 without any example;
/// by parameter, with the arena index of its first element.
fn draw(
    engine: &dyn Engine,
    widths: [usize; 3],
    key: &Key,
    step: u64,
    sigma: f64,
    binding: u64,
) -> BTreeMap<String, (u64, Vec<f32>)> {
    let rule = ClipRule::Flat { norm: 0.5 };
    let (graph, loss) = perceptron(2, widths);
    let mut plan = lower(engine, &graph, Mode::PerExample { loss }, Some(rule), binding);
    let clipped = Clipped::new(&mut plan, rule).unwrap();
    let noisy = NoisyGrad::new(clipped.sum, &config(rule, sigma, 1.0), &mut plan.layout, key).unwrap();
    let sgd = Sgd { momentum: 0.0, weight_decay: 0.0, trust: 0.0 };
    let mut update = sgd.record(&mut plan.layout, &Gradient::from(noisy), &plan.params).unwrap();
    let mut session = open(engine, &plan);
    let program = session.prepare(&update.recording).unwrap();
    update.begin_step(session.as_mut(), step, -1.0).unwrap();
    session.run(program).unwrap();
    let mut out = BTreeMap::new();
    for slot in &plan.params {
        let grad = slot.grad.unwrap();
        let chunk = plan.chunks.iter().find(|c| c.grads.buffer == grad.buffer).unwrap();
        let first = chunk.base + (grad.offset - chunk.grads.offset) as u64;
        out.insert(slot.spec.name.clone(), (first, session.read(slot.values).unwrap()));
    }
    out
}

fn all(drawn: &BTreeMap<String, (u64, Vec<f32>)>, std: f64) -> Vec<f64> {
    drawn.values().flat_map(|(_, x)| x).map(|&x| x as f64 / std).collect()
}

fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

/// Kolmogorov and Smirnov's `sqrt(n) sup |F_n - F|` against the standard normal.
fn distance(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    let n = x.len() as f64;
    let gap = |(i, x): (usize, &f64)| {
        let f = normal_cdf(*x);
        (f - i as f64 / n).abs().max(((i + 1) as f64 / n - f).abs())
    };
    n.sqrt() * x.iter().enumerate().map(gap).fold(0.0, f64::max)
}

/// `P(sqrt(n) D > k) <= 2 exp(-2 k^2)` is 1e-6 here (Massart 1990).
const ONE_IN_A_MILLION: f64 = 2.694;

#[test]
fn every_element_is_the_defined_normal_in_any_cut_of_the_arena() {
    let key = Key::from_seed(11);
    for engine in engines() {
        for step in [0, 1, (1 << 32) + 5, (1 << 63) - 1] {
            let whole = draw(engine, [33, 70, 17], &key, step, 2.0, u64::MAX);
            for (name, (first, values)) in &whole {
                for (k, &x) in values.iter().enumerate() {
                    let want = noise(&key, step, first + k as u64);
                    assert!(
                        (x as f64 - want).abs() <= 2e-6,
                        "{name}[{k}] of step {step}: {x} against {want}"
                    );
                }
            }
            let cut = draw(engine, [33, 70, 17], &key, step, 2.0, 4 * 2560);
            assert_eq!(whole, cut, "{}", engine.describe());
        }
    }
}

#[test]
fn engines_agree_to_a_few_units_in_the_last_place() {
    let key = Key::from_seed(12);
    let [a, b, c] = engines().map(|e| all(&draw(e, [64, 512, 64], &key, 3, 2.0, u64::MAX), 1.0));
    for ((x, y), z) in a.into_iter().zip(b).zip(c) {
        // Near a zero of sine or cosine the angle's own rounding shows, hence the absolute part.
        let tol = 6e-7 * (x.abs() + 0.1);
        assert!((x - y).abs() <= tol && (x - z).abs() <= tol, "{x} against {y} and {z}");
    }
}

#[test]
fn noise_is_normal_of_the_accounted_deviation() {
    for (seed, engine) in engines().into_iter().enumerate() {
        let x = all(&draw(engine, [300, 400, 64], &Key::from_seed(seed as u64), 5, 0.7, u64::MAX), 0.35);
        assert!(x.len() > 140_000);
        let n = (x.len() as f64).sqrt();
        let fits = distance(x.clone());
        assert!(fits <= ONE_IN_A_MILLION, "{fits}");
        // The test tells deviations apart that an error of a factor two thirds would give.
        for wrong in [2.0 / 3.0, 1.5] {
            let d = distance(x.iter().map(|x| x * wrong).collect());
            assert!(d > 10.0 * ONE_IN_A_MILLION, "{wrong}: {d}");
        }
        // Neighbours share words of one block and radius of one pair; still uncorrelated, and so are their squares.
        for lag in [1, 2, 15, 16, 17, 256, 4096] {
            let products =
                |f: fn(f64) -> f64| x.iter().zip(&x[lag..]).map(|(a, b)| f(*a) * f(*b)).sum::<f64>();
            for r in [products(|x| x), products(|x| (x * x - 1.0) / 2f64.sqrt())] {
                assert!((r / n).abs() <= 5.5, "lag {lag}: {r}");
            }
        }
        let fourth = x.iter().map(|x| x.powi(4)).sum::<f64>() / x.len() as f64;
        assert!((fourth - 3.0).abs() <= 5.5 * 96f64.sqrt() / n, "{fourth}");
    }
}

#[test]
fn steps_keys_and_tensors_have_noise_of_their_own() {
    let engine = CpuEngine::<f32>::new();
    let draw =
        |seed, step| all(&draw(&engine, [64, 128, 64], &Key::from_seed(seed), step, 2.0, u64::MAX), 1.0);
    let draws = [draw(1, 0), draw(1, 1), draw(1, 2), draw(1, 1 << 32), draw(2, 0), draw(2, 1)];
    let n = draws[0].len();
    let mut seen = std::collections::HashSet::new();
    for (i, x) in draws.iter().enumerate() {
        seen.extend(x.iter().map(|x| x.to_bits()));
        for y in &draws[..i] {
            let r: f64 = x.iter().zip(y).map(|(x, y)| x * y).sum();
            assert!(r.abs() <= 5.5 * (n as f64).sqrt(), "{r}");
        }
    }
    // f32 holds about 2^25 values between -4 and 4, so a few of 10^5 meet by chance; a tensor or step that repeated
    // another's would be thousands.
    assert!(draws.len() * n - seen.len() <= 1000, "{} of {}", seen.len(), draws.len() * n);
    assert_eq!(draw(1, 1), draws[1]);
}
