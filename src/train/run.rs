//! The training loop: the only one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use image::RgbImage;
use serde::Serialize;

use super::feed::{Epochs, Feed, Sampling};
use super::recipe::Recipe;
use super::state::{Identity, State};
use super::stepper::{Guarantee, Performance, Stepper};
use super::summary::summarise;
pub use super::summary::{PrivacySummary, Summary};
use super::task::{Task, write_masks};
use crate::checkpoint::Checkpoint;
use crate::data::loader::Report;
use crate::data::synthetic::{Drawing, Synthetic};
use crate::data::{self, Source};
use crate::error::{Error, Result};
use crate::eval::pictures;
use crate::files::write_atomic;
use crate::optim::adamw::AdamW;
use crate::privacy::accounting::Rdp;
use crate::privacy::clip::ClipRule;
use crate::privacy::config::{Noise, PrivacyConfig};
use crate::record::Engine;
use crate::rng::{Key, Purpose};

/// How to run a recipe.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Folder for checkpoints and results; nothing is written without.
    pub out: Option<PathBuf>,
    /// Weights to start from.
    pub init: Option<PathBuf>,
    /// Go on from the state in `out`.
    pub resume: bool,
    /// Public seed instead of a key from the operating system: noise can be subtracted by whoever knows it.
    pub seed: Option<u64>,
    /// Refuse a plan over this many bytes.
    pub memory: Option<u64>,
    /// Log the training loss of a private run too. It is not covered by the guarantee.
    pub log_unprotected: bool,
    /// Public images for the pictures; synthetic ones in private runs otherwise.
    pub preview: Option<PathBuf>,
}

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, Serialize)]
pub struct StepRecord {
    /// Steps done.
    pub step: u64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Seconds since the start of this process's run.
    pub seconds: f64,
    /// Epsilon spent so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// Mean loss of the step's last physical batch; not private runs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The same of a private run, on request: NOT covered by the guarantee.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unprotected_loss: Option<f64>,
}

/// A recipe on a device, between steps.
pub struct Run {
    recipe: Recipe,
    options: RunOptions,
    task: Task,
    stepper: Stepper,
    feed: Feed,
    source: Option<Arc<dyn Source>>,
    key: Key,
    privacy: Option<(PrivacyConfig, Rdp)>,
    state: Option<State>,
    identity: Identity,
    summary: Summary,
    step: u64,
    metrics: Vec<StepRecord>,
    /// Lines of `metrics.jsonl` that an earlier process wrote for the steps before this one's.
    earlier_metrics: String,
}

impl Run {
    /// Prepares a run: opens the data, solves for the noise, plans memory, loads weights. Nothing is trained yet.
    ///
    /// # Errors
    /// Every fault of recipe, data, checkpoint and device, each naming file, field and fix.
    pub fn new(engine: &dyn Engine, recipe: Recipe, options: RunOptions) -> Result<Self> {
        recipe.validate()?;
        let source: Option<Arc<dyn Source>> = match &recipe.data.path {
            Some(path) => Some(data::open(path)?.into()),
            None => None,
        };
        Self::with_source(engine, recipe, options, source)
    }

    /// As [`Run::new`], on examples of the caller's own; `None` draws synthetic images.
    ///
    /// # Errors
    /// As [`Run::new`].
    pub fn with_source(
        engine: &dyn Engine,
        recipe: Recipe,
        options: RunOptions,
        source: Option<Arc<dyn Source>>,
    ) -> Result<Self> {
        recipe.validate()?;
        let privacy = match (&recipe.privacy, &source) {
            (Some(p), Some(source)) => Some(mechanism(p, &recipe, source.len())?),
            _ => None,
        };
        let state = options.out.as_deref().map(State::new);
        let key = match (&state, options.resume, options.seed) {
            (Some(state), true, _) if state.exists() => state.key()?,
            (_, true, _) => {
                let out = options.out.clone().unwrap_or_default();
                return Err(Error::checkpoint(out, "holds no state to resume from; leave --resume out"));
            }
            (_, false, Some(seed)) => Key::from_seed(seed),
            (_, false, None) => Key::from_os()?,
        };
        let task = Task::new(&recipe, source.as_ref(), key.derive(Purpose::Masking))?;
        let graph = task.graph(recipe.train.physical_batch)?;
        let guarantee = match &privacy {
            Some(p) => Guarantee::Private(p),
            None => Guarantee::NotPrivate { batch: recipe.train.batch as f64 },
        };
        let synthetic = Synthetic::new(&key);
        let performance =
            Performance { memory: options.memory, fetch: graph.prediction.into_iter().collect() };
        let optimizer =
            AdamW { betas: recipe.train.betas, weight_decay: recipe.train.weight_decay, ..AdamW::default() };
        let mut stepper = Stepper::new(
            engine,
            &graph.graph,
            graph.loss,
            guarantee,
            &optimizer,
            &performance,
            Some(Drawing::for_training(task.side())),
            &key,
        )?;
        let identity = Identity {
            recipe: recipe.to_toml(),
            data: source
                .as_ref()
                .map_or("synthetic".into(), |s| format!("{} {:016x}", s.len(), s.fingerprint())),
        };
        let mut notes = Vec::new();
        let start = match (&state, options.resume, &options.init) {
            (Some(state), true, _) => state.load(&mut stepper, &identity)?,
            (_, _, Some(path)) => {
                let file = Checkpoint::read(path)?;
                let (fresh, unused) =
                    stepper.start_from(&file, path, &key, |p| task.starts_fresh(p, &file))?;
                if fresh > 0 {
                    notes.push(format!(
                        "{}: gives the encoder; {fresh} tensors start fresh, {} of its own have no place",
                        path.display(),
                        unused.len()
                    ));
                }
                0
            }
            _ => {
                stepper.initialise(&key)?;
                0
            }
        };
        if let (Some(state), false) = (&state, options.resume) {
            state.begin(&key)?;
        }
        let feed = feed(&recipe, task.side(), &source, &privacy, &synthetic, start, &key)?;
        let privacy = match privacy {
            Some(p) => {
                let mut one = Rdp::default();
                one.compose(&p.event(1))?;
                Some((p, one))
            }
            None => None,
        };
        let mut summary =
            summarise(engine, &recipe, &options, &stepper, source.as_deref(), &privacy, start, &key)?;
        summary.warnings.extend(notes);
        let earlier_metrics = match &options.out {
            Some(out) if options.resume => metrics_up_to(&out.join("metrics.jsonl"), start),
            _ => String::new(),
        };
        let mut run = Run {
            recipe,
            options,
            task,
            stepper,
            feed,
            source,
            key,
            privacy,
            state,
            identity,
            summary,
            step: start,
            metrics: Vec::new(),
            earlier_metrics,
        };
        if start == 0 {
            run.checkpoint()?;
        }
        Ok(run)
    }

    /// What is known before the first step.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Adds a note to the summary, for people.
    pub fn note(&mut self, note: Option<String>) {
        self.summary.warnings.extend(note);
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Steps so far of this process.
    pub fn metrics(&self) -> &[StepRecord] {
        &self.metrics
    }

    /// Files that could not be used so far.
    pub fn report(&self) -> Report {
        let mut report = self.feed.report();
        if let Task::Captioner { missing: missing @ 1.., .. } = self.task {
            report.failed += missing;
            report.named.push(format!("{missing} times an example without a caption, which weighs zero"));
        }
        report
    }

    /// The model on its device.
    pub fn stepper(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    /// Epsilon and delta spent so far; nothing in a run that is not private.
    ///
    /// # Errors
    /// None in practice: the mechanism was accepted before.
    pub fn spent(&self) -> Result<Option<(f64, f64)>> {
        match &self.privacy {
            Some((p, one)) => Ok(Some((one.repeated(self.step).epsilon(p.delta())?.value, p.delta()))),
            None => Ok(None),
        }
    }

    /// Trains to the end of the recipe, saving as it goes; `watch` sees every step and returns whether to go on.
    ///
    /// # Errors
    /// [`Error::Interrupted`] after saving, when `watch` says stop; the device's and the file system's.
    pub fn train(&mut self, mut watch: impl FnMut(&StepRecord) -> bool) -> Result<()> {
        let begun = Instant::now();
        let mut saved = Instant::now();
        let pause = Duration::from_secs(self.recipe.train.checkpoint_seconds);
        while self.step < self.recipe.train.steps {
            let record = self.one_step(begun)?;
            let go_on = watch(&record);
            self.metrics.push(record);
            let done = self.step == self.recipe.train.steps;
            if done || !go_on || saved.elapsed() >= pause {
                self.checkpoint()?;
                saved = Instant::now();
            }
            if !go_on && !done {
                return Err(Error::Interrupted(format!(
                    "after step {}; --resume goes on from there",
                    self.step
                )));
            }
        }
        Ok(())
    }

    fn one_step(&mut self, begun: Instant) -> Result<StepRecord> {
        let t = &self.recipe.train;
        let total = t.schedule_steps.unwrap_or(t.steps);
        let learning_rate = t.learning_rate * t.schedule.at(self.step, total, t.warmup);
        self.stepper.begin()?;
        self.feed.step(&mut self.stepper, &mut self.task, self.step)?;
        self.stepper.finish(self.step, learning_rate)?;
        let private = self.privacy.is_some();
        let loss = match !private || self.options.log_unprotected {
            true => {
                let losses = self.stepper.unprotected_losses()?;
                Some(losses.iter().map(|&x| x as f64).sum::<f64>() / losses.len() as f64)
            }
            false => None,
        };
        self.step += 1;
        Ok(StepRecord {
            step: self.step,
            learning_rate,
            seconds: begun.elapsed().as_secs_f64(),
            epsilon: self.spent()?.map(|(epsilon, _)| epsilon),
            loss: loss.filter(|_| !private),
            unprotected_loss: loss.filter(|_| private),
        })
    }

    /// Saves state, model, recipe, metrics and the guarantee spent so far.
    ///
    /// # Errors
    /// [`Error::Io`]; what was saved before stays.
    pub fn checkpoint(&mut self) -> Result<()> {
        let Some(out) = self.options.out.clone() else { return Ok(()) };
        if let Some(state) = &self.state {
            state.save(&mut self.stepper, self.step, &self.identity)?;
        }
        self.model()?.write(&out.join("model.safetensors"))?;
        write_atomic(&out.join("recipe.toml"), self.identity.recipe.as_bytes())?;
        if let Some(spent) = &self.summary.privacy {
            let epsilon = self.spent()?.map_or(0.0, |(e, _)| e);
            let so_far = PrivacySummary { steps: self.step, epsilon, ..spent.clone() };
            let text = serde_json::to_string_pretty(&so_far).expect("plain data");
            write_atomic(&out.join("privacy.json"), (text + "\n").as_bytes())?;
        }
        self.write_metrics(&out.join("metrics.jsonl"))
    }

    /// Lines of earlier steps stay; those of this process follow.
    fn write_metrics(&self, path: &Path) -> Result<()> {
        let mut text = self.earlier_metrics.clone();
        for record in &self.metrics {
            text.push_str(&serde_json::to_string(record).expect("plain data"));
            text.push('\n');
        }
        write_atomic(path, text.as_bytes())
    }

    /// The model's weights, under the published names.
    ///
    /// # Errors
    /// The device's.
    pub fn model(&mut self) -> Result<Checkpoint> {
        let mut checkpoint = self.stepper.save(false)?;
        checkpoint.metadata.insert("model".into(), self.recipe.model.size.clone());
        if let Task::Captioner { words, .. } = &self.task {
            checkpoint.metadata.insert("vocabulary".into(), words.to_json());
        }
        Ok(checkpoint)
    }

    /// What is trained.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Original, masked and reconstructed images of an autoencoder. In a private run they are synthetic, or the `preview`
    /// images that the user declared public: the run's own images never leave it. Nothing for a captioner.
    ///
    /// # Errors
    /// The device's, and those of the preview images.
    pub fn pictures(&mut self, count: usize) -> Result<Option<RgbImage>> {
        let Task::Mae { config, .. } = &self.task else { return Ok(None) };
        let config = config.clone();
        let (side, size) = (config.image, self.stepper.plan().batch);
        let count = count.min(size);
        let input = self.stepper.plan().input("images")?;
        let shown = match (&self.options.preview, &self.source) {
            (Some(path), _) => Some(data::open(path)?.into()),
            (None, Some(source)) if self.privacy.is_none() => Some(source.clone()),
            _ => None,
        };
        match shown {
            Some(source) => {
                let images = preview(source, side, size, count)?;
                self.stepper.session().write(input, &images)?;
            }
            None => {
                let synthetic = Synthetic::new(&self.key);
                self.stepper.draw(&synthetic.programs(u64::MAX >> 2, size))?;
            }
        }
        let examples = 0..size as u64;
        let mask = write_masks(&mut self.stepper, &config, &Key::from_seed(0), 0, examples)?;
        let prediction = self.stepper.predict()?.remove(0);
        let images = self.stepper.session().read(input)?;
        let (l, p) = (config.patches(), config.patch_len());
        Ok(Some(pictures::reconstructions(
            &config,
            &images[..count * 3 * side * side],
            &prediction[..count * (1 + l) * p],
            &mask[..count * l],
        )))
    }
}

/// Lines of a metrics file up to this step; none without a file.
fn metrics_up_to(path: &Path, step: u64) -> String {
    let kept = |line: &&str| {
        let value: Option<serde_json::Value> = serde_json::from_str(line).ok();
        value.and_then(|v| v["step"].as_u64()).is_some_and(|s| s <= step)
    };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter(kept).flat_map(|line| [line, "\n"]).collect()
}

/// The first decodable images of a source, spread over it.
fn preview(source: Arc<dyn Source>, side: usize, size: usize, count: usize) -> Result<Vec<f32>> {
    use crate::data::{augment::Transform, decode};
    let mut images = vec![0.0; size * 3 * side * side];
    let stride = (source.len() / count.max(1) as u64).max(1);
    let mut slots = images.chunks_mut(3 * side * side).take(count);
    for index in (0..source.len()).step_by(stride as usize) {
        let Ok(image) = decode::decode(&source.record(index)?.image) else { continue };
        let Some(slot) = slots.next() else { break };
        Transform::Centre.apply(&image, side, 0, index, slot);
    }
    Ok(images)
}

/// The mechanism of a recipe's privacy section on so many examples.
///
/// # Errors
/// [`Error::Invalid`] for numbers out of range, or a target that no noise reaches.
pub fn mechanism(p: &super::recipe::Privacy, recipe: &Recipe, examples: u64) -> Result<PrivacyConfig> {
    let noise = match (p.epsilon, p.noise_multiplier) {
        (Some(epsilon), _) => Noise::TargetEpsilon(epsilon),
        (None, Some(sigma)) => Noise::Multiplier(sigma),
        (None, None) => {
            return Err(Error::invalid("privacy", "", "give one of epsilon and noise_multiplier"));
        }
    };
    let clip = ClipRule::Flat { norm: p.clipping_norm };
    PrivacyConfig::new(examples, recipe.train.batch as f64, recipe.train.steps, clip, noise, p.delta)
}

fn feed(
    recipe: &Recipe,
    side: usize,
    source: &Option<Arc<dyn Source>>,
    privacy: &Option<PrivacyConfig>,
    synthetic: &Synthetic,
    start: u64,
    key: &Key,
) -> Result<Feed> {
    let Some(source) = source else {
        return Ok(Feed::Drawn { synthetic: synthetic.clone(), batch: recipe.train.batch });
    };
    let sampling = match privacy {
        Some(p) => Sampling::Poisson(p.sampler(key)?),
        None => {
            Sampling::Epochs(Epochs::new(source.len(), recipe.train.batch, key.derive(Purpose::Sampling)))
        }
    };
    Feed::read(source.clone(), sampling, recipe, side, start, key)
}
