//! `veilgrad probe`: how good are the features?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::{DeviceArg, JsonArg, output};
use crate::checkpoint::Checkpoint;
use crate::data;
use crate::error::{Error, Result};
use crate::eval::features::{Encoder, Weights};
use crate::eval::probe::{ProbeConfig, ProbeResult, extract, probe};
use crate::model::mae::MaeConfig;
use crate::record::Engine;
use crate::rng::Key;

/// Linear probe on frozen features: per-block means over patches, batch normalisation, one linear layer, LARS.
///
/// Prints top-1 accuracy and a table per class. The labelled images are used as they are: a probe is not private.
#[derive(Debug, Args)]
pub struct ProbeCommand {
    /// model.safetensors of a run.
    checkpoint: PathBuf,
    /// Labelled training images: shards with .cls members, or a folder with a sub-folder per class.
    #[arg(long, value_name = "PATH")]
    train: PathBuf,
    /// Labelled test images.
    #[arg(long, value_name = "PATH")]
    test: PathBuf,
    /// The model's size, if the checkpoint does not say.
    #[arg(long)]
    model: Option<String>,
    /// Passes over the training features.
    #[arg(long, default_value_t = 90)]
    epochs: u64,
    /// Augmented copies of every training image, besides the centred one.
    #[arg(long, default_value_t = 0)]
    views: u64,
    /// Batch size of the linear layer.
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// Peak learning rate per 256 examples of a batch (0.1 for batches of 16,384, as published).
    #[arg(long, default_value_t = 12.8)]
    rate: f64,
    /// Images on the device at once.
    #[arg(long, default_value_t = 64)]
    physical_batch: usize,
    /// Seed of initialisation and order.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

impl ProbeCommand {
    pub fn run(self) -> Result<()> {
        let file = Checkpoint::read(&self.checkpoint)?;
        let size = self.model.clone().or_else(|| file.metadata.get("model").cloned()).ok_or_else(|| {
            Error::checkpoint(&self.checkpoint, "does not name its model: give --model (micro32, base ...)")
        })?;
        let config = MaeConfig::preset(&size)?;
        let engine = self.device.open()?;
        let settings = ProbeConfig {
            epochs: self.epochs,
            batch: self.batch,
            base_rate: self.rate,
            views: self.views,
            warmup: (self.epochs / 9).min(10),
            ..ProbeConfig::default()
        };
        let key = Key::from_seed(self.seed);
        let weights = Weights::Checkpoint(&file, &self.checkpoint);
        let paths = (self.train.as_path(), self.test.as_path());
        let batch = self.physical_batch;
        let result = run(engine.as_ref(), &config, batch, weights, paths, &settings, &key, self.json.json)?;
        if self.json.json {
            output::json(&result);
            return Ok(());
        }
        println!(
            "top-1 {:.2} % of {} (largest class {:.2} %)",
            100.0 * result.top1,
            result.examples,
            100.0 * result.chance
        );
        let mut rows = vec![vec!["class".into(), "examples".into(), "correct".into(), "accuracy".into()]];
        for (name, count, correct) in &result.classes {
            let share = 100.0 * *correct as f64 / (*count).max(1) as f64;
            rows.push(vec![name.clone(), count.to_string(), correct.to_string(), format!("{share:.1} %")]);
        }
        output::table(&rows);
        Ok(())
    }
}

/// Features of both sets, then the probe.
///
/// # Errors
/// Those of data, checkpoint and device.
#[expect(clippy::too_many_arguments, reason = "everything that decides a probe")]
pub fn run(
    engine: &dyn Engine,
    config: &MaeConfig,
    batch: usize,
    weights: Weights<'_>,
    (train, test): (&Path, &Path),
    settings: &ProbeConfig,
    key: &Key,
    quiet: bool,
) -> Result<ProbeResult> {
    let train: Arc<dyn data::Source> = data::open(train)?.into();
    let test: Arc<dyn data::Source> = data::open(test)?.into();
    let mut encoder = Encoder::new(engine, config, batch, weights)?;
    let bar = output::bar(train.len() * (settings.views + 1) + test.len(), "images", quiet);
    let classes = train.classes().to_vec();
    let mut tick = |n| bar.inc(n);
    let (train, _) = extract(&mut encoder, train, config.image, settings.views, key, &mut tick)?;
    let (test, _) = extract(&mut encoder, test, config.image, 0, key, &mut tick)?;
    bar.finish_and_clear();
    probe(&train, &test, &classes, settings, key)
}
