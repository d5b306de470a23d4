//! The normal distribution, and the exact price of the Gaussian mechanism.

use std::f64::consts::TAU;

/// `ln sqrt(2 pi)`.
pub const LN_SQRT_TAU: f64 = 0.918_938_533_204_672_8;

/// Relative error of [`ln_cdf`]'s exponential, and more.
const CDF_ERROR: f64 = 1e-12;

/// Logarithm of the normal distribution function, for every x: the power series of Marsaglia (2004), and beyond -3 and 3 the
/// continued fraction of the tail.
pub fn ln_cdf(x: f64) -> f64 {
    let ln_density = -0.5 * x * x - 0.5 * TAU.ln();
    if x.abs() < 3.0 {
        let (mut term, mut sum, mut k) = (x, x, 1.0);
        while f64::abs(term) > 1e-18 {
            term *= x * x / (2.0 * k + 1.0);
            sum += term;
            k += 1.0;
        }
        return (0.5 + ln_density.exp() * sum).ln();
    }
    let fraction = (1..120).rev().fold(x.abs(), |f, k| x.abs() + f64::from(k) / f);
    let tail = ln_density - fraction.ln();
    if x > 0.0 { (-tail.exp()).ln_1p() } else { tail }
}

/// z with `P(Z > z) <= e^ln_tail`, by `P(Z > z) <= e^(-z^2 / 2) / 2`; 0 for a probability of a half or more.
pub fn tail_quantile(ln_tail: f64) -> f64 {
    (2.0 * (-ln_tail - std::f64::consts::LN_2).max(0.0)).sqrt()
}

/// Lower and upper bound on the epsilon of the Gaussian mechanism with `mu = sensitivity / standard deviation` at `delta`,
/// either neighbouring relation (Balle and Wang 2018, arXiv 1805.06530, theorem 8):
/// `delta = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu)`.
///
/// The bounds lie apart by what the two terms lose when they cancel. mu is not negative; infinite mu costs infinity.
pub fn gaussian_epsilon(mu: f64, delta: f64) -> (f64, f64) {
    if mu == 0.0 {
        return (0.0, 0.0);
    }
    if !(mu < 1e150) {
        return (if mu < f64::INFINITY { mu } else { f64::INFINITY }, f64::INFINITY);
    }
    // P(loss > eps) <= delta is enough.
    let ceiling = 0.5 * mu * mu + mu * tail_quantile(delta.ln());
    let ceiling = ceiling * (1.0 + 1e-15);
    // Zeroes of the bounds on delta from above and below; both fall with eps.
    let solve = |sign: f64| {
        let exceeds = |eps: f64| {
            let (a, b) = (ln_cdf(0.5 * mu - eps / mu), eps + ln_cdf(-0.5 * mu - eps / mu));
            // The exponents carry the rounding of their own size.
            let error = CDF_ERROR + 4.0 * f64::EPSILON * (a.abs() + b.abs() + eps);
            let excess =
                (a - delta.ln()).exp() * (1.0 + sign * error) - (b - delta.ln()).exp() * (1.0 - sign * error);
            excess > 1.0
        };
        let (mut low, mut high) = (0.0, ceiling);
        if !exceeds(0.0) {
            return 0.0;
        }
        for _ in 0..200 {
            let middle = 0.5 * (low + high);
            if middle <= low || middle >= high {
                break;
            }
            if exceeds(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        if sign > 0.0 { high } else { low }
    };
    let (below, above) = (solve(-1.0), solve(1.0));
    (below.min(above), above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_function_has_its_known_values() {
        for (x, want) in [
            (0.0, 0.5f64),
            (1.0, 0.841_344_746_068_542_9),
            (-1.0, 0.158_655_253_931_457_05),
            (-2.9, 0.001_865_813_300_384_037_8),
            (-3.1, 0.000_967_603_213_218_356_4),
            (-10.0, 7.619_853_024_160_527e-24),
            (-37.0, 5.725_571_222_524_577e-300),
        ] {
            assert!((ln_cdf(x) - want.ln()).abs() <= 2e-13 * want.ln().abs().max(1.0), "{x}");
        }
        assert!((LN_SQRT_TAU - 0.5 * TAU.ln()).abs() <= 3e-16);
        for ln_tail in [-0.1, -1.0, -10.0, -700.0] {
            assert!(ln_cdf(-tail_quantile(ln_tail)) <= f64::max(ln_tail, -std::f64::consts::LN_2));
        }
    }

    #[test]
    fn gaussian_epsilon_of_any_size() {
        for mu in [1e-12, 1e-6, 1e-3, 0.1, 1.0, 30.0, 1e6] {
            for delta in [1e-300, 1e-30, 1e-9, 1e-2, 0.9] {
                let (low, high) = gaussian_epsilon(mu, delta);
                assert!(low >= 0.0 && high >= low && high.is_finite(), "{mu} {delta} {low} {high}");
            }
        }
        let (low, high) = gaussian_epsilon(1.0, 1e-5);
        assert!((high - 4.377_178).abs() < 1e-5 && high - low < 1e-9, "{low} {high}");
        assert_eq!(gaussian_epsilon(f64::INFINITY, 0.1).1, f64::INFINITY);
    }
}
