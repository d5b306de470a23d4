//! The Renyi accountant: events add up at every order (Mironov 2017, arXiv 1702.07476, proposition 1), and epsilon follows at
//! the best order by the conversion of Balle et al. 2020 (arXiv 1905.09982, theorem 21):
//! `eps = rdp(alpha) + ln((alpha - 1) / alpha) - (ln delta + ln alpha) / (alpha - 1)`, and never below 0.

use super::accountant::{Accountant, Epsilon, check_delta};
use super::event::{Event, NeighbouringRelation};
use super::moment::{check, sampled_gaussian};
use crate::error::{Error, Result};

/// ViP's orders: 1.1, 1.2 .. 10.9, then 11 .. 63. Epsilons over these are the published ones.
pub fn vip_orders() -> Vec<f64> {
    (11..110).map(|i| f64::from(i) / 10.0).chain((11..64).map(f64::from)).collect()
}

/// The default: ViP's orders, 1.001 .. 1.099, steps of 0.02 up to 5, and 64 .. 2^20 in steps of a tenth.
///
/// Low orders are best for a large epsilon, high ones for a small one. The wider grid can only lower epsilon.
pub fn default_orders() -> Vec<f64> {
    let low = (1..100).map(|i| 1.0 + f64::from(i) / 1000.0);
    let fine = (56..250).filter(|i| i % 5 != 0).map(|i| f64::from(i) / 50.0);
    let high = std::iter::successors(Some(64.0), |a: &f64| Some((a * 1.1).ceil()));
    let mut orders: Vec<f64> =
        low.chain(vip_orders()).chain(fine).chain(high.take_while(|a| *a <= f64::from(1 << 20))).collect();
    orders.sort_by(f64::total_cmp);
    orders
}

/// The Renyi accountant over a grid of orders. Contract: [`Accountant`].
///
/// Prices [`Event::Gaussian`], and [`Event::PoissonSampled`] of one Gaussian, composed in any way, for data sets that differ by
/// adding or removing one example. All else is refused by name: the bounds of Poisson sampling do not hold for batches of
/// fixed size, truncated or shuffled ones, nor for neighbours by replacement.
#[derive(Clone, Debug)]
pub struct Rdp {
    name: &'static str,
    orders: Vec<f64>,
    divergences: Vec<f64>,
}

impl Default for Rdp {
    fn default() -> Self {
        Self::new(default_orders())
    }
}

impl Rdp {
    /// An accountant over these orders, which may be in any order. Without orders, every epsilon is infinite.
    ///
    /// # Panics
    /// If an order is not over 1 and finite.
    pub fn new(orders: Vec<f64>) -> Self {
        assert!(orders.iter().all(|a| *a > 1.0 && a.is_finite()), "orders must be over 1");
        let divergences = vec![0.0; orders.len()];
        Rdp { name: "rdp", orders, divergences }
    }

    /// The default accountant, if it knows the relation.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for all but [`NeighbouringRelation::AddOrRemoveOne`].
    pub fn for_relation(relation: NeighbouringRelation) -> Result<Self> {
        match relation {
            NeighbouringRelation::AddOrRemoveOne => Ok(Self::default()),
            other => Err(Error::Unsupported {
                accountant: "rdp",
                event: format!("neighbours that {other}"),
                why: "its bound of Poisson sampling is for adding or removing one example".into(),
            }),
        }
    }

    /// The same under another name in messages.
    pub(super) fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Adds an event once; [`Accountant::compose`] without the trait in scope.
    ///
    /// # Errors
    /// As [`Accountant::check`]; the state is unchanged then.
    pub fn compose(&mut self, event: &Event) -> Result<()> {
        self.compose_times(event, 1)
    }

    /// Everything added so far, `count` times over.
    pub fn repeated(&self, count: u64) -> Rdp {
        let divergences = self.divergences.iter().map(|&d| times(d, count as f64)).collect();
        Rdp { name: self.name, orders: self.orders.clone(), divergences }
    }

    /// The smallest epsilon that these orders prove at `delta`; [`Accountant::epsilon`] without the trait in scope.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a delta that is not in (0, 1).
    pub fn epsilon(&self, delta: f64) -> Result<Epsilon> {
        check_delta(delta)?;
        let mut best =
            Epsilon { value: f64::INFINITY, order: self.orders.first().copied().unwrap_or(0.0), lower: None };
        for (&order, &divergence) in self.orders.iter().zip(&self.divergences) {
            if divergence == 0.0 {
                return Ok(Epsilon { value: 0.0, order, lower: Some(0.0) });
            }
            let conversion = -(delta.ln() + order.ln()) / (order - 1.0);
            let rounding = 8.0 * f64::EPSILON * (divergence + conversion.abs());
            let value = divergence + conversion + (-order.recip()).ln_1p() + rounding;
            if value < best.value {
                best = Epsilon { value: value.max(0.0), order, lower: None };
            }
        }
        Ok(best)
    }

    /// The divergences of an event, added `count` times to `sum`.
    fn add(&self, event: &Event, count: f64, sum: &mut [f64]) -> Result<()> {
        let (q, sigma) = match event {
            _ if count == 0.0 => return Ok(()),
            Event::NoOp => return Ok(()),
            Event::Gaussian { noise_multiplier } => (1.0, *noise_multiplier),
            Event::PoissonSampled { sampling_rate, event } => match **event {
                Event::Gaussian { noise_multiplier } => (*sampling_rate, noise_multiplier),
                _ => return Ok(()),
            },
            Event::SelfComposed { event, count: more } => return self.add(event, count * *more as f64, sum),
            Event::Composed(events) => return events.iter().try_for_each(|e| self.add(e, count, sum)),
            other => return Err(self.refuse(other)),
        };
        for (&order, total) in self.orders.iter().zip(sum) {
            *total += times(sampled_gaussian(q, sigma, order)?, count);
        }
        Ok(())
    }

    fn refuse(&self, event: &Event) -> Error {
        let why = match event {
            Event::PoissonSampled { .. } => "it prices Poisson sampling of one Gaussian alone",
            Event::Shuffled { .. } => {
                "shuffling is not Poisson sampling and can cost far more: train with Poisson sampling"
            }
            _ => "its bound holds for Poisson sampling alone, without a cap and without a fixed size",
        };
        Error::Unsupported { accountant: self.name, event: event.to_string(), why: why.into() }
    }
}

impl Accountant for Rdp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn relation(&self) -> NeighbouringRelation {
        NeighbouringRelation::AddOrRemoveOne
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
        let mut sum = self.divergences.clone();
        self.add(event, count as f64, &mut sum)?;
        self.divergences = sum;
        Ok(())
    }

    fn repeated(&self, count: u64) -> Box<dyn Accountant> {
        Box::new(self.repeated(count))
    }

    fn epsilon(&self, delta: f64) -> Result<Epsilon> {
        self.epsilon(delta)
    }
}

/// `divergence * count`, where nothing released is 0 even if it is infinite, and something released is not 0.
fn times(divergence: f64, count: f64) -> f64 {
    if count == 0.0 || divergence == 0.0 { 0.0 } else { divergence * count }
}
