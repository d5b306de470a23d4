//! Recipes: everything that decides a training run, as TOML. Unknown keys are errors that suggest the nearest.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
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
    /// Under which guarantee. Without this section the run is not private.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub privacy: Option<Privacy>,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// A size by name, e.g. `micro32` or `base`.
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

    /// The model's sizes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown size.
    pub fn mae(&self) -> Result<MaeConfig> {
        Ok(MaeConfig {
            mask_ratio: self.model.mask_ratio,
            train_positions: self.model.train_positions,
            norm_pix: self.model.norm_pix,
            ..MaeConfig::preset(&self.model.size)?
        })
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming field, value and fix.
    pub fn validate(&self) -> Result<()> {
        self.mae()?.validate()?;
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
