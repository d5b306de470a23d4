//! Keyed random streams on the host: one key per purpose, one ChaCha20 stream per step.
//!
//! Every random choice of a run (noise, Poisson sampling, initialisation, masking, augmentation, synthetic
//! images) reads a stream of its own, derived from one run key. A room can derive only from the key it was
//! given, so it cannot touch another purpose's stream.
//!
//! The generator is ChaCha20 with a 256-bit key, a 64-bit stream and a 64-bit block counter, as in
//! `rand_chacha::ChaCha20Rng` (Bernstein 2008, "ChaCha, a variant of Salsa20"); the WGSL generator in
//! `shaders/lib/chacha.wgsl` yields the same words.

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use zeroize::Zeroize;

use crate::error::{Error, Result};

/// What a stream is for. The number is part of the derivation: never reuse or change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// Initial parameter values.
    Init = 1,
    /// Which examples form a logical batch.
    Sampling = 2,
    /// The Gaussian noise of the mechanism.
    Noise = 3,
    /// Which patches are masked.
    Masking = 4,
    /// Crops, flips and other augmentation.
    Augmentation = 5,
    /// Parameters of synthetic images.
    Synthetic = 6,
    /// Canaries of an audit.
    Canary = 7,
    /// The linear probe's shuffling and initialisation.
    Probe = 8,
}

/// Marks a key that was made of a seed, so that a resumed run still knows it.
const PUBLIC: &[u8; 8] = b"veilgrad";

/// A 256-bit key. Never printed, never serialised by `Debug`; wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// A fresh key from the operating system.
    ///
    /// # Errors
    /// [`Error::Device`] if the operating system has no randomness to give.
    pub fn from_os() -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|e| Error::Device(format!("operating system randomness: {e}")))?;
        Ok(Key(bytes))
    }

    /// The key of a public seed: whoever knows the seed can subtract the noise.
    pub fn from_seed(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(PUBLIC);
        Key(bytes)
    }

    /// Whether the key was made of a public seed: then nothing that is drawn from it is secret.
    pub fn is_public(&self) -> bool {
        self.0[8..16] == *PUBLIC && self.0[16..].iter().all(|b| *b == 0)
    }

    /// A key from its bytes, as read back from the private resume state.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Key(bytes)
    }

    /// The bytes, for the private resume state and for the device that draws from this key.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The eight little-endian words of the key, as the WGSL generator takes them.
    pub fn words(&self) -> [u32; 8] {
        std::array::from_fn(|i| u32::from_le_bytes(self.0[4 * i..4 * i + 4].try_into().expect("four bytes")))
    }

    /// The key for one purpose: the first 32 bytes of this key's stream `2^63 + purpose`.
    ///
    /// Steps use streams below 2^63, so a derived key never shares words with a drawn value.
    pub fn derive(&self, purpose: Purpose) -> Key {
        let mut rng = self.stream((1 << 63) | purpose as u64);
        let mut bytes = [0; 32];
        rng.fill_bytes(&mut bytes);
        Key(bytes)
    }

    /// The generator of one stream (usually: of one step), at its first word.
    pub fn stream(&self, stream: u64) -> ChaCha20Rng {
        let mut rng = ChaCha20Rng::from_seed(self.0);
        rng.set_stream(stream);
        rng
    }

    /// The generator for one item of a stream: starts at block `item << 16`, so items hold
    /// up to 2^20 words each without meeting.
    pub fn item(&self, stream: u64, item: u64) -> ChaCha20Rng {
        let mut rng = self.stream(stream);
        rng.set_word_pos((item as u128) << 20);
        rng
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A uniform in (0, 1], 53 bits: safe to take the logarithm of.
pub fn open01(rng: &mut impl Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 * 2f64.powi(-53)
}

/// A uniform in [0, 1), 53 bits.
pub fn unit(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * 2f64.powi(-53)
}

/// A standard normal by Box and Muller (1958), in f64.
pub fn normal(rng: &mut impl Rng) -> f64 {
    let r = (-2.0 * open01(rng).ln()).sqrt();
    r * (std::f64::consts::TAU * unit(rng)).cos()
}

/// A uniform integer in `0..n`, unbiased (Lemire 2019).
///
/// # Panics
/// If `n` is zero.
pub fn below(rng: &mut impl Rng, n: u64) -> u64 {
    assert!(n > 0, "below(0)");
    loop {
        let m = rng.next_u64() as u128 * n as u128;
        if m as u64 >= n.wrapping_neg() % n {
            return (m >> 64) as u64;
        }
    }
}

/// The numbers `0..n` in random order (Fisher and Yates).
pub fn permutation(rng: &mut impl Rng, n: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        order.swap(i, below(rng, i as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_and_streams_do_not_meet() {
        let key = Key::from_seed(7);
        let mut seen = std::collections::HashSet::new();
        for purpose in
            [Purpose::Init, Purpose::Sampling, Purpose::Noise, Purpose::Masking, Purpose::Augmentation]
        {
            for stream in 0..20 {
                let mut rng = key.derive(purpose).stream(stream);
                for _ in 0..20 {
                    assert!(seen.insert(rng.next_u64()));
                }
            }
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        assert_eq!(format!("{:?}", Key::from_seed(12345)), "Key(..)");
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut rng = Key::from_seed(1).stream(0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[below(&mut rng, 7) as usize] += 1;
        }
        for count in counts {
            assert!((count as i64 - 10_000).abs() < 500, "{counts:?}");
        }
    }
}
