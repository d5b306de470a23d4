//! `veilgrad pretrain`: runs a recipe.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use serde_json::json;

use super::output::{self, bytes};
use super::report::Report;
use super::{DeviceArg, JsonArg};
use crate::data;
use crate::error::{Error, Result};
use crate::privacy::accounting::Rdp;
use crate::train::recipe::Recipe;
use crate::train::run::{Run, RunOptions, StepRecord, Summary, mechanism};

/// Train a model by a recipe: privately, if the recipe has a `privacy` section.
///
/// Says epsilon, delta, noise, sampling rate, steps and memory before it starts. Writes to --out: model.safetensors,
/// recipe.toml, metrics.jsonl, privacy.json (private runs), reconstructions.png, report.html, and state/ for --resume.
/// state/key must stay secret: with it the noise can be subtracted.
#[derive(Debug, Args)]
pub struct Pretrain {
    /// The recipe, e.g. assets/recipes/vip-micro32-private.toml.
    recipe: PathBuf,
    /// Data instead of the recipe's: shards (x-{000..041}.tar), a folder of shards, or a folder of images.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Weights to start from (model.safetensors of an earlier run).
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Folder for all results.
    #[arg(long, value_name = "DIR", default_value = "out/run")]
    out: PathBuf,
    #[command(flatten)]
    device: DeviceArg,
    /// Steps instead of the recipe's. In a private run the noise is solved for anew.
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Examples on the device at once: decides memory and speed, not the result's law.
    #[arg(long, value_name = "N")]
    physical_batch: Option<usize>,
    /// Refuse to start if more memory than this is planned, in megabytes.
    #[arg(long, value_name = "MB")]
    memory: Option<u64>,
    /// Public seed for everything random, noise included: repeatable, and not private against whoever knows the seed.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Try the recipe's settings at a smaller logical batch: batch and noise shrink together, the learning rate stays (TAN,
    /// Sander et al. 2023). Such a run is NOT private, and says so.
    #[arg(long, value_name = "B", conflicts_with = "resume")]
    simulate_batch: Option<u64>,
    /// Go on from the state in --out.
    #[arg(long)]
    resume: bool,
    /// Public images for reconstructions.png; a private run shows synthetic ones otherwise.
    #[arg(long, value_name = "PATH")]
    preview: Option<PathBuf>,
    /// Log the training loss of a private run, although the guarantee does not cover it.
    #[arg(long)]
    log_unprotected: bool,
    #[command(flatten)]
    json: JsonArg,
}

impl Pretrain {
    pub fn run(self) -> Result<()> {
        let mut recipe = Recipe::read(&self.recipe)?;
        if let Some(data) = self.data {
            recipe.data.path = Some(data);
            recipe.data.synthetic = false;
        }
        recipe.train.steps = self.steps.unwrap_or(recipe.train.steps);
        recipe.train.physical_batch = self.physical_batch.unwrap_or(recipe.train.physical_batch);
        let mut simulation = None;
        if let Some(batch) = self.simulate_batch {
            let (sigma, epsilon) = planned(&recipe)?;
            let note = format!(
                "simulation of batch {} (noise multiplier {sigma:.4}, epsilon {epsilon:.3}): this run is NOT private",
                recipe.train.batch
            );
            recipe = recipe.simulated(batch, sigma)?;
            simulation = Some(note);
        }
        let options = RunOptions {
            out: Some(self.out.clone()),
            init: self.init,
            resume: self.resume,
            seed: self.seed,
            memory: self.memory.map(|mb| mb * 1_000_000),
            log_unprotected: self.log_unprotected,
            preview: self.preview,
        };
        let engine = self.device.open()?;
        std::fs::create_dir_all(&self.out).map_err(|e| Error::io(&self.out, e))?;
        let mut run = Run::new(engine.as_ref(), recipe, options)?;
        run.note(simulation);
        train(&mut run, &self.out, self.json.json)?;
        if self.json.json {
            output::json(&json!({ "done": true, "out": self.out }));
        } else {
            println!("wrote {}", self.out.join("report.html").display());
        }
        Ok(())
    }
}

/// Noise multiplier and epsilon of a private recipe on its data.
fn planned(recipe: &Recipe) -> Result<(f64, f64)> {
    let (Some(privacy), Some(path)) = (&recipe.privacy, &recipe.data.path) else {
        return Err(Error::invalid("--simulate-batch", "", "is for recipes with a privacy section"));
    };
    let config = mechanism(privacy, recipe, data::open(path)?.len())?;
    let event = config.event(config.steps());
    let mut accountant = Rdp::default();
    accountant.compose(&event)?;
    Ok((config.noise_multiplier(), accountant.epsilon(config.delta())?.value))
}

/// Trains to the end with a progress bar, Ctrl-C and a report.
///
/// # Errors
/// As [`Run::train`].
pub fn train(run: &mut Run, out: &Path, json: bool) -> Result<()> {
    if json {
        output::json(run.summary());
    } else {
        print_summary(run.summary());
    }
    let stop = stop_flag();
    let summary = run.summary().clone();
    let bar = output::bar(summary.steps, "steps", json);
    bar.set_position(summary.start);
    let result = run.train(|record| {
        if json {
            output::json(record);
        }
        bar.set_position(record.step);
        bar.set_message(message(&summary, record));
        !stop.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    let failures = run.report();
    if failures.failed > 0 && !json {
        println!("{} files could not be used and weigh zero:", failures.failed);
        failures.named.iter().for_each(|f| println!("  {f}"));
    }
    result?;
    report(run, out)
}

/// Set by Ctrl-C or SIGTERM; a second signal ends the process at once.
fn stop_flag() -> Arc<AtomicBool> {
    static FLAG: std::sync::OnceLock<Arc<AtomicBool>> = std::sync::OnceLock::new();
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        let seen = flag.clone();
        let set = ctrlc::set_handler(move || {
            if seen.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            eprintln!("stopping after this step; once more to stop at once");
        });
        if let Err(e) = set {
            tracing::warn!("Ctrl-C will not be waited for: {e}");
        }
        flag
    })
    .clone()
}

fn message(summary: &Summary, record: &StepRecord) -> String {
    let done = (record.step - summary.start) as f64 * summary.batch as f64;
    let speed = format!("{:.0} examples/s", done / record.seconds.max(1e-9));
    match (record.epsilon, record.loss.or(record.unprotected_loss)) {
        (Some(epsilon), None) => format!("{speed}  epsilon {epsilon:.3}"),
        (Some(epsilon), Some(loss)) => {
            format!("{speed}  epsilon {epsilon:.3}  loss {loss:.4} (not protected)")
        }
        (None, Some(loss)) => format!("{speed}  loss {loss:.4}"),
        (None, None) => speed,
    }
}

fn print_summary(s: &Summary) {
    println!("data     {}", s.data);
    println!("device   {}", s.device);
    println!(
        "model    {:.2} M trainable parameters, {} planned on the device",
        s.parameters as f64 / 1e6,
        bytes(s.memory_bytes)
    );
    println!(
        "steps    {} of batch {} (physical batch {}), from step {}",
        s.steps, s.batch, s.physical_batch, s.start
    );
    match &s.privacy {
        Some(p) => {
            println!(
                "privacy  epsilon {:.3} at delta {:.2e} after all steps, {} neighbours",
                p.epsilon, p.delta, p.neighbouring
            );
            println!(
                "         noise multiplier {:.4}, clipping norm {}, sampling rate {:.5} of {} examples",
                p.noise_multiplier, p.clipping_norm, p.sampling_rate, p.examples
            );
        }
        None => println!("privacy  none: the recipe has no [privacy] section"),
    }
    s.warnings.iter().take(10).for_each(|w| println!("note     {w}"));
}

/// Writes reconstructions.png and report.html.
fn report(run: &mut Run, out: &Path) -> Result<()> {
    let picture = out.join("reconstructions.png");
    let pictures = run.pictures(8)?;
    if let Some(pictures) = &pictures {
        pictures.save(&picture).map_err(|e| Error::io(&picture, std::io::Error::other(e)))?;
    }
    let summary = run.summary().clone();
    let mut report = Report::new("Veilgrad training run");
    let mut rows = vec![vec!["".into(), "".into()]];
    let mut row = |name: &str, value: String| rows.push(vec![name.into(), value]);
    row("data", summary.data.clone());
    row("device", summary.device.clone());
    row("trainable parameters", summary.parameters.to_string());
    row("steps", summary.steps.to_string());
    row("logical batch", summary.batch.to_string());
    row("physical batch", summary.physical_batch.to_string());
    row("planned memory", bytes(summary.memory_bytes));
    if let Some(p) = &summary.privacy {
        row("epsilon", format!("{:.4}", p.epsilon));
        row("delta", format!("{:.3e}", p.delta));
        row("noise multiplier", format!("{:.4}", p.noise_multiplier));
        row("clipping norm", p.clipping_norm.to_string());
        row("sampling rate", format!("{:.6}", p.sampling_rate));
        row("neighbouring", p.neighbouring.into());
        row("accountant", p.accountant.into());
    }
    report.table(&rows);
    for warning in &summary.warnings {
        report.paragraph(warning);
    }
    let curve = |f: &dyn Fn(&StepRecord) -> Option<f64>| -> Vec<(f64, f64)> {
        run.metrics().iter().filter_map(|m| f(m).map(|y| (m.step as f64, y))).collect()
    };
    let (loss, spent) = (curve(&|m| m.loss), curve(&|m| m.epsilon));
    let rates = curve(&|m| Some(m.learning_rate));
    report.heading("Curves");
    report.curve("training loss", "step", &loss)?;
    report.curve("training loss (not covered by the guarantee)", "step", &curve(&|m| m.unprotected_loss))?;
    report.curve("epsilon spent", "step", &spent)?;
    report.curve("learning rate", "step", &rates)?;
    if pictures.is_some() {
        report.heading("Reconstructions");
        report.picture(&picture, "original, masked, reconstructed")?;
    }
    report.heading("Recipe");
    let recipe = out.join("recipe.toml");
    report.code(&std::fs::read_to_string(&recipe).map_err(|e| Error::io(&recipe, e))?);
    report.write(&out.join("report.html"))
}
