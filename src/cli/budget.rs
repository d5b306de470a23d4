//! `veilgrad budget`: what a mechanism costs, or how much noise a target needs.

use clap::Args;
use serde_json::json;

use super::{JsonArg, output};
use crate::error::{Error, Result};
use crate::privacy::accounting;

/// Epsilon of a training run, or the noise multiplier (or steps) for a target epsilon. Trains nothing.
///
/// Give the sampling rate, or batch and examples; then --noise-multiplier and --steps for epsilon, --epsilon and --steps for
/// the noise multiplier, or --epsilon and --noise-multiplier for the steps.
///
/// Example: veilgrad budget --examples 50000 --batch 4096 --steps 2500 --noise-multiplier 3
#[derive(Debug, Args)]
pub struct Budget {
    /// Data set size, N.
    #[arg(long, value_name = "N")]
    examples: Option<u64>,
    /// Expected batch, q N.
    #[arg(long, value_name = "B", requires = "examples")]
    batch: Option<f64>,
    /// Sampling rate q instead of batch and examples.
    #[arg(long, value_name = "Q", conflicts_with = "batch")]
    sampling_rate: Option<f64>,
    /// Noise standard deviation in units of the clipping norm.
    #[arg(long, value_name = "SIGMA")]
    noise_multiplier: Option<f64>,
    /// Steps.
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Target epsilon.
    #[arg(long)]
    epsilon: Option<f64>,
    /// Delta; 1 / (2 N) if --examples is given.
    #[arg(long)]
    delta: Option<f64>,
    /// The accountant.
    #[arg(long, default_value = "rdp", value_parser = ["rdp", "rdp-vip"])]
    accountant: String,
    #[command(flatten)]
    json: JsonArg,
}

impl Budget {
    pub fn run(self) -> Result<()> {
        if self.sampling_rate.is_none() && self.batch.is_none() {
            return Err(Error::invalid("--sampling-rate", "", "give it, or --batch and --examples"));
        }
        if self.delta.is_none() && self.examples.is_none() {
            return Err(Error::invalid("--delta", "", "give it, or --examples for 1 / (2 N)"));
        }
        let given = [self.epsilon.is_some(), self.noise_multiplier.is_some(), self.steps.is_some()];
        if given.iter().filter(|g| **g).count() != 2 {
            let why = "give two of --epsilon, --noise-multiplier and --steps; the third is computed";
            return Err(Error::invalid("budget", "", why));
        }
        let budget = accounting::Budget {
            examples: self.examples,
            batch: self.batch,
            sampling_rate: self.sampling_rate,
            noise_multiplier: self.noise_multiplier,
            steps: self.steps,
            epsilon: self.epsilon,
            delta: self.delta,
        };
        let outcome = budget.solve_by(accounting::by_name(&self.accountant)?)?;
        let (q, sigma, steps) = (outcome.sampling_rate, outcome.noise_multiplier, outcome.steps);
        let (value, order, delta) = (outcome.epsilon, outcome.order, outcome.delta);
        if self.json.json {
            output::json(&json!({
                "accountant": self.accountant, "epsilon": value, "order": order, "delta": delta,
                "sampling_rate": q, "noise_multiplier": sigma, "steps": steps,
            }));
            return Ok(());
        }
        println!("epsilon           {value:.4}");
        println!("delta             {delta:.3e}");
        println!("noise multiplier  {sigma:.4}");
        println!("sampling rate     {q:.6e}");
        println!("steps             {steps}");
        println!(
            "accountant        {} (order {order}), add or remove one example, Poisson sampling",
            self.accountant
        );
        if value > 20.0 {
            println!("note              an epsilon of this size promises next to nothing");
        }
        Ok(())
    }
}
