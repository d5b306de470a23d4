//! Which examples form a logical batch: Poisson sampling, and its split into physical batches.
//!
//! **Guarantee**: at every step each of N examples is drawn independently with probability q, by a keyed ChaCha20
//! stream of its own per step. Nothing else decides who is in a batch.

use crate::error::{Error, Result};
use crate::rng::{Key, open01};

/// A Poisson sampler.
#[derive(Clone, Debug)]
pub struct PoissonSampler {
    examples: u64,
    rate: f64,
    key: Key,
}

impl PoissonSampler {
    /// Draws from `examples` examples at `rate`. The key must be the run's key for sampling.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rate outside [0, 1] or an empty data set.
    pub fn new(examples: u64, rate: f64, key: Key) -> Result<Self> {
        if !(0.0..=1.0).contains(&rate) {
            return Err(Error::invalid(
                "sampling rate",
                rate,
                "must be between 0 and 1: is the batch over N?",
            ));
        }
        if examples == 0 {
            return Err(Error::invalid("examples", 0, "the data set is empty"));
        }
        Ok(PoissonSampler { examples, rate, key })
    }

    /// The examples of a step, ascending. May be empty: the step happens all the same.
    ///
    /// The gaps between chosen examples are geometric: `floor(ln u / ln(1 - q))`, so the work follows the batch, not N.
    pub fn batch(&self, step: u64) -> Vec<u64> {
        if self.rate == 0.0 {
            return Vec::new();
        }
        if self.rate == 1.0 {
            return (0..self.examples).collect();
        }
        let mut rng = self.key.stream(step);
        let mut chosen = Vec::with_capacity((self.expected() * 1.1) as usize + 16);
        let scale = (-self.rate).ln_1p().recip();
        let mut next = 0u64;
        loop {
            let gap = (open01(&mut rng).ln() * scale).floor();
            if gap >= (self.examples - next) as f64 {
                return chosen;
            }
            next += gap as u64;
            chosen.push(next);
            next += 1;
            if next == self.examples {
                return chosen;
            }
        }
    }

    /// The expected batch size q N: what gradients are divided by.
    pub fn expected(&self) -> f64 {
        self.rate * self.examples as f64
    }
}

/// Splits a logical batch into physical batches of `size`, the last padded with `None`. An empty batch gives none.
///
/// # Panics
/// If `size` is zero.
pub fn physical_batches(logical: &[u64], size: usize) -> Vec<Vec<Option<u64>>> {
    logical
        .chunks(size)
        .map(|chunk| {
            let mut batch: Vec<Option<u64>> = chunk.iter().map(|&i| Some(i)).collect();
            batch.resize(size, None);
            batch
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(n: u64, rate: f64) -> PoissonSampler {
        PoissonSampler::new(n, rate, Key::from_seed(11)).unwrap()
    }

    #[test]
    fn inclusion_is_independent_at_the_right_rate() {
        let (n, rate, steps) = (400, 0.13, 3000);
        let sampler = sampler(n, rate);
        let mut counts = vec![0f64; n as usize];
        let mut neighbours = 0.0;
        let mut repeats = 0.0;
        let mut sizes = Vec::new();
        let mut last: Vec<bool> = vec![false; n as usize];
        for step in 0..steps {
            let batch = sampler.batch(step);
            assert!(batch.windows(2).all(|w| w[0] < w[1]) && batch.iter().all(|&i| i < n));
            let mut drawn = vec![false; n as usize];
            batch.iter().for_each(|&i| drawn[i as usize] = true);
            for i in 0..n as usize {
                counts[i] += drawn[i] as u8 as f64;
                neighbours += (i > 0 && drawn[i] && drawn[i - 1]) as u8 as f64;
                repeats += (drawn[i] && last[i]) as u8 as f64;
            }
            sizes.push(batch.len() as f64);
            last = drawn;
        }
        let steps = steps as f64;
        // Chi-squared over examples has n degrees of freedom; 5 standard deviations: one false alarm in 10^6.
        let variance = steps * rate * (1.0 - rate);
        let chi2: f64 = counts.iter().map(|c| (c - steps * rate).powi(2) / variance).sum();
        assert!((chi2 - n as f64).abs() <= 5.0 * (2.0 * n as f64).sqrt(), "{chi2}");
        for (seen, pairs) in [(neighbours, steps * (n as f64 - 1.0)), (repeats, (steps - 1.0) * n as f64)] {
            let (mean, sd) = (pairs * rate * rate, (pairs * rate * rate).sqrt());
            assert!((seen - mean).abs() <= 6.0 * sd, "{seen} pairs, expected {mean}");
        }
        let mean = sizes.iter().sum::<f64>() / steps;
        let var = sizes.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / steps;
        assert!((mean - sampler.expected()).abs() <= 1.0, "{mean}");
        assert!((var / (n as f64 * rate * (1.0 - rate)) - 1.0).abs() <= 0.2, "{var}");
    }

    #[test]
    fn edges_and_errors() {
        assert!(sampler(10, 0.0).batch(0).is_empty());
        assert_eq!(sampler(3, 1.0).batch(5), [0, 1, 2]);
        assert_eq!(sampler(1000, 0.5).batch(3), sampler(1000, 0.5).batch(3));
        assert_ne!(sampler(1000, 0.5).batch(3), sampler(1000, 0.5).batch(4));
        for rate in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(PoissonSampler::new(10, rate, Key::from_seed(1)).is_err());
        }
        assert!(PoissonSampler::new(0, 0.5, Key::from_seed(1)).is_err());
        let empty = (0..200).filter(|s| sampler(10, 0.01).batch(*s).is_empty()).count();
        assert!(empty > 150, "{empty}");
    }

    #[test]
    fn a_large_batch_is_drawn_quickly() {
        let start = std::time::Instant::now();
        let batch = sampler(233_804_767, 1_310_720.0 / 233_804_767.0).batch(0);
        assert!((batch.len() as f64 - 1_310_720.0).abs() < 6000.0, "{}", batch.len());
        assert!(start.elapsed().as_secs_f64() < 2.0);
    }

    #[test]
    fn physical_batches_are_padded() {
        let split = physical_batches(&[4, 5, 9], 2);
        assert_eq!(split, [vec![Some(4), Some(5)], vec![Some(9), None]]);
        assert!(physical_batches(&[], 4).is_empty());
    }
}
