//! Solving for what the guarantee allows.

use super::event::Event;
use super::rdp::Rdp;
use crate::error::{Error, Result};

fn epsilon(sampling_rate: f64, sigma: f64, steps: u64, delta: f64) -> Result<f64> {
    let mut rdp = Rdp::default();
    rdp.compose(&Event::dpsgd(sampling_rate, sigma, steps))?;
    Ok(rdp.epsilon(delta)?.value)
}

/// The smallest noise multiplier whose epsilon does not exceed `target`, to 1e-6 relative, on the safe side.
///
/// # Errors
/// [`Error::Invalid`] for numbers out of range, or if no noise multiplier below 1e6 suffices.
pub fn noise_multiplier(target: f64, delta: f64, sampling_rate: f64, steps: u64) -> Result<f64> {
    if !(target > 0.0 && target.is_finite()) {
        return Err(Error::invalid("epsilon", target, "must be positive and finite"));
    }
    let (mut low, mut high) = (0.0, 1.0);
    while epsilon(sampling_rate, high, steps, delta)? > target {
        (low, high) = (high, 2.0 * high);
        if high > 1e6 {
            return Err(Error::invalid(
                "epsilon",
                target,
                "cannot be reached by noise: fewer steps or a smaller rate",
            ));
        }
    }
    while high - low > 1e-6 * high && high > 1e-3 {
        let middle = 0.5 * (low + high);
        if epsilon(sampling_rate, middle, steps, delta)? > target {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(high)
}

/// The most steps whose epsilon does not exceed `target`.
///
/// # Errors
/// [`Error::Invalid`] for numbers out of range.
pub fn steps(target: f64, delta: f64, sampling_rate: f64, noise_multiplier: f64) -> Result<u64> {
    if !(target > 0.0 && target.is_finite()) {
        return Err(Error::invalid("epsilon", target, "must be positive and finite"));
    }
    let fits = |n: u64| Ok::<bool, Error>(epsilon(sampling_rate, noise_multiplier, n, delta)? <= target);
    let (mut low, mut high) = (0, 1);
    while fits(high)? {
        (low, high) = (high, high.saturating_mul(2));
        if high > 1 << 50 {
            return Ok(low);
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_is_tight_and_safe() {
        for (q, n, target, delta) in
            [(0.01, 1000, 8.0, 1e-5), (0.1, 300, 1.0, 1e-6), (5.6e-3, 5708, 8.0, 4.28e-9)]
        {
            let sigma = noise_multiplier(target, delta, q, n).unwrap();
            let got = epsilon(q, sigma, n, delta).unwrap();
            assert!(got <= target && got >= target * 0.999, "{got}");
            let allowed = steps(target, delta, q, sigma).unwrap();
            assert!(allowed >= n && allowed <= n + n / 100 + 1, "{allowed} against {n}");
        }
        assert!(noise_multiplier(0.0, 1e-5, 0.1, 10).is_err());
        assert!(noise_multiplier(f64::NAN, 1e-5, 0.1, 10).is_err());
        assert!(noise_multiplier(1.0, 1e-5, 1.5, 10).is_err());
    }
}
