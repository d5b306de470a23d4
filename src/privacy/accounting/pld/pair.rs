//! Pairs of distributions that dominate one step, and the distribution of their privacy loss as fine atoms.
//!
//! In units of the noise, with `u = 1 / sigma` and N(m) the normal distribution of mean m and variance 1, the loss is
//! `ln(dP / dQ)` under P. Pairs of Poisson sampling at rate q:
//!
//! - **add or remove one**: P = (1 - q) N(0) + q N(u) against Q = N(0), and the two exchanged (Zhu, Dong, Wang 2022,
//!   arXiv 2106.08567, theorem 11). Both are composed, and the larger answer counts.
//! - **replace one**: (1 - q) N(0) + q N(u / 2) against (1 - q) N(0) + q N(-u / 2), where contributions are clipped to half of
//!   the sensitivity. For contributions a, b of norm up to u / 2 in any dimension and `gamma >= 1`,
//!   `sup_A P(A) - gamma Q(A) = q sup_A N(a)(A) - (gamma - 1)(1 - q) / q N(0)(A) - gamma N(b)(A)`. Among sets of given N(a)(A)
//!   the two subtracted terms are each at least what a half-line gives at distances |a| and |a - b| (Neyman and Pearson), they
//!   fall with the distance, and a = u / 2, b = -u / 2 on a line attains all of it at once. Below 1, exchange P and Q.

use super::super::normal::{LN_SQRT_TAU, tail_quantile};

/// A dominating pair. `y` is the outcome, turned so that the loss grows with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pair {
    /// Mixture against N(0): the example is in the data set.
    Remove { q: f64, u: f64 },
    /// N(0) against the mixture; y is the negated outcome.
    Add { q: f64, u: f64 },
    /// Mixture against mixture.
    Replace { q: f64, u: f64 },
}

/// The loss distribution in small pieces, ascending: loss and logarithm of the P-mass. Each piece has the P-mass and the
/// Q-mass of the interval that it stands for, to a relative error of [`PIECE_ERROR`].
#[derive(Default)]
pub struct Atoms {
    pub loss: Vec<f64>,
    pub ln_mass: Vec<f64>,
}

/// Bound of the relative error of a piece's mass: quadrature, exponents of up to 800, summation.
pub const PIECE_ERROR: f64 = 4e-13;

/// Nodes and weights of Gauss and Legendre on [-1, 1].
const FEW: [(f64, f64); 3] =
    [(-0.774_596_669_241_483_4, 5.0 / 9.0), (0.0, 8.0 / 9.0), (0.774_596_669_241_483_4, 5.0 / 9.0)];
const MANY: [(f64, f64); 8] = [
    (-0.960_289_856_497_536_3, 0.101_228_536_290_376_26),
    (-0.796_666_477_413_626_7, 0.222_381_034_453_374_48),
    (-0.525_532_409_916_329, 0.313_706_645_877_887_27),
    (-0.183_434_642_495_649_8, 0.362_683_783_378_362),
    (0.183_434_642_495_649_8, 0.362_683_783_378_362),
    (0.525_532_409_916_329, 0.313_706_645_877_887_27),
    (0.796_666_477_413_626_7, 0.222_381_034_453_374_48),
    (0.960_289_856_497_536_3, 0.101_228_536_290_376_26),
];

/// `ln(1 - q + q e^t)`.
fn ln_mix(q: f64, t: f64) -> f64 {
    if q == 1.0 {
        t
    } else if t > 30.0 {
        q.ln() + t + ((1.0 - q) / q * (-t).exp()).ln_1p()
    } else {
        (q * t.exp_m1()).ln_1p()
    }
}

/// t with `ln_mix(q, t) = loss`; minus infinity from `ln(1 - q)` down.
fn inverse_mix(q: f64, loss: f64) -> f64 {
    if q == 1.0 {
        loss
    } else if loss > 30.0 {
        loss - q.ln() + (-(1.0 - q) * (-loss).exp()).ln_1p()
    } else {
        let x = loss.exp_m1() / q;
        if x > -1.0 { x.ln_1p() } else { f64::NEG_INFINITY }
    }
}

impl Pair {
    fn numbers(self) -> (f64, f64) {
        match self {
            Pair::Remove { q, u } | Pair::Add { q, u } | Pair::Replace { q, u } => (q, u),
        }
    }

    /// Loss at y, and logarithm of the density of P.
    fn at(self, y: f64) -> (f64, f64) {
        let base = -0.5 * y * y - LN_SQRT_TAU;
        match self {
            Pair::Remove { q, u } => {
                let loss = ln_mix(q, u * (y - 0.5 * u));
                (loss, base + loss)
            }
            Pair::Add { q, u } => (-ln_mix(q, -u * (y + 0.5 * u)), base),
            Pair::Replace { q, u } => {
                let (up, down) = (ln_mix(q, 0.5 * u * (y - 0.25 * u)), ln_mix(q, -0.5 * u * (y + 0.25 * u)));
                (up - down, base + up)
            }
        }
    }

    /// y at which the loss is reached; infinite where it never is.
    fn inverse(self, loss: f64) -> f64 {
        match self {
            Pair::Remove { q, u } => inverse_mix(q, loss) / u + 0.5 * u,
            Pair::Add { q, u } => -(inverse_mix(q, -loss) / u + 0.5 * u),
            Pair::Replace { q, u } => {
                // With x = e^(u y / 2) and a = q e^(-u^2 / 8): a x^2 + (1 - q)(1 - e^loss) x = a e^loss.
                let size = loss.abs();
                let (rest, ln_a) = (-(1.0 - q) * (-size).exp_m1(), q.ln() - 0.125 * u * u);
                let root = rest.hypot(2.0 * (ln_a - 0.5 * size).exp());
                let ln_x = ((rest + root) / 2.0).ln() - ln_a + size;
                (2.0 / u * ln_x).copysign(loss)
            }
        }
    }

    /// Outcomes beyond which P has at most `e^ln_low` below and `e^ln_high` above.
    fn window(self, ln_low: f64, ln_high: f64) -> (f64, f64) {
        let (q, u) = self.numbers();
        let low = -tail_quantile(ln_low);
        let shifted = |shift: f64| {
            let half = ln_high - std::f64::consts::LN_2;
            tail_quantile(half).max(shift + tail_quantile(half - q.ln()))
        };
        let high = match self {
            Pair::Add { .. } => tail_quantile(ln_high),
            // With probability q the mean is at u; a shift upwards only helps below.
            Pair::Remove { .. } => shifted(u),
            Pair::Replace { .. } => shifted(0.5 * u),
        };
        // An interval in any case; where q = 1 the lower end moves with the mean.
        let low = if q == 1.0 && !matches!(self, Pair::Add { .. }) {
            low + if matches!(self, Pair::Remove { .. }) { u } else { 0.5 * u }
        } else {
            low
        };
        (low.min(high - 1.0), high)
    }

    /// Losses at the ends of the window.
    pub fn range(self, ln_low: f64, ln_high: f64) -> (f64, f64) {
        let (low, high) = self.window(ln_low, ln_high);
        (self.at(low).0, self.at(high).0)
    }

    /// The loss distribution over the window of these tails, cut at `shift` plus all multiples of `step`, and wherever
    /// quadrature asks for it.
    pub fn atoms(self, ln_low: f64, ln_high: f64, shift: f64, step: f64) -> Atoms {
        let mut atoms = Atoms::default();
        let (low, high) = self.window(ln_low, ln_high);
        self.cut((low, high), shift, step, &mut atoms);
        atoms
    }

    /// The same in two parts: losses between `from` and `to`, cut at multiples of `fine`, and all others, at multiples of `coarse`.
    pub fn layers(
        self,
        ln_low: f64,
        ln_high: f64,
        (from, to): (f64, f64),
        shift: f64,
        (fine, coarse): (f64, f64),
    ) -> (Atoms, Atoms) {
        let (mut inner, mut outer) = (Atoms::default(), Atoms::default());
        let (low, high) = self.window(ln_low, ln_high);
        let (a, b) = (self.inverse(from).clamp(low, high), self.inverse(to).clamp(low, high));
        self.cut((low, a), shift, coarse, &mut outer);
        self.cut((a, b), shift, fine, &mut inner);
        self.cut((b, high), shift, coarse, &mut outer);
        (inner, outer)
    }

    /// Atoms of the outcomes from `low` to `high`.
    fn cut(self, (low, high): (f64, f64), shift: f64, step: f64, atoms: &mut Atoms) {
        if !(low < high) {
            return;
        }
        let (first, last) =
            (((self.at(low).0 - shift) / step).floor(), ((self.at(high).0 - shift) / step).ceil());
        let (mut from, mut k) = (low, first + 1.0);
        while from < high {
            let to = if k < last { self.inverse(shift + k * step).clamp(from, high) } else { high };
            self.pieces(from, to, atoms);
            from = to;
            k += 1.0;
        }
    }

    /// Pieces of [from, to], each short against all that the integrand varies on: the tail's `1 / |y|`, and the distance
    /// `pi / u` of the loss's singularities from the real axis.
    fn pieces(self, from: f64, to: f64, atoms: &mut Atoms) {
        if !(to > from) {
            return;
        }
        let scale = from.abs().max(to.abs()) + 4.0 + 3.0 * self.numbers().1;
        let variation = (to - from) * scale;
        let count = (variation / 1.5).ceil().max(1.0);
        let nodes: &[(f64, f64)] = if variation < 0.02 { &FEW } else { &MANY };
        let width = (to - from) / count;
        for i in 0..count as usize {
            let start = from + width * i as f64;
            let (loss_at_start, _) = self.at(start);
            let (_, reference) = self.at(start + 0.5 * width);
            let (mut mass, mut gain) = (0.0, 0.0);
            for &(x, w) in nodes {
                let (loss, ln_density) = self.at(start + 0.5 * width * (1.0 + x));
                let part = w * (ln_density - reference).exp();
                mass += part;
                gain -= part * (loss_at_start - loss).exp_m1();
            }
            // The loss at which the piece has its Q-mass: e^-loss is the mean of e^-loss.
            let loss = loss_at_start - (-gain / mass).ln_1p();
            let floor = atoms.loss.last().copied().unwrap_or(f64::NEG_INFINITY);
            atoms.loss.push(loss.max(floor));
            atoms.ln_mass.push(reference + (0.5 * width * mass).ln());
        }
    }
}

impl Atoms {
    /// `ln E[e^(order loss)]`.
    pub fn ln_moment(&self, order: f64) -> f64 {
        let mut sum = super::super::math::LogSum::new();
        for (l, m) in self.loss.iter().zip(&self.ln_mass) {
            sum.add(m + order * l);
        }
        sum.ln()
    }

    /// Loss of the median piece and its neighbours, under masses tilted by `e^(tilt loss)`.
    pub fn center(&self, tilt: f64, width: f64) -> f64 {
        let total = self.ln_moment(tilt);
        let mut sum = 0.0;
        let below = |i: &usize| {
            sum += (self.ln_mass[*i] + tilt * self.loss[*i] - total).exp();
            sum >= 0.5
        };
        let median = self.loss[(0..self.loss.len()).find(below).unwrap_or(0)];
        let (mut p, mut q) = (0.0, 0.0);
        for (l, m) in self.loss.iter().zip(&self.ln_mass) {
            if (l - median).abs() <= width {
                p += m.exp();
                q -= m.exp() * (median - l).exp_m1();
            }
        }
        median - (-q / p).ln_1p()
    }

    /// Mean and standard deviation of the loss under masses tilted by `e^(tilt loss)`.
    pub fn mean_and_deviation(&self, tilt: f64) -> (f64, f64) {
        let total = self.ln_moment(tilt);
        let weigh = |f: &dyn Fn(f64) -> f64| -> f64 {
            self.loss.iter().zip(&self.ln_mass).map(|(&l, &m)| f(l) * (m + tilt * l - total).exp()).sum()
        };
        let mean = weigh(&|l| l);
        (mean, weigh(&|l| (l - mean) * (l - mean)).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: [Pair; 7] = [
        Pair::Remove { q: 0.01, u: 1.0 },
        Pair::Remove { q: 1.0, u: 2.0 },
        Pair::Remove { q: 1e-7, u: 4.0 },
        Pair::Add { q: 0.3, u: 1.0 },
        Pair::Add { q: 1e-5, u: 2.0 },
        Pair::Replace { q: 0.02, u: 1.5 },
        Pair::Replace { q: 1.0, u: 0.5 },
    ];

    #[test]
    fn losses_and_their_inverses() {
        for pair in PAIRS {
            for y in [-3.0, -0.5, 0.0, 0.7, 2.0, 6.0] {
                let (loss, _) = pair.at(y);
                let back = pair.at(pair.inverse(loss)).0;
                assert!((back - loss).abs() <= 1e-12 * loss.abs() + 1e-15, "{pair:?} {y} {loss} {back}");
            }
        }
    }

    /// P has mass 1, and so has Q: `E_P[e^-loss] = 1`.
    #[test]
    fn atoms_hold_both_distributions() {
        for pair in PAIRS {
            for step in [1.0, 1e-2, 1e-5] {
                let atoms = pair.atoms(-60.0, -60.0, 0.0, step);
                assert!(atoms.loss.is_sorted());
                // Up to a million summands.
                for order in [0.0, -1.0] {
                    let total = atoms.ln_moment(order);
                    assert!(total.abs() <= 1e-11, "{pair:?} {step} {order} {total}");
                }
            }
        }
    }
}
