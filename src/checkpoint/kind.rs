//! Tells what a checkpoint is of by the names of its tensors, and whether all of them are there in their shapes.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Tensor;
use crate::error::{Error, Result};
use crate::graph::ParamSpec;
use crate::model::captioner::{self, CaptionerConfig};
use crate::model::mae::{self, MaeConfig};
use crate::shape::Shape;

/// What a checkpoint is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// ViP's masked autoencoder: encoder and decoder.
    Mae,
    /// An image encoder alone.
    Encoder,
    /// An image encoder with one linear layer of classes.
    Classifier,
    /// A linear probe over the features of many blocks, with or without its encoder.
    Probe,
    /// DP-Cap's captioner.
    Captioner,
    /// The older captioner, with biases in attention and decoder.
    CaptionerBiased,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Mae => "ViP masked autoencoder",
            Kind::Encoder => "image encoder",
            Kind::Classifier => "image classifier",
            Kind::Probe => "linear probe",
            Kind::Captioner => "DP-Cap captioner",
            Kind::CaptionerBiased => "DP-Cap captioner with biases",
        })
    }
}

/// What a checkpoint is of, and what is wrong with its tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// What it is of.
    pub kind: Kind,
    /// The preset of these sizes, whatever the image side, caption length and vocabulary.
    pub model: Option<String>,
    /// Side of the images, pixels; 0 for a probe without its encoder.
    pub image: usize,
    /// Side of a patch, pixels; 0 for a probe without its encoder.
    pub patch: usize,
    /// Tokens of a caption.
    pub caption_length: Option<usize>,
    /// Tensors that are not there.
    pub missing: Vec<String>,
    /// Tensors that the model does not have.
    pub unexpected: Vec<String>,
    /// Tensors of another shape than the model's, with both shapes.
    pub misshaped: Vec<String>,
}

type Tensors = BTreeMap<String, Tensor>;

/// Names and shapes, and whether the tensor must be there.
type Expected = BTreeMap<String, (Shape, bool)>;

/// Describes the tensors of a file.
///
/// # Errors
/// [`Error::Invalid`] if they are of nothing that is known, or the tensors that tell the sizes are missing.
pub fn describe(tensors: &Tensors) -> Result<Description> {
    let has = |name: &str| tensors.contains_key(name);
    let any =
        |prefix: &str| tensors.range(prefix.to_owned()..).next().is_some_and(|(n, _)| n.starts_with(prefix));
    if has("text_embedding_layer_SimVLM.weight") || any("decoder.layers.") {
        return captioner(tensors);
    }
    let kind = if has("head.1.weight") {
        Kind::Probe
    } else if has("head.weight") {
        Kind::Classifier
    } else if any("decoder_blocks.") || has("decoder_pred.weight") {
        Kind::Mae
    } else if any("blocks.") && any("patch_embed.") {
        Kind::Encoder
    } else {
        let some: Vec<&str> = tensors.keys().take(4).map(String::as_str).collect();
        let why = "are of no masked autoencoder, image encoder, probe or captioner";
        return Err(Error::invalid("tensors", format!("{} ...", some.join(", ")), why));
    };
    vision(tensors, kind)
}

fn captioner(tensors: &Tensors) -> Result<Description> {
    let rows = extent(tensors, "pos_embed", 1)?;
    check_table(tensors, "pos_embed", rows, extent(tensors, "cls_token", 2)?)?;
    check_table(tensors, "decoder_pos_embed", rows, extent(tensors, "decoder_embed.weight", 0)?)?;
    let config = CaptionerConfig::from_shapes(|name| full(tensors, name).map(|t| t.shape.clone()))?;
    let mut expected = Expected::new();
    require(&mut expected, captioner::training_graph(&config, 1)?.graph.params());
    expected.extend(config.unused_tensors().into_iter().map(|(name, shape)| (name, (shape, false))));
    let CaptionerConfig { image, patch, length, vocabulary, .. } = config;
    let model = captioner::PRESETS.iter().find(|name| {
        let preset = CaptionerConfig::preset(name).expect("a preset");
        preset.patch == patch && CaptionerConfig { image, length, vocabulary, ..preset } == config
    });
    let kind = if config.biased { Kind::CaptionerBiased } else { Kind::Captioner };
    let (missing, unexpected, misshaped) = compare(tensors, &expected);
    Ok(Description {
        kind,
        model: model.map(|m| (*m).to_owned()),
        image,
        patch,
        caption_length: Some(length),
        missing,
        unexpected,
        misshaped,
    })
}

fn vision(tensors: &Tensors, kind: Kind) -> Result<Description> {
    let mut expected = Expected::new();
    let mut optional = |names: &[&str]| {
        for name in names {
            if let Some(tensor) = tensors.get(*name) {
                expected.insert((*name).to_owned(), (tensor.shape.clone(), false));
            }
        }
    };
    // Not used by the features, and not in every published file.
    match kind {
        Kind::Mae => {}
        Kind::Encoder => optional(&["norm.weight", "norm.bias"]),
        _ => optional(&["norm.weight", "norm.bias", "fc_norm.weight", "fc_norm.bias"]),
    }
    optional(match kind {
        Kind::Probe => &["head.0.num_batches_tracked"],
        _ => &[],
    });
    let encoder = kind != Kind::Probe || depth(tensors, "blocks.") > 0;
    let config = encoder.then(|| sizes(tensors, kind == Kind::Mae)).transpose()?;
    let params = match &config {
        Some(config) if kind == Kind::Mae => mae::training_graph(config, 1)?.graph.params().to_vec(),
        Some(config) => mae::encoder_graph(config, 1)?.graph.params().to_vec(),
        None => Vec::new(),
    };
    require(&mut expected, &params);
    let mut must = |name: &str, shape: Shape| expected.insert(name.to_owned(), (shape, true));
    if matches!(kind, Kind::Classifier | Kind::Probe) {
        let layer = if kind == Kind::Probe { "head.1" } else { "head" };
        let classes = extent(tensors, &format!("{layer}.weight"), 0)?;
        let width = match (kind, &config) {
            (Kind::Classifier, Some(config)) => config.width,
            _ => extent(tensors, &format!("{layer}.weight"), 1)?,
        };
        must(&format!("{layer}.weight"), [classes, width].into());
        must(&format!("{layer}.bias"), [classes].into());
        if kind == Kind::Probe {
            must("head.0.running_mean", [width].into());
            must("head.0.running_var", [width].into());
        }
    }
    let model = config.as_ref().and_then(|config| {
        let same = |name: &&&str| {
            let preset = MaeConfig::preset(name).expect("a preset");
            let encoder =
                (preset.patch, preset.width, preset.depth) == (config.patch, config.width, config.depth);
            let decoder = (preset.decoder_width, preset.decoder_depth);
            encoder && (kind != Kind::Mae || decoder == (config.decoder_width, config.decoder_depth))
        };
        mae::PRESETS.iter().find(same)
    });
    let (missing, unexpected, misshaped) = compare(tensors, &expected);
    Ok(Description {
        kind,
        model: model.map(|m| (*m).to_owned()),
        image: config.as_ref().map_or(0, |c| c.image),
        patch: config.as_ref().map_or(0, |c| c.patch),
        caption_length: None,
        missing,
        unexpected,
        misshaped,
    })
}

/// Sizes of an encoder, and of its decoder if there is one; heads do not show in shapes and matter to none.
fn sizes(tensors: &Tensors, decoder: bool) -> Result<MaeConfig> {
    let patch = extent(tensors, "patch_embed.proj.weight", 2)?;
    let positions = extent(tensors, "pos_embed", 1)?;
    let grid = positions.saturating_sub(1).isqrt();
    if grid == 0 || 1 + grid * grid != positions {
        return Err(Error::invalid("pos_embed", positions, "rows are not one more than a square of patches"));
    }
    let width = extent(tensors, "cls_token", 2)?;
    check_table(tensors, "pos_embed", positions, width)?;
    let (decoder_width, decoder_depth) = match decoder {
        true => (extent(tensors, "decoder_embed.weight", 0)?, depth(tensors, "decoder_blocks.")),
        false => (4, 1),
    };
    if decoder {
        check_table(tensors, "decoder_pos_embed", positions, decoder_width)?;
    }
    let config = MaeConfig {
        image: grid * patch,
        patch,
        width,
        depth: depth(tensors, "blocks."),
        heads: 1,
        decoder_width,
        decoder_depth,
        decoder_heads: 1,
        mask_ratio: 0.75,
        train_positions: false,
        norm_pix: false,
        qkv_bias: tensors.contains_key("blocks.0.attn.qkv.bias"),
    };
    config.validate()?;
    Ok(config)
}

/// A tensor with values: an empty one may claim any extents.
fn full<'a>(tensors: &'a Tensors, name: &str) -> Option<&'a Tensor> {
    tensors.get(name).filter(|t| !t.values.is_empty())
}

fn extent(tensors: &Tensors, name: &str, axis: usize) -> Result<usize> {
    let extent = full(tensors, name).and_then(|t| t.shape.dims().get(axis).copied());
    extent.ok_or_else(|| Error::invalid("tensors", name, "is missing, empty or has too few extents"))
}

/// The tables tell the sizes that the model is then built with, so they must agree before it is.
fn check_table(tensors: &Tensors, name: &str, rows: usize, width: usize) -> Result<()> {
    match tensors.get(name) {
        Some(t) if t.shape.dims() == [1, rows, width] => Ok(()),
        Some(t) => Err(Error::invalid(name, &t.shape, format!("must be (1, {rows}, {width})"))),
        None => Err(Error::invalid("tensors", name, "is missing")),
    }
}

/// Most blocks of a model; a higher number in a name is none.
const MOST_BLOCKS: usize = 256;

/// One more than the highest number after the prefix.
fn depth(tensors: &Tensors, prefix: &str) -> usize {
    let numbers =
        tensors.keys().filter_map(|name| name.strip_prefix(prefix)?.split_once('.')?.0.parse().ok());
    numbers.filter(|&n: &usize| n < MOST_BLOCKS).map(|n| n + 1).max().unwrap_or(0)
}

fn require(expected: &mut Expected, params: &[ParamSpec]) {
    expected.extend(params.iter().map(|p| (p.name.clone(), (p.shape.clone(), true))));
}

/// Missing, unexpected and misshaped tensors.
fn compare(tensors: &Tensors, expected: &Expected) -> (Vec<String>, Vec<String>, Vec<String>) {
    let missing = expected.iter().filter(|(name, (_, must))| *must && !tensors.contains_key(*name));
    let unexpected = tensors.keys().filter(|name| !expected.contains_key(*name));
    let misshaped = tensors.iter().filter_map(|(name, tensor)| {
        let (shape, _) = expected.get(name)?;
        (tensor.shape != *shape).then(|| format!("{name} is {}, must be {shape}", tensor.shape))
    });
    (missing.map(|(name, _)| name.clone()).collect(), unexpected.cloned().collect(), misshaped.collect())
}
