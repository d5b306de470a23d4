//! Standard normals by arena element: the twin of `shaders/lib/noise.wgsl`.
//!
//! Element e of a step draws from ChaCha20 block `e / 16` of the step's stream: words 2 j and 2 j + 1 give elements
//! 2 j and 2 j + 1 by Box and Muller (1958). So noise does not depend on tiling, padding, chunks or device, up to the
//! rounding of logarithm, sine and cosine.
//!
//! `u` is in (0, 1]. A radius word under 2^16 is lengthened to 64 bits by a word of the block whose counter has the top
//! bit flipped, so `|z| <= sqrt(2 ln 2^64) < 9.42`, a tail that a true normal leaves with probability 5e-21. With 32
//! bits the bound would be 6.7: a gap of about `sqrt(n) density(6.7)`, 1e-6 per step over 10^8 coordinates, which
//! is not small beside a delta of 1e-9.

use rayon::prelude::*;

use crate::kernel::Real;
use crate::ops::widest;
use crate::rng::Key;

/// Elements of one ChaCha20 block.
pub const BLOCK: usize = 16;

/// What the kernels read of a step's stream: key, block offset, stream number.
#[derive(Clone, Copy)]
pub struct StreamWords(pub [u32; 12]);

impl StreamWords {
    /// The words of stream `step` of a key, from its block `offset` on.
    pub fn new(key: &Key, step: u64, offset: u64) -> Self {
        let mut words = [0; 12];
        words[..8].copy_from_slice(&key.words());
        words[8..].copy_from_slice(&[offset as u32, (offset >> 32) as u32, step as u32, (step >> 32) as u32]);
        StreamWords(words)
    }
}

/// Blocks computed side by side: enough that the compiler keeps the loops over them as loops, and vectorises those.
const LANES: usize = 64;

#[inline(always)]
fn quarter(s: &mut [u32; 16], [a, b, c, d]: [usize; 4]) {
    s[a] = s[a].wrapping_add(s[b]);
    s[d] = (s[d] ^ s[a]).rotate_left(16);
    s[c] = s[c].wrapping_add(s[d]);
    s[b] = (s[b] ^ s[c]).rotate_left(12);
    s[a] = s[a].wrapping_add(s[b]);
    s[d] = (s[d] ^ s[a]).rotate_left(8);
    s[c] = s[c].wrapping_add(s[d]);
    s[b] = (s[b] ^ s[c]).rotate_left(7);
}

/// Words of [`LANES`] consecutive blocks, word by word.
type Words = [[u32; LANES]; 16];

/// Fills `s` with the ChaCha20 blocks from `block` on; `flip` is xored into the counters.
#[inline(always)]
fn chacha(stream: &[u32], block: u32, flip: u64, s: &mut Words) {
    let offset = (stream[8] as u64 | (stream[9] as u64) << 32).wrapping_add(block as u64);
    let mut start = [0; 16];
    start[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
    start[4..12].copy_from_slice(&stream[..8]);
    start[14..].copy_from_slice(&stream[10..12]);
    let mut counters = [[0; LANES]; 2];
    for l in 0..LANES {
        let counter = offset.wrapping_add(l as u64) ^ flip;
        counters[0][l] = counter as u32;
        counters[1][l] = (counter >> 32) as u32;
    }
    for (row, first) in s.iter_mut().zip(start) {
        row.fill(first);
    }
    s[12..14].copy_from_slice(&counters);
    for _ in 0..10 {
        // A whole double round per lane: its sixteen words stay in registers.
        for l in 0..LANES {
            let mut x: [u32; 16] = std::array::from_fn(|w| s[w][l]);
            quarter(&mut x, [0, 4, 8, 12]);
            quarter(&mut x, [1, 5, 9, 13]);
            quarter(&mut x, [2, 6, 10, 14]);
            quarter(&mut x, [3, 7, 11, 15]);
            quarter(&mut x, [0, 5, 10, 15]);
            quarter(&mut x, [1, 6, 11, 12]);
            quarter(&mut x, [2, 7, 8, 13]);
            quarter(&mut x, [3, 4, 9, 14]);
            for w in 0..16 {
                s[w][l] = x[w];
            }
        }
    }
    // The counters' rows start from 0 here and are added next.
    for (row, first) in s.iter_mut().zip(start) {
        row.iter_mut().for_each(|x| *x = x.wrapping_add(first));
    }
    for (row, counters) in s[12..14].iter_mut().zip(counters) {
        row.iter_mut().zip(counters).for_each(|(x, c)| *x = x.wrapping_add(c));
    }
}

/// Fills `words`, and `tails` with what lengthens radius words; `tails` is left as it is where no lane needs it.
#[inline(always)]
fn words_and_tails(stream: &[u32], block: u32, words: &mut Words, tails: &mut Words) {
    chacha(stream, block, 0, words);
    let mut least = [u32::MAX; LANES];
    for j in (0..BLOCK).step_by(2) {
        for l in 0..LANES {
            least[l] = least[l].min(words[j][l]);
        }
    }
    let mut small = false;
    for a in least {
        small |= a < SHORT;
    }
    if small {
        chacha(stream, block, 1 << 63, tails);
    }
}

/// Radius words from here on are used as they are.
const SHORT: u32 = 1 << 16;

/// The definition: two normals from a radius word, its tail, and an angle word.
fn pair<F: Real>(a: u32, tail: u32, b: u32) -> (F, F) {
    let (a, tail, b) = (a as f64, tail as f64, b as f64);
    let u = if a < SHORT as f64 {
        a * 2f64.powi(-32) + (tail + 1.0) * 2f64.powi(-64)
    } else {
        (a + 1.0) * 2f64.powi(-32)
    };
    let (r, angle) = ((-2.0 * u.ln()).sqrt(), b * 2f64.powi(-32) * std::f64::consts::TAU);
    (F::of(r * angle.cos()), F::of(r * angle.sin()))
}

/// Calls `f` with every element's index and normal, by the definition: `n` elements from block `block` on.
pub(crate) fn each<F: Real>(stream: &[u32], block: usize, n: usize, mut f: impl FnMut(usize, F)) {
    let [mut words, mut tails] = [[[0; LANES]; 16]; 2];
    for first in (0..n.div_ceil(BLOCK)).step_by(LANES) {
        words_and_tails(stream, (block + first) as u32, &mut words, &mut tails);
        for l in 0..LANES {
            for j in (0..BLOCK).step_by(2) {
                let (z0, z1) = pair(words[j][l], tails[j][l], words[j + 1][l]);
                let e = (first + l) * BLOCK + j;
                if e + 1 < n {
                    f(e, z0);
                    f(e + 1, z1);
                }
            }
        }
    }
}

/// The formulas of the shader, branch-free.
#[inline(always)]
fn fast_pair(a: u32, tail: u32, b: u32) -> (f32, f32) {
    const WORD: f32 = 1.0 / 4_294_967_296.0;
    let short = (a as f32 + 1.0) * WORD;
    let long = a as f32 * WORD + (tail as f32 + 1.0) * (WORD * WORD);
    let u = if a < SHORT { long } else { short };
    let bits = u.to_bits().wrapping_sub(0x3f35_04f3);
    let e = ((bits as i32) >> 23) as f32;
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3));
    let d = if e == 0.0 { -WORD * !a as f32 } else { m - 1.0 };
    let s = d / (2.0 + d);
    let q = s * s;
    let artanh = s * (2.0 + q * (2.0 / 3.0 + q * (0.4 + q * (2.0 / 7.0 + q * (2.0 / 9.0)))));
    let r = (-2.0 * (e * std::f32::consts::LN_2 + artanh)).sqrt();
    let shifted = b.wrapping_add(0x2000_0000);
    let quarter = shifted >> 30;
    let x = ((shifted & 0x3fff_ffff) as i32 - 0x2000_0000) as f32 * 1.462_918_1e-9;
    let q = x * x;
    let s = x * (1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * (1.0 / 362_880.0)))));
    let c = 1.0 + q * (-0.5 + q * (1.0 / 24.0 + q * (-1.0 / 720.0 + q * (1.0 / 40_320.0))));
    let odd = quarter & 1 != 0;
    let cosine = if odd { s } else { c } * if quarter == 1 || quarter == 2 { -1.0 } else { 1.0 };
    let sine = if odd { c } else { s } * if quarter >= 2 { -1.0 } else { 1.0 };
    (r * cosine, r * sine)
}

widest! {
    /// Fills `out` (at most [`LANES`] blocks) with the normals from block `block` on; the rest is scratch.
    pub(crate) fn fill_lanes(stream: &[u32], block: u32, words: &mut Words, tails: &mut Words, out: &mut [f32]) {
        words_and_tails(stream, block, words, tails);
        for j in (0..BLOCK).step_by(2) {
            for l in 0..LANES {
                let z = fast_pair(words[j][l], tails[j][l], words[j + 1][l]);
                (words[j][l], words[j + 1][l]) = (z.0.to_bits(), z.1.to_bits());
            }
        }
        for (l, out) in out.chunks_mut(BLOCK).enumerate() {
            for (e, out) in out.iter_mut().enumerate() {
                *out = f32::from_bits(words[e][l]);
            }
        }
    }
}

/// Elements that [`add`] and the optimisers hand out at once.
pub(crate) const SHARE: usize = LANES * BLOCK * 4;

/// Fills `out` with the normals from block `block` on, fast. A multiple of 16 elements.
pub(crate) fn fill(stream: &[u32], block: usize, out: &mut [f32]) {
    let [mut words, mut tails] = [[[0; LANES]; 16]; 2];
    for (i, out) in out.chunks_mut(LANES * BLOCK).enumerate() {
        fill_lanes(stream, (block + i * LANES) as u32, &mut words, &mut tails, out);
    }
}

/// Adds `std * z` to `grad` on all threads.
pub(crate) fn add(stream: &[u32], block: usize, std: f32, grad: &mut [f32]) {
    grad.par_chunks_mut(SHARE).enumerate().for_each(|(i, grad)| {
        let mut z = [0.0; SHARE];
        let z = &mut z[..grad.len()];
        fill(stream, block + i * (SHARE / BLOCK), z);
        grad.iter_mut().zip(z).for_each(|(g, z)| *g += std * *z);
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use rand_core::Rng;

    use super::*;

    /// Element `e` from block `offset` on, drawn by `rand_chacha`.
    pub(crate) fn drawn(key: &Key, step: u64, offset: u64, e: u64) -> f64 {
        let at = (offset as u128 + (e / 16) as u128) * 16 + (e % 16 / 2 * 2) as u128;
        let (mut rng, mut tails) = (key.stream(step), key.stream(step));
        rng.set_word_pos(at);
        tails.set_word_pos(((1u128 << 67) ^ at) % (1 << 68));
        let z = pair::<f64>(rng.next_u32(), tails.next_u32(), rng.next_u32());
        if e.is_multiple_of(2) { z.0 } else { z.1 }
    }

    #[test]
    fn words_are_those_of_rand_chacha() {
        for (seed, step, offset) in
            [(1, 0, 0), (2, 7, 3), (3, u64::MAX, (1 << 32) - 5), (4, 1 << 40, 1 << 33)]
        {
            let key = Key::from_seed(seed);
            for flip in [0, 1 << 63] {
                let mut words = [[7; LANES]; 16];
                chacha(&StreamWords::new(&key, step, offset).0, 2, flip, &mut words);
                let mut rng = key.stream(step);
                rng.set_word_pos((flip as u128 + offset as u128 + 2) * 16);
                for l in 0..LANES {
                    for (w, word) in words.iter().enumerate() {
                        assert_eq!(word[l], rng.next_u32(), "seed {seed} flip {flip} block {l} word {w}");
                    }
                }
            }
        }
    }

    #[test]
    fn extreme_words_give_finite_normals() {
        let radii = [0, 1, 255, SHORT - 1, SHORT, SHORT + 1, 3_037_000_498, 3_037_000_499, 3_037_000_500];
        for a in radii.into_iter().chain([u32::MAX / 2, u32::MAX - 1000, u32::MAX - 1, u32::MAX]) {
            for tail in [0, 1, 1 << 20, u32::MAX] {
                for b in [0, 1, 1 << 29, (1 << 29) - 1, 1 << 30, 1 << 31, 3 << 30, 0xe000_0000, u32::MAX] {
                    let (want, got) = (pair::<f64>(a, tail, b), fast_pair(a, tail, b));
                    let radius = want.0.hypot(want.1);
                    for (w, g) in [(want.0, got.0), (want.1, got.1)] {
                        assert!((w - g as f64).abs() <= 3e-7 * radius, "{a} {tail} {b}: {g} against {w}");
                        assert!(w.abs() < 9.42 && g.is_finite());
                    }
                }
            }
        }
        assert!(pair::<f64>(0, 0, 0).0 > 9.41);
        assert_eq!(fast_pair(u32::MAX, 0, 5), (0.0, 0.0));
    }

    #[test]
    fn small_radius_words_take_their_tail() {
        // Sought once: the first lane group of this stream with a radius word under 2^16.
        let words = StreamWords::new(&Key::from_seed(1), 0, 0).0;
        let (mut tailed, mut rng, mut tails) = (0, Key::from_seed(1).stream(0), Key::from_seed(1).stream(0));
        for block in (0..40_000).step_by(LANES) {
            let [mut drawn, mut found] = [[[0; LANES]; 16]; 2];
            words_and_tails(&words, block, &mut drawn, &mut found);
            rng.set_word_pos(block as u128 * 16);
            for l in 0..LANES {
                for j in (0..BLOCK).step_by(2) {
                    let (a, b) = (rng.next_u32(), rng.next_u32());
                    if a < SHORT {
                        tails.set_word_pos(((1 << 63) + block as u128 + l as u128) * 16 + j as u128);
                        let tail = tails.next_u32();
                        assert_eq!(found[j][l], tail);
                        let z = pair::<f64>(a, tail, b);
                        assert!(z.0.hypot(z.1) >= 4.7);
                        tailed += 1;
                    }
                }
            }
        }
        assert!(tailed > 0);
    }

    #[test]
    fn fast_and_plain_agree_in_any_cut() {
        let words = StreamWords::new(&Key::from_seed(9), 4, 0).0;
        let mut all = vec![0.0f32; 16 * 100];
        fill(&words, 0, &mut all);
        each::<f64>(&words, 0, all.len(), |e, z| assert!((all[e] as f64 - z).abs() <= 2e-6, "{e}"));
        let mut part = vec![0.0f32; 16 * 37];
        fill(&words, 41, &mut part);
        assert_eq!(part, all[41 * 16..78 * 16]);
    }
}
