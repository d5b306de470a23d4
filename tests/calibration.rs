//! Solving for noise, steps and sampling rate: safe, tight, and clear about what is out of reach.

use proptest::prelude::*;
use veilgrad::Error;
use veilgrad::privacy::accounting::*;

/// Noise multipliers published with the settings they reach (delta = 1 / N, 233,804,767 examples, ViP's orders).
#[test]
fn noise_of_the_published_settings() {
    let n = 233_804_767.0;
    let solver = Solver::new(by_name("rdp-vip").unwrap(), 1.0 / n).unwrap();
    for (batch, target, steps, want) in [
        (1_310_720.0, 1.0, 5708, 2.483),
        (1_310_720.0, 1.0, 2854, 1.848),
        (1_310_720.0, 1.0, 1427, 1.518),
        (1_310_720.0, 2.0, 5708, 1.428),
        (1_310_720.0, 8.0, 5708, 0.730),
        (655_360.0, 2.0, 5708, 1.032),
        (98_304.0, 8.0, 5708, 0.473),
    ] {
        let sigma = solver.noise_multiplier(target, batch / n, steps).unwrap();
        assert!((sigma - want).abs() <= 6e-4, "{batch} {target} {steps}: {sigma} {want}");
    }
}

#[test]
fn answers_at_the_edges() {
    let solver = Solver::new(&ALL[0], 1e-5).unwrap();
    // Without noise to speak of: a target so large that the smallest noise reaches it.
    assert_eq!(solver.noise_multiplier(1e12, 0.1, 1).unwrap(), 1e-3);
    assert_eq!(solver.steps(1.0, 0.0, 1.0).unwrap(), MAX_STEPS);
    assert_eq!(solver.steps(1.0, 0.5, 0.0).unwrap(), 0);
    assert_eq!(solver.steps(1e-3, 0.9, 0.5).unwrap(), 0);
    assert_eq!(solver.steps(8.0, 1e-12, 1e6).unwrap(), MAX_STEPS);
    assert_eq!(solver.sampling_rate(1.0, 100.0, 1).unwrap(), 1.0);
    assert_eq!(solver.sampling_rate(1.0, 1.0, 0).unwrap(), 1.0);
    let billion = solver.noise_multiplier(1.0, 1e-3, 1_000_000_000).unwrap();
    assert!(billion > 50.0 && solver.epsilon(1e-3, billion, 1_000_000_000).unwrap().value <= 1.0);
}

#[test]
fn what_is_out_of_reach_is_refused() {
    let is_invalid = |result: Result<f64, Error>, field: &str| match result {
        Err(Error::Invalid { field: got, .. }) => assert_eq!(got, field),
        other => panic!("{other:?} instead of a refusal of {field}"),
    };
    let solver = Solver::new(&ALL[0], 1e-5).unwrap();
    for target in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        is_invalid(solver.noise_multiplier(target, 0.1, 10), "epsilon");
        is_invalid(solver.sampling_rate(target, 1.0, 10), "epsilon");
        assert!(solver.steps(target, 0.1, 1.0).is_err());
    }
    is_invalid(solver.noise_multiplier(1.0, 0.1, 0), "steps");
    is_invalid(solver.noise_multiplier(1.0, 0.0, 10), "sampling rate");
    is_invalid(solver.noise_multiplier(1.0, 1.5, 10), "sampling rate");
    is_invalid(solver.noise_multiplier(1.0, f64::NAN, 10), "sampling rate");
    // Enough noise makes epsilon 0 where delta is over the total variation distance; the orders end before a small delta's.
    assert!(solver.noise_multiplier(1e-30, 0.1, 10).unwrap() > 1e4);
    is_invalid(Solver::new(&ALL[0], 1e-9).unwrap().noise_multiplier(1e-7, 0.1, 10), "epsilon");
    is_invalid(solver.sampling_rate(1.0, 0.0, 10), "epsilon");
    is_invalid(solver.sampling_rate(1.0, -1.0, 10), "noise multiplier");
    for delta in [0.0, 1.0, 1.5, -1e-5, f64::NAN] {
        assert!(Solver::new(&ALL[0], delta).is_err());
        assert!(noise_multiplier(1.0, delta, 0.1, 10).is_err() && steps(1.0, delta, 0.1, 1.0).is_err());
    }
}

#[test]
fn budgets_solve_for_the_blank() {
    let known = Budget {
        examples: Some(50_000),
        batch: Some(4096.0),
        noise_multiplier: Some(3.0),
        steps: Some(2500),
        ..Budget::default()
    };
    let outcome = known.solve().unwrap();
    assert_eq!((outcome.solved, outcome.delta), (Quantity::Epsilon, 1e-5));
    let e = Some(outcome.epsilon);
    let noise = Budget { epsilon: e, noise_multiplier: None, ..known.clone() }.solve().unwrap();
    assert!((noise.noise_multiplier - 3.0).abs() <= 1e-5 && noise.epsilon <= outcome.epsilon, "{noise:?}");
    let steps = Budget { epsilon: e, steps: None, ..known.clone() }.solve().unwrap();
    assert!(steps.steps == 2500 && steps.epsilon <= outcome.epsilon, "{steps:?}");
    let batch = Budget { epsilon: e, batch: None, ..known.clone() }.solve().unwrap();
    assert!((batch.batch().unwrap() - 4096.0).abs() <= 0.01 && batch.epsilon <= outcome.epsilon, "{batch:?}");
    let rate = Budget { batch: None, sampling_rate: Some(0.08192), ..known.clone() }.solve().unwrap();
    assert_eq!(rate.epsilon, outcome.epsilon);

    let text = noise.to_string();
    for word in
        ["epsilon", "delta", "noise multiplier", "4096.0 of 50000", "2500", "<- solved", "rdp", "Poisson"]
    {
        assert!(text.contains(word), "{text}");
    }
    let printed: f64 = text.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(printed >= noise.epsilon && printed <= noise.epsilon + 2e-4, "{text}");

    for (wrong, field) in [
        (Budget { epsilon: Some(1.0), ..known.clone() }, "blank"),
        (Budget { steps: None, ..known.clone() }, "blank"),
        (Budget { sampling_rate: Some(0.1), ..known.clone() }, "batch"),
        (Budget { examples: None, delta: Some(1e-5), ..known.clone() }, "batch"),
        (
            Budget { examples: None, batch: None, sampling_rate: Some(0.1), ..known.clone() },
            "delta = 1 / (2 N)",
        ),
        (Budget { examples: Some(0), ..known.clone() }, "examples"),
        (Budget { batch: Some(50_001.0), ..known.clone() }, "batch"),
        (Budget { batch: Some(f64::NAN), ..known.clone() }, "batch"),
        (Budget { delta: Some(1.0), ..known.clone() }, "delta"),
    ] {
        match wrong.solve() {
            Err(Error::Invalid { field: got, .. }) => assert_eq!(got, field),
            other => panic!("{other:?} instead of a refusal of {field}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Put back, an answer costs at most the target; and a little less noise, or one step or a little more rate, exceeds it.
    #[test]
    fn answers_are_safe_and_tight(
        q in -10.0..0.0f64, steps in 1..50_000u64, target in -2.0..4.0f64, delta in -30.0..-5.0f64,
    ) {
        let (q, target, delta) = (q.exp(), target.exp(), delta.exp());
        let solver = Solver::new(&ALL[0], delta).unwrap();
        let eps = |q, sigma, n| solver.epsilon(q, sigma, n).unwrap().value;
        let sigma = solver.noise_multiplier(target, q, steps).unwrap();
        prop_assert!(eps(q, sigma, steps) <= target);
        prop_assert!(eps(q, sigma * (1.0 - 3e-6), steps) > target);
        let most = solver.steps(target, q, sigma).unwrap();
        prop_assert!(most >= steps && eps(q, sigma, most) <= target);
        prop_assert!(eps(q, sigma, most + 1 + most / 1_000_000) > target);
        let rate = solver.sampling_rate(target, sigma, steps).unwrap();
        prop_assert!(rate >= q * (1.0 - 3e-6) && eps(rate, sigma, steps) <= target);
    }
}
