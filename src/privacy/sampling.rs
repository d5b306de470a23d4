//! Which examples form a logical batch: Poisson sampling, and its split into physical batches.
//!
//! **Guarantee**: at every step each of N examples is drawn independently with probability q, by a keyed ChaCha20
//! stream of its own per step. Nothing else decides who is in a batch. This is the condition under which
//! [`Event::dpsgd`](crate::privacy::accounting::Event::dpsgd) may be accounted (Abadi et al. 2016, arXiv 1607.00133).
//!
//! | case | what happens |
//! | --- | --- |
//! | nobody is drawn | an empty batch; the step happens all the same: noise is added, and the step is counted |
//! | rate 0 | every batch is empty |
//! | rate 1 | every batch is the whole data set |
//! | the same key, step, N and rate | the same batch |
//! | a rate that is NaN, below 0 or over 1; N = 0 or over 2^53 | refused |
//! | an expected batch over 2^32 | refused: it would not fit into memory |

use crate::error::{Error, Result};
use crate::rng::Key;
use rand_core::Rng;

/// A Poisson sampler. Contract: the head of this module.
#[derive(Clone, Debug)]
pub struct PoissonSampler {
    examples: u64,
    rate: f64,
    key: Key,
}

impl PoissonSampler {
    /// Draws from `examples` examples at `rate`. The key must be the run's key for
    /// [`Purpose::Sampling`](crate::rng::Purpose::Sampling), and secret: who knows it knows who was in which batch.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rate outside [0, 1], an empty data set or one over 2^53; [`Error::Limit`] for an expected
    /// batch over 2^32.
    pub fn new(examples: u64, rate: f64, key: Key) -> Result<Self> {
        if !(0.0..=1.0).contains(&rate) {
            return Err(Error::invalid("sampling rate", rate, "must be from 0 to 1: is the batch over N?"));
        }
        if examples == 0 {
            return Err(Error::invalid("examples", 0, "the data set is empty"));
        }
        if examples > 1 << 53 {
            return Err(Error::invalid("examples", examples, "must be at most 2^53"));
        }
        let sampler = PoissonSampler { examples, rate, key };
        if sampler.expected() > (1u64 << 32) as f64 {
            return Err(Error::Limit {
                what: "expected logical batch (examples)".into(),
                needed: sampler.expected() as u64,
                allowed: 1 << 32,
            });
        }
        Ok(sampler)
    }

    /// N.
    pub fn examples(&self) -> u64 {
        self.examples
    }

    /// q.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The examples of a step, ascending. May be empty: the step happens all the same.
    ///
    /// The gaps between chosen examples are geometric (Devroye 1986, "Non-Uniform Random Variate Generation", X.2):
    /// `floor(ln(v) / ln(1 - q))` for v uniform, so the work follows the batch, not N. `1 - v` is drawn with 128 bits, so that
    /// each probability is right to 1e-15 relative at every q down to 1e-12.
    pub fn batch(&self, step: u64) -> Vec<u64> {
        if self.rate == 0.0 {
            return Vec::new();
        }
        if self.rate == 1.0 {
            return (0..self.examples).collect();
        }
        let mut rng = self.key.stream(step);
        let expected = self.expected();
        let mut chosen = Vec::with_capacity((expected + 6.0 * expected.sqrt()) as usize + 8);
        let scale = (-self.rate).ln_1p().recip();
        let mut next = 0;
        while next < self.examples {
            let bits = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
            let below = bits as f64 * 2f64.powi(-128);
            // Infinite if `below` rounds to 1: then nobody else is drawn.
            let gap = ((-below).ln_1p() * scale).floor();
            if !(gap < (self.examples - next) as f64) {
                break;
            }
            next += gap as u64;
            chosen.push(next);
            next += 1;
        }
        chosen
    }

    /// The expected batch size q N: what gradients are divided by.
    pub fn expected(&self) -> f64 {
        self.rate * self.examples as f64
    }

    /// The expected number of physical batches of `size` per step, for estimates of progress. Data-independent: it says
    /// nothing about who was drawn.
    ///
    /// Summed over the binomial distribution of the batch size where that is narrow, else `q N / size + (size - 1) / (2 size)`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `size` is zero.
    pub fn expected_physical_batches(&self, size: usize) -> Result<f64> {
        check_size(size)?;
        let (n, q) = (self.examples as f64, self.rate);
        let (mean, size) = (self.expected(), size as f64);
        if q == 0.0 || q == 1.0 {
            return Ok((mean / size).ceil());
        }
        let deviation = (mean * (1.0 - q)).sqrt();
        if deviation > 1e5 || deviation > 100.0 * size {
            return Ok(mean / size + (size - 1.0) / (2.0 * size));
        }
        // From the most likely size outwards, by the ratio of neighbouring probabilities.
        let start = ((n + 1.0) * q).floor().min(n);
        let reach = 12.0 * deviation + 40.0;
        let odds = q / (1.0 - q);
        let (mut weight, mut total) = (1.0, (start / size).ceil());
        let mut p = 1.0;
        let mut k = start;
        while k < n && k < start + reach {
            p *= (n - k) / (k + 1.0) * odds;
            k += 1.0;
            weight += p;
            total += p * (k / size).ceil();
        }
        (p, k) = (1.0, start);
        while k > 0.0 && k > start - reach {
            p *= k / ((n - k + 1.0) * odds);
            k -= 1.0;
            weight += p;
            total += p * (k / size).ceil();
        }
        Ok(total / weight)
    }
}

fn check_size(size: usize) -> Result<()> {
    if size == 0 {
        return Err(Error::invalid("physical batch", 0, "must hold at least one example"));
    }
    Ok(())
}

/// A logical batch in physical batches of one fixed size: an iterator, so that no copy of the whole is made.
///
/// | logical batch | physical batches |
/// | --- | --- |
/// | empty | none: the step goes straight to its noise, and is counted |
/// | a multiple of `size` | full ones |
/// | any other | full ones, and a last one padded with `None`, which must get weight 0 |
///
/// Every example appears once, in order. How a logical batch is split changes nothing but rounding.
#[derive(Clone, Debug)]
pub struct PhysicalBatches<'a> {
    chunks: std::slice::Chunks<'a, u64>,
    size: usize,
}

impl<'a> PhysicalBatches<'a> {
    /// Splits `logical` into batches of `size`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `size` is zero.
    pub fn new(logical: &'a [u64], size: usize) -> Result<Self> {
        check_size(size)?;
        Ok(PhysicalBatches { chunks: logical.chunks(size), size })
    }
}

impl Iterator for PhysicalBatches<'_> {
    type Item = Vec<Option<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = self.chunks.next()?;
        let mut batch: Vec<Option<u64>> = chunk.iter().copied().map(Some).collect();
        batch.resize(self.size, None);
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

impl ExactSizeIterator for PhysicalBatches<'_> {}

/// All of [`PhysicalBatches`] at once.
///
/// # Panics
/// If `size` is zero.
pub fn physical_batches(logical: &[u64], size: usize) -> Vec<Vec<Option<u64>>> {
    PhysicalBatches::new(logical, size).expect("a physical batch of at least one").collect()
}
