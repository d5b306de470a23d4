//! Privacy events: what happened, as plain data. An event never changes meaning.

use std::fmt;

/// Something that was released about the data.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// `count` steps, each: every example joins the batch independently with probability `sampling_rate`; a sum of
    /// sensitivity 1 is released with Gaussian noise of standard deviation `noise_multiplier`. DP-SGD.
    PoissonSampledGaussian {
        /// Probability q of joining, per example and step.
        sampling_rate: f64,
        /// Standard deviation sigma in units of the sensitivity.
        noise_multiplier: f64,
        /// Steps, empty batches included.
        count: u64,
    },
    /// As above, but batches of exactly `batch` of `examples`, drawn without replacement.
    FixedSizeSampledGaussian {
        /// Batch size.
        batch: u64,
        /// Data set size.
        examples: u64,
        /// Standard deviation in units of the sensitivity.
        noise_multiplier: f64,
        /// Steps.
        count: u64,
    },
    /// Batches cut from a shuffled data set, epoch by epoch. Not the same as Poisson sampling, and not accounted as it.
    ShuffledGaussian {
        /// Standard deviation in units of the sensitivity.
        noise_multiplier: f64,
        /// Epochs.
        epochs: u64,
    },
}

impl Event {
    /// The event of a DP-SGD run with Poisson sampling.
    pub fn dpsgd(sampling_rate: f64, noise_multiplier: f64, steps: u64) -> Self {
        Event::PoissonSampledGaussian { sampling_rate, noise_multiplier, count: steps }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::PoissonSampledGaussian { sampling_rate, noise_multiplier, count } => {
                write!(f, "{count} x Poisson({sampling_rate:.6e}) sampled Gaussian({noise_multiplier})")
            }
            Event::FixedSizeSampledGaussian { batch, examples, noise_multiplier, count } => {
                write!(f, "{count} x {batch} of {examples} sampled Gaussian({noise_multiplier})")
            }
            Event::ShuffledGaussian { noise_multiplier, epochs } => {
                write!(f, "{epochs} epochs of shuffled Gaussian({noise_multiplier})")
            }
        }
    }
}
