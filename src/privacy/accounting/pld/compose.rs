//! Composition: many times the same pair, and pairs of different phases.

use super::fft::Convolver;
use super::grid::{Grid, HIGH_BUDGET, Side};
use super::pair::{Atoms, Pair};

/// How fine a computation is.
#[derive(Clone, Copy, Debug)]
pub struct Resolution {
    /// Grid step in units of the standard deviation of the loss that is on the grid.
    pub fineness: f64,
    /// Most grid points.
    pub points: usize,
}

/// From coarse to fine. The last takes one or two seconds for a million steps.
pub const RESOLUTIONS: [Resolution; 3] = [
    Resolution { fineness: 0.02, points: 1 << 13 },
    Resolution { fineness: 0.005, points: 1 << 15 },
    Resolution { fineness: 0.0025, points: 1 << 16 },
];

/// Largest `1 / sigma`: beyond, a loss distribution is two far islands.
pub const MAX_INVERSE_NOISE: f64 = 300.0;

/// A pair, and how often it is composed.
pub type Phase = (Pair, u128);

/// Lower and upper bound on the epsilon of all phases together at delta.
pub struct Composition<'a> {
    phases: &'a [Phase],
    ln_delta: f64,
    /// Coarse loss distributions, for what needs few digits.
    sketches: Vec<Atoms>,
}

impl<'a> Composition<'a> {
    pub fn new(phases: &'a [Phase], delta: f64) -> Self {
        let ln_delta = delta.ln();
        let tails = |count: u128| (ln_low(count), ln_high(count, phases.len(), ln_delta));
        let sketches = phases
            .iter()
            .map(|&(pair, count)| {
                let (low, high) = tails(count);
                let (from, to) = pair.range(low, high);
                pair.atoms(low, high, 0.0, (to - from).max(f64::MIN_POSITIVE))
            })
            .collect();
        Composition { phases, ln_delta, sketches }
    }

    /// The tilt at which a Chernoff bound on delta is smallest: order minus 1 of the best Renyi bound.
    pub fn best_tilt(&self) -> f64 {
        let bound = |tilt: f64| {
            let moments: f64 =
                self.sketches.iter().zip(self.phases).map(|(s, p)| s.ln_moment(tilt) * p.1 as f64).sum();
            (moments - self.ln_delta) / tilt
        };
        let tilts = (-40..120).map(|k| (f64::from(k) / 4.0).exp2());
        let best = tilts.map(|t| (bound(t), t)).filter(|b| b.0.is_finite());
        best.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |b| b.1)
    }

    /// Both bounds. The upper one may be infinite, the lower one 0.
    pub fn epsilon(&self, resolution: Resolution, tilt: f64, convolver: &mut Convolver) -> (f64, f64) {
        let mut bound = |side| self.whole(side, resolution, tilt, convolver).map(|grid| grid.epsilon());
        let above = bound(Side::Pessimistic).filter(|e| !e.is_nan()).unwrap_or(f64::INFINITY);
        let below = bound(Side::Optimistic).filter(|e| e.is_finite()).unwrap_or(0.0);
        (below, above)
    }

    fn whole(
        &self,
        side: Side,
        resolution: Resolution,
        tilt: f64,
        convolver: &mut Convolver,
    ) -> Option<Grid> {
        let mut whole: Option<Grid> = None;
        for i in 0..self.phases.len() {
            let base = self.base(i, side, resolution, tilt)?;
            let mut phase = base.power(self.phases[i].1, resolution, convolver)?;
            whole = Some(match whole {
                None => phase,
                Some(sum) => {
                    let mut sum = sum.coarsened(phase.step);
                    phase = phase.coarsened(sum.step);
                    sum.compose(Some(&phase), 1.0, true, convolver);
                    sum
                }
            });
        }
        whole
    }

    /// One step of a phase.
    fn base(&self, i: usize, side: Side, resolution: Resolution, tilt: f64) -> Option<Layered> {
        let (pair, count) = self.phases[i];
        let (low, high) = (ln_low(count), ln_high(count, self.phases.len(), self.ln_delta));
        let (from, to) = pair.range(low, high);
        let points = resolution.points as f64;
        let (mean, deviation) = self.sketches[i].mean_and_deviation(tilt);
        // Powers of two, so that all grids have common points.
        let rounded = |step: f64| step.log2().floor().exp2();
        let coarse = rounded(resolution.fineness * deviation).max(rounded((to - from) / points));
        let fine = rounded((resolution.fineness * deviation).max(16.0 * coarse / points)).min(coarse);
        if !(fine > 1e-290 && coarse.is_finite()) {
            return None;
        }
        let grid = |atoms: &Atoms, step: f64, shift: f64| {
            (!atoms.loss.is_empty()).then(|| Grid::new(side, atoms, (step, shift), tilt, self.ln_delta))
        };
        // The bulk of a small sampling rate is narrower than any grid: a point is put on it, where it wastes least.
        let center = self.sketches[i].center(tilt, fine);
        let shift = match side {
            Side::Pessimistic => center,
            Side::Optimistic => least_waste(center, fine, |shift| {
                let ends = (shift - 48.0 * fine, shift + 48.0 * fine);
                let atoms = pair.layers(low, high, ends, shift, (0.5 * fine, f64::INFINITY)).0;
                grid(&atoms, fine, shift).map_or(f64::NEG_INFINITY, |g| g.gain_over(&atoms))
            }),
        };
        let (inner, outer) = if fine < coarse {
            // Ends on the coarse grid.
            let reach = (0.5 * points * fine / coarse).floor();
            let middle = ((mean - shift) / coarse).round();
            let ends = (shift + (middle - reach) * coarse, shift + (middle + reach) * coarse);
            pair.layers(low, high, ends, shift, (0.5 * fine, 0.5 * coarse))
        } else {
            (pair.atoms(low, high, shift, 0.5 * fine), Atoms::default())
        };
        let mut base = Layered {
            fine: grid(&inner, fine, shift)?,
            coarse: grid(&outer, coarse, shift),
            coarse_step: coarse,
        };
        if side == Side::Pessimistic {
            base.fine.infinite = (high - self.ln_delta).exp();
        }
        Some(base)
    }
}

/// The shift within half a step of `center` with the largest gain, by a scan and a narrowing search around its best.
fn least_waste(center: f64, step: f64, gain: impl Fn(f64) -> f64) -> f64 {
    let mut best = (f64::NEG_INFINITY, center);
    let mut width = step / 12.0;
    let mut consider = |shift: f64| {
        let value = gain(shift);
        if value > best.0 {
            best = (value, shift);
        }
        best.1
    };
    let mut middle = center;
    for j in -6..6 {
        middle = consider(center + f64::from(j) * width);
    }
    for _ in 0..12 {
        width *= 0.5;
        consider(middle - width);
        middle = consider(middle + width);
    }
    middle
}

/// Logarithm of the P-mass that one of `count` copies may lose at low losses.
fn ln_low(count: u128) -> f64 {
    -27.6 - (count as f64).ln()
}

/// Logarithm of the P-mass that one of `count` copies may lose at high losses.
fn ln_high(count: u128, phases: usize, ln_delta: f64) -> f64 {
    ln_delta + (HIGH_BUDGET / phases as f64).ln() - (count as f64).ln()
}

/// The bulk of a loss distribution on a fine grid, and rare losses far from it on a coarse one.
///
/// A step of a small sampling rate nearly always costs next to nothing and rarely much: no one grid fits both. The two parts
/// add up to the distribution; a product is `F F + (2 F + T) T`, and only its second part is coarse.
#[derive(Clone)]
struct Layered {
    fine: Grid,
    coarse: Option<Grid>,
    coarse_step: f64,
}

impl Layered {
    /// `count` copies, by squaring, on grids that grow coarser as the sum grows wider. Nothing if numbers overflow.
    fn power(self, count: u128, resolution: Resolution, convolver: &mut Convolver) -> Option<Grid> {
        let mut base = self;
        let mut sum = base.clone();
        for bit in (0..count.ilog2()).rev() {
            let so_far = count >> bit;
            let copies = count as f64 / so_far as f64;
            sum.square(copies, convolver);
            if so_far & 1 == 1 {
                base.coarsen_to(sum.fine.step, sum.coarse_step);
                sum.compose(&base, copies, convolver);
            }
            sum.fit(resolution)?;
        }
        sum.coarsen_to(sum.coarse_step, sum.coarse_step);
        Some(sum.fine)
    }

    /// Moves all infinite loss to the fine part.
    fn gather(&mut self) {
        if let Some(coarse) = &mut self.coarse {
            self.fine.infinite += std::mem::take(&mut coarse.infinite);
        }
    }

    /// The fine part as a summand of coarse factors: its infinite loss is counted once, in the fine product.
    fn bulk(&self) -> Grid {
        let mut bulk = self.fine.coarsened(self.coarse_step);
        bulk.infinite = 0.0;
        bulk
    }

    fn square(&mut self, copies: f64, convolver: &mut Convolver) {
        self.gather();
        let whole = self.coarse.is_none();
        if let Some(tails) = &mut self.coarse {
            let mut factor = tails.clone();
            let mut bulk = self.fine.coarsened(self.coarse_step).scaled(2.0);
            bulk.infinite = 0.0;
            factor.add(&bulk);
            tails.compose(Some(&factor), copies, true, convolver);
        }
        self.fine.compose(None, copies, whole, convolver);
    }

    fn compose(&mut self, other: &Layered, copies: f64, convolver: &mut Convolver) {
        self.gather();
        // F x T' + T x (F' + T').
        let mut parts = Vec::new();
        if let Some(theirs) = &other.coarse {
            let mut part = self.bulk();
            part.compose(Some(theirs), copies, true, convolver);
            parts.push(part);
        }
        if let Some(ours) = &self.coarse {
            let mut whole = other.bulk();
            if let Some(mut theirs) = other.coarse.clone() {
                theirs.infinite = 0.0;
                whole.add(&theirs);
            }
            whole.compose(Some(ours), copies, true, convolver);
            parts.push(whole);
        }
        self.coarse = None;
        parts.into_iter().for_each(|p| self.put(p));
        self.fine.compose(Some(&other.fine), copies, self.coarse.is_none(), convolver);
    }

    /// Adds a grid to the coarse part.
    fn put(&mut self, part: Grid) {
        let part = part.coarsened(self.coarse_step);
        match &mut self.coarse {
            Some(coarse) => coarse.add(&part),
            None => self.coarse = Some(part),
        }
    }

    /// Coarsens both grids as far as the sum's width allows, and within the number of points.
    fn fit(&mut self, resolution: Resolution) -> Option<()> {
        let points = resolution.points;
        while self.coarse.as_ref().is_some_and(|c| c.len() > points) {
            self.coarsen_to(self.fine.step, 2.0 * self.coarse_step);
        }
        let deviation = self.fine.deviation();
        if !deviation.is_finite() {
            return None;
        }
        while self.fine.len() > 64 && 2.0 * self.fine.step <= resolution.fineness * deviation {
            self.coarsen_to(2.0 * self.fine.step, self.coarse_step);
        }
        while self.fine.len() > points {
            if self.fine.step < self.coarse_step && self.fine.step * points as f64 >= 8.0 * self.coarse_step {
                let parts = self.fine.split_off(points);
                parts.into_iter().for_each(|p| self.put(p));
            } else {
                self.coarsen_to(2.0 * self.fine.step, self.coarse_step);
            }
        }
        Some(())
    }

    /// Coarsens to these steps; one grid where they meet.
    fn coarsen_to(&mut self, fine: f64, coarse: f64) {
        self.coarse_step = coarse.max(fine);
        while self.fine.step < fine {
            self.fine.coarsen();
        }
        if let Some(part) = self.coarse.take() {
            let part = part.coarsened(self.coarse_step);
            if self.fine.step < self.coarse_step {
                self.coarse = Some(part);
            } else {
                self.fine.add(&part);
            }
        }
    }
}
