//! From configuration to parameters.

use veilgrad::Error;
use veilgrad::cpu::CpuEngine;
use veilgrad::graph::Mode;
use veilgrad::optim::adamw::AdamW;
use veilgrad::privacy::clip::{ClipRule, Clipped};
use veilgrad::privacy::config::{Noise, PrivacyConfig};
use veilgrad::privacy::noise::{Gradient, NoisyGrad};
use veilgrad::rng::Key;

use crate::rig::{config, engines, lower, noise, open, perceptron};

#[test]
fn the_configuration_names_what_is_wrong() {
    let rule = ClipRule::Flat { norm: 1.0 };
    let field = |examples, batch, rule, noise, delta| match PrivacyConfig::new(
        examples, batch, 10, rule, noise, delta,
    ) {
        Err(Error::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let sigma = Noise::Multiplier(1.0);
    assert_eq!(field(0, 1.0, rule, sigma, None), "examples");
    for batch in [0.0, -1.0, 101.0, f64::NAN, f64::INFINITY] {
        assert_eq!(field(100, batch, rule, sigma, None), "batch");
    }
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(field(100, 10.0, rule, Noise::Multiplier(bad), None), "noise_multiplier");
        assert_eq!(field(100, 10.0, ClipRule::Flat { norm: bad }, sigma, None), "clipping_norm");
        assert_eq!(field(100, 10.0, rule, sigma, Some(bad)), "delta");
    }
    assert_eq!(field(100, 10.0, rule, sigma, Some(0.02)), "delta");
}

#[test]
fn a_target_epsilon_gives_the_noise_that_keeps_it() {
    let rule = ClipRule::Flat { norm: 1.0 };
    let config = PrivacyConfig::new(10_000, 256.0, 500, rule, Noise::TargetEpsilon(3.0), None).unwrap();
    let spent = config.epsilon(500).unwrap().value;
    assert!((2.99..=3.0).contains(&spent), "{spent}");
    assert_eq!((config.delta(), config.sampling_rate(), config.expected_batch()), (5e-5, 0.0256, 256.0));
}

#[test]
fn a_sum_clipped_by_another_rule_gets_no_noise() {
    let engine = CpuEngine::<f32>::new();
    let (graph, loss) = perceptron(2, [3, 4, 5]);
    let rule = ClipRule::Flat { norm: 1.0 };
    let mut plan = lower(&engine, &graph, Mode::PerExample { loss }, Some(rule), u64::MAX);
    let clipped = Clipped::new(&mut plan, rule).unwrap();
    let other = config(ClipRule::Flat { norm: 0.5 }, 1.0, 10.0);
    let refused = NoisyGrad::new(clipped.sum, &other, &mut plan.layout, &Key::from_seed(1));
    assert!(matches!(refused, Err(Error::Invalid { field, .. }) if field == "clipping_norm"));
}

#[test]
fn an_empty_batch_is_a_step_of_noise_alone_and_no_step_is_noised_twice() {
    let rule = ClipRule::Flat { norm: 0.1 };
    let key = Key::from_seed(3);
    for engine in engines() {
        let (graph, loss) = perceptron(2, [3, 4, 5]);
        let mut plan = lower(engine, &graph, Mode::PerExample { loss }, Some(rule), u64::MAX);
        let clipped = Clipped::new(&mut plan, rule).unwrap();
        let noisy = NoisyGrad::new(clipped.sum, &config(rule, 2.0, 50.0), &mut plan.layout, &key).unwrap();
        let gradient = Gradient::from(noisy);
        assert_eq!((gradient.std(), gradient.scale()), (0.2, 0.02));
        let mut update = AdamW::default().record(&mut plan.layout, &gradient).unwrap();
        let mut session = open(engine, &plan);
        let [zero, step] = [&plan.zero, &update.recording].map(|r| session.prepare(r).unwrap());
        session.run(zero).unwrap();
        update.begin_step(session.as_mut(), 4, 1e-3).unwrap();
        session.run(step).unwrap();
        // After one step m = 0.1 g, so the gradient that was applied is known.
        let (_, m) = update.state[0];
        for (e, m) in session.read(m).unwrap().into_iter().enumerate() {
            let want = 0.1 * 0.02 * 0.2 * noise(&key, 4, e as u64);
            assert!((m as f64 - want).abs() <= 1e-9, "{e}: {m} against {want}, {}", engine.describe());
        }
        for used in [0, 3, 4, 1 << 63] {
            assert!(matches!(
                update.begin_step(session.as_mut(), used, 1e-3),
                Err(Error::Invalid { field, .. }) if field == "step"
            ));
        }
        update.begin_step(session.as_mut(), 5, 1e-3).unwrap();
    }
}
