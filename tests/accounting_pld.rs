//! The accountant of privacy loss distributions against published values, closed forms, and the Renyi accountant.

use veilgrad::privacy::accounting::*;

const EPSILONS: &str = include_str!("../assets/accounting/epsilon.csv");

fn priced(relation: NeighbouringRelation, event: &Event, delta: f64) -> (f64, f64) {
    let mut accountant = Pld::new(relation).unwrap();
    accountant.compose(event).unwrap();
    let epsilon = accountant.epsilon(delta).unwrap();
    let lower = epsilon.lower.unwrap_or(0.0);
    assert!(0.0 <= lower && lower <= epsilon.value, "{event}: {epsilon:?}");
    (lower, epsilon.value)
}

/// Lower and upper bound, adding or removing one example.
fn pld(event: &Event, delta: f64) -> (f64, f64) {
    priced(NeighbouringRelation::AddOrRemoveOne, event, delta)
}

fn rdp(event: &Event, delta: f64) -> f64 {
    let mut accountant = Rdp::default();
    accountant.compose(event).unwrap();
    accountant.epsilon(delta).unwrap().value
}

/// Published pessimistic values: the upper bound is at most 1 % above, the lower one not above; the bounds are close.
#[test]
fn bounds_enclose_the_published_values() {
    let mut corrected = 0;
    for line in EPSILONS.lines().skip(1) {
        let row: Vec<f64> = line.split(',').map(|x| x.parse().unwrap()).collect();
        let (q, sigma, steps, delta, published) = (row[0], row[1], row[2] as u64, row[3], row[7]);
        let (lower, upper) = pld(&Event::dpsgd(q, sigma, steps), delta);
        assert!(upper - lower <= 3e-3 * upper, "{line}: {lower} {upper}");
        // At these three, the published value is known to be too small (assets/accounting/README.md).
        let too_small = match (q, steps) {
            (1e-7, 1_000_000) => 0.014,
            (1e-5, 1_000_000) => 0.008,
            (1e-6, 100_000) => 0.001,
            _ => 0.0,
        };
        corrected += u32::from(too_small > 0.0);
        // Published values have six decimals.
        assert!(upper <= published * (1.01 + too_small), "{line}: {upper}");
        assert!(lower <= published * (1.0 + too_small) + 5e-7, "{line}: {lower}");
        assert!(upper <= rdp(&Event::dpsgd(q, sigma, steps), delta), "{line}: {upper}");
    }
    assert_eq!(corrected, 3);
}

/// The largest and the smallest problem within 5 seconds (far less where tests are optimised and the machine is free).
#[test]
fn a_million_steps_and_one_step_take_seconds() {
    for (q, sigma, steps) in [(1e-7, 0.5, 1_000_000), (1.0, 1.0, 1), (0.999, 1.0, 1)] {
        let start = std::time::Instant::now();
        let (lower, upper) = pld(&Event::dpsgd(q, sigma, steps), 1e-9);
        assert!(upper > 0.01 && lower > 0.99 * upper, "{lower} {upper}");
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds < 30.0, "q {q}: {seconds} s");
    }
}

/// Without sampling the closed form of Balle and Wang (2018) answers; nearly without, the grids do, and they agree.
#[test]
fn gaussian_mechanism() {
    let exact =
        [(1.0, 1, 1e-5, 4.377_177_666_0), (5.0, 100, 1e-6, 10.997_150_5), (0.5, 1, 1e-5, 9.997_256_4)];
    for (sigma, steps, delta, want) in exact {
        let (lower, upper) = pld(&Event::Gaussian { noise_multiplier: sigma }.times(steps), delta);
        assert!((upper - want).abs() <= 1e-6 && upper - lower <= 1e-9 * upper, "{sigma} {upper} {want}");
        let (low, high) = pld(&Event::dpsgd(1.0 - 1e-12, sigma, steps), delta);
        assert!(low <= upper * (1.0 + 1e-9) && high >= upper * (1.0 - 1e-9), "{sigma}: {low} {upper} {high}");
        assert!(high - low <= 1e-3 * high);
    }
}

/// A delta of any size: rounding of an FFT never reaches the answer. Where it would, the Renyi bound answers, which is close there.
#[test]
fn tiny_deltas() {
    for (q, sigma, steps) in [(0.01, 1.0, 1000), (0.3, 3.0, 50), (1.0 - 1e-12, 2.0, 3)] {
        let event = Event::dpsgd(q, sigma, steps);
        let mut before = 0.0;
        for exponent in [6, 10, 11, 12, 16, 30, 100, 300] {
            let delta = 10f64.powi(-exponent);
            let (lower, upper) = pld(&event, delta);
            assert!(upper >= before, "q {q} delta {delta}");
            before = lower;
            let gap = if delta > 1e-20 { 2e-3 } else { 0.06 };
            assert!(
                upper <= rdp(&event, delta) && upper - lower <= gap * upper,
                "q {q} {delta}: {lower} {upper}"
            );
        }
    }
}

/// Pre-training, then private fine-tuning, then a release of its own: within the sum, over each part, and as Renyi allows.
#[test]
fn phases_compose() {
    let parts = [
        Event::dpsgd(0.005, 0.9, 3000),
        Event::dpsgd(0.05, 2.0, 200),
        Event::Gaussian { noise_multiplier: 8.0 },
    ];
    let all = Event::Composed(parts.to_vec());
    let (lower, upper) = pld(&all, 1e-6);
    assert!(upper - lower <= 5e-3 * upper && upper < rdp(&all, 1e-6), "{lower} {upper}");
    for part in &parts {
        assert!(lower > pld(part, 1e-6).1);
    }
    assert!(upper < parts.iter().map(|p| pld(p, 1e-6 / 3.0).1).sum());
    // The same in another order, and cut in two.
    let mut accountant = Pld::new(NeighbouringRelation::AddOrRemoveOne).unwrap();
    for event in [&parts[2], &parts[1], &Event::dpsgd(0.005, 0.9, 1), &Event::dpsgd(0.005, 0.9, 2999)] {
        accountant.compose(event).unwrap();
    }
    let again = accountant.epsilon(1e-6).unwrap();
    assert!(again.value >= lower && again.lower.unwrap() <= upper);
    assert!((again.value - upper).abs() <= 5e-3 * upper);
}

/// Replacement at twice the noise multiplier (the sum moves by 2 C): no cheaper than removal alone, no dearer than removal and
/// addition, each at half of delta or less (group privacy).
#[test]
fn replacing_one_example() {
    for (q, sigma, steps) in [(0.01, 1.0, 1000), (0.2, 2.0, 100), (1e-4, 0.6, 3000)] {
        let delta = 1e-6;
        let replace = Event::dpsgd(q, 0.5 * sigma, steps);
        let (lower, upper) = priced(NeighbouringRelation::ReplaceOne, &replace, delta);
        let (one, _) = pld(&Event::dpsgd(q, sigma, steps), delta);
        assert!(upper >= one, "{upper} {one}");
        assert!(upper - lower <= 5e-3 * upper, "{lower} {upper}");
        // (e, d) twice gives (2 e, d (1 + e^e)).
        let guess = 2.0 * one + 1.0;
        let (_, each) = pld(&Event::dpsgd(q, sigma, steps), delta / (1.0 + guess.exp()));
        assert!(each <= guess);
        assert!(lower <= 2.0 * each, "{lower} {each}");
    }
    // Without sampling a replacement is a Gaussian mechanism like any other.
    let event = Event::Gaussian { noise_multiplier: 2.0 };
    assert_eq!(priced(NeighbouringRelation::ReplaceOne, &event, 1e-5), pld(&event, 1e-5));
    let nearly = priced(NeighbouringRelation::ReplaceOne, &Event::dpsgd(1.0 - 1e-12, 2.0, 1), 1e-5);
    assert!(nearly.0 <= pld(&event, 1e-5).1 && nearly.1 >= pld(&event, 1e-5).0 * (1.0 - 1e-9));
}
