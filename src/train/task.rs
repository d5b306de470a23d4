//! What a run trains: the model's graph, the inputs that it wants besides images, and where its parameters start.

use std::sync::Arc;

use super::recipe::{ModelConfig, Recipe};
use super::stepper::Stepper;
use crate::checkpoint::Checkpoint;
use crate::data::Source;
use crate::data::words::Words;
use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::model::captioner::{self, CaptionerConfig, shifted};
use crate::model::mae::{self, MaeConfig, Mask};
use crate::rng::Key;

/// A masked autoencoder or a captioner, ready to be fed.
pub enum Task {
    /// Reconstructs what it does not see. Masks come from a key.
    Mae {
        /// Sizes.
        config: MaeConfig,
        /// Key of the masks.
        key: Key,
    },
    /// Writes captions.
    Captioner {
        /// Sizes; the vocabulary is that of `words`.
        config: CaptionerConfig,
        /// From text to ids.
        words: Arc<Words>,
        /// Where captions are.
        source: Arc<dyn Source>,
        /// Examples without a usable caption, so far.
        missing: u64,
    },
}

/// A training graph.
pub struct TaskGraph {
    /// The graph.
    pub graph: Graph,
    /// (B)
    pub loss: Value,
    /// What pictures are made of.
    pub prediction: Option<Value>,
}

impl Task {
    /// The task of a recipe.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Io`] and [`Error::Data`] for a vocabulary.
    pub fn new(recipe: &Recipe, source: Option<&Arc<dyn Source>>, mask_key: Key) -> Result<Self> {
        match recipe.config()? {
            ModelConfig::Mae(config) => Ok(Task::Mae { config, key: mask_key }),
            ModelConfig::Captioner(config) => {
                let Some(source) = source else {
                    return Err(Error::invalid("data.path", "", "a captioner needs images with captions"));
                };
                let vocabulary = recipe.text.as_ref().and_then(|t| t.vocabulary.as_deref());
                let words = match vocabulary {
                    Some(path) => Words::occurring_in(path)?,
                    None => Words::bert()?,
                };
                let config = CaptionerConfig { vocabulary: words.len(), ..config };
                Ok(Task::Captioner { config, words: Arc::new(words), source: source.clone(), missing: 0 })
            }
        }
    }

    /// Side of the images, pixels.
    pub fn side(&self) -> usize {
        match self {
            Task::Mae { config, .. } => config.image,
            Task::Captioner { config, .. } => config.image,
        }
    }

    /// The training graph for physical batches of this size.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that do not fit.
    pub fn graph(&self, batch: usize) -> Result<TaskGraph> {
        match self {
            Task::Mae { config, .. } => {
                let mae = mae::training_graph(config, batch)?;
                Ok(TaskGraph { graph: mae.graph, loss: mae.loss, prediction: Some(mae.prediction) })
            }
            Task::Captioner { config, .. } => {
                let captioner = captioner::training_graph(config, batch)?;
                Ok(TaskGraph { graph: captioner.graph, loss: captioner.loss, prediction: None })
            }
        }
    }

    /// Writes what the graph wants of a physical batch besides its images. Padding (`None`) weighs nothing: it may hold
    /// anything. An example without a caption gets no target: its gradient is zero.
    ///
    /// # Errors
    /// The session's.
    pub fn write(&mut self, stepper: &mut Stepper, step: u64, examples: &[Option<u64>]) -> Result<()> {
        match self {
            Task::Mae { config, key } => {
                let ids = examples.iter().map(|i| i.unwrap_or(0));
                write_masks(stepper, config, key, step, ids).map(|_| ())
            }
            Task::Captioner { config, words, source, missing } => {
                let (mut tokens, mut targets) = (Vec::new(), Vec::new());
                for example in examples {
                    let caption = match example {
                        Some(index) => {
                            // What cannot be read weighs zero, as its image does.
                            let caption = source.caption(*index).ok().flatten();
                            *missing += caption.is_none() as u64;
                            caption
                        }
                        None => None,
                    };
                    let ids = match caption {
                        Some(text) => words.encode(&text, config.length),
                        None => vec![0; config.length],
                    };
                    let (input, target) = shifted(&ids);
                    tokens.extend(input);
                    targets.extend(target);
                }
                for (name, values) in [("tokens", &tokens), ("targets", &targets)] {
                    let slice = stepper.plan().input(name)?;
                    stepper.session().write_u32(slice, values)?;
                }
                Ok(())
            }
        }
    }

    /// Whether a parameter starts fresh in a run that starts from `file`: everything of a captioner but its encoder, if that
    /// comes from an autoencoder.
    pub fn starts_fresh(&self, parameter: &str, file: &Checkpoint) -> bool {
        let encoder = ["patch_embed.", "blocks.", "norm.", "cls_token", "pos_embed"];
        matches!(self, Task::Captioner { .. })
            && !file.tensors.contains_key("text_embedding_layer_SimVLM.weight")
            && !encoder.iter().any(|part| parameter.starts_with(part))
    }
}

/// Draws and writes the masks of a physical batch; returns the mask itself (B, L).
///
/// # Errors
/// The session's.
pub fn write_masks(
    stepper: &mut Stepper,
    config: &MaeConfig,
    key: &Key,
    step: u64,
    examples: impl Iterator<Item = u64>,
) -> Result<Vec<f32>> {
    let mut mask = Mask::default();
    examples.for_each(|example| mask.push(config, key, step, example));
    let tables = [
        ("patches", &mask.patches),
        ("positions", &mask.positions),
        ("source", &mask.source),
        ("target", &mask.target),
    ];
    for (name, values) in tables {
        let slice = stepper.plan().input(name)?;
        stepper.session().write_u32(slice, values)?;
    }
    let slice = stepper.plan().input("mask")?;
    stepper.session().write(slice, &mask.mask)?;
    Ok(mask.mask)
}
