//! The captioner's graphs: training, encoding images, writing a token, scoring texts.

use std::sync::Arc;

use super::CaptionerConfig;
use crate::error::{Error, Result};
use crate::graph::{Graph, Init, Value};
use crate::model::net::Net;
use crate::model::positions::{table_1d, table_2d};
use crate::model::vit::{EPS, TOKEN};
use crate::ops::{
    Tensor, add::Add, add_lookup::AddLookup, add_table::AddTable, attention::Attention,
    cached_attention::CachedAttention, embedding::Embedding, gelu::Gelu, head_loss::HeadLoss,
    mean_tokens::MeanTokens, relu::Relu,
};

/// LayerNorm epsilon of the decoder and of the head.
const DECODER_EPS: f32 = 1e-5;

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

/// The loss of B texts about images that were encoded before. Inputs: `tokens`, `targets` (B, T), `memory.J` (B, S, 2 D) and,
/// for fewer tokens than the model's length, `positions` (B, T), which are 0, 1, 2 and so on.
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
fn captions(
    net: &mut Net<'_>,
    config: &CaptionerConfig,
    keys_values: &[Value],
    tokens: usize,
) -> Result<Value> {
    net.eps = DECODER_EPS;
    let (t, d, v) = (tokens, config.decoder_width, config.vocabulary);
    let x = embedding(net, config, t)?;
    let table = text_positions(net, config)?;
    let x = if t == config.length {
        net.graph.apply("text_decoder_pos_embed", AddTable, &[x, table])?
    } else {
        let positions = net.graph.input("positions", Tensor::uint([net.graph.batch(), t]))?;
        net.graph.apply("text_decoder_pos_embed", AddLookup, &[x, table, positions])?
    };
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
    let loss = captions(&mut net, config, &keys_values, config.length)?;
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

/// The decoder over texts of `tokens` tokens about images that were encoded before.
///
/// # Errors
/// [`Error::Invalid`] for sizes that do not fit.
pub fn score_graph(config: &CaptionerConfig, batch: usize, tokens: usize) -> Result<ScoreGraph> {
    config.validate()?;
    if tokens < 2 || tokens > config.length {
        return Err(Error::invalid("tokens", tokens, format!("must be 2 to {}", config.length)));
    }
    let mut graph = Graph::new(batch);
    let mut net = Net { graph: &mut graph, eps: DECODER_EPS };
    let memory = memory_inputs(&mut net, config)?;
    let loss = captions(&mut net, config, &memory, tokens)?;
    Ok(ScoreGraph { graph, loss })
}
