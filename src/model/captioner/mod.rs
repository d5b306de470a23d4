//! The captioner of DP-Cap (arXiv 2403.02506): a vision transformer whose tokens a post-norm text decoder reads by
//! cross-attention, and per caption the mean cross-entropy of its next tokens.

mod graphs;

pub use graphs::{
    CaptionerGraph, MemoryGraph, NextTokenGraph, ScoreGraph, memory_graph, next_token_graph, score_graph,
    shifted, training_graph,
};

use super::vit::{Vit, check_width};
use crate::error::{Error, Result};
use crate::shape::Shape;

/// Words of BERT's uncased vocabulary.
pub const BERT_VOCABULARY: usize = 30_522;

/// Longest caption of the published models: their causal masks are of this side.
pub const LONGEST: usize = 128;

/// Sizes of a captioner.
#[derive(Clone, Debug, PartialEq)]
pub struct CaptionerConfig {
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
    /// Decoder layers.
    pub decoder_depth: usize,
    /// Decoder heads; divides `decoder_width`.
    pub decoder_heads: usize,
    /// The older variants: biases in q, k, v and in the decoder, ReLU instead of GELU there.
    pub biased: bool,
    /// Tokens of a caption, `[CLS]` and `[SEP]` included: T.
    pub length: usize,
    /// Words of the vocabulary, V.
    pub vocabulary: usize,
}

/// Names of [`CaptionerConfig::preset`].
pub const PRESETS: &[&str] = &[
    "cap-micro32",
    "cap-nano",
    "cap-tiny",
    "cap-small",
    "cap-base",
    "cap-large",
    "cap-base-biased",
    "cap-large-biased",
    "cap-huge-biased",
];

impl CaptionerConfig {
    /// A published size (224 px, captions of 40 tokens, BERT's vocabulary), or `cap-micro32` for 32 px and 24 tokens.
    ///
    /// # Errors
    /// [`Error::Invalid`] listing the names.
    pub fn preset(name: &str) -> Result<Self> {
        let (patch, encoder, decoder) = match name {
            "cap-micro32" => (4, (128, 6, 4), (128, 3, 4)),
            "cap-nano" => (16, (192, 12, 6), (192, 6, 6)),
            "cap-tiny" => (16, (384, 12, 6), (384, 6, 6)),
            "cap-small" => (16, (576, 12, 12), (576, 6, 12)),
            "cap-base" => (16, (768, 12, 12), (768, 6, 12)),
            "cap-large" => (16, (1024, 24, 16), (768, 6, 12)),
            "cap-base-biased" => (16, (768, 12, 12), (512, 8, 16)),
            "cap-large-biased" => (16, (1024, 24, 16), (512, 8, 16)),
            "cap-huge-biased" => (14, (1280, 32, 16), (512, 8, 16)),
            _ => return Err(Error::invalid("model", name, format!("is not one of {}", PRESETS.join(", ")))),
        };
        let micro = name == "cap-micro32";
        Ok(CaptionerConfig {
            image: if micro { 32 } else { 224 },
            patch,
            width: encoder.0,
            depth: encoder.1,
            heads: encoder.2,
            decoder_width: decoder.0,
            decoder_depth: decoder.1,
            decoder_heads: decoder.2,
            biased: name.ends_with("-biased"),
            length: if micro { 24 } else { 40 },
            vocabulary: BERT_VOCABULARY,
        })
    }

    /// The sizes of a checkpoint from the shapes of its tensors. Heads do not show in a shape: they are those of the preset
    /// of these widths and depths.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the tensors are of no captioner, or of widths and depths that no preset has.
    pub fn from_shapes(shape: impl Fn(&str) -> Option<Shape>) -> Result<Self> {
        let dim = |name: &str, axis: usize| -> Result<usize> {
            let shape = shape(name);
            let extent = shape.as_ref().and_then(|s| s.dims().get(axis).copied());
            extent.ok_or_else(|| Error::invalid("captioner", name, "is missing or has too few extents"))
        };
        let count = |name: &dyn Fn(usize) -> String| (0..).take_while(|&i| shape(&name(i)).is_some()).count();
        let (width, decoder_width) = (dim("cls_token", 2)?, dim("decoder_embed.weight", 0)?);
        let depth = count(&|i| format!("blocks.{i}.norm1.weight"));
        let decoder_depth = count(&|j| format!("decoder.layers.{j}.norm1.weight"));
        let biased = shape("blocks.0.attn.qkv.bias").is_some();
        let (patch, positions) = (dim("patch_embed.proj.weight", 2)?, dim("pos_embed", 1)?);
        let grid = (positions.saturating_sub(1) as f64).sqrt().round() as usize;
        let found = PRESETS.iter().find_map(|name| {
            let preset = Self::preset(name).expect("a preset");
            let same =
                (preset.width, preset.depth, preset.decoder_width, preset.decoder_depth, preset.biased)
                    == (width, depth, decoder_width, decoder_depth, biased);
            same.then_some(preset)
        });
        let preset = found.ok_or_else(|| {
            let sizes = format!("{width} x {depth} and {decoder_width} x {decoder_depth}");
            Error::invalid("captioner", sizes, "are the sizes of no captioner that is known")
        })?;
        let length = dim("text_decoder_pos_embed", 1)?;
        let vocabulary = dim("text_embedding_layer_SimVLM.weight", 0)?;
        let config = CaptionerConfig { image: grid * patch, patch, length, vocabulary, ..preset };
        config.validate()?;
        Ok(config)
    }

    /// Checks that the sizes fit one another.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field.
    pub fn validate(&self) -> Result<()> {
        self.encoder().validate()?;
        check_width("decoder_", self.decoder_width, self.decoder_heads)?;
        if !(2..=LONGEST).contains(&self.length) {
            return Err(Error::invalid("length", self.length, format!("must be 2 to {LONGEST} tokens")));
        }
        if self.vocabulary < 2 {
            return Err(Error::invalid("vocabulary", self.vocabulary, "needs two words at least"));
        }
        Ok(())
    }

    /// Tokens of an image as the decoder sees it, class token included: S.
    pub fn memory_tokens(&self) -> usize {
        1 + self.encoder().patches()
    }

    fn encoder(&self) -> Vit {
        Vit {
            image: self.image,
            patch: self.patch,
            width: self.width,
            depth: self.depth,
            heads: self.heads,
            qkv_bias: self.biased,
            train_token: false,
            train_positions: false,
        }
    }

    /// Tensors of a published checkpoint that no computation reads, all frozen: vectors of training modes that were never
    /// used, and one causal mask of ones per layer.
    pub fn unused_tensors(&self) -> Vec<(String, Shape)> {
        let (e, d) = (self.width, self.decoder_width);
        let mut all: Vec<(String, Shape)> = vec![
            ("text_pos_embed".into(), [1, self.length, e].into()),
            ("mask_token".into(), [1, 1, d].into()),
            ("mask_token_text".into(), [1, 1, d].into()),
            ("encoder_text_type_embedding".into(), [1, 1, e].into()),
        ];
        for j in 0..self.decoder_depth {
            all.push((format!("decoder.layers.{j}.self_attn.bias"), [1, 1, LONGEST, LONGEST].into()));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trained and frozen elements of a checkpoint with captions of `length`, and its number of tensors.
    fn count(name: &str, length: usize) -> (usize, usize, usize) {
        let config = CaptionerConfig { length, ..CaptionerConfig::preset(name).unwrap() };
        let graph = training_graph(&config, 1).unwrap().graph;
        let sum = |trained: bool| -> usize {
            graph.params().iter().filter(|p| p.trainable == trained).map(|p| p.shape.len()).sum()
        };
        let unused = config.unused_tensors();
        let frozen: usize =
            unused.iter().filter(|(n, _)| !n.ends_with("self_attn.bias")).map(|(_, s)| s.len()).sum();
        (sum(true), sum(false) + frozen, graph.params().len() + unused.len())
    }

    #[test]
    fn published_parameter_counts() {
        for (name, trained, frozen40, frozen77, tensors) in [
            ("cap-nano", 20_813_754, 92_352, 106_560, 238),
            ("cap-tiny", 59_365_434, 184_704, 213_120, 238),
            ("cap-small", 115_685_562, 277_056, 319_680, 238),
            ("cap-base", 189_774_138, 369_408, 426_240, 238),
            ("cap-large", 407_376_954, 430_848, 497_152, 370),
        ] {
            assert_eq!(count(name, 40), (trained, frozen40, tensors), "{name}");
            assert_eq!(count(name, 77), (trained, frozen77, tensors), "{name}");
        }
        assert_eq!(count("cap-base-biased", 40).2, 334);
    }

    #[test]
    fn base_has_the_published_tensors() {
        let graph = training_graph(&CaptionerConfig::preset("cap-base").unwrap(), 1).unwrap().graph;
        let shape = |name: &str| graph.params().iter().find(|p| p.name == name).unwrap().shape.to_string();
        assert_eq!(shape("blocks.11.attn.qkv.weight"), "(2304, 768)");
        assert!(graph.params().iter().all(|p| !p.name.ends_with("qkv.bias")));
        assert_eq!(shape("text_embedding_layer_SimVLM.weight"), "(30522, 768)");
        assert_eq!(shape("decoder.layers.5.multihead_attn.kv_proj.weight"), "(1536, 768)");
        assert_eq!(shape("decoder.layers.0.norm3.bias"), "(768)");
        assert_eq!(shape("decoder_pred_text.1.bias"), "(30522)");
        let frozen: Vec<&str> =
            graph.params().iter().filter(|p| !p.trainable).map(|p| p.name.as_str()).collect();
        assert_eq!(frozen.len(), 7, "{frozen:?}");
    }

    #[test]
    fn inference_graphs_use_the_parameters_of_training() {
        let config = CaptionerConfig { vocabulary: 30, ..CaptionerConfig::preset("cap-micro32").unwrap() };
        let trained = training_graph(&config, 2).unwrap().graph;
        let memory = memory_graph(&config, 2).unwrap().graph;
        let next = next_token_graph(&config, 2).unwrap().graph;
        let score = score_graph(&config, 2, 9).unwrap().graph;
        for graph in [&memory, &next, &score] {
            for p in graph.params() {
                assert!(trained.params().contains(p), "{}", p.name);
            }
        }
        assert_eq!(memory.params().len() + next.params().len(), trained.params().len());
        assert_eq!(next.params().len(), score.params().len());
    }

    #[test]
    fn sizes_show_in_the_shapes() {
        for name in PRESETS {
            let config = CaptionerConfig { vocabulary: 50, ..CaptionerConfig::preset(name).unwrap() };
            let graph = training_graph(&config, 1).unwrap().graph;
            let shape = |name: &str| graph.params().iter().find(|p| p.name == name).map(|p| p.shape.clone());
            assert_eq!(CaptionerConfig::from_shapes(shape).unwrap(), config, "{name}");
        }
        assert!(CaptionerConfig::from_shapes(|_| None).is_err());
    }

    #[test]
    fn targets_are_the_next_tokens() {
        assert_eq!(shifted(&[101, 7, 8, 102, 0]), (vec![101, 7, 8, 102, 0], vec![7, 8, 102, 0, 0]));
    }
}
