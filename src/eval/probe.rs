//! The linear probe of ViP: frozen features, batch normalisation without affine part, one linear layer, LARS
//! (You, Gitman, Ginsburg 2017). Runs on the host: it is a matter of seconds once the features are there.
//!
//! It sees labels and images as they are: a probe is not private.

use std::sync::Arc;

use rand_core::Rng;
use rayon::prelude::*;

use super::features::Encoder;
use crate::data::Source;
use crate::data::augment::{Augment, Transform};
use crate::data::loader::{Prefetch, Report, in_order};
use crate::error::{Error, Result};
use crate::optim::schedule::Schedule;
use crate::rng::{Key, Purpose, normal, permutation, unit};

/// Features with labels.
#[derive(Clone, Debug, Default)]
pub struct Labelled {
    /// (N, F)
    pub features: Vec<f32>,
    /// (N)
    pub labels: Vec<u32>,
    /// F
    pub width: usize,
}

/// Settings of the probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeConfig {
    /// Passes over the training features.
    pub epochs: u64,
    /// Epochs of linear warm-up.
    pub warmup: u64,
    /// Batch size.
    pub batch: usize,
    /// Peak learning rate per 256 examples of a batch. LARS turns weights by a share of rate x trust a step, so the rate must
    /// follow the number of steps: the default gives the published peak of 6.4 (0.1 per 256 at batch 16,384) at batch 128.
    pub base_rate: f64,
    /// LARS trust coefficient: 0.001 as published.
    pub trust: f64,
    /// Augmented copies of every training image to take features of, besides the centred one.
    pub views: u64,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        ProbeConfig { epochs: 90, warmup: 10, batch: 128, base_rate: 12.8, trust: 0.001, views: 0 }
    }
}

/// Accuracy of a probe.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ProbeResult {
    /// Share of test examples whose likeliest class is theirs.
    pub top1: f64,
    /// Share of the most frequent test class: what guessing gives.
    pub chance: f64,
    /// Test examples.
    pub examples: usize,
    /// Per class: name, test examples, correct ones.
    pub classes: Vec<(String, usize, usize)>,
}

/// Features of all labelled images of a source: centred, and `views` augmented copies.
///
/// # Errors
/// The engine's; [`Error::Data`] if no image has a label.
pub fn extract(
    encoder: &mut Encoder,
    source: Arc<dyn Source>,
    side: usize,
    views: u64,
    key: &Key,
    mut progress: impl FnMut(u64),
) -> Result<(Labelled, Report)> {
    let mut out = Labelled { width: encoder.len(), ..Labelled::default() };
    let mut report = Report::default();
    for view in 0..=views {
        let transform = match view {
            0 => Transform::Centre,
            _ => Transform::Augmented(Augment::PROBE, key.derive(Purpose::Augmentation)),
        };
        let jobs = in_order(source.len(), encoder.batch(), view);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut loader = Prefetch::new(source.clone(), transform, side, threads, jobs)?;
        while let Some(batch) = loader.next_batch()? {
            let features = encoder.features(&batch.images)?;
            for (i, row) in features.chunks(out.width).enumerate() {
                if let (Some(class), true) = (batch.classes[i], batch.weights[i] != 0.0) {
                    out.features.extend_from_slice(row);
                    out.labels.push(class);
                }
            }
            progress(batch.weights.len() as u64);
        }
        report = loader.report();
    }
    if out.labels.is_empty() {
        let why = "no image has a class: use sub-folders per class, or .cls members in shards";
        return Err(Error::data(source.describe(), why));
    }
    Ok((out, report))
}

/// Trains a probe and tests it.
///
/// # Errors
/// [`Error::Invalid`] if a label has no place among the classes, or features are not finite.
pub fn probe(
    train: &Labelled,
    test: &Labelled,
    class_names: &[String],
    config: &ProbeConfig,
    key: &Key,
) -> Result<ProbeResult> {
    let most = train.labels.iter().chain(&test.labels).copied().max().unwrap_or(0) as usize + 1;
    let classes = class_names.len().max(most);
    if train.width != test.width {
        return Err(Error::shape(
            "probe",
            format!("{} training and {} test features", train.width, test.width),
        ));
    }
    if train.features.iter().chain(&test.features).any(|x| !x.is_finite()) {
        return Err(Error::invalid("features", "not finite", "the encoder's weights are damaged"));
    }
    let key = key.derive(Purpose::Probe);
    let mut head = Head::new(classes, train.width, &key);
    let n = train.labels.len();
    let batch = config.batch.min(n).max(1);
    let per_epoch = n.div_ceil(batch) as u64;
    let (total, warmup) = (config.epochs * per_epoch, config.warmup * per_epoch);
    let peak = config.base_rate * batch as f64 / 256.0;
    let mut step = 0;
    for epoch in 0..config.epochs {
        let order = permutation(&mut key.stream(1 + epoch), n);
        for members in order.chunks(batch) {
            let rate = peak * Schedule::WarmupCosine.at(step, total, warmup);
            head.step(train, members, rate as f32, config.trust as f32);
            step += 1;
        }
    }
    let predicted = head.predict(test);
    let mut table: Vec<(String, usize, usize)> =
        (0..classes).map(|c| (class_names.get(c).cloned().unwrap_or_else(|| c.to_string()), 0, 0)).collect();
    for (&label, &guess) in test.labels.iter().zip(&predicted) {
        let row = &mut table[label as usize];
        row.1 += 1;
        row.2 += (guess == label) as usize;
    }
    let examples = test.labels.len();
    let share = |count: usize| count as f64 / examples.max(1) as f64;
    Ok(ProbeResult {
        top1: share(table.iter().map(|r| r.2).sum()),
        chance: share(table.iter().map(|r| r.1).max().unwrap_or(0)),
        examples,
        classes: table,
    })
}

/// Added to the variance in batch normalisation.
const EPS: f32 = 1e-6;
/// Momentum of LARS.
const MOMENTUM: f32 = 0.9;

/// Batch normalisation and the linear layer.
struct Head {
    classes: usize,
    width: usize,
    mean: Vec<f32>,
    variance: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    weight_momentum: Vec<f32>,
    bias_momentum: Vec<f32>,
}

impl Head {
    fn new(classes: usize, width: usize, key: &Key) -> Self {
        let mut rng = key.stream(0);
        // Truncated at two standard deviations.
        let draw = |rng: &mut dyn Rng| loop {
            let z = normal(&mut &mut *rng);
            if z.abs() <= 2.0 {
                return (0.01 * z) as f32;
            }
        };
        let weight = (0..classes * width).map(|_| draw(&mut rng)).collect();
        let bound = 1.0 / (width as f64).sqrt();
        let bias = (0..classes).map(|_| ((2.0 * unit(&mut rng) - 1.0) * bound) as f32).collect();
        Head {
            classes,
            width,
            mean: vec![0.0; width],
            variance: vec![1.0; width],
            weight,
            bias,
            weight_momentum: vec![0.0; classes * width],
            bias_momentum: vec![0.0; classes],
        }
    }

    fn step(&mut self, data: &Labelled, members: &[u32], rate: f32, trust: f32) {
        let (width, n) = (self.width, members.len());
        let row = |i: u32| &data.features[i as usize * width..][..width];
        let (mut mean, mut variance) = (vec![0.0f32; width], vec![0.0f32; width]);
        for &i in members {
            mean.iter_mut().zip(row(i)).for_each(|(m, x)| *m += x / n as f32);
        }
        for &i in members {
            let terms = variance.iter_mut().zip(row(i)).zip(&mean);
            terms.for_each(|((v, x), m)| *v += (x - m) * (x - m) / n as f32);
        }
        let x: Vec<f32> = members
            .iter()
            .flat_map(|&i| {
                let (mean, variance) = (&mean, &variance);
                row(i).iter().zip(mean).zip(variance).map(|((x, m), v)| (x - m) / (v + EPS).sqrt())
            })
            .collect();
        let unbiased = n as f32 / (n as f32 - 1.0).max(1.0);
        for k in 0..width {
            self.mean[k] += 0.1 * (mean[k] - self.mean[k]);
            self.variance[k] += 0.1 * (variance[k] * unbiased - self.variance[k]);
        }
        let mut logits = self.logits(&x);
        for (row, &i) in logits.chunks_mut(self.classes).zip(members) {
            softmax(row);
            row[data.labels[i as usize] as usize] -= 1.0;
            row.iter_mut().for_each(|p| *p /= n as f32);
        }
        let mut gradient = vec![0.0f32; self.classes * width];
        gradient.par_chunks_mut(width).enumerate().for_each(|(c, g)| {
            for (logits, x) in logits.chunks(self.classes).zip(x.chunks(width)) {
                g.iter_mut().zip(x).for_each(|(g, x)| *g += logits[c] * x);
            }
        });
        let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
        let (p, g) = (norm(&self.weight), norm(&gradient));
        let ratio = if p > 0.0 && g > 0.0 { trust * p / g } else { 1.0 };
        for ((w, m), g) in self.weight.iter_mut().zip(&mut self.weight_momentum).zip(&gradient) {
            *m = MOMENTUM * *m + ratio * g;
            *w -= rate * *m;
        }
        for c in 0..self.classes {
            let g: f32 = logits.iter().skip(c).step_by(self.classes).sum();
            self.bias_momentum[c] = MOMENTUM * self.bias_momentum[c] + g;
            self.bias[c] -= rate * self.bias_momentum[c];
        }
    }

    /// (rows, classes)
    fn logits(&self, x: &[f32]) -> Vec<f32> {
        x.par_chunks(self.width)
            .flat_map_iter(|x| {
                self.weight
                    .chunks(self.width)
                    .zip(&self.bias)
                    .map(move |(w, b)| b + w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>())
            })
            .collect()
    }

    fn predict(&self, data: &Labelled) -> Vec<u32> {
        let x: Vec<f32> = data
            .features
            .chunks(self.width)
            .flat_map(|row| {
                row.iter().zip(&self.mean).zip(&self.variance).map(|((x, m), v)| (x - m) / (v + EPS).sqrt())
            })
            .collect();
        let best =
            |row: &[f32]| (0..row.len()).fold(0, |best, c| if row[c] > row[best] { c } else { best }) as u32;
        self.logits(&x).chunks(self.classes).map(best).collect()
    }
}

fn softmax(row: &mut [f32]) {
    let top = row.iter().copied().fold(f32::MIN, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - top).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blobs(n: usize, classes: u32, width: usize, spread: f64, stream: u64) -> Labelled {
        let centres = Key::from_seed(1);
        let mut rng = Key::from_seed(2).stream(stream);
        let mut out = Labelled { width, ..Labelled::default() };
        for i in 0..n as u32 {
            let label = i % classes;
            let mut centre = centres.stream(label as u64);
            out.features.extend((0..width).map(|_| (normal(&mut centre) + spread * normal(&mut rng)) as f32));
            out.labels.push(label);
        }
        out
    }

    #[test]
    fn separable_classes_are_found_and_noise_is_not() {
        let config = ProbeConfig { epochs: 30, warmup: 3, ..ProbeConfig::default() };
        let key = Key::from_seed(3);
        let easy = probe(&blobs(600, 4, 20, 0.3, 0), &blobs(200, 4, 20, 0.3, 1), &[], &config, &key).unwrap();
        assert!(easy.top1 > 0.98, "{easy:?}");
        assert_eq!(easy.examples, 200);
        let hard =
            probe(&blobs(600, 4, 20, 100.0, 0), &blobs(200, 4, 20, 100.0, 1), &[], &config, &key).unwrap();
        assert!(hard.top1 < 0.45, "{hard:?}");
        let mut broken = blobs(10, 2, 3, 1.0, 0);
        broken.features[4] = f32::NAN;
        assert!(probe(&broken, &broken, &[], &config, &key).is_err());
    }
}
