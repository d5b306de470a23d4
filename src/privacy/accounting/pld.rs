//! The accountant of privacy loss distributions (Sommer, Meiser, Mohammadi 2019; Koskela, Jälkö, Honkela 2020, arXiv 1906.03049).
//!
//! The privacy loss of independent steps adds up, so its distribution is a convolution, and delta at every epsilon follows from
//! it without loss: `delta = E[(1 - e^(eps - loss))+]`. What is computed are two distributions on a grid, one that dominates
//! the true one and one that is dominated by it, so that the true epsilon lies between the two answers: their distance is a certificate.
//! Grids, tails, quadrature and the FFT's rounding are all charged to the bounds: see [`grid`], [`pair`] and [`fft`].

mod compose;
mod fft;
mod grid;
mod pair;

use self::compose::{Composition, MAX_INVERSE_NOISE, Phase, RESOLUTIONS};
use self::fft::Convolver;
use self::pair::Pair;
use super::accountant::{Accountant, Epsilon, check_delta};
use super::event::{Event, NeighbouringRelation};
use super::moment::check;
use super::normal::gaussian_epsilon;
use super::rdp::Rdp;
use crate::error::{Error, Result};

/// Bounds closer than this, relative, are not refined.
const CLOSE: f64 = 1e-3;

/// Under the first, rounding may have to be kept small by tilting; under the second, nothing else will do.
const SMALL_DELTAS: (f64, f64) = (1e-9, 1e-14);

/// Most steps whose loss distribution is computed; rounding of more is not bounded usefully.
const MAX_COUNT: u128 = 1_000_000_000_000;

/// The accountant of privacy loss distributions. Contract: [`Accountant`].
///
/// Prices [`Event::Gaussian`], and [`Event::PoissonSampled`] of one Gaussian, composed in any way.
///
/// - **Add or remove one example**: the tight pair of distributions in both directions.
/// - **Replace one example**: as above, for sums of contributions that are clipped to half of the sensitivity, as DP-SGD's are:
///   noise of standard deviation `s`, and contributions clipped to C, have noise multiplier `s / (2 C)` here.
///
/// [`Epsilon::lower`] is a lower bound on what any accountant could prove of the same events; no bound is closer than
/// `value - lower`.
///
/// | case | answer |
/// | --- | --- |
/// | Gaussians without sampling | the closed form of Balle and Wang 2018, arXiv 1805.06530, theorem 8 |
/// | delta is at least the sum of all sampling rates | 0: that no step sampled the example is more likely than `1 - delta` |
/// | over 10^12 steps, sigma under 1/300, or losses too small for a double | the better of the Renyi bound and the closed form without sampling; no lower bound |
/// | otherwise | the smallest of all these bounds and the computed one |
#[derive(Clone, Debug)]
pub struct Pld {
    relation: NeighbouringRelation,
    /// Sampled steps: rate, noise multiplier, how often.
    steps: Vec<(f64, f64, u128)>,
    /// Sum of squares of `1 / sigma` over all steps without sampling.
    squares: f64,
    /// The same events at the Renyi accountant, where it knows the relation.
    renyi: Option<Rdp>,
}

impl Pld {
    /// An accountant of nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a neighbouring relation that it does not know; it knows both of today.
    pub fn new(relation: NeighbouringRelation) -> Result<Self> {
        let renyi = match relation {
            NeighbouringRelation::AddOrRemoveOne => Some(Rdp::for_relation(relation)?.named("pld")),
            NeighbouringRelation::ReplaceOne => None,
        };
        Ok(Pld { relation, steps: Vec::new(), squares: 0.0, renyi })
    }

    /// Adds a supported event, `count` times.
    fn add(&mut self, event: &Event, count: u128) {
        match event {
            _ if count == 0 => {}
            Event::Gaussian { noise_multiplier } => self.add_step(1.0, *noise_multiplier, count),
            Event::PoissonSampled { sampling_rate, event } => {
                if let Event::Gaussian { noise_multiplier } = **event {
                    self.add_step(*sampling_rate, noise_multiplier, count);
                }
            }
            Event::SelfComposed { event, count: more } => {
                self.add(event, count.saturating_mul(u128::from(*more)));
            }
            Event::Composed(events) => events.iter().for_each(|e| self.add(e, count)),
            _ => {}
        }
    }

    fn add_step(&mut self, q: f64, sigma: f64, count: u128) {
        if q == 0.0 {
            return;
        }
        if q == 1.0 || sigma == 0.0 {
            // Sampling hides a release without noise from an epsilon only with a delta of its own: not priced.
            self.squares += count as f64 / sigma / sigma;
            return;
        }
        match self.steps.iter_mut().find(|s| s.0 == q && s.1 == sigma) {
            Some(step) => step.2 = step.2.saturating_add(count),
            None => self.steps.push((q, sigma, count)),
        }
    }

    fn refuse(&self, event: &Event) -> Error {
        let why = match event {
            Event::PoissonSampled { .. } => "it prices Poisson sampling of one Gaussian alone",
            Event::Shuffled { .. } => {
                "shuffling is not Poisson sampling and can cost far more: train with Poisson sampling"
            }
            _ => {
                "its pair of distributions holds for Poisson sampling alone, without a cap and without a fixed size"
            }
        };
        Error::Unsupported { accountant: "pld", event: event.to_string(), why: why.into() }
    }

    /// The pairs whose compositions bound epsilon together.
    fn directions(&self) -> Vec<Vec<Phase>> {
        let makers: &[fn(f64, f64) -> Pair] = match self.relation {
            NeighbouringRelation::AddOrRemoveOne => {
                &[|q, u| Pair::Remove { q, u }, |q, u| Pair::Add { q, u }]
            }
            NeighbouringRelation::ReplaceOne => &[|q, u| Pair::Replace { q, u }],
        };
        let phases = |make: &fn(f64, f64) -> Pair| {
            let sampled = self.steps.iter().map(|&(q, sigma, count)| (make(q, 1.0 / sigma), count));
            let gaussian = (self.squares > 0.0).then(|| (make(1.0, self.squares.sqrt()), 1));
            sampled.chain(gaussian).collect()
        };
        makers.iter().map(phases).collect()
    }

    fn is_computable(&self) -> bool {
        let gaussian = self.squares.sqrt();
        let sampled = self.steps.iter().all(|&(q, sigma, count)| {
            1.0 / sigma <= MAX_INVERSE_NOISE && q / sigma > 1e-100 && count <= MAX_COUNT
        });
        sampled && (gaussian == 0.0 || (gaussian <= MAX_INVERSE_NOISE && gaussian > 1e-100))
    }

    /// Bounds that need no distribution, and the order of the upper one: closed forms, and Renyi.
    fn simple_bounds(&self, delta: f64) -> Result<Epsilon> {
        let rates: f64 = self.steps.iter().map(|&(q, _, count)| q * count as f64).sum();
        if self.squares == 0.0 && rates * (1.0 + 1e-9) <= delta {
            return Ok(Epsilon { value: 0.0, order: 0.0, lower: Some(0.0) });
        }
        let sampled: f64 = self.steps.iter().map(|&(_, sigma, count)| count as f64 / sigma / sigma).sum();
        let raised = 1.0 + 1e-14;
        let (_, value) = gaussian_epsilon((self.squares + sampled).sqrt() * raised, delta);
        let (lower, _) = gaussian_epsilon(self.squares.sqrt() / raised, delta);
        let mut best = Epsilon { value, order: 0.0, lower: self.steps.is_empty().then_some(lower) };
        if let Some(renyi) = self.renyi.as_ref().filter(|_| !self.steps.is_empty()) {
            let bound = renyi.epsilon(delta)?;
            if bound.value < best.value {
                best = Epsilon { value: bound.value, order: bound.order, ..best };
            }
        }
        Ok(best)
    }
}

/// The tilts that are worth a try at delta.
fn tilts(composition: &Composition, delta: f64) -> Vec<f64> {
    let mut tilts = Vec::new();
    if delta > SMALL_DELTAS.1 {
        tilts.push(0.0);
    }
    if delta < SMALL_DELTAS.0 {
        tilts.push(composition.best_tilt());
    }
    tilts
}

impl Accountant for Pld {
    fn name(&self) -> &'static str {
        "pld"
    }

    fn relation(&self) -> NeighbouringRelation {
        self.relation
    }

    fn check(&self, event: &Event) -> Result<()> {
        match event {
            Event::NoOp => Ok(()),
            Event::Gaussian { noise_multiplier } => check(1.0, *noise_multiplier),
            Event::PoissonSampled { sampling_rate, event: inner } => match **inner {
                Event::NoOp => check(*sampling_rate, 0.0),
                Event::Gaussian { noise_multiplier } => check(*sampling_rate, noise_multiplier),
                _ => Err(self.refuse(event)),
            },
            Event::SelfComposed { event, .. } => self.check(event),
            Event::Composed(events) => events.iter().try_for_each(|e| self.check(e)),
            other => Err(self.refuse(other)),
        }
    }

    fn compose_times(&mut self, event: &Event, count: u64) -> Result<()> {
        self.check(event)?;
        if let Some(renyi) = &mut self.renyi {
            renyi.compose_times(event, count)?;
        }
        self.add(event, u128::from(count));
        Ok(())
    }

    fn repeated(&self, count: u64) -> Box<dyn Accountant> {
        let mut out = self.clone();
        out.squares = if count == 0 { 0.0 } else { self.squares * count as f64 };
        out.renyi = self.renyi.as_ref().map(|r| r.repeated(count));
        if count == 0 {
            out.steps.clear();
        }
        out.steps.iter_mut().for_each(|s| s.2 = s.2.saturating_mul(u128::from(count)));
        Box::new(out)
    }

    fn epsilon(&self, delta: f64) -> Result<Epsilon> {
        check_delta(delta)?;
        let mut best = self.simple_bounds(delta)?;
        if best.lower.is_some() || !self.is_computable() {
            return Ok(best);
        }
        let directions = self.directions();
        let compositions: Vec<Composition> = directions.iter().map(|d| Composition::new(d, delta)).collect();
        let mut convolver = Convolver::new();
        // What rounding of losses may add up to, in every step.
        let count: f64 = self.steps.iter().map(|s| s.2 as f64).sum();
        let rounding = |e: f64| 1e-9 * e + 4.0 * f64::EPSILON * count * e;
        let mut bounds = vec![(0.0f64, f64::INFINITY); compositions.len()];
        let mut tilts: Vec<Vec<f64>> = compositions.iter().map(|c| tilts(c, delta)).collect();
        let mut lower = 0.0f64;
        for resolution in RESOLUTIONS {
            for ((bound, composition), tilts) in bounds.iter_mut().zip(&compositions).zip(&mut tilts) {
                // The larger direction counts: one that is known to be the smaller needs no more digits.
                if bound.1 < lower {
                    continue;
                }
                let mut best_gap = f64::INFINITY;
                for tilt in std::mem::take(tilts) {
                    let (low, high) = composition.epsilon(resolution, tilt, &mut convolver);
                    *bound = (bound.0.max(low - rounding(low)), bound.1.min(high + rounding(high)));
                    // The better tilt is kept for finer grids.
                    if tilts.is_empty() || high - low < best_gap {
                        (*tilts, best_gap) = (vec![tilt], high - low);
                    }
                }
                lower = lower.max(bound.0);
            }
            let above = bounds.iter().fold(0.0f64, |e, b| e.max(b.1));
            if above < best.value {
                (best.value, best.order) = (above, 0.0);
            }
            if best.value - lower <= CLOSE * best.value {
                break;
            }
        }
        best.lower = Some(lower.min(best.value));
        Ok(best)
    }
}
