//! `veilgrad demo`: both steps of ViP on a small model, a probe of four encoders side by side, and DP-Cap's captioner.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::demo_captions::{self, Captions};
use super::{DeviceArg, JsonArg, output, pretrain, probe, report::Report};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::eval::features::Weights;
use crate::eval::probe::{ProbeConfig, ProbeResult};
use crate::record::Engine;
use crate::rng::Key;
use crate::train::recipe::Recipe;
use crate::train::run::{Run, RunOptions};

/// Train a small ViP on this machine and see what it learnt, in a few minutes.
///
/// Step 1 trains on synthetic images, not privately; step 2 trains privately on the emoji shards at epsilon 8, and, for
/// comparison, without privacy from the same start. Then four encoders are probed: random, synthetic, synthetic + private,
/// synthetic + not private. Last, a captioner starts from the synthetic encoder, learns the emoji's names privately, and
/// writes captions of emoji that it has never seen.
#[derive(Debug, Args)]
pub struct Demo {
    /// Folder for all results.
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Where the assets are.
    #[arg(long, value_name = "DIR", default_value = "assets")]
    assets: PathBuf,
    /// Multiplies the steps of training: 0.1 for a quick look, 10 for a coffee.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

/// One row of the final table.
struct Row {
    name: &'static str,
    privacy: String,
    result: ProbeResult,
}

impl Demo {
    pub fn run(self) -> Result<()> {
        let start = Instant::now();
        if !(self.scale > 0.0 && self.scale.is_finite()) {
            return Err(Error::invalid("--scale", self.scale, "must be positive"));
        }
        let engine = self.device.open()?;
        let recipe = |name: &str| -> Result<Recipe> {
            let mut recipe = Recipe::read(&self.assets.join("recipes").join(format!("demo-{name}.toml")))?;
            recipe.train.steps = ((recipe.train.steps as f64 * self.scale).round() as u64).max(2);
            recipe.train.warmup = (recipe.train.warmup as f64 * self.scale).round() as u64;
            if recipe.data.path.is_some() {
                recipe.data.path = Some(self.assets.join("emoji32/train-00000.tar"));
            }
            Ok(recipe)
        };
        let (synthetic, _) =
            self.train(engine.as_ref(), "1  synthetic images", "synthetic", recipe("synthetic")?, None)?;
        let private = recipe("private")?;
        let plain = Recipe { privacy: None, ..private.clone() };
        let (private, epsilon) =
            self.train(engine.as_ref(), "2  private, from step 1", "private", private, Some(&synthetic))?;
        let (plain, _) = self.train(
            engine.as_ref(),
            "2' not private, from step 1",
            "not-private",
            plain,
            Some(&synthetic),
        )?;
        let rows = self.probes(engine.as_ref(), [&synthetic, &private, &plain], epsilon)?;
        if !self.json.json {
            println!("\n== step 3  captions, private, from step 1");
        }
        let mut captions = recipe("captions")?;
        if let Some(text) = &mut captions.text {
            text.vocabulary = Some(self.assets.join("vocab/emoji-names.txt"));
        }
        let out = self.out.join("captions");
        let captions =
            demo_captions::run(engine.as_ref(), captions, &self.assets, synthetic, &out, self.json.json)?;
        self.show(&rows, &captions, start.elapsed().as_secs_f64())
    }

    /// Trains into `out/name`; returns the model's path and the epsilon spent.
    fn train(
        &self,
        engine: &dyn Engine,
        title: &str,
        name: &str,
        recipe: Recipe,
        init: Option<&Path>,
    ) -> Result<(PathBuf, Option<f64>)> {
        let out = self.out.join(name);
        std::fs::create_dir_all(&out).map_err(|e| Error::io(&out, e))?;
        if !self.json.json {
            println!("\n== step {title}");
        }
        let preview = recipe.privacy.is_some().then(|| self.assets.join("emoji32/test-00000.tar"));
        let options = RunOptions {
            out: Some(out.clone()),
            init: init.map(Path::to_path_buf),
            // The emoji are public, held-out ones can be shown.
            preview,
            ..RunOptions::default()
        };
        let mut run = Run::new(engine, recipe, options)?;
        pretrain::train(&mut run, &out, self.json.json)?;
        Ok((out.join("model.safetensors"), run.spent()?.map(|(epsilon, _)| epsilon)))
    }

    fn probes(&self, engine: &dyn Engine, models: [&Path; 3], epsilon: Option<f64>) -> Result<Vec<Row>> {
        if !self.json.json {
            println!("\n== linear probes, nine emoji groups");
        }
        let key = Key::from_seed(0);
        let config = Recipe::read(&self.assets.join("recipes/demo-private.toml"))?.mae()?;
        let shards = self.assets.join("emoji32");
        let (train, test) = (shards.join("train-00000.tar"), shards.join("test-00000.tar"));
        let mut rows = Vec::new();
        let names = [
            ("random", "no data".to_owned()),
            ("synthetic", "no private data".to_owned()),
            ("synthetic + private", format!("epsilon {:.2}", epsilon.unwrap_or(f64::NAN))),
            ("synthetic + not private", "none".to_owned()),
        ];
        for (i, (name, privacy)) in names.into_iter().enumerate() {
            let file = match i {
                0 => None,
                _ => Some(Checkpoint::read(models[i - 1])?),
            };
            let weights = match &file {
                None => Weights::Random(&key),
                Some(file) => Weights::Checkpoint(file, models[i - 1]),
            };
            let paths = (train.as_path(), test.as_path());
            let settings = ProbeConfig::default();
            let result = probe::run(engine, &config, 64, weights, paths, &settings, &key, self.json.json)?;
            rows.push(Row { name, privacy, result });
        }
        Ok(rows)
    }

    fn show(&self, rows: &[Row], captions: &Captions, seconds: f64) -> Result<()> {
        let mut table =
            vec![vec!["encoder".to_owned(), "privacy of the emoji".into(), "linear probe top-1".into()]];
        for row in rows {
            table.push(vec![
                row.name.into(),
                row.privacy.clone(),
                format!("{:.1} %", 100.0 * row.result.top1),
            ]);
        }
        let chance = rows.first().map_or(0.0, |r| r.result.chance);
        table.push(vec!["always the largest group".into(), "".into(), format!("{:.1} %", 100.0 * chance)]);
        let mut report = Report::new("Veilgrad demo");
        report.table(&table);
        for (name, caption) in
            [("synthetic", "step 1"), ("private", "step 2, private"), ("not-private", "step 2, not private")]
        {
            report.heading(caption);
            report.picture(
                &self.out.join(name).join("reconstructions.png"),
                "original, masked, reconstructed",
            )?;
        }
        captions.report(&mut report);
        let path = self.out.join("report.html");
        report.write(&path)?;
        if self.json.json {
            let rows: Vec<_> = rows
                .iter()
                .map(|r| json!({ "encoder": r.name, "privacy": r.privacy, "probe": r.result }))
                .collect();
            output::json(&json!({
                "seconds": seconds, "encoders": rows, "captions": captions.json(), "report": path,
            }));
            return Ok(());
        }
        captions.print();
        println!("\n== linear probes, nine emoji groups");
        output::table(&table);
        println!("\n{seconds:.0} s in all. Pictures and curves: {}", path.display());
        Ok(())
    }
}
