//! `veilgrad check`: is this adapter fit for the work?

use std::collections::BTreeMap;

use clap::Args;
use serde_json::json;

use super::{JsonArg, output, random_step};
use crate::error::{Error, Result};
use crate::gpu::{AdapterKind, GpuEngine, Selector, Tolerance, Verify, adapters};
use crate::model::mae::{self, MaeConfig};
use crate::privacy::clip::ClipRule;
use crate::privacy::config::{Noise, PrivacyConfig};
use crate::record::{Command, Engine};
use crate::rng::Key;
use crate::train::stepper::Guarantee;

/// Run private training steps of small models with odd sizes on an adapter and compare every dispatch with its twin.
///
/// One line per kernel: how often it ran. The first kernel that differs ends the check with a non-zero status and is named
/// with binding, index and both values.
#[derive(Debug, Args)]
pub struct Check {
    /// The adapter, by part of its name; without it the best GPU, or a software adapter if there is no GPU.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Allowed difference, relative to the largest value of the tensor.
    #[arg(long, default_value_t = 1e-3)]
    tolerance: f64,
    #[command(flatten)]
    json: JsonArg,
}

/// Models whose sides are no multiples of anything.
fn models() -> Vec<(MaeConfig, usize)> {
    let micro = MaeConfig::preset("micro32").expect("a preset");
    let odd = MaeConfig {
        image: 15,
        patch: 3,
        width: 36,
        depth: 1,
        heads: 3,
        decoder_width: 20,
        decoder_depth: 1,
        decoder_heads: 2,
        train_positions: true,
        norm_pix: true,
        ..micro.clone()
    };
    vec![(odd, 3), (MaeConfig { depth: 2, ..micro }, 5)]
}

impl Check {
    pub fn run(self) -> Result<()> {
        let selector = match &self.device {
            Some(name) => Selector::named(name),
            None => match adapters().first() {
                Some(a) if a.kind == AdapterKind::Software => Selector::named(&a.name),
                _ => Selector::Gpu,
            },
        };
        let tolerance = Tolerance { relative: self.tolerance };
        let engine = GpuEngine::open(&selector)?.with_verify(Verify::Every, tolerance);
        if !self.json.json {
            println!("{}", engine.describe());
        }
        let mut kernels: BTreeMap<String, usize> = BTreeMap::new();
        for (config, batch) in models() {
            step(&engine, &config, batch, &mut kernels)?;
        }
        for (kernel, count) in &kernels {
            if self.json.json {
                output::json(&json!({ "kernel": kernel, "dispatches": count, "ok": true }));
            } else {
                println!("ok  {kernel}  ({count} dispatches)");
            }
        }
        if kernels.is_empty() {
            return Err(Error::Device("no kernel ran".into()));
        }
        Ok(())
    }
}

/// One private step; every dispatch is compared by the engine.
fn step(
    engine: &GpuEngine,
    config: &MaeConfig,
    batch: usize,
    kernels: &mut BTreeMap<String, usize>,
) -> Result<()> {
    let graph = mae::training_graph(config, batch)?;
    let key = Key::from_seed(4);
    let clip = ClipRule::Flat { norm: 0.1 };
    let privacy = PrivacyConfig::new(1000, batch as f64, 2, clip, Noise::Multiplier(1.0), None)?;
    let guarantee = Guarantee::Private(&privacy);
    let mut stepper = random_step::stepper(engine, config, &graph, guarantee, &key)?;
    let mut weights = vec![1.0; batch];
    weights[batch - 1] = 0.0;
    stepper.begin()?;
    stepper.accumulate(&weights)?;
    stepper.finish(0, 1e-3)?;
    stepper.wait()?;
    for command in stepper.recordings().iter().flat_map(|r| r.commands()) {
        if let Command::Dispatch(d) = command {
            *kernels.entry(d.kernel.to_string()).or_insert(0) += 1;
        }
    }
    Ok(())
}
