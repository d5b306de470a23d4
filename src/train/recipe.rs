//! Recipes: everything that decides a training run, as TOML. Unknown keys are errors that suggest the nearest.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::captioner::{self, CaptionerConfig};
use crate::model::mae::MaeConfig;
use crate::optim::schedule::Schedule;

/// A training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// What is trained.
    pub model: Model,
    /// On what.
    pub data: Data,
    /// How.
    pub train: Train,
    /// Captions, of a captioner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Text>,
    /// Under which guarantee. Without this section the run is not private.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub privacy: Option<Privacy>,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// A size by name: `micro32` or `base` for a masked autoencoder, `cap-micro32` or `cap-base` for a captioner.
    pub size: String,
    /// Share of patches removed.
    #[serde(default = "three_quarters")]
    pub mask_ratio: f64,
    /// Train the position tables too, as in ViP's published private stage.
    #[serde(default)]
    pub train_positions: bool,
    /// Standardise target patches.
    #[serde(default)]
    pub norm_pix: bool,
    /// Biases in the encoder's q, k, v. Off for an autoencoder whose encoder a captioner will start from.
    #[serde(default = "yes")]
    pub qkv_bias: bool,
}

/// Captions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// Tokens of a caption, `[CLS]` and `[SEP]` included; the size's own if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    /// A PUBLIC text file, one text a line: only words that occur in it are kept of BERT's 30,522. Never make it from private
    /// captions: which words a model knows would tell of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<PathBuf>,
}

/// What a recipe trains.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelConfig {
    /// ViP's masked autoencoder.
    Mae(MaeConfig),
    /// DP-Cap's captioner, with BERT's whole vocabulary: a smaller one is known once it is read.
    Captioner(CaptionerConfig),
}

/// The data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Shards (`train-{0000..0041}.tar`), a folder of shards, or a folder of images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Draw images by shaders instead of reading any.
    #[serde(default)]
    pub synthetic: bool,
    /// Smallest share of the image's area in a random crop.
    #[serde(default = "one_fifth")]
    pub crop_scale_min: f64,
    /// Flip half of the images.
    #[serde(default = "yes")]
    pub flip: bool,
}

/// Optimiser and schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Logical steps.
    pub steps: u64,
    /// Logical batch: examples per step. In a private run the EXPECTED number, `sampling rate x N`.
    pub batch: u64,
    /// Physical batch: examples on the device at once. Decides memory and speed, never the result's law.
    #[serde(default = "sixty_four")]
    pub physical_batch: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// AdamW's decoupled weight decay.
    #[serde(default)]
    pub weight_decay: f64,
    /// AdamW's betas.
    #[serde(default = "betas")]
    pub betas: [f64; 2],
    /// Steps of linear warm-up.
    #[serde(default)]
    pub warmup: u64,
    /// Shape of the schedule.
    #[serde(default)]
    pub schedule: Schedule,
    /// Steps over which the schedule runs to its end, if the run stops before: DP-Cap's 10,000 for 5,708 steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_steps: Option<u64>,
    /// Seconds between checkpoints.
    #[serde(default = "one_minute")]
    pub checkpoint_seconds: u64,
}

/// The mechanism.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Privacy {
    /// Clipping norm C of each example's gradient over all trainable parameters together.
    pub clipping_norm: f64,
    /// Target epsilon; the noise multiplier follows. Give this or `noise_multiplier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// Noise standard deviation in units of the clipping norm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise_multiplier: Option<f64>,
    /// Delta; `1 / (2 N)` if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<f64>,
}

fn three_quarters() -> f64 {
    0.75
}
fn one_fifth() -> f64 {
    0.2
}
fn yes() -> bool {
    true
}
fn sixty_four() -> usize {
    64
}
fn betas() -> [f64; 2] {
    [0.9, 0.95]
}
fn one_minute() -> u64 {
    60
}

impl Recipe {
    /// Reads and validates a recipe.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Config`] naming file, field and, for an unknown key, the nearest known one.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        Self::parse(&text, path)
    }

    /// Parses and validates the text of a recipe; `path` is for messages.
    ///
    /// # Errors
    /// As [`Recipe::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let fail = |what: String| Error::Config { file: path.to_path_buf(), what };
        let recipe: Recipe = toml::from_str(text).map_err(|e| fail(explain(&e, text)))?;
        recipe.validate().map_err(|e| fail(e.to_string()))?;
        Ok(recipe)
    }

    /// The recipe as TOML, every default written out.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("a recipe is plain data")
    }

    /// What is trained.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown size, naming those there are.
    pub fn config(&self) -> Result<ModelConfig> {
        if !self.model.size.starts_with("cap-") {
            let known = |e: Error| match e {
                Error::Invalid { field, value, why } => {
                    let captioners = captioner::PRESETS.join(", ");
                    Error::Invalid { field, value, why: format!("{why}, nor a captioner: {captioners}") }
                }
                other => other,
            };
            let preset = MaeConfig::preset(&self.model.size).map_err(known)?;
            return Ok(ModelConfig::Mae(MaeConfig {
                mask_ratio: self.model.mask_ratio,
                train_positions: self.model.train_positions,
                norm_pix: self.model.norm_pix,
                qkv_bias: self.model.qkv_bias,
                ..preset
            }));
        }
        let preset = CaptionerConfig::preset(&self.model.size)?;
        let length = self.text.as_ref().and_then(|t| t.length).unwrap_or(preset.length);
        Ok(ModelConfig::Captioner(CaptionerConfig { length, ..preset }))
    }

    /// The masked autoencoder's sizes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown size or a captioner.
    pub fn mae(&self) -> Result<MaeConfig> {
        match self.config()? {
            ModelConfig::Mae(config) => Ok(config),
            ModelConfig::Captioner(_) => {
                Err(Error::invalid("model.size", &self.model.size, "is a captioner, not an autoencoder"))
            }
        }
    }

    /// The same run at a smaller logical batch, for trying settings cheaply (TAN, Sander et al. 2023, arXiv 2210.03403): batch
    /// and noise shrink together, so that the noise of a step stays, and the learning rate is kept. It is NOT private in any
    /// useful sense, and its own epsilon says so. `sigma` is the noise multiplier of this recipe.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a privacy section, or for a batch that is not smaller.
    pub fn simulated(&self, batch: u64, sigma: f64) -> Result<Recipe> {
        let fail = |why: &str| Err(Error::invalid("--simulate-batch", batch, why));
        let Some(privacy) = &self.privacy else { return fail("the recipe has no privacy section") };
        if batch == 0 || batch >= self.train.batch {
            return fail(&format!("must be positive and below the recipe's {}", self.train.batch));
        }
        let noise_multiplier = Some(sigma * batch as f64 / self.train.batch as f64);
        let privacy = Privacy { epsilon: None, noise_multiplier, ..privacy.clone() };
        let train = Train { batch, ..self.train.clone() };
        Ok(Recipe { train, privacy: Some(privacy), ..self.clone() })
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming field, value and fix.
    pub fn validate(&self) -> Result<()> {
        match (self.config()?, &self.text) {
            (ModelConfig::Mae(config), None) => config.validate()?,
            (ModelConfig::Mae(_), Some(_)) => {
                return Err(Error::invalid("text", "", "is for captioners (size cap-...): leave it out"));
            }
            (ModelConfig::Captioner(_), _) if self.data.synthetic => {
                let why = "synthetic images have no captions; train an autoencoder on them and start from it";
                return Err(Error::invalid("data.synthetic", true, why));
            }
            (ModelConfig::Captioner(config), _) => config.validate()?,
        }
        let t = &self.train;
        let positive = |field: &str, x: f64| {
            if x.is_finite() && x > 0.0 { Ok(()) } else { Err(Error::invalid(field, x, "must be positive")) }
        };
        let share = |field: &str, x: f64| {
            if (0.0..1.0).contains(&x) { Ok(()) } else { Err(Error::invalid(field, x, "must be in [0, 1)")) }
        };
        positive("train.steps", t.steps as f64)?;
        positive("train.batch", t.batch as f64)?;
        positive("train.physical_batch", t.physical_batch as f64)?;
        positive("train.learning_rate", t.learning_rate)?;
        share("train.betas[0]", t.betas[0])?;
        share("train.betas[1]", t.betas[1])?;
        if t.schedule_steps.is_some_and(|s| s < t.steps) {
            let why = format!("must not be below train.steps, {}", t.steps);
            return Err(Error::invalid("train.schedule_steps", t.schedule_steps.unwrap_or(0), why));
        }
        if !(t.weight_decay >= 0.0 && t.weight_decay.is_finite()) {
            return Err(Error::invalid("train.weight_decay", t.weight_decay, "must not be negative"));
        }
        if !(self.data.crop_scale_min > 0.0 && self.data.crop_scale_min <= 1.0) {
            return Err(Error::invalid("data.crop_scale_min", self.data.crop_scale_min, "must be in (0, 1]"));
        }
        match (&self.data.path, self.data.synthetic) {
            (Some(path), true) => {
                return Err(Error::invalid(
                    "data.path",
                    path.display(),
                    "data is synthetic: leave one of the two out",
                ));
            }
            (None, false) => {
                return Err(Error::invalid("data.path", "", "name the data, or set data.synthetic = true"));
            }
            _ => {}
        }
        let Some(p) = &self.privacy else { return Ok(()) };
        if self.data.synthetic {
            return Err(Error::invalid("privacy", "", "synthetic images need none: leave the section out"));
        }
        positive("privacy.clipping_norm", p.clipping_norm)?;
        match (p.epsilon, p.noise_multiplier) {
            (Some(epsilon), None) => positive("privacy.epsilon", epsilon)?,
            (None, Some(sigma)) => positive("privacy.noise_multiplier", sigma)?,
            _ => return Err(Error::invalid("privacy", "", "give one of epsilon and noise_multiplier")),
        }
        match p.delta {
            Some(delta) if !(delta > 0.0 && delta < 1.0) => {
                Err(Error::invalid("privacy.delta", delta, "must be in (0, 1), and below 1 / N"))
            }
            _ => Ok(()),
        }
    }
}

/// TOML's message on one line, with the nearest known key for an unknown one.
fn explain(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message();
    let mut what = match line {
        Some(line) => format!("line {line}: {message}"),
        None => message.to_owned(),
    };
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if let (true, Some((unknown, known))) = (message.starts_with("unknown field"), names.split_first()) {
        let nearest = known
            .iter()
            .max_by(|a, b| strsim::jaro_winkler(unknown, a).total_cmp(&strsim::jaro_winkler(unknown, b)));
        if let Some(nearest) = nearest {
            what.push_str(&format!("; did you mean `{nearest}`?"));
        }
    }
    what
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[model]
size = "micro32"
[data]
path = "x.tar"
[train]
steps = 10
batch = 256
learning_rate = 1e-3
[privacy]
clipping_norm = 0.1
epsilon = 8.0
"#;

    fn error(text: &str) -> String {
        Recipe::parse(text, Path::new("r.toml")).unwrap_err().to_string()
    }

    #[test]
    fn a_recipe_survives_writing() {
        let recipe = Recipe::parse(GOOD, Path::new("r.toml")).unwrap();
        assert_eq!(Recipe::parse(&recipe.to_toml(), Path::new("r.toml")).unwrap(), recipe);
    }

    #[test]
    fn errors_name_file_field_and_fix() {
        let unknown = error(&GOOD.replace("learning_rate", "learning_rat"));
        assert!(unknown.contains("r.toml") && unknown.contains("did you mean `learning_rate`"), "{unknown}");
        assert!(error(&GOOD.replace("micro32", "mikro")).contains("micro32"));
        assert!(error(&GOOD.replace("epsilon = 8.0", "")).contains("epsilon"));
        assert!(error(&GOOD.replace("= 0.1", "= -1.0")).contains("clipping_norm"));
        assert!(error(&GOOD.replace("= 0.1", "= nan")).contains("clipping_norm"));
        assert!(error(&GOOD.replace("path = \"x.tar\"", "")).contains("data.path"));
        assert!(error("x = [").contains("line 1"));
    }
}
