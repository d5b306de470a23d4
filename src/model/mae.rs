//! The masked autoencoder of ViP (arXiv 2306.08842; MAE, He et al. 2022): an encoder over the kept patches, a
//! light decoder over all of them, and per image the mean squared error over the removed ones.

use std::sync::Arc;

use super::net::Net;
use super::positions::table_2d;
use super::vit::{EPS, TOKEN, Vit, check_width};
use crate::error::{Error, Result};
use crate::graph::{Graph, Init, Value};
use crate::ops::{
    Tensor,
    add_table::AddTable,
    masked_mse::MaskedMse,
    mean_tokens::MeanTokens,
    patchify::{Order, Patchify},
    restore_tokens::RestoreTokens,
};
use crate::rng::{Key, permutation};

/// Sizes and options of a masked autoencoder.
#[derive(Clone, Debug, PartialEq)]
pub struct MaeConfig {
    /// Side of the square input images, pixels.
    pub image: usize,
    /// Side of a patch, pixels; divides `image`.
    pub patch: usize,
    /// Encoder width.
    pub width: usize,
    /// Encoder blocks.
    pub depth: usize,
    /// Encoder heads; divides `width`.
    pub heads: usize,
    /// Decoder width.
    pub decoder_width: usize,
    /// Decoder blocks.
    pub decoder_depth: usize,
    /// Decoder heads; divides `decoder_width`.
    pub decoder_heads: usize,
    /// Share of patches removed.
    pub mask_ratio: f64,
    /// Train the two position tables too, as ViP's private stage does; frozen otherwise.
    pub train_positions: bool,
    /// Standardise each target patch (`norm_pix_loss` of MAE; off in ViP).
    pub norm_pix: bool,
    /// Biases in the encoder's q, k, v: on in ViP, off in DP-Cap, whose encoder may start from such a one.
    pub qkv_bias: bool,
}

/// Names of [`MaeConfig::preset`].
pub const PRESETS: &[&str] =
    &["micro32", "nano32", "nano", "tiny", "small", "base", "large", "base-8block", "large-8block", "huge"];

impl MaeConfig {
    /// A published size (224 px), or one for 32 px images.
    ///
    /// # Errors
    /// [`Error::Invalid`] listing the names.
    pub fn preset(name: &str) -> Result<Self> {
        let (image, patch, encoder, decoder) = match name {
            "micro32" => (32, 4, (128, 6, 4), (64, 2, 4)),
            "nano32" => (32, 4, (192, 12, 12), (512, 4, 16)),
            "nano" => (224, 16, (192, 12, 12), (512, 4, 16)),
            "tiny" => (224, 16, (384, 12, 12), (512, 4, 16)),
            "small" => (224, 16, (576, 12, 12), (512, 4, 16)),
            "base" => (224, 16, (768, 12, 12), (512, 4, 16)),
            "large" => (224, 16, (1024, 24, 16), (512, 4, 16)),
            "base-8block" => (224, 16, (768, 12, 12), (512, 8, 16)),
            "large-8block" => (224, 16, (1024, 24, 16), (512, 8, 16)),
            "huge" => (224, 14, (1280, 32, 16), (512, 8, 16)),
            _ => return Err(Error::invalid("model", name, format!("is not one of {}", PRESETS.join(", ")))),
        };
        Ok(MaeConfig {
            image,
            patch,
            width: encoder.0,
            depth: encoder.1,
            heads: encoder.2,
            decoder_width: decoder.0,
            decoder_depth: decoder.1,
            decoder_heads: decoder.2,
            mask_ratio: 0.75,
            train_positions: false,
            norm_pix: false,
            qkv_bias: true,
        })
    }

    /// Checks that the sizes fit one another.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field.
    pub fn validate(&self) -> Result<()> {
        self.encoder().validate()?;
        check_width("decoder_", self.decoder_width, self.decoder_heads)?;
        if !(0.0..1.0).contains(&self.mask_ratio) || self.kept() == 0 || self.kept() == self.patches() {
            return Err(Error::invalid(
                "mask_ratio",
                self.mask_ratio,
                "must remove some patches and keep some",
            ));
        }
        Ok(())
    }

    /// Patches along one side.
    pub fn grid(&self) -> usize {
        self.image / self.patch
    }

    /// Patches of an image, L.
    pub fn patches(&self) -> usize {
        self.grid() * self.grid()
    }

    /// Patches that the encoder sees: `floor(L (1 - ratio))`.
    pub fn kept(&self) -> usize {
        (self.patches() as f64 * (1.0 - self.mask_ratio)) as usize
    }

    /// Values of a patch.
    pub fn patch_len(&self) -> usize {
        3 * self.patch * self.patch
    }
}

/// A training graph of the masked autoencoder. Inputs: `images` (B, 3, S, S) and those of [`Mask`].
#[derive(Debug)]
pub struct MaeGraph {
    /// The graph.
    pub graph: Graph,
    /// (B) mean squared error over the removed patches.
    pub loss: Value,
    /// (B, 1 + L, patch) predicted pixels; row 0 belongs to the class token.
    pub prediction: Value,
}

/// An encoder graph without masking. Input: `images` (B, 3, S, S).
#[derive(Debug)]
pub struct EncoderGraph {
    /// The graph.
    pub graph: Graph,
    /// (B, width) per block: mean over the patch tokens of the block's output, class token left out, no norm.
    pub block_means: Vec<Value>,
    /// (B, width): mean over all tokens of the last block's output, class token included, no norm.
    pub mean: Value,
}

/// Which patches the encoder sees, for a whole physical batch, as the graph's inputs of the same names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mask {
    /// `patches` (B, K): kept patches in shuffled order.
    pub patches: Vec<u32>,
    /// `positions` (B, 1 + K): rows of the position table: 0 for the class token, then patch + 1.
    pub positions: Vec<u32>,
    /// `source` (B, 1 + L): encoder row that each decoder position takes, or 1 + K for the mask token.
    pub source: Vec<u32>,
    /// `target` (B, 1 + K): decoder position of each encoder row.
    pub target: Vec<u32>,
    /// `mask` (B, L): 1 where the patch was removed.
    pub mask: Vec<f32>,
}

impl Mask {
    /// Draws one example's mask and appends it: the first K of a random order are kept, in that order.
    pub fn push(&mut self, config: &MaeConfig, key: &Key, step: u64, example: u64) {
        let (l, k) = (config.patches(), config.kept());
        let order = permutation(&mut key.item(step, example), l);
        self.positions.push(0);
        self.target.push(0);
        let mut source = vec![(1 + k) as u32; 1 + l];
        source[0] = 0;
        let mut mask = vec![1.0; l];
        for (rank, &patch) in order[..k].iter().enumerate() {
            self.patches.push(patch);
            self.positions.push(patch + 1);
            self.target.push(patch + 1);
            source[1 + patch as usize] = 1 + rank as u32;
            mask[patch as usize] = 0.0;
        }
        self.source.extend(source);
        self.mask.extend(mask);
    }
}

impl MaeConfig {
    fn encoder(&self) -> Vit {
        Vit {
            image: self.image,
            patch: self.patch,
            width: self.width,
            depth: self.depth,
            heads: self.heads,
            qkv_bias: self.qkv_bias,
            train_token: true,
            train_positions: self.train_positions,
        }
    }
}

/// The training graph for physical batches of `batch` images.
///
/// # Errors
/// [`Error::Invalid`] for sizes that do not fit.
pub fn training_graph(config: &MaeConfig, batch: usize) -> Result<MaeGraph> {
    config.validate()?;
    let mut graph = Graph::new(batch);
    let (l, k, d) = (config.patches(), config.kept(), config.decoder_width);
    let mut net = Net { graph: &mut graph, eps: EPS };
    let encoder = config.encoder();
    let x = encoder.chosen_tokens(&mut net, k)?;
    let x = *encoder.blocks(&mut net, x)?.last().expect("the depth was checked");
    let x = net.layer_norm("norm", x)?;
    let x = net.linear("decoder_embed", x, d, true)?;
    let token = net.param("mask_token", [1, 1, d], [d], TOKEN, true)?;
    let source = net.graph.input("source", Tensor::uint([batch, 1 + l]))?;
    let target = net.graph.input("target", Tensor::uint([batch, 1 + k]))?;
    let x = net.graph.apply("mask_token", RestoreTokens, &[x, token, source, target])?;
    let table = Init::Values(Arc::new(table_2d(config.grid(), d)));
    let table = net.param("decoder_pos_embed", [1, 1 + l, d], [1 + l, d], table, config.train_positions)?;
    let mut x = net.graph.apply("decoder_pos_embed", AddTable, &[x, table])?;
    for i in 0..config.decoder_depth {
        x = net.block(&format!("decoder_blocks.{i}"), x, config.decoder_heads, true)?;
    }
    let x = net.layer_norm("decoder_norm", x)?;
    let prediction = net.linear("decoder_pred", x, config.patch_len(), true)?;
    let images = net.graph.find_input("images").expect("made by the encoder");
    let order =
        Patchify { patch: config.patch, order: Order::RowColumnChannel, standardize: config.norm_pix };
    let wanted = net.graph.apply("target", order, &[images])?;
    let mask = net.graph.input("mask", Tensor::float([batch, l]))?;
    let loss = net.graph.apply("loss", MaskedMse { skip: 1 }, &[prediction, wanted, mask])?;
    Ok(MaeGraph { graph, loss, prediction })
}

/// The encoder over all patches, for features.
///
/// # Errors
/// [`Error::Invalid`] for sizes that do not fit.
pub fn encoder_graph(config: &MaeConfig, batch: usize) -> Result<EncoderGraph> {
    config.validate()?;
    let mut graph = Graph::new(batch);
    let mut net = Net { graph: &mut graph, eps: EPS };
    let encoder = config.encoder();
    let x = encoder.tokens(&mut net)?;
    let blocks = encoder.blocks(&mut net, x)?;
    let block_means = blocks
        .iter()
        .enumerate()
        .map(|(i, x)| net.graph.apply(&format!("blocks.{i}.mean"), MeanTokens { skip: 1 }, &[*x]))
        .collect::<Result<_>>()?;
    let last = *blocks.last().expect("the depth was checked");
    let mean = net.graph.apply("mean", MeanTokens { skip: 0 }, &[last])?;
    Ok(EncoderGraph { graph, block_means, mean })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(config: &MaeConfig) -> (usize, usize) {
        let graph = training_graph(config, 1).unwrap().graph;
        let total = graph.params().iter().map(|p| p.shape.len()).sum();
        let trained = graph.params().iter().filter(|p| p.trainable).map(|p| p.shape.len()).sum();
        (total, trained)
    }

    #[test]
    fn published_parameter_counts() {
        for (name, total, without_tables) in [
            ("nano", 18_729_152, 18_590_464),
            ("tiny", 34_968_704, 34_792_192),
            ("small", 61_825_088, 61_610_752),
            ("base", 99_298_304, 99_046_144),
            ("large", 316_932_352, 316_629_760),
            ("base-8block", 111_907_840, 111_655_680),
            ("large-8block", 329_541_888, 329_239_296),
            ("huge", 657_074_508, 656_613_964),
        ] {
            assert_eq!(count(&MaeConfig::preset(name).unwrap()), (total, without_tables), "{name}");
        }
        let micro = count(&MaeConfig::preset("micro32").unwrap()).1;
        assert_eq!(micro, 1_307_632 + 128 + 64);
    }

    #[test]
    fn base_has_the_published_tensors() {
        let config = MaeConfig { train_positions: true, ..MaeConfig::preset("base").unwrap() };
        let graph = training_graph(&config, 1).unwrap().graph;
        assert_eq!(graph.params().len(), 206);
        assert_eq!(count(&config).1, 99_298_304);
        let shape = |name: &str| graph.params().iter().find(|p| p.name == name).unwrap().shape.to_string();
        assert_eq!(shape("patch_embed.proj.weight"), "(768, 3, 16, 16)");
        assert_eq!(shape("blocks.11.attn.qkv.weight"), "(2304, 768)");
        assert_eq!(shape("decoder_blocks.3.mlp.fc2.weight"), "(512, 2048)");
        assert_eq!(shape("decoder_pred.weight"), "(768, 512)");
        assert_eq!(shape("decoder_pos_embed"), "(1, 197, 512)");
    }

    #[test]
    fn a_mask_keeps_a_quarter_and_inverts() {
        let config = MaeConfig::preset("base").unwrap();
        let mut mask = Mask::default();
        mask.push(&config, &Key::from_seed(3), 5, 7);
        assert_eq!((mask.patches.len(), mask.positions.len(), mask.source.len()), (49, 50, 197));
        assert_eq!(mask.mask.iter().sum::<f32>(), 147.0);
        for (row, &position) in mask.target.iter().enumerate() {
            assert_eq!(mask.source[position as usize] as usize, row);
        }
        assert_eq!(mask.source.iter().filter(|&&s| s == 50).count(), 147);
    }
}
