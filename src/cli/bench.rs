//! `veilgrad bench`: how fast is a step?

use std::time::Instant;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{DeviceArg, JsonArg, output, random_step};
use crate::error::{Error, Result};
use crate::model::mae::{self, MaeConfig};
use crate::privacy::clip::ClipRule;
use crate::privacy::config::{Noise, PrivacyConfig};
use crate::rng::Key;
use crate::train::stepper::Guarantee;

/// Measure speed and memory on this machine.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Step(StepBench),
}

/// One training step on random images: median seconds, examples per second, planned and resident memory.
///
/// The step is a logical batch of one physical batch: forward, backward, clip, sums, noise and AdamW. With --mode both,
/// private and plain steps alternate, so that their ratio is of one run.
#[derive(Debug, Args)]
struct StepBench {
    /// micro32, nano32, base224 (or any size of the masked autoencoder).
    #[arg(long, default_value = "micro32")]
    model: String,
    /// Physical batch.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// private, plain, or both in turn.
    #[arg(long, default_value = "both", value_parser = ["private", "plain", "both"])]
    mode: String,
    /// Steps to measure, after two to warm up.
    #[arg(long, default_value_t = 7)]
    runs: usize,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

impl Bench {
    pub fn run(self) -> Result<()> {
        match self.what {
            What::Step(step) => step.run(),
        }
    }
}

impl StepBench {
    fn run(self) -> Result<()> {
        let size = self.model.strip_suffix("224").unwrap_or(&self.model);
        let config = MaeConfig::preset(size)?;
        let engine = self.device.open()?;
        let graph = mae::training_graph(&config, self.batch)?;
        let key = Key::from_seed(1);
        let clip = ClipRule::Flat { norm: 0.1 };
        let examples = 1000 * self.batch as u64;
        let privacy = PrivacyConfig::new(examples, self.batch as f64, 1, clip, Noise::Multiplier(0.5), None)?;
        let mut steppers = Vec::new();
        for (name, guarantee) in [
            ("private", Guarantee::Private(&privacy)),
            ("plain", Guarantee::NotPrivate { batch: self.batch as f64 }),
        ] {
            if self.mode != "both" && self.mode != name {
                continue;
            }
            let stepper = random_step::stepper(engine.as_ref(), &config, &graph, guarantee, &key)?;
            steppers.push((name, stepper, Vec::new()));
        }
        let weights = vec![1.0; self.batch];
        for step in 0..self.runs + 2 {
            for (_, stepper, times) in &mut steppers {
                let start = Instant::now();
                stepper.begin()?;
                stepper.accumulate(&weights)?;
                stepper.finish(step as u64, 1e-4)?;
                stepper.wait()?;
                if step >= 2 {
                    times.push(start.elapsed().as_secs_f64());
                }
            }
        }
        let mut medians = Vec::new();
        for (name, stepper, times) in &mut steppers {
            times.sort_by(f64::total_cmp);
            let median = *times
                .get(times.len() / 2)
                .ok_or_else(|| Error::invalid("--runs", 0, "measure at least one"))?;
            medians.push(median);
            let (planned, rate) = (stepper.bytes(), self.batch as f64 / median);
            if self.json.json {
                output::json(&json!({
                    "model": self.model, "batch": self.batch, "mode": name, "device": engine.describe(),
                    "median_seconds": median, "fastest_seconds": times[0], "examples_per_second": rate,
                    "planned_bytes": planned, "resident_bytes": resident(),
                }));
            } else {
                let memory = output::bytes(planned);
                println!(
                    "{name:8} {median:.4} s a step, {rate:.1} examples/s, {memory} planned ({})",
                    stepper.memory()
                );
            }
        }
        if let ([private, plain], false) = (&medians[..], self.json.json) {
            println!("private / plain  {:.3}", private / plain);
        }
        Ok(())
    }
}

/// Peak resident memory of this process, where the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb * 1024)
}
