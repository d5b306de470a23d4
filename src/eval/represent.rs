//! Representations of images by either model, for other tools and for few-shot classification.

use std::path::Path;
use std::sync::Arc;

use super::captioner::{self, Eye};
use super::features::{Encoder, Weights};
use super::probe::Labelled;
use crate::checkpoint::Checkpoint;
use crate::data::Source;
use crate::data::augment::Transform;
use crate::data::loader::{Prefetch, Report, in_order};
use crate::error::{Error, Result};
use crate::model::mae::MaeConfig;
use crate::record::Engine;

/// Which representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The mean of all tokens, class token included: of a captioner what its decoder reads, of an autoencoder the last block's
    /// output. What few-shot classification takes.
    Mean,
    /// Per encoder block the mean of the patch tokens, side by side. What the linear probe takes.
    Blocks,
}

/// A model that represents images.
pub struct Represent {
    model: Model,
    kind: Kind,
    side: usize,
}

enum Model {
    Captioner(Eye),
    Autoencoder(Encoder),
}

impl Represent {
    /// Opens a checkpoint of either model, for `batch` images at once. `size` is for an autoencoder's that does not name it.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]; the engine's.
    pub fn open(
        engine: &dyn Engine,
        file: &Checkpoint,
        path: &Path,
        size: Option<&str>,
        kind: Kind,
        batch: usize,
    ) -> Result<Self> {
        if file.tensors.contains_key("text_embedding_layer_SimVLM.weight") {
            let (config, _) = captioner::open(file, path)?;
            let eye = Eye::open(engine, &config, file, path, batch)?;
            return Ok(Represent { model: Model::Captioner(eye), kind, side: config.image });
        }
        let size = size.or_else(|| file.metadata.get("model").map(String::as_str)).ok_or_else(|| {
            Error::checkpoint(path, "does not name its model: give --model (micro32, base ...)")
        })?;
        let qkv_bias = file.tensors.contains_key("blocks.0.attn.qkv.bias");
        let config = MaeConfig { qkv_bias, ..MaeConfig::preset(size)? };
        let encoder = Encoder::new(engine, &config, batch, Weights::Checkpoint(file, path))?;
        Ok(Represent { model: Model::Autoencoder(encoder), kind, side: config.image })
    }

    /// Images at once.
    pub fn batch(&self) -> usize {
        match &self.model {
            Model::Captioner(eye) => eye.batch(),
            Model::Autoencoder(encoder) => encoder.batch(),
        }
    }

    /// Rows (B, F) of images (B, 3, S, S).
    fn rows(&mut self, images: &[f32]) -> Result<Vec<Vec<f32>>> {
        let kind = self.kind;
        match &mut self.model {
            Model::Captioner(eye) => {
                let memories = eye.look(images, eye.batch())?;
                let row = |m: captioner::Memory| if kind == Kind::Mean { m.mean } else { m.block_means };
                Ok(memories.into_iter().map(row).collect())
            }
            Model::Autoencoder(encoder) => {
                let (blocks, width) = (encoder.features(images)?, encoder.len());
                match kind {
                    Kind::Blocks => Ok(blocks.chunks(width).map(<[f32]>::to_vec).collect()),
                    Kind::Mean => {
                        let means = encoder.last_mean()?;
                        let width = means.len() / encoder.batch();
                        Ok(means.chunks(width).map(<[f32]>::to_vec).collect())
                    }
                }
            }
        }
    }

    /// All images of a source that can be decoded, centred: their rows with class (`u32::MAX` where there is none), their
    /// indices, and what could not be used.
    ///
    /// # Errors
    /// The engine's.
    pub fn all(
        &mut self,
        source: Arc<dyn Source>,
        mut progress: impl FnMut(u64),
    ) -> Result<(Labelled, Vec<u64>, Report)> {
        let jobs = in_order(source.len(), self.batch(), 0);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut loader = Prefetch::new(source, Transform::Centre, self.side, threads, jobs)?;
        let (mut out, mut indices) = (Labelled::default(), Vec::new());
        while let Some(batch) = loader.next_batch()? {
            for (i, row) in self.rows(&batch.images)?.into_iter().enumerate() {
                if let (Some(index), true) = (batch.job.indices[i], batch.weights[i] != 0.0) {
                    out.width = row.len();
                    out.features.extend(row);
                    out.labels.push(batch.classes[i].unwrap_or(u32::MAX));
                    indices.push(index);
                }
            }
            progress(batch.weights.len() as u64);
        }
        Ok((out, indices, loader.report()))
    }
}
