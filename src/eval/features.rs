//! Frozen features: per block the mean over the patch tokens, as ViP's linear probe takes them.

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::graph::{Mode, Options, Plan};
use crate::model::init_values;
use crate::model::mae::{MaeConfig, encoder_graph};
use crate::record::{Engine, Program, Session};
use crate::rng::Key;

/// Where an encoder's weights come from.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// Freshly initialised from a key: the untrained baseline.
    Random(&'a Key),
    /// A checkpoint, with the path it came from for messages.
    Checkpoint(&'a Checkpoint, &'a std::path::Path),
}

/// An encoder on a device.
pub struct Encoder {
    session: Box<dyn Session>,
    plan: Plan,
    forward: Program,
    blocks: usize,
    width: usize,
}

impl Encoder {
    /// Loads an encoder for physical batches of `batch` images.
    ///
    /// # Errors
    /// [`crate::Error::Checkpoint`] for a missing or misshaped tensor; the engine's errors.
    pub fn new(engine: &dyn Engine, config: &MaeConfig, batch: usize, weights: Weights<'_>) -> Result<Self> {
        let graph = encoder_graph(config, batch)?;
        let fetch: Vec<_> = graph.block_means.iter().copied().chain([graph.mean]).collect();
        let options = Options::new(Mode::Forward, engine).fetch(&fetch);
        let plan = graph.graph.lower(&options)?;
        let mut session = engine.open(&plan.layout)?;
        for (i, slot) in plan.params.iter().enumerate() {
            match weights {
                Weights::Random(key) => session.write(slot.values, &init_values(&slot.spec, i, key))?,
                Weights::Checkpoint(file, path) => {
                    session.write(slot.values, file.get(path, &slot.spec.name, &slot.spec.shape)?)?;
                }
            }
        }
        let forward = session.prepare(&plan.forward)?;
        Ok(Encoder { session, forward, blocks: config.depth, width: config.width, plan })
    }

    /// Images per call.
    pub fn batch(&self) -> usize {
        self.plan.batch
    }

    /// Length of an image's feature vector: blocks x width.
    pub fn len(&self) -> usize {
        self.blocks * self.width
    }

    /// Whether the encoder has no block.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Features of `images` (B, 3, S, S), normalised: (B, blocks x width), blocks in order.
    ///
    /// # Errors
    /// The engine's errors.
    pub fn features(&mut self, images: &[f32]) -> Result<Vec<f32>> {
        self.session.write(self.plan.input("images")?, images)?;
        self.session.run(self.forward)?;
        let (batch, width, len) = (self.plan.batch, self.width, self.len());
        let mut out = vec![0.0; batch * len];
        for (block, slice) in self.plan.fetched[..self.blocks].iter().enumerate() {
            let means = self.session.read(*slice)?;
            for (row, mean) in out.chunks_mut(len).zip(means.chunks(width)) {
                row[block * width..(block + 1) * width].copy_from_slice(mean);
            }
        }
        Ok(out)
    }

    /// (B, width) of the images that [`Encoder::features`] saw last: the mean over all tokens of the last block.
    ///
    /// # Errors
    /// The engine's errors.
    pub fn last_mean(&mut self) -> Result<Vec<f32>> {
        self.session.read(self.plan.fetched[self.blocks])
    }
}
