//! What an accountant is, and which there are.

use super::event::{Event, NeighbouringRelation};
use super::pld::Pld;
use super::rdp::{Rdp, vip_orders};
use crate::error::{Error, Result};

/// An upper bound on epsilon, with the order that gave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epsilon {
    /// The bound; infinite if there is none.
    pub value: f64,
    /// The Renyi order alpha that proves it; 0 for accountants that have no orders.
    pub order: f64,
    /// A lower bound on the smallest epsilon that holds: the truth is between it and `value`. Nothing if none is known.
    pub lower: Option<f64>,
}

/// Adds up events and says what they cost together.
///
/// **Guarantee**: if all that was ever released about the data are the composed events, then for every `delta` what was
/// released is `(epsilon(delta).value, delta)`-differentially private under the neighbouring relation. The answer may be too
/// large; it is never too small, and never NaN.
///
/// | case | answer |
/// | --- | --- |
/// | nothing composed, or count 0, or sampling rate 0 | epsilon 0 |
/// | noise multiplier 0 | epsilon infinite |
/// | an event it does not know | refused by name; state unchanged |
/// | an event with a number out of range | refused; state unchanged |
/// | delta not in (0, 1) | refused |
pub trait Accountant {
    /// Its name in [`ALL`].
    fn name(&self) -> &'static str;

    /// Which data sets its answers are about.
    fn relation(&self) -> NeighbouringRelation;

    /// Whether it can price an event.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming the first event inside that it cannot price; [`Error::Invalid`] for a number out of range.
    fn check(&self, event: &Event) -> Result<()>;

    /// Whether it can price an event.
    fn supports(&self, event: &Event) -> bool {
        self.check(event).is_ok()
    }

    /// Adds `event`, `count` times.
    ///
    /// # Errors
    /// As [`Accountant::check`]; the state is unchanged then.
    fn compose_times(&mut self, event: &Event, count: u64) -> Result<()>;

    /// Adds `event` once.
    ///
    /// # Errors
    /// As [`Accountant::check`]; the state is unchanged then.
    fn compose(&mut self, event: &Event) -> Result<()> {
        self.compose_times(event, 1)
    }

    /// All that was composed so far, `count` times over.
    fn repeated(&self, count: u64) -> Box<dyn Accountant>;

    /// The smallest epsilon it can prove at `delta`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a delta that is not in (0, 1).
    fn epsilon(&self, delta: f64) -> Result<Epsilon>;
}

/// An entry of [`ALL`].
#[derive(Clone, Copy)]
pub struct Kind {
    /// The name by which users ask for it.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// Makes an empty one, or refuses the neighbouring relation.
    pub start: fn(NeighbouringRelation) -> Result<Box<dyn Accountant>>,
}

/// Every accountant; the first is the default. The suite in `tests/accounting.rs` runs over this list.
pub static ALL: &[Kind] = &[
    Kind {
        name: "rdp",
        about: "Renyi DP over a wide, fine grid of orders",
        start: |relation| Ok(Box::new(Rdp::for_relation(relation)?)),
    },
    Kind {
        name: "rdp-vip",
        about: "Renyi DP over ViP's published orders: 1.1 .. 10.9, 11 .. 63",
        start: |relation| {
            Rdp::for_relation(relation)?;
            Ok(Box::new(Rdp::new(vip_orders()).named("rdp-vip")))
        },
    },
    Kind {
        name: "pld",
        about: "privacy loss distributions: the tight answer, between two certified bounds",
        start: |relation| Ok(Box::new(Pld::new(relation)?)),
    },
];

/// The accountant of this name.
///
/// # Errors
/// [`Error::Invalid`] listing the names there are.
pub fn by_name(name: &str) -> Result<&'static Kind> {
    ALL.iter().find(|k| k.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|k| k.name).collect();
        Error::invalid("accountant", name, format!("must be one of {}", names.join(", ")))
    })
}

/// Checks a delta.
pub(super) fn check_delta(delta: f64) -> Result<()> {
    if delta > 0.0 && delta < 1.0 {
        Ok(())
    } else {
        Err(Error::invalid("delta", delta, "must be over 0 and under 1, and well below 1 / N"))
    }
}
