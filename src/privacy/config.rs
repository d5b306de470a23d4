//! One configuration makes the whole mechanism: sampler, clip rule, noise, accounting event and neighbouring relation.
//! Settings of speed and memory are elsewhere and cannot reach it.

use super::accounting::{self, Epsilon, Event, Rdp};
use super::clip::ClipRule;
use super::sampling::PoissonSampler;
use crate::error::{Error, Result};
use crate::rng::{Key, Purpose};

/// The mechanism of a private run: the Poisson-sampled Gaussian, for data sets that differ by adding or removing one
/// example. Frozen once made.
#[derive(Clone, Debug, PartialEq)]
pub struct PrivacyConfig {
    examples: u64,
    expected_batch: f64,
    noise_multiplier: f64,
    clip: ClipRule,
    steps: u64,
    delta: f64,
}

/// How much noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Noise {
    /// The smallest noise multiplier that keeps all steps within this epsilon.
    TargetEpsilon(f64),
    /// A given noise multiplier.
    Multiplier(f64),
}

impl PrivacyConfig {
    /// A mechanism over `examples` examples: `expected_batch / examples` is the sampling rate; without `delta`,
    /// `1 / (2 N)`.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the number that is out of range.
    pub fn new(
        examples: u64,
        expected_batch: f64,
        steps: u64,
        clip: ClipRule,
        noise: Noise,
        delta: Option<f64>,
    ) -> Result<Self> {
        clip.validate()?;
        if examples == 0 {
            return Err(Error::invalid("examples", 0, "the data set is empty"));
        }
        if !(expected_batch > 0.0 && expected_batch <= examples as f64) {
            let why = format!("must be positive and at most the {examples} examples there are");
            return Err(Error::invalid("batch", expected_batch, why));
        }
        let delta = delta.unwrap_or(0.5 / examples as f64);
        if !(delta > 0.0 && delta <= 1.0 / examples as f64) {
            let why = format!("must be positive and at most 1 / N = {:.1e}", 1.0 / examples as f64);
            return Err(Error::invalid("delta", delta, why));
        }
        let rate = expected_batch / examples as f64;
        let noise_multiplier = match noise {
            Noise::TargetEpsilon(epsilon) => accounting::noise_multiplier(epsilon, delta, rate, steps)?,
            Noise::Multiplier(sigma) if sigma > 0.0 && sigma.is_finite() => sigma,
            Noise::Multiplier(sigma) => {
                return Err(Error::invalid("noise_multiplier", sigma, "must be positive and finite"));
            }
        };
        Ok(PrivacyConfig { examples, expected_batch, noise_multiplier, clip, steps, delta })
    }

    /// N.
    pub fn examples(&self) -> u64 {
        self.examples
    }

    /// Probability with which each example joins each step.
    pub fn sampling_rate(&self) -> f64 {
        self.expected_batch / self.examples as f64
    }

    /// `q N`, the divisor of every gradient.
    pub fn expected_batch(&self) -> f64 {
        self.expected_batch
    }

    /// Standard deviation of the noise in units of the clipping norm.
    pub fn noise_multiplier(&self) -> f64 {
        self.noise_multiplier
    }

    /// How each example is bounded.
    pub fn clip(&self) -> ClipRule {
        self.clip
    }

    /// Steps of the whole run.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Delta.
    pub fn delta(&self) -> f64 {
        self.delta
    }

    /// The event of the first `steps` steps.
    pub fn event(&self, steps: u64) -> Event {
        Event::dpsgd(self.sampling_rate(), self.noise_multiplier, steps)
    }

    /// Epsilon spent by the first `steps` steps, by the RDP accountant.
    ///
    /// # Errors
    /// None for a configuration that was made; the accountant's type asks for it.
    pub fn epsilon(&self, steps: u64) -> Result<Epsilon> {
        let mut rdp = Rdp::default();
        rdp.compose(&self.event(steps))?;
        rdp.epsilon(self.delta)
    }

    /// The sampler that the accounting assumes, from the run's key.
    ///
    /// # Errors
    /// None for a configuration that was made.
    pub fn sampler(&self, run_key: &Key) -> Result<PoissonSampler> {
        PoissonSampler::new(self.examples, self.sampling_rate(), run_key.derive(Purpose::Sampling))
    }
}
