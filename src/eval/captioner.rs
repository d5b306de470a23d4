//! A trained captioner at work: encodes images, writes texts about them token by token, and says how likely a text is.

use std::path::Path;
use std::sync::Arc;

use super::part::Part;
use crate::checkpoint::Checkpoint;
use crate::data::Source;
use crate::data::augment::Transform;
use crate::data::loader::{Prefetch, Report, in_order};
use crate::data::words::Words;
use crate::error::{Error, Result};
use crate::model::captioner::{self, CaptionerConfig, shifted};
use crate::record::Engine;

/// Sizes and words of a captioner's checkpoint.
///
/// # Errors
/// [`Error::Checkpoint`] if the tensors are of no captioner that is known.
pub fn open(file: &Checkpoint, path: &Path) -> Result<(CaptionerConfig, Arc<Words>)> {
    let shape = |name: &str| file.tensors.get(name).map(|t| t.shape.clone());
    let config = CaptionerConfig::from_shapes(shape).map_err(|e| Error::checkpoint(path, e.to_string()))?;
    let words = match file.metadata.get("vocabulary") {
        Some(json) => Words::from_json(json)?,
        None => Words::bert()?,
    };
    if words.len() != config.vocabulary {
        let what = format!("knows {} words, its vocabulary has {}", config.vocabulary, words.len());
        return Err(Error::checkpoint(path, what));
    }
    Ok((config, Arc::new(words)))
}

/// What the decoder needs of one image.
#[derive(Clone, Debug)]
pub struct Memory {
    /// (decoder width): the mean of its tokens, class token included; DP-Cap's representation.
    pub mean: Vec<f32>,
    /// (blocks x width): per encoder block the mean over the patch tokens, as ViP's probe takes them.
    pub block_means: Vec<f32>,
    /// Per decoder layer (S, 2 x decoder width): keys and values.
    keys_values: Arc<Vec<Vec<f32>>>,
}

/// The encoder of a captioner.
pub struct Eye {
    part: Part,
    config: CaptionerConfig,
}

impl Eye {
    /// Loads the encoder for `batch` images at once.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]; the engine's.
    pub fn open(
        engine: &dyn Engine,
        config: &CaptionerConfig,
        file: &Checkpoint,
        path: &Path,
        batch: usize,
    ) -> Result<Self> {
        let graph = captioner::memory_graph(config, batch)?;
        let fetch: Vec<_> =
            [graph.mean].into_iter().chain(graph.block_means).chain(graph.keys_values).collect();
        Ok(Eye { part: Part::open(engine, &graph.graph, &fetch, file, path)?, config: config.clone() })
    }

    /// Images at once.
    pub fn batch(&self) -> usize {
        self.part.batch()
    }

    /// Encodes the first `count` of `images` (B, 3, S, S), normalised.
    ///
    /// # Errors
    /// The engine's.
    pub fn look(&mut self, images: &[f32], count: usize) -> Result<Vec<Memory>> {
        self.part.write("images", images)?;
        self.part.run()?;
        let batch = self.part.batch();
        let means = self.part.read(0)?;
        let depth = self.config.depth;
        let blocks = (1..=depth).map(|i| self.part.read(i)).collect::<Result<Vec<_>>>()?;
        let layers = (0..self.config.decoder_depth)
            .map(|j| self.part.read(1 + depth + j))
            .collect::<Result<Vec<_>>>()?;
        let row =
            |all: &[f32], i: usize| all[i * (all.len() / batch)..(i + 1) * (all.len() / batch)].to_vec();
        Ok((0..count)
            .map(|i| Memory {
                mean: row(&means, i),
                block_means: blocks.iter().flat_map(|b| row(b, i)).collect(),
                keys_values: Arc::new(layers.iter().map(|l| row(l, i)).collect()),
            })
            .collect())
    }
}

/// Encodes all images of a source, in order, as `transform` shows them; `each` gets index, class and memory of those that can
/// be decoded, `progress` the number of images of each batch.
///
/// # Errors
/// The engine's, and those of `each`.
pub fn look_at_all(
    eye: &mut Eye,
    source: Arc<dyn Source>,
    transform: Transform,
    mut each: impl FnMut(Vec<(u64, Option<u32>, Memory)>) -> Result<()>,
) -> Result<Report> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = in_order(source.len(), eye.batch(), 0);
    let mut loader = Prefetch::new(source, transform, eye.config.image, threads, jobs)?;
    while let Some(batch) = loader.next_batch()? {
        let memories = eye.look(&batch.images, batch.weights.len())?;
        let seen = memories.into_iter().enumerate().filter_map(|(i, memory)| {
            let index = batch.job.indices[i].filter(|_| batch.weights[i] != 0.0)?;
            Some((index, batch.classes[i], memory))
        });
        each(seen.collect())?;
    }
    Ok(loader.report())
}

/// Writes the memory of each row into a part's inputs `memory.J`; rows past the last are zero.
fn write_memories(part: &mut Part, memories: &[&Memory]) -> Result<()> {
    let Some(first) = memories.first() else { return Ok(()) };
    for j in 0..first.keys_values.len() {
        let len = first.keys_values[j].len();
        let mut all = Vec::with_capacity(part.batch() * len);
        memories.iter().for_each(|m| all.extend_from_slice(&m.keys_values[j]));
        all.resize(part.batch() * len, 0.0);
        part.write(&format!("memory.{j}"), &all)?;
    }
    Ok(())
}

/// A caption that was written.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Caption {
    /// The text.
    pub text: String,
    /// Mean log-probability of its tokens, the end included, in nats.
    pub log_probability: f64,
    /// Ids of the model's vocabulary, without the marks of start and end.
    #[serde(skip)]
    pub ids: Vec<u32>,
}

/// The decoder of a captioner, for several texts at once, each with its cache of keys and values.
pub struct Pen {
    part: Part,
    config: CaptionerConfig,
    words: Arc<Words>,
    /// Per layer (B, T, 2 D).
    caches: Vec<Vec<f32>>,
    /// Tokens in each row's cache.
    lengths: Vec<u32>,
}

impl Pen {
    /// Loads the decoder for `rows` texts at once.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]; the engine's.
    pub fn open(
        engine: &dyn Engine,
        config: &CaptionerConfig,
        words: &Arc<Words>,
        file: &Checkpoint,
        path: &Path,
        rows: usize,
    ) -> Result<Self> {
        let graph = captioner::next_token_graph(config, rows)?;
        let fetch: Vec<_> = [graph.logits].into_iter().chain(graph.new).collect();
        let part = Part::open(engine, &graph.graph, &fetch, file, path)?;
        let cache = vec![0.0; rows * config.length * 2 * config.decoder_width];
        Ok(Pen {
            part,
            config: config.clone(),
            words: words.clone(),
            caches: vec![cache; config.decoder_depth],
            lengths: vec![0; rows],
        })
    }

    /// Texts at once.
    pub fn rows(&self) -> usize {
        self.part.batch()
    }

    /// Starts a text about each of these images.
    ///
    /// # Errors
    /// The engine's.
    pub fn begin(&mut self, memories: &[&Memory]) -> Result<()> {
        self.lengths.fill(0);
        write_memories(&mut self.part, memories)
    }

    /// Appends a token to every text; returns log-probabilities of the next one, (B, V).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the texts have reached the model's length; the engine's.
    pub fn append(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let (rows, length, width) = (self.rows(), self.config.length, self.config.decoder_width);
        if self.lengths.iter().any(|&l| l as usize >= length) {
            return Err(Error::invalid("text", length, "the model writes no longer texts"));
        }
        let mut padded = tokens.to_vec();
        padded.resize(rows, 0);
        self.part.write_u32("tokens", &padded)?;
        self.part.write_u32("positions", &self.lengths)?;
        self.part.write_u32("length", &self.lengths)?;
        for (j, cache) in self.caches.iter().enumerate() {
            self.part.write(&format!("cache.{j}"), cache)?;
        }
        self.part.run()?;
        for j in 0..self.caches.len() {
            let new = self.part.read(1 + j)?;
            for (row, qkv) in new.chunks(3 * width).enumerate() {
                let at = (row * length + self.lengths[row] as usize) * 2 * width;
                self.caches[j][at..at + 2 * width].copy_from_slice(&qkv[width..]);
            }
        }
        self.lengths.iter_mut().for_each(|l| *l += 1);
        let mut logits = self.part.read(0)?;
        logits.chunks_mut(self.config.vocabulary).for_each(log_softmax);
        Ok(logits)
    }

    /// Row `i` goes on from what was row `from[i]`.
    fn reorder(&mut self, from: &[usize]) {
        let len = self.config.length * 2 * self.config.decoder_width;
        for cache in &mut self.caches {
            let before = cache.clone();
            for (row, &source) in from.iter().enumerate() {
                cache[row * len..(row + 1) * len].copy_from_slice(&before[source * len..(source + 1) * len]);
            }
        }
        let before = self.lengths.clone();
        from.iter().enumerate().for_each(|(row, &source)| self.lengths[row] = before[source]);
    }

    /// The likeliest next token each time, until the end of the text or the model's length.
    ///
    /// # Errors
    /// The engine's.
    pub fn greedy(&mut self, memories: &[&Memory]) -> Result<Vec<Caption>> {
        self.begin(memories)?;
        let mut texts = vec![(Vec::new(), 0.0f64, false); memories.len()];
        let mut tokens = vec![self.words.start(); memories.len()];
        for _ in 1..self.config.length {
            let log_probabilities = self.append(&tokens)?;
            for ((text, next), row) in
                texts.iter_mut().zip(&mut tokens).zip(log_probabilities.chunks(self.config.vocabulary))
            {
                if !text.2 {
                    let (id, log_probability) = likeliest(row);
                    text.1 += log_probability as f64;
                    text.0.push(id);
                    text.2 = id == self.words.end();
                    *next = id;
                }
            }
            if texts.iter().all(|t| t.2) {
                break;
            }
        }
        Ok(texts.into_iter().map(|(ids, sum, _)| self.caption(ids, sum)).collect())
    }

    /// Beam search: keeps the `rows` likeliest texts about one image; ends are ranked by their mean log-probability.
    /// Returns them best first.
    ///
    /// # Errors
    /// The engine's.
    pub fn beam(&mut self, memory: &Memory) -> Result<Vec<Caption>> {
        let width = self.rows();
        self.begin(&vec![memory; width])?;
        let mut live: Vec<(Vec<u32>, f64)> = vec![(Vec::new(), 0.0)];
        let mut tokens = vec![self.words.start(); width];
        let mut ended: Vec<Caption> = Vec::new();
        for step in 1..self.config.length {
            let log_probabilities = self.append(&tokens)?;
            let rows = log_probabilities.chunks(self.config.vocabulary);
            let mut next: Vec<(usize, u32, f64)> = Vec::new();
            for ((row, (_, sum)), values) in live.iter().enumerate().zip(rows) {
                let mut best: Vec<u32> = (0..values.len() as u32).collect();
                best.sort_by(|&a, &b| values[b as usize].total_cmp(&values[a as usize]));
                next.extend(
                    best.iter().take(width + 1).map(|&id| (row, id, sum + values[id as usize] as f64)),
                );
            }
            next.sort_by(|a, b| b.2.total_cmp(&a.2));
            let mut kept = Vec::new();
            let mut from = Vec::new();
            for (row, id, sum) in next {
                let mut ids = live[row].0.clone();
                ids.push(id);
                if id == self.words.end() || step + 1 == self.config.length {
                    ended.push(self.caption(ids, sum));
                } else {
                    kept.push((ids, sum));
                    from.push(row);
                }
                if kept.len() == width {
                    break;
                }
            }
            if kept.is_empty() || ended.len() >= 4 * width {
                break;
            }
            tokens = kept.iter().map(|(ids, _)| *ids.last().expect("a token was pushed")).collect();
            from.resize(width, 0);
            self.reorder(&from);
            live = kept;
        }
        ended.sort_by(|a, b| b.log_probability.total_cmp(&a.log_probability));
        ended.truncate(width);
        Ok(ended)
    }

    fn caption(&self, mut ids: Vec<u32>, sum: f64) -> Caption {
        let log_probability = sum / ids.len().max(1) as f64;
        ids.retain(|&id| id != self.words.end());
        Caption { text: self.words.decode(&ids), log_probability, ids }
    }
}

/// How likely whole texts are.
pub struct Judge {
    part: Part,
    tokens: usize,
}

impl Judge {
    /// Loads the decoder for `rows` texts of `tokens` tokens at once.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]; the engine's.
    pub fn open(
        engine: &dyn Engine,
        config: &CaptionerConfig,
        file: &Checkpoint,
        path: &Path,
        rows: usize,
        tokens: usize,
    ) -> Result<Self> {
        let graph = captioner::score_graph(config, rows, tokens)?;
        let mut part = Part::open(engine, &graph.graph, &[graph.loss], file, path)?;
        if tokens < config.length {
            let positions: Vec<u32> = (0..rows).flat_map(|_| 0..tokens as u32).collect();
            part.write_u32("positions", &positions)?;
        }
        Ok(Judge { part, tokens })
    }

    /// Mean cross-entropy per token, in nats, of each text about the image: the training loss. `texts` are padded ids.
    ///
    /// # Errors
    /// The engine's.
    pub fn losses(&mut self, memory: &Memory, texts: &[Vec<u32>]) -> Result<Vec<f32>> {
        let rows = self.part.batch();
        write_memories(&mut self.part, &vec![memory; rows])?;
        let mut losses = Vec::with_capacity(texts.len());
        for chunk in texts.chunks(rows) {
            let (mut tokens, mut targets) = (Vec::new(), Vec::new());
            for ids in chunk {
                let (input, target) = shifted(ids);
                tokens.extend(input);
                targets.extend(target);
            }
            tokens.resize(rows * self.tokens, 0);
            targets.resize(rows * self.tokens, 0);
            self.part.write_u32("tokens", &tokens)?;
            self.part.write_u32("targets", &targets)?;
            self.part.run()?;
            losses.extend(self.part.read(0)?.into_iter().take(chunk.len()));
        }
        Ok(losses)
    }
}

/// In place: logits to log-probabilities.
fn log_softmax(row: &mut [f32]) {
    let top = row.iter().fold(f32::MIN, |m, &x| m.max(x));
    let sum: f64 = row.iter().map(|&x| ((x - top) as f64).exp()).sum();
    let shift = top as f64 + sum.ln();
    row.iter_mut().for_each(|x| *x = (*x as f64 - shift) as f32);
}

/// The first of the largest values.
fn likeliest(row: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::MIN);
    for (i, &x) in row.iter().enumerate() {
        if x > best.1 {
            best = (i as u32, x);
        }
    }
    best
}
