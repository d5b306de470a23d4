//! Few-shot classification of frozen representations, as in DP-Cap: multinomial logistic regression with an L2 penalty and no
//! intercept, on vectors that are centred and of length one.
//!
//! It sees labels and images as they are: it is not private.

use rayon::prelude::*;

use super::probe::Labelled;
use crate::error::{Error, Result};
use crate::rng::{Key, permutation};

/// Penalty times the number of training examples, as published.
const PENALTY: f64 = 0.0025;
/// Most passes over the training examples.
const PASSES: usize = 500;
/// Gradient, relative to that of zero weights, at which the weights are good enough.
const TOLERANCE: f64 = 1e-3;

/// Accuracies of one number of shots.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Shots {
    /// Training examples per class.
    pub shots: usize,
    /// Share of test examples put into their class, one for each repeat.
    pub top1: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation; 0 for one repeat.
    pub deviation: f64,
}

/// Trains on `shots` examples of each class, drawn anew for every repeat, and tests on all of `test`.
///
/// # Errors
/// [`Error::Invalid`] if a class has fewer examples, or features are not finite or not of one width.
pub fn few_shot(train: &Labelled, test: &Labelled, shots: usize, repeats: usize, key: &Key) -> Result<Shots> {
    if train.width != test.width || train.width == 0 {
        let what = format!("{} training and {} test features", train.width, test.width);
        return Err(Error::shape("few-shot", what));
    }
    if train.features.iter().chain(&test.features).any(|x| !x.is_finite()) {
        return Err(Error::invalid("features", "not finite", "the model's weights are damaged"));
    }
    let labels: Vec<u32> = {
        let mut all: Vec<u32> = test.labels.iter().copied().filter(|&l| l != u32::MAX).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    if labels.is_empty() || shots == 0 || repeats == 0 {
        let why = "needs labelled test images, and shots and repeats that are positive";
        return Err(Error::invalid("few-shot", shots, why));
    }
    let test_rows = normalised(test);
    let train_rows = normalised(train);
    let mut top1 = Vec::new();
    for repeat in 0..repeats {
        let order = permutation(&mut key.item(shots as u64, repeat as u64), train.labels.len());
        let mut rows = Vec::new();
        let mut classes = Vec::new();
        for (class, label) in labels.iter().enumerate() {
            let of_class = order.iter().filter(|&&i| train.labels[i as usize] == *label);
            let drawn: Vec<usize> = of_class.take(shots).map(|&i| i as usize).collect();
            if drawn.len() < shots {
                let why = format!("class {label} has {} training images only", drawn.len());
                return Err(Error::invalid("--shots", shots, why));
            }
            for i in drawn {
                rows.extend_from_slice(&train_rows[i * train.width..][..train.width]);
                classes.push(class);
            }
        }
        let weights = regress(&rows, &classes, train.width, labels.len());
        let (mut right, mut all) = (0, 0);
        for (row, label) in test_rows.chunks(test.width).zip(&test.labels) {
            if *label != u32::MAX {
                let scores = scores(row, &weights);
                let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i);
                right += (labels[best] == *label) as usize;
                all += 1;
            }
        }
        top1.push(right as f64 / all as f64);
    }
    let mean = top1.iter().sum::<f64>() / repeats as f64;
    let squares: f64 = top1.iter().map(|x| (x - mean) * (x - mean)).sum();
    let deviation = if repeats > 1 { (squares / (repeats - 1) as f64).sqrt() } else { 0.0 };
    Ok(Shots { shots, top1, mean, deviation })
}

/// Every vector less its own mean, and of length one.
fn normalised(all: &Labelled) -> Vec<f64> {
    let mut rows: Vec<f64> = all.features.iter().map(|&x| x as f64).collect();
    for row in rows.chunks_mut(all.width) {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        row.iter_mut().for_each(|x| *x -= mean);
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
        row.iter_mut().for_each(|x| *x /= length);
    }
    rows
}

fn scores(row: &[f64], weights: &[f64]) -> Vec<f64> {
    weights.chunks(row.len()).map(|w| w.iter().zip(row).map(|(w, x)| w * x).sum()).collect()
}

/// Gradient of `mean cross-entropy + PENALTY / (2 n) ||W||^2`.
fn gradient(rows: &[f64], classes: &[usize], width: usize, weights: &[f64]) -> Vec<f64> {
    let n = classes.len() as f64;
    let penalty = PENALTY / n;
    let mut sum: Vec<f64> = weights.iter().map(|w| penalty * w).collect();
    let shares: Vec<Vec<f64>> = rows
        .par_chunks(width)
        .zip(classes)
        .map(|(row, &class)| {
            let mut p = scores(row, weights);
            let top = p.iter().fold(f64::MIN, |m, &x| m.max(x));
            p.iter_mut().for_each(|x| *x = (*x - top).exp());
            let total: f64 = p.iter().sum();
            p.iter_mut().for_each(|x| *x /= total);
            p[class] -= 1.0;
            p
        })
        .collect();
    sum.par_chunks_mut(width).enumerate().for_each(|(class, sum)| {
        for (row, share) in rows.chunks(width).zip(&shares) {
            let factor = share[class] / n;
            sum.iter_mut().zip(row).for_each(|(s, x)| *s += factor * x);
        }
    });
    sum
}

/// Weights (classes, width) by accelerated gradient descent (Nesterov 1983). Rows have length one, so the softmax's curvature
/// is at most 1/2.
fn regress(rows: &[f64], classes: &[usize], width: usize, count: usize) -> Vec<f64> {
    let step = 1.0 / (0.5 + PENALTY / classes.len() as f64);
    let norm = |g: &[f64]| g.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut weights = vec![0.0; count * width];
    let mut ahead = weights.clone();
    let mut momentum = 1.0f64;
    let mut first = None;
    for _ in 0..PASSES {
        let g = gradient(rows, classes, width, &ahead);
        let size = norm(&g);
        if size <= TOLERANCE * *first.get_or_insert(size) {
            break;
        }
        let next: Vec<f64> = ahead.iter().zip(&g).map(|(w, g)| w - step * g).collect();
        let following = 0.5 * (1.0 + (1.0 + 4.0 * momentum * momentum).sqrt());
        let share = (momentum - 1.0) / following;
        ahead = next.iter().zip(&weights).map(|(n, w)| n + share * (n - w)).collect();
        (weights, momentum) = (next, following);
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::normal;

    /// Clusters around a direction for each class.
    fn clusters(seed: u64, each: usize, spread: f64) -> Labelled {
        let mut rng = Key::from_seed(seed).stream(0);
        let mut all = Labelled { width: 16, ..Labelled::default() };
        for class in 0..4u32 {
            for _ in 0..each {
                let row = (0..16)
                    .map(|k| (5.0 * (k == class as usize) as u32 as f64 + spread * normal(&mut rng)) as f32);
                all.features.extend(row);
                all.labels.push(class);
            }
        }
        all
    }

    #[test]
    fn clusters_are_told_apart_and_more_shots_help() {
        let (train, test) = (clusters(1, 20, 1.5), clusters(2, 50, 1.5));
        let key = Key::from_seed(3);
        let one = few_shot(&train, &test, 1, 5, &key).unwrap();
        let ten = few_shot(&train, &test, 10, 5, &key).unwrap();
        assert!(one.mean > 0.5 && ten.mean > 0.9 && ten.mean > one.mean, "{one:?} {ten:?}");
        assert!(one.deviation > 0.0 && one.top1.len() == 5);
        assert_eq!(few_shot(&train, &test, 10, 5, &key).unwrap().top1, ten.top1);
    }

    #[test]
    fn the_gradient_of_the_weights_is_small() {
        let train = clusters(1, 5, 2.0);
        let classes: Vec<usize> = train.labels.iter().map(|&l| l as usize).collect();
        let rows = normalised(&train);
        let weights = regress(&rows, &classes, 16, 4);
        let norm = |g: Vec<f64>| g.iter().map(|x| x * x).sum::<f64>().sqrt();
        let start = norm(gradient(&rows, &classes, 16, &[0.0; 64]));
        assert!(norm(gradient(&rows, &classes, 16, &weights)) <= 2e-2 * start);
    }

    #[test]
    fn too_few_examples_are_refused() {
        let (train, test) = (clusters(1, 3, 1.0), clusters(2, 3, 1.0));
        let key = Key::from_seed(3);
        assert!(few_shot(&train, &test, 4, 1, &key).is_err());
        assert!(few_shot(&train, &test, 0, 1, &key).is_err());
        let mut broken = train.clone();
        broken.features[7] = f32::NAN;
        assert!(few_shot(&broken, &test, 1, 1, &key).is_err());
    }
}
