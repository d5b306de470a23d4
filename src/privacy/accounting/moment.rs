//! Renyi divergence of one step of the Poisson-sampled Gaussian mechanism, for neighbours by adding or removing one example.
//!
//! At order alpha it is `ln(A) / (alpha - 1)` with
//! `A = E_{z ~ N(0, sigma^2)} [(1 - q + q e^t)^alpha]`, `t = (2 z - 1) / (2 sigma^2)`
//! (Mironov, Talwar, Zhang 2019, arXiv 1908.10530, section 3.1; theorem 5 there: this direction is the larger one).
//!
//! What is computed is `A - 1`, because for small q it is far below the rounding of 1. With `y = q (e^t - 1)`, whose mean is
//! 0, `A - 1 = E[(1 + y)^alpha - 1 - alpha y]`, and this integrand is nowhere negative: nothing cancels.
//!
//! - Whole orders: the binomial sum of section 3.3, whose terms for `A - 1` are positive too.
//! - Other orders: the trapezoidal rule, halved until two steps agree. On an analytic integrand it converges geometrically,
//!   at every order and every sigma, unlike the alternating series of section 3.3, which diverges at some and yields A, not
//!   `A - 1`. The integrand's singularities are `pi sigma^2` away from the real axis, its narrowest peak is sigma wide: these two
//!   decide the first step. Where the mass lies is found by a scan, not assumed: for sigma over about 10 it lies
//!   up to `sigma^2` away from alpha.
//! - Where the rule would need too many points: the upper bound by convexity, `A <= 1 - q + q e^{alpha (alpha - 1) / (2 sigma^2)}`.

use super::math::{LogSum, ln_1p_exp, ln_expm1};
use crate::error::{Error, Result};

/// Relative amount by which a divergence is raised: far above the error of sum and quadrature, so that no answer is too small.
const MARGIN: f64 = 1e-9;

/// Whole orders up to this are summed. Beyond, quadrature costs less.
const LAST_SUMMED: f64 = 256.0;

/// Half width, in sigmas, of what is scanned beyond the outermost peaks: `e^(-14^2 / 2) = 3e-43`.
const REACH: f64 = 14.0;

/// Cells whose largest value is this far below the largest of all are left out, in nats: `e^-50 = 2e-22`.
const NEGLIGIBLE: f64 = 50.0;

/// Most cells that are scanned, and most points that are summed.
const MAX_CELLS: f64 = 5e3;
const MAX_POINTS: usize = 100_000;

/// Renyi divergence of order `alpha` of one step with sampling rate q and noise multiplier sigma, raised by at most
/// 1e-9 of itself: an upper bound.
///
/// | case | value |
/// | --- | --- |
/// | `q = 0` | 0 |
/// | `sigma = 0` | infinite |
/// | `q = 1` | `alpha / (2 sigma^2)` |
/// | `sigma < 0.01`, or `alpha > 5000 sigma` and not a whole number up to 256 | the bound by convexity: above the true value by at most `ln(1 / q) + ln 2 / (alpha - 1)` |
/// | the value underflows | the smallest positive number |
///
/// # Errors
/// [`Error::Invalid`] for q outside [0, 1], a sigma that is negative or not finite, or an alpha that is not over 1.
pub fn sampled_gaussian(q: f64, sigma: f64, alpha: f64) -> Result<f64> {
    check(q, sigma)?;
    if !(alpha > 1.0 && alpha.is_finite()) {
        return Err(Error::invalid("order", alpha, "must be over 1 and finite"));
    }
    if q == 0.0 {
        return Ok(0.0);
    }
    let gaussian = (alpha / (2.0 * sigma) / sigma).max(f64::MIN_POSITIVE);
    if q == 1.0 || gaussian == f64::INFINITY {
        return Ok(gaussian);
    }
    // ln(1 - q + q e^g), and sampling never costs more than not sampling.
    let convex = ln_1p_exp(q.ln() + ln_expm1(gaussian * (alpha - 1.0))) / (alpha - 1.0);
    let bound = (convex * (1.0 + MARGIN)).min(gaussian).max(f64::MIN_POSITIVE);
    let excess = if alpha.fract() == 0.0 && alpha <= LAST_SUMMED {
        Some(ln_excess_whole(q, sigma, alpha))
    } else {
        ln_excess(q, sigma, alpha)
    };
    let Some(excess) = excess else { return Ok(bound) };
    Ok((ln_1p_exp(excess) / (alpha - 1.0) * (1.0 + MARGIN)).min(bound).max(f64::MIN_POSITIVE))
}

/// Checks the numbers of a step.
///
/// # Errors
/// [`Error::Invalid`] for q outside [0, 1], or a sigma that is negative or not finite.
pub fn check(q: f64, sigma: f64) -> Result<()> {
    if !(0.0..=1.0).contains(&q) {
        return Err(Error::invalid("sampling rate", q, "must be from 0 to 1: is the batch over N?"));
    }
    if !(sigma >= 0.0 && sigma.is_finite()) {
        return Err(Error::invalid("noise multiplier", sigma, "must be finite and not negative"));
    }
    Ok(())
}

/// `ln(A - 1) = ln sum_{k = 2}^alpha C(alpha, k) q^k (1 - q)^(alpha - k) (e^{k (k - 1) / (2 sigma^2)} - 1)`.
fn ln_excess_whole(q: f64, sigma: f64, alpha: f64) -> f64 {
    let (ln_q, ln_rest) = (q.ln(), (-q).ln_1p());
    let mut sum = LogSum::new();
    let mut ln_choose = alpha.ln();
    for k in 2..=alpha as u32 {
        let k = k as f64;
        ln_choose += ((alpha - k + 1.0) / k).ln();
        let exponent = (0.5 * k * (k - 1.0) / sigma / sigma).max(f64::MIN_POSITIVE);
        sum.add(ln_choose + k * ln_q + (alpha - k) * ln_rest + ln_expm1(exponent));
    }
    sum.ln()
}

/// `ln(A - 1)` by quadrature, or nothing where that takes too many points.
fn ln_excess(q: f64, sigma: f64, alpha: f64) -> Option<f64> {
    let ln_q = q.ln();
    // In units of sigma: z = sigma x.
    let ln_integrand = |x: f64| {
        let t = (x - 0.5 / sigma) / sigma;
        let (y, ln_1p_y) = if t > 40.0 {
            let ln_y = ln_q + t;
            (ln_y.exp(), ln_1p_exp(ln_y))
        } else {
            let y = q * t.exp_m1();
            (y, y.ln_1p())
        };
        ln_convex_part(y, ln_1p_y, alpha) - 0.5 * x * x
    };
    let (low, high) = (-REACH, alpha.max(2.0) / sigma + REACH);
    if !(high - low <= MAX_CELLS && sigma >= 0.01) {
        return None;
    }
    let count = (high - low).ceil() as usize;
    let edges: Vec<f64> = (0..=count).map(|i| ln_integrand(low + i as f64)).collect();
    let top = edges.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Peaks are at least a cell wide, so that a cell with mass shows it at an edge.
    let cells: Vec<usize> = (0..count).filter(|&i| edges[i].max(edges[i + 1]) >= top - NEGLIGIBLE).collect();

    let mut parts = (1.0 / (0.3 * std::f64::consts::PI * sigma).min(0.4)).ceil() as usize;
    let sum_at = |parts: usize, offset: f64| {
        let mut sum = LogSum::new();
        for &cell in &cells {
            for j in 0..parts {
                sum.add(ln_integrand(low + cell as f64 + (j as f64 + offset) / parts as f64));
            }
        }
        sum.ln() - (parts as f64).ln()
    };
    let mut coarse = sum_at(parts, 0.0);
    while cells.len() * parts <= MAX_POINTS {
        let between = sum_at(parts, 0.5);
        let fine = coarse.max(between) + (-(coarse - between).abs()).exp().ln_1p() - 2f64.ln();
        // The error of the finer sum is about the square of this.
        if (fine - coarse).abs() <= 1e-7 {
            return Some(fine - 0.5 * std::f64::consts::TAU.ln());
        }
        (coarse, parts) = (fine, 2 * parts);
    }
    None
}

/// `ln((1 + y)^alpha - 1 - alpha y)` for y > -1 and `ln(1 + y)`, without cancellation. y may be infinite.
fn ln_convex_part(y: f64, ln_1p_y: f64, alpha: f64) -> f64 {
    if y.abs() * alpha < 0.5 {
        // sum_{k >= 2} C(alpha, k) y^k, by the ratio of its terms, which is under 1/2.
        let (mut term, mut sum, mut k) = (1.0, 1.0, 2.0);
        while f64::abs(term) > 1e-17 {
            term *= (alpha - k) / (k + 1.0) * y;
            sum += term;
            k += 1.0;
        }
        return (alpha * (alpha - 1.0) / 2.0 * sum).ln() + 2.0 * y.abs().ln();
    }
    let power = alpha * ln_1p_y;
    if power > 40.0 {
        let line = if y < 1e300 { (alpha * y).ln_1p() } else { alpha.ln() + ln_1p_y };
        return power + (-(line - power).exp()).ln_1p();
    }
    (power.exp_m1() - alpha * y).ln()
}
