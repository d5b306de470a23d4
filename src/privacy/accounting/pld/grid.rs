//! A loss distribution on a grid, from above or from below.
//!
//! Two ways of moving mass keep the guarantee, because hockey-stick divergences are convex in `e^-loss`
//! and because domination survives composition (Dong, Roth, Su 2022; Zhu, Dong, Wang 2022):
//!
//! - **pessimistic**: mass at a loss is spread over the two grid points beside it so that P-mass and Q-mass stay the same
//!   (connect the dots: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv 2207.04380). Also, mass may rise.
//! - **optimistic**: masses are merged into a grid point if their P-mass and Q-mass together have that loss: merging is
//!   post-processing. Also, mass may fall, or be left out.
//!
//! Both err in the second order of the grid's step. Masses are stored tilted, `m = P-mass e^(tilt loss) / e^ln_scale`, with
//! sum 1: a tilt moves the bulk to where a small delta is decided, so that rounding is small against what matters there.

use super::fft::Convolver;
use super::pair::{Atoms, PIECE_ERROR};

/// Which bound a grid keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    Pessimistic,
    Optimistic,
}

/// Tilted mass that may be moved or dropped at the lower end, over the whole composition.
const LOW_BUDGET: f64 = 1e-9;

/// P-mass, in units of delta, that may be moved to infinity or dropped at the upper end, over the whole composition.
pub const HIGH_BUDGET: f64 = 1e-6;

/// Loss distribution on the points `shift + step * (low + i)`.
#[derive(Clone)]
pub struct Grid {
    pub side: Side,
    pub step: f64,
    shift: f64,
    low: i64,
    mass: Vec<f64>,
    ln_scale: f64,
    tilt: f64,
    /// Logarithm of the delta in question.
    ln_delta: f64,
    /// P-mass at infinite loss, in units of delta. Pessimistic only.
    pub infinite: f64,
}

impl Grid {
    /// Puts atoms on a grid, for a question about delta.
    pub fn new(side: Side, atoms: &Atoms, (step, shift): (f64, f64), tilt: f64, ln_delta: f64) -> Self {
        let ln_scale = atoms.ln_moment(tilt);
        let mass = atoms.loss.iter().zip(&atoms.ln_mass).map(|(l, m)| (m + tilt * l - ln_scale).exp());
        let mut grid =
            Grid { side, step, shift, low: 0, mass: Vec::new(), ln_scale, tilt, ln_delta, infinite: 0.0 };
        let places: Vec<f64> = atoms.loss.iter().map(|l| (l - shift) / step).collect();
        match side {
            Side::Pessimistic => grid.spread(&places, mass.map(|m| m * (1.0 + PIECE_ERROR))),
            Side::Optimistic => grid.merge(&places, mass.map(|m| m * (1.0 - PIECE_ERROR)).collect()),
        }
        grid.normalise();
        grid
    }

    /// The same on a grid of twice the step.
    pub fn coarsen(&mut self) {
        self.step *= 2.0;
        let places: Vec<f64> = (0..self.mass.len()).map(|i| (self.low + i as i64) as f64 / 2.0).collect();
        let mass = std::mem::take(&mut self.mass);
        match self.side {
            Side::Pessimistic => self.spread(&places, mass.into_iter()),
            Side::Optimistic => self.merge(&places, mass),
        }
        self.normalise();
    }

    /// Spreads masses at ascending places (losses in steps) over the grid points beside them.
    fn spread(&mut self, places: &[f64], mass: impl Iterator<Item = f64>) {
        let (first, last) = (places[0].floor(), places[places.len() - 1].floor());
        self.low = first as i64;
        self.mass = vec![0.0; (last - first) as usize + 2];
        let whole = (-self.step).exp_m1();
        for (&place, m) in places.iter().zip(mass) {
            let k = place.floor();
            let (slot, below) = ((k - first) as usize, (place - k) * self.step);
            if below == 0.0 {
                self.mass[slot] += m;
                continue;
            }
            // Upwards by what rounding of the place may have taken.
            let up = ((-below).exp_m1() / whole + 4.0 * f64::EPSILON * (place.abs() + 1.0)).min(1.0);
            self.mass[slot] += m * (1.0 - up) * (-self.tilt * below).exp();
            self.mass[slot + 1] += m * up * (self.tilt * (self.step - below)).exp();
        }
    }

    /// Merges masses at ascending places into grid points, each from the nearest masses on both sides.
    ///
    /// Points take from below all that is left there, and from above as much as balances it; beyond the fullest cell the other
    /// way round. Both sweeps run towards larger masses, so that an imbalance dies out.
    fn merge(&mut self, places: &[f64], mut mass: Vec<f64>) {
        let (step, tilt) = (self.step, self.tilt);
        let (first, last) = (places[0].floor(), places[places.len() - 1].floor());
        self.low = first as i64 - 1;
        let cells = (last - first) as usize + 1;
        // Cell c, between points c + 1 and c + 2 of the grid, holds the atoms start[c]..start[c + 1].
        let mut start = vec![0; cells + 1];
        let mut sums = vec![0.0; cells];
        for (&place, &m) in places.iter().zip(&mass) {
            let c = (place.floor() - first) as usize;
            start[c + 1] += 1;
            sums[c] += m;
        }
        for c in 0..cells {
            start[c + 1] += start[c];
        }
        let middle = (0..cells).fold(0, |best, c| if sums[c] > sums[best] { c } else { best });
        let mut grid = vec![0.0; cells + 2];
        // P-mass of an atom as tilted mass at the point, and its excess of P over what the point's loss gives to its Q-mass.
        let at = |place: f64, point: usize, m: f64| {
            let above = (place - (first + point as f64 - 1.0)) * step;
            let p = m * (-tilt * above).exp();
            (p, -p * (-above).exp_m1())
        };
        let totals = |range: std::ops::Range<usize>, point: usize, mass: &[f64]| {
            range.fold((0.0, 0.0), |(p, e), j| {
                let (dp, de) = at(places[j], point, mass[j]);
                (p + dp, e + de)
            })
        };
        // What a point has too little of, in P, from `p` below with `excess` above: part of `p` falls to the next point.
        let settle = |grid: &mut [f64], point: usize, above: f64, p: f64, excess: f64, deficit: f64| {
            let kept = if excess >= deficit { 1.0 } else { excess / deficit };
            grid[point] += above + kept * p;
            grid[point - 1] += (1.0 - kept) * p * (-tilt * step).exp();
        };
        for point in 1..=middle {
            let below = if point >= 2 {
                totals(start[point - 2]..start[point - 1], point, &mass)
            } else {
                (0.0, 0.0)
            };
            let (mut taken, mut excess, deficit) = (0.0, 0.0, -below.1);
            for j in start[point - 1]..start[point] {
                let (p, e) = at(places[j], point, mass[j]);
                let part = if excess + e <= deficit { 1.0 } else { ((deficit - excess) / e).clamp(0.0, 1.0) };
                taken += part * p;
                excess += part * e;
                mass[j] *= 1.0 - part;
                if part < 1.0 {
                    break;
                }
            }
            settle(&mut grid, point, taken, below.0, excess, deficit);
        }
        for point in (middle + 2..=cells + 1).rev() {
            let above = if point <= cells {
                totals(start[point - 1]..start[point], point, &mass)
            } else {
                (0.0, 0.0)
            };
            let (mut taken, mut deficit) = (0.0, 0.0);
            for j in (start[point - 2]..start[point - 1]).rev() {
                let (p, e) = at(places[j], point, mass[j]);
                let part =
                    if deficit - e <= above.1 { 1.0 } else { ((above.1 - deficit) / -e).clamp(0.0, 1.0) };
                taken += part * p;
                deficit -= part * e;
                mass[j] *= 1.0 - part;
                if part < 1.0 {
                    break;
                }
            }
            grid[point] += above.0 + taken;
        }
        let point = middle + 1;
        let below =
            if middle >= 1 { totals(start[middle - 1]..start[middle], point, &mass) } else { (0.0, 0.0) };
        let above = totals(start[middle]..start[middle + 1], point, &mass);
        settle(&mut grid, point, above.0, below.0, above.1, -below.1);
        self.mass = grid;
    }

    /// The same on a grid of this step, by doubling.
    pub fn coarsened(&self, step: f64) -> Grid {
        let mut out = self.clone();
        while out.step < step {
            out.coarsen();
        }
        out
    }

    /// `weight` times the same.
    pub fn scaled(mut self, weight: f64) -> Grid {
        self.ln_scale += weight.ln();
        self
    }

    /// Adds the masses of a grid of the same step, shift and tilt.
    pub fn add(&mut self, other: &Grid) {
        let low = self.low.min(other.low);
        let end = (self.low + self.len() as i64).max(other.low + other.len() as i64);
        let ln_scale = self.ln_scale.max(other.ln_scale);
        let mut mass = vec![0.0; (end - low) as usize];
        for grid in [&*self, other] {
            let factor = (grid.ln_scale - ln_scale).exp();
            for (slot, m) in mass[(grid.low - low) as usize..].iter_mut().zip(&grid.mass) {
                *slot += factor * m;
            }
        }
        (self.low, self.ln_scale, self.mass) = (low, ln_scale, mass);
        self.infinite += other.infinite;
        self.normalise();
    }

    /// Cuts off what is further than `points / 2` points from the mean: grids of what is below and above.
    pub fn split_off(&mut self, points: usize) -> Vec<Grid> {
        let mean: f64 = self.mass.iter().enumerate().map(|(i, m)| m * i as f64).sum();
        let begin = ((mean as usize).saturating_sub(points / 2)).min(self.len() - 1);
        let end = (begin + points).min(self.len());
        let mut off = Vec::new();
        for (range, low) in [(0..begin, self.low), (end..self.len(), self.low + end as i64)] {
            if self.mass[range.clone()].iter().any(|m| *m > 0.0) {
                let mut part = Grid { low, mass: self.mass[range].to_vec(), infinite: 0.0, ..*self };
                part.normalise();
                off.push(part);
            }
        }
        self.mass.truncate(end);
        self.mass.drain(..begin);
        self.low += begin as i64;
        self.normalise();
        off
    }

    /// Scales masses to sum 1.
    fn normalise(&mut self) {
        let sum: f64 = self.mass.iter().sum();
        self.mass.iter_mut().for_each(|m| *m /= sum);
        self.ln_scale += sum.ln();
    }

    /// Composes with `other`, or with itself. `copies` is how often the result enters the whole. If `whole`, the upper end is cut
    /// where nothing but rounding is left; a grid that only holds the bulk keeps it, because at so low losses it is harmless.
    pub fn compose(&mut self, other: Option<&Grid>, copies: f64, whole: bool, convolver: &mut Convolver) {
        let product = convolver.product(&self.mass, other.map(|o| &o.mass[..]));
        let error = |i: usize| if product.core.contains(&i) { product.error_in_core } else { product.error };
        let sign = if self.side == Side::Pessimistic { 1.0 } else { -1.0 };
        let mass: Vec<f64> =
            product.mass.iter().enumerate().map(|(i, m)| (m + sign * error(i)).max(0.0)).collect();
        let (low, shift, scale, infinite) = match other {
            Some(o) => (o.low, o.shift, o.ln_scale, o.infinite),
            None => (self.low, self.shift, self.ln_scale, self.infinite),
        };
        self.mass = mass;
        self.low += low;
        self.shift += shift;
        self.ln_scale += scale;
        self.infinite += infinite;
        self.trim(&error, copies, whole);
        self.normalise();
    }

    /// Shortens both ends; what is but the error charged above does not count as mass.
    fn trim(&mut self, error: &dyn Fn(usize) -> f64, copies: f64, whole: bool) {
        let real = |i: usize, m: f64| (m - 2.0 * error(i)).max(0.0);
        let length = self.mass.len();
        let (mut end, mut above, mut lost) = (length, 0.0, 0.0);
        while end > 1 {
            let i = end - 1;
            let loss = self.loss(i);
            let weight = (self.ln_scale - self.tilt * loss - self.ln_delta).exp();
            above += if whole { real(i, self.mass[i]) } else { self.mass[i] } * weight;
            if !(above <= HIGH_BUDGET / copies / 64.0) {
                break;
            }
            lost += self.mass[i] * weight;
            end -= 1;
        }
        let (mut begin, mut below, mut pile) = (0, 0.0, 0.0);
        let rise = (self.tilt * self.step).exp();
        while begin + 1 < end {
            let m = self.mass[begin];
            // Left out where optimistic; raised to the first point that stays where pessimistic.
            let next = match self.side {
                Side::Pessimistic => (below + real(begin, m)) * rise,
                Side::Optimistic => below + m,
            };
            if !(next <= LOW_BUDGET / copies / 64.0) {
                break;
            }
            below = next;
            begin += 1;
            // All P-mass together is at most 1, whatever rounding has added at losses where the tilt weighs next to nothing.
            let most = (self.tilt * self.loss(begin) - self.ln_scale).exp();
            pile = ((pile + m) * rise).min(most);
        }
        self.mass.truncate(end);
        self.mass.drain(..begin);
        self.low += begin as i64;
        if self.side == Side::Pessimistic {
            self.infinite += lost;
            self.mass[0] += pile;
        }
    }

    fn loss(&self, i: usize) -> f64 {
        self.shift + (self.low + i as i64) as f64 * self.step
    }

    /// How much of the atoms' weight is kept: what merging loses by lowering losses counts against it.
    pub fn gain_over(&self, atoms: &Atoms) -> f64 {
        if self.tilt > 0.0 {
            return self.ln_scale - atoms.ln_moment(self.tilt);
        }
        let after: f64 = self.mass.iter().enumerate().map(|(i, m)| m * (-self.loss(i)).exp_m1()).sum();
        let before: f64 = atoms.loss.iter().zip(&atoms.ln_mass).map(|(l, m)| m.exp() * (-l).exp_m1()).sum();
        before - after * self.ln_scale.exp()
    }

    /// Number of grid points.
    pub fn len(&self) -> usize {
        self.mass.len()
    }

    /// Standard deviation of the tilted loss.
    pub fn deviation(&self) -> f64 {
        let (mut mean, mut square) = (0.0, 0.0);
        for (i, m) in self.mass.iter().enumerate() {
            mean += m * i as f64;
        }
        for (i, m) in self.mass.iter().enumerate() {
            square += m * (i as f64 - mean) * (i as f64 - mean);
        }
        self.step * square.sqrt()
    }

    /// The epsilon at which the hockey-stick divergence is delta, and at least 0; infinite if P-mass at infinity reaches delta.
    pub fn epsilon(&self) -> f64 {
        // In units of delta: the divergence at a point, and Q-mass from there on times e^loss. Neither loses digits.
        let (mut divergence, mut q_mass) = (self.infinite, 0.0);
        if !(divergence < 1.0) {
            return f64::INFINITY;
        }
        let (gain, fall) = (-(-self.step).exp_m1(), (-self.step).exp());
        for (i, &m) in self.mass.iter().enumerate().rev() {
            let loss = self.loss(i);
            if loss <= 0.0 {
                return 0.0;
            }
            if m > 0.0 {
                q_mass += m * (self.ln_scale - self.tilt * loss - self.ln_delta).exp();
            }
            let last = i == 0;
            let next = divergence + q_mass * if last { 1.0 } else { gain };
            if !(next <= 1.0) {
                return (loss + (-(1.0 - divergence) / q_mass).ln_1p()).max(0.0);
            }
            divergence = next;
            q_mass *= fall;
        }
        0.0
    }
}
