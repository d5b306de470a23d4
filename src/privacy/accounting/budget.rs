//! Planning a run: leave one of sampling rate, noise, steps and epsilon blank, and it is solved for.

use std::fmt;

use super::accountant::{ALL, Kind};
use super::calibrate::{MAX_STEPS, Solver};
use super::event::NeighbouringRelation;
use crate::error::{Error, Result};

/// What is known of a DP-SGD run. Exactly one of sampling rate (or batch), noise multiplier, steps and epsilon is blank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    /// Data set size N.
    pub examples: Option<u64>,
    /// Expected batch `q N`; needs `examples`, and stands for the sampling rate.
    pub batch: Option<f64>,
    /// Sampling rate q.
    pub sampling_rate: Option<f64>,
    /// Noise multiplier sigma: the noise's standard deviation in units of the clipping norm.
    pub noise_multiplier: Option<f64>,
    /// Steps.
    pub steps: Option<u64>,
    /// Target epsilon.
    pub epsilon: Option<f64>,
    /// Delta; `1 / (2 N)` if blank, which needs `examples`.
    pub delta: Option<f64>,
}

/// One of the four quantities that are solved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Sampling rate, and with `examples` the batch.
    SamplingRate,
    /// Noise multiplier.
    NoiseMultiplier,
    /// Steps.
    Steps,
    /// Epsilon.
    Epsilon,
}

/// A [`Budget`] with nothing blank. `Display` prints it as a table, one line each.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was solved for.
    pub solved: Quantity,
    /// Data set size, if it was given.
    pub examples: Option<u64>,
    /// Sampling rate q.
    pub sampling_rate: f64,
    /// Noise multiplier sigma.
    pub noise_multiplier: f64,
    /// Steps.
    pub steps: u64,
    /// What the accountant proves for these numbers: at most the target, if there was one.
    pub epsilon: f64,
    /// Delta.
    pub delta: f64,
    /// The order that proves it; 0 for an accountant without orders.
    pub order: f64,
    /// Name of the accountant.
    pub accountant: &'static str,
}

impl Budget {
    /// Solves by the default accountant.
    ///
    /// # Errors
    /// As [`Budget::solve_by`].
    pub fn solve(&self) -> Result<Outcome> {
        self.solve_by(&ALL[0])
    }

    /// Solves for the blank by an accountant of [`ALL`].
    ///
    /// # Errors
    /// [`Error::Invalid`] unless exactly one of the four is blank, for numbers out of range, and for targets out of reach
    /// (see [`Solver`]).
    pub fn solve_by(&self, kind: &'static Kind) -> Result<Outcome> {
        let solver = Solver::new(kind, self.delta()?)?;
        let (q, sigma, n, target) = (self.sampling_rate()?, self.noise_multiplier, self.steps, self.epsilon);
        let (solved, q, sigma, n) = match (q, sigma, n, target) {
            (Some(q), Some(sigma), Some(n), None) => (Quantity::Epsilon, q, sigma, n),
            (Some(q), None, Some(n), Some(e)) => {
                (Quantity::NoiseMultiplier, q, solver.noise_multiplier(e, q, n)?, n)
            }
            (Some(q), Some(sigma), None, Some(e)) => (Quantity::Steps, q, sigma, solver.steps(e, q, sigma)?),
            (None, Some(sigma), Some(n), Some(e)) => {
                (Quantity::SamplingRate, solver.sampling_rate(e, sigma, n)?, sigma, n)
            }
            _ => {
                let blank: Vec<&str> = [
                    ("sampling rate (or batch)", q.is_none()),
                    ("noise multiplier", sigma.is_none()),
                    ("steps", n.is_none()),
                    ("epsilon", target.is_none()),
                ]
                .iter()
                .filter_map(|(name, blank)| blank.then_some(*name))
                .collect();
                let why = "leave exactly one of sampling rate (or batch), noise multiplier, steps and epsilon blank";
                let blank = if blank.is_empty() { "nothing".into() } else { blank.join(", ") };
                return Err(Error::invalid("blank", blank, why));
            }
        };
        let proved = solver.epsilon(q, sigma, n)?;
        Ok(Outcome {
            solved,
            examples: self.examples,
            sampling_rate: q,
            noise_multiplier: sigma,
            steps: n,
            epsilon: proved.value,
            delta: self.delta()?,
            order: proved.order,
            accountant: kind.name,
        })
    }

    fn examples(&self, wanted_by: &str) -> Result<f64> {
        match self.examples {
            Some(n) if n > 0 => Ok(n as f64),
            Some(_) => Err(Error::invalid("examples", 0, "the data set is empty")),
            None => Err(Error::invalid(wanted_by, "", "needs the number of examples")),
        }
    }

    fn delta(&self) -> Result<f64> {
        match self.delta {
            Some(delta) => Ok(delta),
            None => Ok(0.5 / self.examples("delta = 1 / (2 N)")?),
        }
    }

    fn sampling_rate(&self) -> Result<Option<f64>> {
        match (self.sampling_rate, self.batch) {
            (Some(_), Some(batch)) => {
                Err(Error::invalid("batch", batch, "give the batch or the sampling rate, not both"))
            }
            (q, None) => Ok(q),
            (None, Some(batch)) => {
                let n = self.examples("batch")?;
                if batch >= 0.0 && batch <= n {
                    Ok(Some(batch / n))
                } else {
                    Err(Error::invalid("batch", batch, format!("must be from 0 to the {n} examples")))
                }
            }
        }
    }
}

impl Outcome {
    /// Expected batch `q N`, if N is known.
    pub fn batch(&self) -> Option<f64> {
        self.examples.map(|n| self.sampling_rate * n as f64)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |quantity| if self.solved == quantity { "  <- solved" } else { "" };
        writeln!(f, "epsilon           {:.4}{}", round_up(self.epsilon, 1e4), mark(Quantity::Epsilon))?;
        writeln!(f, "delta             {:.3e}", self.delta)?;
        writeln!(
            f,
            "noise multiplier  {:.6}{}",
            round_up(self.noise_multiplier, 1e6),
            mark(Quantity::NoiseMultiplier)
        )?;
        if let (Some(batch), Some(n)) = (self.batch(), self.examples) {
            writeln!(f, "expected batch    {batch:.1} of {n} examples")?;
        }
        writeln!(f, "sampling rate     {:e}{}", self.sampling_rate, mark(Quantity::SamplingRate))?;
        let over = if self.steps == MAX_STEPS { " or more" } else { "" };
        writeln!(f, "steps             {}{over}{}", self.steps, mark(Quantity::Steps))?;
        if self.order > 0.0 {
            writeln!(f, "accountant        {}, best order {}", self.accountant, self.order)?;
        } else {
            writeln!(f, "accountant        {}", self.accountant)?;
        }
        write!(
            f,
            "holds for         Poisson sampling; data sets that differ by: {}",
            NeighbouringRelation::default()
        )
    }
}

/// To the decimals of `scale`, upwards: a printed epsilon is not less than what was proved, and a printed noise multiplier
/// not less than what is needed.
fn round_up(x: f64, scale: f64) -> f64 {
    if x < 1e9 { (x * scale).ceil() / scale } else { x }
}
