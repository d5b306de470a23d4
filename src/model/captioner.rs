//! The captioner of DP-Cap (arXiv 2403.02506): a vision transformer whose tokens a post-norm text decoder reads by
//! cross-attention, and per caption the mean cross-entropy of its next tokens.

use std::sync::Arc;

use super::net::Net;
use super::positions::{table_1d, table_2d};
use super::vit::{EPS, TOKEN, Vit, check_width};
use crate::error::{Error, Result};
use crate::graph::{Graph, Init, Value};
use crate::ops::{
    Tensor, add::Add, add_lookup::AddLookup, add_table::AddTable, attention::Attention,
    cached_attention::CachedAttention, embedding::Embedding, gelu::Gelu, head_loss::HeadLoss,
    mean_tokens::MeanTokens, relu::Relu,
};
use crate::shape::Shape;

/// Words of BERT's uncased vocabulary.
pub const BERT_VOCABULARY: usize = 30_522;

/// Longest caption of the published models: their causal masks are of this side.
pub const LONGEST: usize = 128;

/// LayerNorm epsilon of the decoder and of the head.
const DECODER_EPS: f32 = 1e-5;

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
    /// Tokens of a caption, [CLS] and [SEP] included: T.
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

/// A training graph. Inputs: `images` (B, 3, S, S), `tokens` and `targets` (B, T) as of [`shifted`].
#[derive(Debug)]
pub struct CaptionerGraph {
    /// The graph.
    pub graph: Graph,
    /// (B) mean cross-entropy over a caption's targets.
    pub loss: Value,
}

/// What the decoder reads of images. Input: `images` (B, 3, S, S).
#[derive(Debug)]
pub struct MemoryGraph {
    /// The graph.
    pub graph: Graph,
    /// (B, S, decoder width): the encoder's tokens as the decoder sees them; the representation of DP-Cap.
    pub memory: Value,
    /// (B, decoder width): its mean over all tokens, class token included.
    pub mean: Value,
    /// (B, width) per encoder block: mean over the patch tokens.
    pub block_means: Vec<Value>,
    /// (B, S, 2 x decoder width) per decoder layer: keys and values of its cross-attention.
    pub keys_values: Vec<Value>,
}

/// One more token for each of B texts. Inputs: `tokens` and `positions` (B, 1); `length` (B), tokens already in the cache;
/// per layer `cache.J` (B, T, 2 D), keys and values of these, and `memory.J` (B, S, 2 D) as of
/// [`MemoryGraph::keys_values`].
#[derive(Debug)]
pub struct NextTokenGraph {
    /// The graph.
    pub graph: Graph,
    /// (B, 1, V)
    pub logits: Value,
    /// (B, 1, 3 D) per layer: queries, keys and values of the new token, the latter two for the cache.
    pub new: Vec<Value>,
}

/// The loss of B texts about images that were encoded before. Inputs: `tokens`, `targets` (B, T) and `memory.J` (B, S, 2 D).
#[derive(Debug)]
pub struct ScoreGraph {
    /// The graph.
    pub graph: Graph,
    /// (B) mean cross-entropy over a text's targets.
    pub loss: Value,
}

/// Padded ids as the decoder's input, and the id after each as its target; the last one has none (padding).
pub fn shifted(ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let targets = ids.iter().skip(1).copied().chain([0]).take(ids.len()).collect();
    (ids.to_vec(), targets)
}

/// A vector added to every token, as a table of one row that all tokens look up.
fn add_vector(net: &mut Net<'_>, name: &str, x: Value) -> Result<Value> {
    let (tokens, d) = (net.graph.shape(x).dims()[1], net.graph.shape(x).width());
    let vector = net.param(name, [1, 1, d], [1, d], TOKEN, false)?;
    let input = format!("first row of {tokens}");
    let rows = match net.graph.find_input(&input) {
        Some(rows) => rows,
        // Never written: inputs start as zeros.
        None => net.graph.input(&input, Tensor::uint([net.graph.batch(), tokens]))?,
    };
    net.graph.apply(name, AddLookup, &[x, vector, rows])
}

/// The encoder and the bridge to the decoder; returns the memory and the encoder's blocks.
fn memory(net: &mut Net<'_>, config: &CaptionerConfig) -> Result<(Value, Vec<Value>)> {
    let vit = config.encoder();
    let x = vit.tokens(net)?;
    let x = add_vector(net, "encoder_image_type_embedding", x)?;
    let blocks = vit.blocks(net, x)?;
    let x = net.layer_norm("norm", *blocks.last().expect("the depth was checked"))?;
    let (s, d) = (config.memory_tokens(), config.decoder_width);
    let x = net.linear("decoder_embed", x, d, true)?;
    let table = Init::Values(Arc::new(table_2d(config.image / config.patch, d)));
    let table = net.param("decoder_pos_embed", [1, s, d], [s, d], table, false)?;
    let x = net.graph.apply("decoder_pos_embed", AddTable, &[x, table])?;
    Ok((add_vector(net, "decoder_image_type_embedding", x)?, blocks))
}

/// Keys and values of the memory for layer `j`.
fn keys_values(net: &mut Net<'_>, config: &CaptionerConfig, j: usize, memory: Value) -> Result<Value> {
    let name = format!("decoder.layers.{j}.multihead_attn.kv_proj");
    net.linear(&name, memory, 2 * config.decoder_width, config.biased)
}

/// Inputs `memory.J` for texts about images that were encoded before.
fn memory_inputs(net: &mut Net<'_>, config: &CaptionerConfig) -> Result<Vec<Value>> {
    let shape = [net.graph.batch(), config.memory_tokens(), 2 * config.decoder_width];
    (0..config.decoder_depth).map(|j| net.graph.input(&format!("memory.{j}"), Tensor::float(shape))).collect()
}

/// Input `tokens` (B, T) as vectors, positions not yet added.
fn embedding(net: &mut Net<'_>, config: &CaptionerConfig, tokens: usize) -> Result<Value> {
    let (v, d) = (config.vocabulary, config.decoder_width);
    let ids = net.graph.input("tokens", Tensor::uint([net.graph.batch(), tokens]))?;
    let name = "text_embedding_layer_SimVLM.weight";
    let table = net.param(name, [v, d], [v, d], Init::Normal(1.0), true)?;
    net.graph.apply("text_embedding", Embedding, &[table, ids])
}

fn text_positions(net: &mut Net<'_>, config: &CaptionerConfig) -> Result<Value> {
    let (t, d) = (config.length, config.decoder_width);
    let table = Init::Values(Arc::new(table_1d(t, d)));
    net.param("text_decoder_pos_embed", [1, t, d], [t, d], table, false)
}

/// A decoder layer; `attend` is its self-attention, from q, k and v of its tokens.
fn layer(
    net: &mut Net<'_>,
    config: &CaptionerConfig,
    j: usize,
    x: Value,
    keys_values: Value,
    attend: impl FnOnce(&mut Net<'_>, &str, Value) -> Result<Value>,
) -> Result<Value> {
    let (d, bias) = (config.decoder_width, config.biased);
    let at = |part: &str| format!("decoder.layers.{j}.{part}");
    let qkv = net.linear(&at("self_attn.c_attn"), x, 3 * d, bias)?;
    let a = attend(net, &at("self_attn"), qkv)?;
    let a = net.linear(&at("self_attn.c_proj"), a, d, bias)?;
    let x = net.graph.apply(&at("add1"), Add, &[x, a])?;
    let x = net.layer_norm(&at("norm1"), x)?;
    let q = net.linear(&at("multihead_attn.q_proj"), x, d, bias)?;
    let cross = Attention::cross(config.decoder_heads);
    let c = net.graph.apply(&at("multihead_attn"), cross, &[q, keys_values])?;
    let c = net.linear(&at("multihead_attn.c_proj"), c, d, bias)?;
    let x = net.graph.apply(&at("add2"), Add, &[x, c])?;
    let x = net.layer_norm(&at("norm2"), x)?;
    let h = net.linear(&at("linear1"), x, 4 * d, bias)?;
    let h = match bias {
        true => net.graph.apply(&at("activation"), Relu, &[h])?,
        false => net.graph.apply(&at("activation"), Gelu, &[h])?,
    };
    let f = net.linear(&at("linear2"), h, d, bias)?;
    let x = net.graph.apply(&at("add3"), Add, &[x, f])?;
    net.layer_norm(&at("norm3"), x)
}

/// The decoder over whole captions, up to the loss. Inputs `tokens` and `targets` (B, T).
fn captions(net: &mut Net<'_>, config: &CaptionerConfig, keys_values: &[Value]) -> Result<Value> {
    net.eps = DECODER_EPS;
    let (t, d, v) = (config.length, config.decoder_width, config.vocabulary);
    let x = embedding(net, config, t)?;
    let table = text_positions(net, config)?;
    let x = net.graph.apply("text_decoder_pos_embed", AddTable, &[x, table])?;
    let mut x = add_vector(net, "decoder_text_type_embedding", x)?;
    for (j, keys_values) in keys_values.iter().enumerate() {
        x = layer(net, config, j, x, *keys_values, |net, label, qkv| {
            net.graph.apply(label, Attention::causal(config.decoder_heads), &[qkv])
        })?;
    }
    let x = net.layer_norm("decoder_pred_text.0", x)?;
    let w = net.param("decoder_pred_text.1.weight", [v, d], [v, d], Init::XavierUniform, true)?;
    let b = net.param("decoder_pred_text.1.bias", [v], [v], Init::Constant(0.0), true)?;
    let targets = net.graph.input("targets", Tensor::uint([net.graph.batch(), t]))?;
    net.graph.apply("loss", HeadLoss::default(), &[x, w, b, targets])
}

/// The training graph for physical batches of `batch` captioned images.
///
/// # Errors
/// [`Error::Invalid`] for sizes that do not fit.
pub fn training_graph(config: &CaptionerConfig, batch: usize) -> Result<CaptionerGraph> {
    config.validate()?;
    let mut graph = Graph::new(batch);
    let mut net = Net { graph: &mut graph, eps: EPS };
    let (memory, _) = memory(&mut net, config)?;
    let keys_values = (0..config.decoder_depth)
        .map(|j| keys_values(&mut net, config, j, memory))
        .collect::<Result<Vec<_>>>()?;
    let loss = captions(&mut net, config, &keys_values)?;
    Ok(CaptionerGraph { graph, loss })
}

/// The encoder and all that the decoder needs of its images.
///
/// # Errors
/// [`Error::Invalid`] for sizes that do not fit.
pub fn memory_graph(config: &CaptionerConfig, batch: usize) -> Result<MemoryGraph> {
    config.validate()?;
    let mut graph = Graph::new(batch);
    let mut net = Net { graph: &mut graph, eps: EPS };
    let (memory, blocks) = memory(&mut net, config)?;
    let keys_values = (0..config.decoder_depth)
        .map(|j| keys_values(&mut net, config, j, memory))
        .collect::<Result<Vec<_>>>()?;
    let mean = graph.apply("mean", MeanTokens { skip: 0 }, &[memory])?;
    let block_means = blocks
        .iter()
        .enumerate()
        .map(|(i, x)| graph.apply(&format!("blocks.{i}.mean"), MeanTokens { skip: 1 }, &[*x]))
        .collect::<Result<_>>()?;
    Ok(MemoryGraph { graph, memory, mean, block_means, keys_values })
}

/// The decoder for one token at a time, with a cache of keys and values, for `batch` texts.
///
/// # Errors
/// [`Error::Invalid`] for sizes that do not fit.
pub fn next_token_graph(config: &CaptionerConfig, batch: usize) -> Result<NextTokenGraph> {
    config.validate()?;
    let mut graph = Graph::new(batch);
    let mut net = Net { graph: &mut graph, eps: DECODER_EPS };
    let (t, d) = (config.length, config.decoder_width);
    let memory = memory_inputs(&mut net, config)?;
    let x = embedding(&mut net, config, 1)?;
    let table = text_positions(&mut net, config)?;
    let positions = net.graph.input("positions", Tensor::uint([batch, 1]))?;
    let x = net.graph.apply("text_decoder_pos_embed", AddLookup, &[x, table, positions])?;
    let mut x = add_vector(&mut net, "decoder_text_type_embedding", x)?;
    let length = net.graph.input("length", Tensor::uint([batch]))?;
    let mut new = Vec::new();
    for (j, memory) in memory.into_iter().enumerate() {
        let cache = net.graph.input(&format!("cache.{j}"), Tensor::float([batch, t, 2 * d]))?;
        x = layer(&mut net, config, j, x, memory, |net, label, qkv| {
            new.push(qkv);
            let op = CachedAttention { heads: config.decoder_heads };
            net.graph.apply(label, op, &[qkv, cache, length])
        })?;
    }
    let x = net.layer_norm("decoder_pred_text.0", x)?;
    let logits = net.linear("decoder_pred_text.1", x, config.vocabulary, true)?;
    Ok(NextTokenGraph { graph, logits, new })
}

/// The decoder over whole texts about images that were encoded before.
///
/// # Errors
/// [`Error::Invalid`] for sizes that do not fit.
pub fn score_graph(config: &CaptionerConfig, batch: usize) -> Result<ScoreGraph> {
    config.validate()?;
    let mut graph = Graph::new(batch);
    let mut net = Net { graph: &mut graph, eps: DECODER_EPS };
    let memory = memory_inputs(&mut net, config)?;
    let loss = captions(&mut net, config, &memory)?;
    Ok(ScoreGraph { graph, loss })
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
        let score = score_graph(&config, 2).unwrap().graph;
        for graph in [&memory, &next, &score] {
            for p in graph.params() {
                assert!(trained.params().contains(p), "{}", p.name);
            }
        }
        assert_eq!(memory.params().len() + next.params().len(), trained.params().len());
        assert_eq!(next.params().len(), score.params().len());
    }

    #[test]
    fn targets_are_the_next_tokens() {
        assert_eq!(shifted(&[101, 7, 8, 102, 0]), (vec![101, 7, 8, 102, 0], vec![7, 8, 102, 0, 0]));
    }
}
