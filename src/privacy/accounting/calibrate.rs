//! Solving for what a target epsilon allows.
//!
//! **Guarantee**: an answer, put back into the accountant that gave it, costs at most the target. All searches are bisections
//! that keep a side known to fit and return that side, so the guarantee does not rest on any formula of theirs.

use super::accountant::{ALL, Epsilon, Kind, check_delta};
use super::event::{Event, NeighbouringRelation};
use crate::error::{Error, Result};

/// Noise multipliers that are tried: an answer is never below, and never above.
const SIGMAS: (f64, f64) = (1e-3, 1e9);

/// The smallest positive sampling rate that is tried.
const MIN_RATE: f64 = 1e-12;

/// The most steps that are tried, 2^53: beyond, counts are not exact.
pub const MAX_STEPS: u64 = 1 << 53;

/// How close an answer is to the best one, relative.
const PRECISION: f64 = 1e-6;

/// Solves for one quantity of a DP-SGD run (see [`Event::dpsgd`]) at a given delta, for data sets that differ by adding or
/// removing one example.
///
/// | case | answer |
/// | --- | --- |
/// | target epsilon 0, negative, NaN or infinite | refused |
/// | 0 steps or rate 0, when solving for noise | refused: nothing is released, so no noise is the least |
/// | no noise up to 1e9 suffices | refused |
/// | noise of 1e-3 suffices already | 1e-3 |
/// | not one step fits | 0 steps |
/// | 2^53 steps fit | [`MAX_STEPS`] |
/// | not even rate 1e-12 fits | refused |
#[derive(Clone, Copy)]
pub struct Solver {
    kind: &'static Kind,
    delta: f64,
}

impl Solver {
    /// A solver by an accountant of [`ALL`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a delta that is not in (0, 1).
    pub fn new(kind: &'static Kind, delta: f64) -> Result<Self> {
        check_delta(delta)?;
        Ok(Solver { kind, delta })
    }

    /// What a run costs.
    ///
    /// # Errors
    /// [`Error::Invalid`] for numbers out of range.
    pub fn epsilon(&self, sampling_rate: f64, noise_multiplier: f64, steps: u64) -> Result<Epsilon> {
        let mut accountant = (self.kind.start)(NeighbouringRelation::AddOrRemoveOne)?;
        accountant.compose(&Event::dpsgd(sampling_rate, noise_multiplier, steps))?;
        accountant.epsilon(self.delta)
    }

    /// The smallest noise multiplier that keeps a run within `target`, to 1e-6 relative.
    ///
    /// # Errors
    /// [`Error::Invalid`] for numbers out of range and targets out of reach: see the table.
    pub fn noise_multiplier(&self, target: f64, sampling_rate: f64, steps: u64) -> Result<f64> {
        check_target(target)?;
        if steps == 0 {
            return Err(Error::invalid("steps", 0, "nothing is released, so any noise will do"));
        }
        if sampling_rate == 0.0 {
            return Err(Error::invalid("sampling rate", 0, "nothing is sampled, so any noise will do"));
        }
        let fits = |sigma| Ok::<bool, Error>(self.epsilon(sampling_rate, sigma, steps)?.value <= target);
        let (low, high) = SIGMAS;
        if fits(low)? {
            return Ok(low);
        }
        // Most answers are near 1, so the bracket grows from there.
        let (mut low, mut high) = (low, 1f64.min(high));
        while !fits(high)? {
            if high >= SIGMAS.1 {
                let why = "no noise reaches it: ask for more epsilon, a larger delta or fewer steps";
                return Err(Error::invalid("epsilon", target, why));
            }
            (low, high) = (high, (high * 4.0).min(SIGMAS.1));
        }
        bisect(low, high, |sigma| Ok(!fits(sigma)?)).map(|(_, high)| high)
    }

    /// The most steps within `target`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for numbers out of range.
    pub fn steps(&self, target: f64, sampling_rate: f64, noise_multiplier: f64) -> Result<u64> {
        check_target(target)?;
        let mut one = (self.kind.start)(NeighbouringRelation::AddOrRemoveOne)?;
        one.compose(&Event::dpsgd(sampling_rate, noise_multiplier, 1))?;
        let fits = |n: u64| Ok::<bool, Error>(one.repeated(n).epsilon(self.delta)?.value <= target);
        if fits(MAX_STEPS)? {
            return Ok(MAX_STEPS);
        }
        let (mut low, mut high) = (0, MAX_STEPS);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        // `repeated` and composing anew may round apart.
        while low > 0 && self.epsilon(sampling_rate, noise_multiplier, low)?.value > target {
            low -= 1 + (low >> 48);
        }
        Ok(low)
    }

    /// The largest sampling rate that keeps a run within `target`, to 1e-6 relative; 1 if all examples may join every step.
    ///
    /// # Errors
    /// [`Error::Invalid`] for numbers out of range, and if no rate from 1e-12 on fits.
    pub fn sampling_rate(&self, target: f64, noise_multiplier: f64, steps: u64) -> Result<f64> {
        check_target(target)?;
        let fits = |q| Ok::<bool, Error>(self.epsilon(q, noise_multiplier, steps)?.value <= target);
        if fits(1.0)? {
            return Ok(1.0);
        }
        if !fits(MIN_RATE)? {
            let why = "no sampling rate reaches it: ask for more epsilon, more noise or fewer steps";
            return Err(Error::invalid("epsilon", target, why));
        }
        bisect(MIN_RATE, 1.0, fits).map(|(low, _)| low)
    }
}

/// Narrows to a factor `1 + PRECISION`, in logarithms; `holds` is true at `low` and false at `high`, and stays so.
fn bisect(mut low: f64, mut high: f64, holds: impl Fn(f64) -> Result<bool>) -> Result<(f64, f64)> {
    while high > low * (1.0 + PRECISION) {
        let middle = (low * high).sqrt();
        if holds(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok((low, high))
}

fn check_target(target: f64) -> Result<()> {
    if target > 0.0 && target.is_finite() {
        Ok(())
    } else {
        Err(Error::invalid("epsilon", target, "must be positive and finite"))
    }
}

/// [`Solver::noise_multiplier`] by the default accountant.
///
/// # Errors
/// As [`Solver::noise_multiplier`], and for a delta that is not in (0, 1).
pub fn noise_multiplier(target: f64, delta: f64, sampling_rate: f64, steps: u64) -> Result<f64> {
    Solver::new(&ALL[0], delta)?.noise_multiplier(target, sampling_rate, steps)
}

/// [`Solver::steps`] by the default accountant.
///
/// # Errors
/// As [`Solver::steps`], and for a delta that is not in (0, 1).
pub fn steps(target: f64, delta: f64, sampling_rate: f64, noise_multiplier: f64) -> Result<u64> {
    Solver::new(&ALL[0], delta)?.steps(target, sampling_rate, noise_multiplier)
}
