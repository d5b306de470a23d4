//! Renyi differential privacy of the Poisson-sampled Gaussian mechanism, for add-or-remove neighbours.
//!
//! One step at order alpha costs `ln(A) / (alpha - 1)` with
//! `A = E_{z ~ N(0, sigma^2)} [(1 - q + q e^{(2 z - 1) / (2 sigma^2)})^alpha]`
//! (Mironov, Talwar, Zhang 2019, arXiv 1908.10530, eq. 2 and section 3.3). Epsilon follows by the conversion of Balle et al. 2020
//! (arXiv 1905.09982, theorem 21): `eps = rdp + ln((alpha - 1) / alpha) - (ln delta + ln alpha) / (alpha - 1)`, at the best order.
//!
//! `A - 1` is integrated directly by the trapezoidal rule, in logarithms, at every order, whole or not: with
//! `y = q (e^{(2 z - 1) / (2 sigma^2)} - 1)`, whose mean is 0, `A - 1 = E[(1 + y)^alpha - 1 - alpha y]`, and this
//! integrand is nowhere negative, so nothing cancels however small q is. The rule converges geometrically in the
//! distance of the integrand's singularities from the real axis, which is `pi sigma^2`.

use super::event::Event;
use crate::error::{Error, Result};

/// Relative amount by which a divergence is raised, far above the error of the quadrature: an answer is never below
/// the true value.
const MARGIN: f64 = 1e-9;

/// An epsilon with the order that gave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epsilon {
    /// The privacy loss bound; infinite if no order bounds it.
    pub value: f64,
    /// The best order, alpha.
    pub order: f64,
}

/// ViP's orders: 1.1, 1.2 .. 10.9, then 11 .. 63.
pub fn vip_orders() -> Vec<f64> {
    (1..100).map(|i| 1.0 + i as f64 / 10.0).chain((11..64).map(f64::from)).collect()
}

/// The default: ViP's orders and finer ones near 1, and on to 4096.
pub fn default_orders() -> Vec<f64> {
    let low = (1..100).map(|i| 1.0 + i as f64 / 1000.0);
    let high =
        [72.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0, 2048.0, 4096.0];
    low.chain(vip_orders()).chain(high).collect()
}

/// The RDP accountant: adds up events and converts to epsilon.
#[derive(Clone, Debug)]
pub struct Rdp {
    orders: Vec<f64>,
    divergences: Vec<f64>,
}

impl Default for Rdp {
    fn default() -> Self {
        Self::new(default_orders())
    }
}

impl Rdp {
    /// An accountant over these orders.
    ///
    /// # Panics
    /// If an order is not over 1.
    pub fn new(orders: Vec<f64>) -> Self {
        assert!(orders.iter().all(|a| *a > 1.0 && a.is_finite()), "orders must be over 1");
        let divergences = vec![0.0; orders.len()];
        Rdp { orders, divergences }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for anything but Poisson sampling; [`Error::Invalid`] for numbers out of range. The
    /// accountant is unchanged then.
    pub fn compose(&mut self, event: &Event) -> Result<()> {
        let Event::PoissonSampledGaussian { sampling_rate: q, noise_multiplier: sigma, count } = *event
        else {
            return Err(Error::Unsupported {
                accountant: "rdp",
                event: event.to_string(),
                why: "its amplification bounds are for Poisson sampling only".into(),
            });
        };
        if count == 0 {
            return Ok(());
        }
        let one = self.orders.iter().map(|&a| sampled_gaussian(q, sigma, a)).collect::<Result<Vec<f64>>>()?;
        self.divergences.iter_mut().zip(one).for_each(|(d, r)| *d += r * count as f64);
        Ok(())
    }

    /// Everything added so far, `count` times over.
    pub fn repeated(&self, count: u64) -> Rdp {
        let divergences = self.divergences.iter().map(|d| d * count as f64).collect();
        Rdp { orders: self.orders.clone(), divergences }
    }

    /// The smallest epsilon that these orders prove at `delta`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a delta outside (0, 1).
    pub fn epsilon(&self, delta: f64) -> Result<Epsilon> {
        if !(delta > 0.0 && delta < 1.0) {
            return Err(Error::invalid("delta", delta, "must be between 0 and 1, and well below 1 / N"));
        }
        let mut best = Epsilon { value: f64::INFINITY, order: self.orders.first().copied().unwrap_or(2.0) };
        for (&order, &divergence) in self.orders.iter().zip(&self.divergences) {
            if divergence == 0.0 {
                return Ok(Epsilon { value: 0.0, order });
            }
            let value = divergence + ((order - 1.0) / order).ln() - (delta.ln() + order.ln()) / (order - 1.0);
            if value < best.value {
                best = Epsilon { value: value.max(0.0), order };
            }
        }
        Ok(best)
    }
}

/// Renyi divergence of order `alpha` of one step of the Poisson-sampled Gaussian mechanism.
///
/// | case | value |
/// | --- | --- |
/// | `q = 0` | 0 |
/// | `sigma = 0` | infinity |
/// | `q = 1` | `alpha / (2 sigma^2)` |
///
/// # Errors
/// [`Error::Invalid`] for q outside [0, 1], a negative or NaN sigma, or alpha not over 1.
pub fn sampled_gaussian(q: f64, sigma: f64, alpha: f64) -> Result<f64> {
    if !(0.0..=1.0).contains(&q) {
        return Err(Error::invalid("sampling rate", q, "must be between 0 and 1"));
    }
    if !(sigma >= 0.0) {
        return Err(Error::invalid("noise multiplier", sigma, "must not be negative"));
    }
    if !(alpha > 1.0 && alpha.is_finite()) {
        return Err(Error::invalid("order", alpha, "must be over 1"));
    }
    let gaussian = alpha / (2.0 * sigma * sigma);
    if q == 0.0 || gaussian == 0.0 {
        return Ok(0.0);
    }
    if q == 1.0 || !gaussian.is_finite() {
        return Ok(gaussian);
    }
    let Some(log_excess) = log_excess_moment(q, sigma, alpha) else {
        // Noise so small that the quadrature would need millions of points: sampling hardly helps, so charge none of it.
        return Ok(gaussian);
    };
    let log_moment = if log_excess < 30.0 { log_excess.exp().ln_1p() } else { log_excess };
    // Sampling never costs more than not sampling.
    Ok((log_moment / (alpha - 1.0) * (1.0 + MARGIN)).min(gaussian))
}

/// `ln((1 + y)^alpha - 1 - alpha y)` for `ln(1 + y)` and y given, without cancellation near 0.
fn log_convex_part(y: f64, ln_1p_y: f64, alpha: f64) -> f64 {
    if y.abs() < 1e-3 / alpha.max(1.0) {
        let (a, b, c) = (alpha - 2.0, alpha - 3.0, alpha - 4.0);
        let series = 1.0 + a / 3.0 * y * (1.0 + b / 4.0 * y * (1.0 + c / 5.0 * y));
        return (alpha * (alpha - 1.0) / 2.0 * series).ln() + 2.0 * y.abs().ln();
    }
    let power = alpha * ln_1p_y;
    if power > 40.0 {
        let line = if y < 1e300 { (1.0 + alpha * y).ln() } else { alpha.ln() + ln_1p_y };
        return power + (-(line - power).exp()).ln_1p();
    }
    let direct = power.exp_m1() - alpha * y;
    if direct > 0.0 { direct.ln() } else { f64::NEG_INFINITY }
}

/// `ln(A - 1)`, or nothing where that takes too many points.
fn log_excess_moment(q: f64, sigma: f64, alpha: f64) -> Option<f64> {
    let s2 = sigma * sigma;
    let log_integrand = |z: f64| {
        let t = (2.0 * z - 1.0) / (2.0 * s2);
        let (y, ln_1p_y) = if t > 500.0 {
            (f64::MAX, q.ln() + t)
        } else {
            let y = q * t.exp_m1();
            (y, y.ln_1p())
        };
        log_convex_part(y, ln_1p_y, alpha) - z * z / (2.0 * s2)
    };
    // The Gaussian's width and the nearest singularity decide the spacing.
    let spacing = (0.15 * std::f64::consts::PI * s2).min(0.2 * sigma);
    // Mass lies around 0 (the second-order term) and around alpha (the tail of the power), each a few sigma wide, and
    // between them where the two meet.
    let reach = 14.0 * sigma;
    let mut windows = vec![(-reach, reach + 2.0), (alpha - reach, alpha + reach)];
    let crossing = 0.5 + s2 * ((1.0 - q) / q).ln();
    if crossing.abs() < 2.0 * alpha + reach {
        windows.push((crossing - reach, crossing + reach));
    }
    windows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut merged: Vec<(f64, f64)> = Vec::new();
    for (low, high) in windows {
        match merged.last_mut() {
            Some(last) if low <= last.1 => last.1 = last.1.max(high),
            _ => merged.push((low, high)),
        }
    }
    let mut top = f64::NEG_INFINITY;
    let mut sum = 0.0;
    for (low, high) in merged {
        let n = ((high - low) / spacing).ceil().max(16.0);
        if n > 2e6 {
            return None;
        }
        let h = (high - low) / n;
        for i in 0..=n as u64 {
            let value = log_integrand(low + h * i as f64) + h.ln();
            if value > top {
                sum = sum * (top - value).exp() + 1.0;
                top = value;
            } else if value > f64::NEG_INFINITY {
                sum += (value - top).exp();
            }
        }
    }
    Some(top + sum.ln() - 0.5 * (2.0 * std::f64::consts::PI * s2).ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<Vec<f64>> {
        text.lines()
            .skip(1)
            .map(|l| l.split(',').map(|x| x.trim().parse().unwrap_or(f64::NAN)).collect())
            .collect()
    }

    /// Whole orders by the binomial sum (Mironov et al. 2019, eq. 7), in logarithms.
    fn binomial(q: f64, sigma: f64, alpha: u32) -> f64 {
        let mut terms = Vec::new();
        let mut ln_choose = 0.0;
        for k in 0..=alpha {
            if k > 0 {
                ln_choose += ((alpha - k + 1) as f64).ln() - (k as f64).ln();
            }
            let k = k as f64;
            terms.push(
                ln_choose
                    + k * q.ln()
                    + (alpha as f64 - k) * (-q).ln_1p()
                    + k * (k - 1.0) / (2.0 * sigma * sigma),
            );
        }
        let top = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (top + terms.iter().map(|t| (t - top).exp()).sum::<f64>().ln()) / (alpha as f64 - 1.0)
    }

    #[test]
    fn whole_orders_match_the_binomial_sum() {
        for q in [1e-3, 0.01, 0.1, 0.5, 0.9] {
            for sigma in [0.4, 0.7, 1.0, 2.5, 10.0] {
                for alpha in [2, 3, 5, 10, 32, 63, 256] {
                    let (got, want) =
                        (sampled_gaussian(q, sigma, alpha as f64).unwrap(), binomial(q, sigma, alpha));
                    assert!(
                        (got - want).abs() <= 1e-6 * want + 1e-15,
                        "q {q} sigma {sigma} alpha {alpha}: {got} {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn published_divergences() {
        let mut compared = 0;
        for row in rows(include_str!("../../../assets/accounting/rdp.csv")) {
            let [q, sigma, alpha, opacus, google] = row[..] else { panic!("{row:?}") };
            let got = sampled_gaussian(q, sigma, alpha).unwrap();
            assert!(got.is_finite() && got > 0.0, "{row:?}: {got}");
            if (opacus - google).abs() <= 1e-4 * google.abs() {
                assert!((got - google).abs() <= 1e-4 * google, "{row:?}: {got}");
                compared += 1;
            }
        }
        assert!(compared > 100, "{compared}");
    }

    #[test]
    fn published_epsilons() {
        let mut compared = 0;
        for row in rows(include_str!("../../../assets/accounting/epsilon.csv")) {
            let (q, sigma, steps, delta, want, google) = (row[0], row[1], row[2], row[3], row[4], row[6]);
            let mut rdp = Rdp::new(vip_orders());
            rdp.compose(&Event::dpsgd(q, sigma, steps as u64)).unwrap();
            let got = rdp.epsilon(delta).unwrap();
            if (want - google).abs() <= 1e-3 * google {
                assert!((got.value - want).abs() <= 1e-4 * want, "{row:?}: {got:?}");
                compared += 1;
            }
            let mut fine = Rdp::default();
            fine.compose(&Event::dpsgd(q, sigma, steps as u64)).unwrap();
            assert!(fine.epsilon(delta).unwrap().value <= got.value + 1e-9, "{row:?}");
        }
        assert!(compared >= 10, "{compared}");
    }

    #[test]
    fn hostile_numbers_give_answers_or_refusals() {
        for q in [0.0, 1e-12, 1e-6, 0.3, 1.0 - 1e-12, 1.0] {
            for sigma in [0.0, 1e-3, 0.1, 1.0, 1e6, 1e300] {
                for alpha in [1.0001, 1.5, 64.0, 4096.0] {
                    let r = sampled_gaussian(q, sigma, alpha).unwrap();
                    assert!(r >= 0.0, "q {q} sigma {sigma} alpha {alpha}: {r}");
                    assert!(r <= alpha / (2.0 * sigma * sigma) || q == 0.0, "q {q} sigma {sigma}: {r}");
                }
            }
        }
        for (q, sigma, alpha) in [
            (-0.1, 1.0, 2.0),
            (1.1, 1.0, 2.0),
            (f64::NAN, 1.0, 2.0),
            (0.1, -1.0, 2.0),
            (0.1, f64::NAN, 2.0),
            (0.1, 1.0, 1.0),
        ] {
            assert!(sampled_gaussian(q, sigma, alpha).is_err());
        }
        let mut rdp = Rdp::default();
        assert!(rdp.compose(&Event::ShuffledGaussian { noise_multiplier: 1.0, epochs: 1 }).is_err());
        assert_eq!(rdp.epsilon(1e-5).unwrap().value, 0.0);
        for delta in [0.0, 1.0, -1.0, f64::NAN, 2.0] {
            assert!(rdp.epsilon(delta).is_err());
        }
        rdp.compose(&Event::dpsgd(1e-3, 1.0, 1_000_000_000)).unwrap();
        let epsilon = rdp.epsilon(1e-300).unwrap().value;
        assert!(epsilon.is_finite() && epsilon > 1000.0, "{epsilon}");
    }
}
