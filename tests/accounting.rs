//! Accountants against published values, exact values, closed forms, and each other.

use proptest::prelude::*;
use veilgrad::Error;
use veilgrad::privacy::accounting::*;

const EPSILONS: &str = include_str!("../assets/accounting/epsilon.csv");
const DIVERGENCES: &str = include_str!("../assets/accounting/rdp.csv");
const EXACT: &str = include_str!("../assets/accounting/exact.csv");

fn rows(text: &str) -> Vec<Vec<f64>> {
    let lines = text.lines().skip(1);
    lines.map(|l| l.split(',').map(|x| x.trim().parse().expect("a number")).collect()).collect()
}

/// Accountants whose answers take milliseconds; `accounting_pld.rs` asks the other one.
fn renyi() -> impl Iterator<Item = &'static Kind> {
    ALL.iter().filter(|kind| kind.name.starts_with("rdp"))
}

fn epsilon_by(kind: &Kind, event: &Event, delta: f64) -> f64 {
    let mut accountant = (kind.start)(NeighbouringRelation::AddOrRemoveOne).unwrap();
    accountant.compose(event).unwrap();
    accountant.epsilon(delta).unwrap().value
}

fn epsilon(q: f64, sigma: f64, steps: u64, delta: f64) -> f64 {
    epsilon_by(&ALL[0], &Event::dpsgd(q, sigma, steps), delta)
}

fn vip_epsilon(q: f64, sigma: f64, steps: u64, delta: f64) -> Epsilon {
    let mut rdp = Rdp::new(vip_orders());
    rdp.compose(&Event::dpsgd(q, sigma, steps)).unwrap();
    rdp.epsilon(delta).unwrap()
}

/// Divergences against 30-digit values: an upper bound, and tight.
#[test]
fn divergences_are_exact() {
    let rows = rows(EXACT);
    assert_eq!(rows.len(), 391);
    for row in &rows {
        let [q, sigma, alpha, exact] = row[..] else { panic!("{row:?}") };
        let got = sampled_gaussian(q, sigma, alpha).unwrap();
        assert!(got >= exact * (1.0 - 1e-15), "below the truth: {row:?}: {got}");
        assert!(got <= exact * (1.0 + 1e-8), "{row:?}: {got}");
    }
}

/// Against the published accountants where they agree. Where they do not, or one says `inf`, the exact values above decide.
#[test]
fn divergences_are_those_of_two_public_accountants() {
    let (mut agree, mut differ) = (0, 0);
    for row in rows(DIVERGENCES) {
        let [q, sigma, alpha, opacus, google] = row[..] else { panic!("{row:?}") };
        let got = sampled_gaussian(q, sigma, alpha).unwrap();
        assert!(got.is_finite() && got > 0.0, "{row:?}: {got}");
        if (opacus - google).abs() <= 1e-4 * google.abs() {
            agree += 1;
            assert!((got - google).abs() <= 1e-4 * google, "{row:?}: {got}");
        } else {
            differ += 1;
        }
    }
    assert!(agree > 250 && differ > 30, "{agree} {differ}");
}

/// Where the mass lies between the two peaks one expects: fixed windows around these miss it.
#[test]
fn large_noise_and_large_orders_are_not_underestimated() {
    for (q, sigma, alpha, exact) in [
        (0.2, 50.0, 4096.0, 0.04591974185479729),
        (0.5, 50.0, 2048.0, 0.12840592236838671),
        (0.3, 60.0, 4096.0, 0.06846859973843778),
        (0.01, 30.0, 7000.0, 0.00042258367108790648),
    ] {
        let got = sampled_gaussian(q, sigma, alpha).unwrap();
        assert!(got >= exact && got <= exact * (1.0 + 1e-8), "q {q} sigma {sigma} alpha {alpha}: {got}");
    }
}

/// Sum and quadrature, side by side: a whole order differs from its neighbours by no jump.
#[test]
fn whole_orders_continue_their_neighbours() {
    for q in [1e-6, 1e-3, 0.05, 0.5, 0.95] {
        for sigma in [0.2, 0.7, 2.0, 15.0] {
            for alpha in [2.0, 3.0, 17.0, 256.0] {
                let at = |a: f64| sampled_gaussian(q, sigma, a).unwrap();
                let (h, whole) = (alpha * 1e-6, at(alpha));
                let between = 0.5 * (at(alpha - h) + at(alpha + h));
                assert!((between - whole).abs() <= 1e-7 * whole, "q {q} sigma {sigma} alpha {alpha}");
            }
        }
    }
}

#[test]
fn closed_forms() {
    for (sigma, alpha) in [(0.4, 1.1), (1.0, 64.0), (7.0, 4096.0)] {
        let want = alpha / (2.0 * sigma * sigma);
        assert!((sampled_gaussian(1.0, sigma, alpha).unwrap() - want).abs() <= 1e-12 * want);
        assert_eq!(sampled_gaussian(0.0, sigma, alpha).unwrap(), 0.0);
    }
    assert_eq!(sampled_gaussian(0.5, 0.0, 2.0).unwrap(), f64::INFINITY);
    // Order 2: ln(1 + q^2 (e^{1 / sigma^2} - 1)), from both the sum and, just beside it, the quadrature.
    for (q, sigma) in [(0.01, 0.5), (0.3, 1.0), (1e-7, 2.0)] {
        let want = (q * q * f64::exp_m1(1.0 / (sigma * sigma))).ln_1p();
        for alpha in [2.0, 2.0 + 1e-9] {
            let got = sampled_gaussian(q, sigma, alpha).unwrap();
            assert!((got - want).abs() <= 3e-9 * want, "{got} {want}");
        }
    }
}

#[test]
fn epsilons_are_the_published_ones() {
    let rows = rows(EPSILONS);
    assert_eq!(rows.len(), 30);
    for row in rows {
        let (q, sigma, steps, delta) = (row[0], row[1], row[2] as u64, row[3]);
        let (opacus, order, google, pld) = (row[4], row[5], row[6], row[7]);
        let vip = vip_epsilon(q, sigma, steps, delta);
        assert!((vip.value - opacus).abs() <= 1e-4 * opacus, "{row:?}: {vip:?}");
        assert!((vip.order - order).abs() < 0.11 * order.max(1.0), "{row:?}: {vip:?}");
        let wide = epsilon(q, sigma, steps, delta);
        assert!(wide <= vip.value * (1.0 + 1e-12), "{row:?}: {wide}");
        assert!(wide <= google * (1.0 + 1e-4), "{row:?}: {wide}");
        // A Renyi bound cannot be below the optimum, which the privacy loss distribution pins from above by little.
        assert!(wide >= pld * 0.98, "{row:?}: {wide}");
    }
}

/// Settings of the two published systems, in the published delta. 233,804,767 examples.
#[test]
fn epsilons_of_vip_and_dp_cap() {
    let n = 233_804_767.0;
    for (batch, sigma, steps, halves, want, order) in [
        (1_310_720.0, 0.728, 5708, 1.0, 8.050, 4.3),
        (1_310_720.0, 0.728, 5708, 0.5, 8.258, 4.3),
        (1_310_720.0, 0.728, 5700, 1.0, 8.046, 4.3),
        (1_310_720.0, 0.728, 10_000, 1.0, 10.09, 4.0),
        (1_310_720.0, 1.18, 2854, 1.0, 1.993, 13.0),
        (200_000.0, 0.513, 5708, 1.0, 7.985, 3.5),
        (98_304.0, 0.48, 6000, 1.0, 7.71, 3.5),
        (98_304.0, 0.48, 6000, 0.5, 7.988, 3.5),
        (98_304.0, 0.48, 6001, 0.5, 7.988, 3.5),
        (81_920.0, 0.5, 6000, 0.5, 6.70, 3.9),
        (81_920.0, 0.5, 10_000, 0.5, 6.99, 3.9),
    ] {
        let got = vip_epsilon(batch / n, sigma, steps, halves / n);
        let digits = if want > 8.5 || (want * 100.0_f64).fract() == 0.0 { 0.0051 } else { 0.00051 };
        assert!((got.value - want).abs() <= digits, "{batch} {sigma} {steps}: {got:?} {want}");
        assert!((got.order - order).abs() <= 0.101, "{batch} {sigma} {steps}: {got:?}");
    }
    let tan = vip_epsilon(32_768.0 / 1_281_167.0, 2.5, 18_000, 1.0 / 1_281_167.0);
    assert!((tan.value - 7.987).abs() <= 6e-4, "{tan:?}");
    // The example of the published command line is next to no privacy.
    let loose = vip_epsilon(81_920.0 / 1_281_167.0, 0.5, 10_000, 0.5 / 1_281_167.0);
    assert!((loose.value - 478.0).abs() <= 0.1, "{loose:?}");
}

/// Logarithm of the normal distribution function, by the continued fraction of its tail or its power series.
fn ln_normal_cdf(x: f64) -> f64 {
    let ln_density = -0.5 * x * x - 0.5 * std::f64::consts::TAU.ln();
    if x.abs() < 3.0 {
        let (mut term, mut sum, mut k) = (x, x, 1.0);
        while f64::abs(term) > 1e-18 {
            term *= x * x / (2.0 * k + 1.0);
            sum += term;
            k += 1.0;
        }
        return (0.5 + ln_density.exp() * sum).ln();
    }
    let fraction = (1..200).rev().fold(x.abs(), |f, k| x.abs() + f64::from(k) / f);
    let tail = ln_density - fraction.ln();
    if x > 0.0 { (-tail.exp()).ln_1p() } else { tail }
}

/// No sampling: the exact trade-off of the Gaussian mechanism is known (Balle and Wang 2018, arXiv 1805.06530, theorem 8):
/// no accountant may promise less.
#[test]
fn gaussian_mechanism_is_never_underestimated() {
    for sigma in [0.3, 1.0, 4.0, 20.0] {
        for steps in [1u64, 10, 1000] {
            let mu = (steps as f64).sqrt() / sigma;
            for target in [1e-3, 1e-6, 1e-10] {
                for kind in ALL {
                    let e =
                        epsilon_by(kind, &Event::Gaussian { noise_multiplier: sigma }.times(steps), target);
                    let exact = ln_normal_cdf(0.5 * mu - e / mu).exp()
                        - (e + ln_normal_cdf(-0.5 * mu - e / mu)).exp();
                    assert!(exact >= 0.0);
                    assert!(exact <= target * (1.0 + 1e-9), "{} sigma {sigma} steps {steps}: {e}", kind.name);
                }
            }
        }
    }
}

#[test]
fn events_add_up() {
    let a = Event::dpsgd(0.01, 1.0, 500);
    let b = Event::Gaussian { noise_multiplier: 30.0 };
    for kind in ALL {
        let eps = |event: &Event| epsilon_by(kind, event, 1e-5);
        let both = eps(&Event::Composed(vec![a.clone(), Event::NoOp, b.clone()]));
        assert!(both > eps(&a) && both > eps(&b) && both < eps(&a) + eps(&b) + 1.0);
        let close = |x: f64, y: f64| assert!((x - y).abs() <= 1e-9 * x, "{}: {x} {y}", kind.name);
        close(eps(&Event::Composed(vec![a.clone(); 3])), eps(&a.clone().times(3)));
        close(eps(&a), eps(&Event::dpsgd(0.01, 1.0, 1).times(250).times(2)));
        let mut one = (kind.start)(NeighbouringRelation::AddOrRemoveOne).unwrap();
        one.compose(&Event::dpsgd(0.01, 1.0, 1)).unwrap();
        close(one.repeated(500).epsilon(1e-5).unwrap().value, eps(&a));
        one.compose_times(&Event::dpsgd(0.01, 1.0, 1), 499).unwrap();
        close(one.epsilon(1e-5).unwrap().value, eps(&a));
        assert_eq!(one.repeated(0).epsilon(1e-5).unwrap().value, 0.0);
    }
}

fn refused(kind: &Kind, event: &Event) -> Error {
    let mut accountant = (kind.start)(NeighbouringRelation::AddOrRemoveOne).unwrap();
    accountant.compose(&Event::dpsgd(0.1, 1.0, 10)).unwrap();
    let before = accountant.epsilon(1e-5).unwrap();
    assert!(!accountant.supports(event), "{event}");
    let error = accountant.compose(event).unwrap_err();
    assert_eq!(accountant.epsilon(1e-5).unwrap(), before, "a refused event changed the state: {event}");
    error
}

#[test]
fn what_is_not_poisson_sampling_is_refused_by_name() {
    let gaussian = || Box::new(Event::Gaussian { noise_multiplier: 1.0 });
    let poisson = Box::new(Event::PoissonSampled { sampling_rate: 0.5, event: gaussian() });
    for kind in ALL {
        for (event, name) in [
            (Event::Shuffled { batches: 10, event: gaussian() }, "shuffled"),
            (Event::FixedBatch { batch: 1, examples: 10, event: gaussian() }, "fixed-batch"),
            (Event::BallsAndBins { bins: 3, event: gaussian() }, "balls-and-bins"),
            (
                Event::TruncatedPoisson { sampling_rate: 0.1, max_batch: 3, examples: 10, event: gaussian() },
                "truncated-Poisson",
            ),
            (Event::PoissonSampled { sampling_rate: 0.5, event: poisson.clone() }, "Poisson-sampled"),
        ] {
            // Also inside other events, and even where they happen 0 times.
            for event in [
                event.clone(),
                event.clone().times(0),
                Event::Composed(vec![Event::dpsgd(0.1, 1.0, 1), event.clone()]),
            ] {
                let error = refused(kind, &event);
                assert!(
                    matches!(&error, Error::Unsupported { event, .. } if event.contains(name)),
                    "{error}"
                );
            }
        }
    }
    for kind in renyi() {
        let error = (kind.start)(NeighbouringRelation::ReplaceOne).err().expect("refused");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    assert!(by_name("rdp").is_ok() && by_name("prv").is_err());
}

#[test]
fn numbers_out_of_range_are_refused() {
    for kind in ALL {
        for (q, sigma) in [
            (-0.1, 1.0),
            (1.1, 1.0),
            (f64::NAN, 1.0),
            (f64::INFINITY, 1.0),
            (0.1, -1.0),
            (0.1, f64::NAN),
            (0.1, f64::INFINITY),
            (0.0, f64::NAN),
        ] {
            for steps in [0, 1, 7] {
                let error = refused(kind, &Event::dpsgd(q, sigma, steps));
                assert!(matches!(error, Error::Invalid { .. }), "{error}");
            }
        }
        let accountant = (kind.start)(NeighbouringRelation::AddOrRemoveOne).unwrap();
        for delta in [0.0, 1.0, -1.0, 2.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(accountant.epsilon(delta), Err(Error::Invalid { .. })), "{delta}");
        }
        assert_eq!(accountant.epsilon(1e-5).unwrap().value, 0.0);
    }
    for alpha in [1.0, 0.5, -2.0, f64::NAN, f64::INFINITY] {
        assert!(sampled_gaussian(0.1, 1.0, alpha).is_err(), "{alpha}");
    }
}

/// Extreme but legal numbers: an answer, never NaN, and never below what a few orders prove to be too little.
#[test]
fn extreme_numbers_have_answers() {
    for kind in renyi() {
        for sigma in [0.0, 1e-300, 1e-3, 0.009, 0.011, 0.1, 1.0, 1e6, 1e300] {
            for q in [0.0, 1e-300, 1e-12, 1e-3, 0.5, 1.0 - 1e-15, 1.0] {
                let mut one = (kind.start)(NeighbouringRelation::AddOrRemoveOne).unwrap();
                one.compose(&Event::dpsgd(q, sigma, 1)).unwrap();
                for steps in [0, 1, 1_000_000_000, u64::MAX] {
                    for delta in [1e-300, 1e-9, 1.0 - 1e-12] {
                        let e = one.repeated(steps).epsilon(delta).unwrap().value;
                        assert!(e >= 0.0, "q {q} sigma {sigma} steps {steps} delta {delta}: {e}");
                        let nothing = q == 0.0 || steps == 0;
                        assert!(!nothing || e == 0.0, "q {q} sigma {sigma} steps {steps}: {e}");
                        assert!(nothing || sigma > 0.0 || e == f64::INFINITY);
                    }
                }
            }
        }
    }
    // One step of noise 1e-3 shows that the example was drawn, and it is drawn with probability q: epsilon is near 0 for a
    // delta over q only; under it, it is nearly that of the Gaussian mechanism.
    let gaussian = epsilon(1.0, 1e-3, 1, 1e-9);
    let sampled = epsilon(1e-3, 1e-3, 1, 1e-9);
    assert!(sampled <= gaussian && sampled > 0.99 * gaussian, "{sampled} {gaussian}");
    assert!(epsilon(0.01, 1e6, 1000, 1e-5) < 1e-2);
    assert!(epsilon(1e-3, 1.0, 1_000_000_000, 1e-300) > 1000.0);
}

fn numbers() -> impl Strategy<Value = (f64, f64, u64, f64)> {
    let (q, sigma) = (-14.0..0.0f64, -2.5..3.0f64);
    (q, sigma, 1..200_000u64, -40.0..-2.0f64).prop_map(|(q, s, n, d)| (q.exp(), s.exp(), n, d.exp()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// More steps, a larger rate, less noise or a smaller delta never cost less; and no accountant beats the best grid.
    #[test]
    fn epsilon_is_monotone((q, sigma, steps, delta) in numbers(), more in 1.0..3.0f64) {
        for kind in renyi() {
            let eps = |q: f64, sigma: f64, n: u64, delta: f64| epsilon_by(kind, &Event::dpsgd(q, sigma, n), delta);
            let here = eps(q, sigma, steps, delta);
            prop_assert!(here >= 0.0);
            let slack = here * (1.0 - 4e-9);
            prop_assert!(eps(q, sigma, steps + (steps as f64 * more) as u64, delta) >= slack);
            prop_assert!(eps((q * more).min(1.0), sigma, steps, delta) >= slack);
            prop_assert!(eps(q, sigma / more, steps, delta) >= slack);
            prop_assert!(eps(q, sigma, steps, delta / more) >= slack);
            prop_assert!(here <= eps(1.0, sigma, steps, delta) * (1.0 + 1e-8));
        }
        prop_assert!(epsilon(q, sigma, steps, delta) <= vip_epsilon(q, sigma, steps, delta).value * (1.0 + 1e-12));
    }

    /// Divergences grow with the order, and `(alpha - 1) rdp` is convex in it (van Erven and Harremoes 2014, theorems 3 and 11).
    #[test]
    fn divergences_grow_with_the_order((q, sigma, _, _) in numbers(), alpha in 0.01..6.0f64) {
        let a = 1.0 + alpha.exp_m1();
        let at = |a: f64| sampled_gaussian(q, sigma, a).unwrap();
        prop_assert!(at(a) <= at(1.1 * a) * (1.0 + 2e-9));
        let f = |a: f64| (a - 1.0) * at(a);
        if sigma > 0.1 && a < 4000.0 * sigma {
            prop_assert!(f(1.2 * a) <= 0.5 * (f(1.4 * a) + f(a)) * (1.0 + 1e-8));
        }
        prop_assert!(at(a) <= a / (2.0 * sigma * sigma) * (1.0 + 1e-12));
    }
}
