//! Privacy events: what happened to the data, as plain data.
//!
//! **Rule of this file**: an event never changes meaning. A variant or field that was ever released is kept as it is;
//! another assumption is another variant. Whoever priced a run by an event years ago must get the same answer today.
//!
//! In every event, sums have sensitivity 1: a noise multiplier is the standard deviation of the noise divided by the
//! largest 2-norm by which one example can move the sum under the neighbouring relation of the accountant.

use std::fmt;

/// Which data sets an adversary must not tell apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NeighbouringRelation {
    /// One data set is the other with one example more or less. The relation of DP-SGD with Poisson sampling.
    #[default]
    AddOrRemoveOne,
    /// Both have the same size and differ in one example. A clipped sum moves by up to `2 C`.
    ReplaceOne,
}

impl fmt::Display for NeighbouringRelation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NeighbouringRelation::AddOrRemoveOne => "add or remove one example",
            NeighbouringRelation::ReplaceOne => "replace one example",
        })
    }
}

/// Something that was released about the data. Says what happened, not what it costs: that is an accountant's answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Nothing was released.
    NoOp,
    /// A sum over all examples plus Gaussian noise.
    Gaussian {
        /// Standard deviation sigma, in units of the sensitivity.
        noise_multiplier: f64,
    },
    /// Every example joins a batch independently with probability `sampling_rate`; `event` happens to the batch.
    PoissonSampled {
        /// Probability q of joining.
        sampling_rate: f64,
        /// What is released about the batch.
        event: Box<Event>,
    },
    /// Poisson sampling, then at most `max_batch` of those who joined, chosen uniformly.
    TruncatedPoisson {
        /// Probability q of joining.
        sampling_rate: f64,
        /// The cap.
        max_batch: u64,
        /// Size of the data set.
        examples: u64,
        /// What is released about the batch.
        event: Box<Event>,
    },
    /// Exactly `batch` of `examples`, drawn uniformly without replacement.
    FixedBatch {
        /// Batch size.
        batch: u64,
        /// Size of the data set.
        examples: u64,
        /// What is released about the batch.
        event: Box<Event>,
    },
    /// One epoch: every example falls into one of `bins` batches, uniformly and independently; `event` happens to each.
    BallsAndBins {
        /// Batches in the epoch.
        bins: u64,
        /// What is released about each batch.
        event: Box<Event>,
    },
    /// One epoch over the shuffled data set, cut into `batches` batches of equal size; `event` happens to each.
    /// NOT Poisson sampling, and never accounted as it.
    Shuffled {
        /// Batches in the epoch.
        batches: u64,
        /// What is released about each batch.
        event: Box<Event>,
    },
    /// `event`, `count` times, each time with fresh randomness; later ones may depend on what earlier ones released.
    SelfComposed {
        /// What happened each time.
        event: Box<Event>,
        /// How often.
        count: u64,
    },
    /// All of these, in any order, on the same data; later ones may depend on what earlier ones released.
    Composed(Vec<Event>),
}

impl Event {
    /// DP-SGD with Poisson sampling (Abadi et al. 2016, arXiv 1607.00133): `steps` steps, empty batches included, each a
    /// clipped sum plus noise of standard deviation `noise_multiplier` times the clipping norm.
    ///
    /// **Holds if** every example joins each step independently with probability `sampling_rate`, each gradient is clipped
    /// by itself, and what the sum is divided by does not depend on the data. Batches of a fixed size or from a shuffled
    /// data set are other events ([`Event::FixedBatch`], [`Event::Shuffled`]).
    pub fn dpsgd(sampling_rate: f64, noise_multiplier: f64, steps: u64) -> Self {
        let event = Box::new(Event::Gaussian { noise_multiplier });
        Event::PoissonSampled { sampling_rate, event }.times(steps)
    }

    /// This event, `count` times.
    pub fn times(self, count: u64) -> Self {
        Event::SelfComposed { event: Box::new(self), count }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::NoOp => f.write_str("nothing"),
            Event::Gaussian { noise_multiplier } => write!(f, "Gaussian(sigma {noise_multiplier})"),
            Event::PoissonSampled { sampling_rate, event } => {
                write!(f, "Poisson-sampled(q {sampling_rate}) {event}")
            }
            Event::TruncatedPoisson { sampling_rate, max_batch, examples, event } => {
                write!(
                    f,
                    "truncated-Poisson-sampled(q {sampling_rate}, at most {max_batch} of {examples}) {event}"
                )
            }
            Event::FixedBatch { batch, examples, event } => {
                write!(f, "fixed-batch-sampled({batch} of {examples}) {event}")
            }
            Event::BallsAndBins { bins, event } => write!(f, "balls-and-bins-sampled({bins} bins) {event}"),
            Event::Shuffled { batches, event } => write!(f, "shuffled({batches} batches) {event}"),
            Event::SelfComposed { event, count } => write!(f, "{count} x {event}"),
            Event::Composed(events) => {
                f.write_str("(")?;
                for (i, event) in events.iter().enumerate() {
                    write!(f, "{}{event}", if i == 0 { "" } else { " + " })?;
                }
                f.write_str(")")
            }
        }
    }
}
