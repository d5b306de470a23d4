//! Dot products of the f32 twins of the squared-norm rules, in vectors as wide as the processor has them.
//!
//! Products of a few rows by each other are too small for a general matrix product, which copies its operands
//! first: at 17 rows of 128 that costs ten times the arithmetic.

/// A vector of floats.
trait Lanes: Copy {
    /// Number of floats.
    const N: usize;
    /// All zero.
    fn zero() -> Self;
    /// The `N` floats from `at` on.
    ///
    /// # Safety
    /// They are readable, and the processor has this vector.
    unsafe fn load(at: *const f32) -> Self;
    /// `self + a * b`.
    ///
    /// # Safety
    /// The processor has this vector.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    /// The sum of the floats, by halves.
    ///
    /// # Safety
    /// The processor has this vector.
    unsafe fn total(self) -> f32;
    /// The sums of a tile of vectors.
    ///
    /// # Safety
    /// The processor has this vector.
    #[inline(always)]
    unsafe fn totals<const ACROSS: usize>(tile: [[Self; ACROSS]; DOWN]) -> [[f32; ACROSS]; DOWN] {
        // SAFETY: the caller's.
        tile.map(|row| row.map(|v| unsafe { v.total() }))
    }
}

impl Lanes for [f32; 4] {
    const N: usize = 4;
    fn zero() -> Self {
        [0.0; 4]
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: the caller's.
        unsafe { at.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] + a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn total(self) -> f32 {
        (self[0] + self[2]) + (self[1] + self[3])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, __m512, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehdup_ps, _mm_movehl_ps,
        _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm512_add_ps,
        _mm512_castpd_ps, _mm512_castps_pd, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_reduce_add_ps,
        _mm512_shuffle_f32x4, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    };

    use super::{DOWN, Lanes, pair_sums_of};

    /// The sum of a vector.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn total256(v: __m256) -> f32 {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }

    macro_rules! lanes {
        ($vector:ty, $n:literal, $load:ident, $fma:ident, $total:ident, $($totals:item)?) => {
            impl Lanes for $vector {
                const N: usize = $n;
                #[inline(always)]
                fn zero() -> Self {
                    // SAFETY: floats of all-zero bits are zeros.
                    unsafe { std::mem::zeroed() }
                }
                #[inline(always)]
                unsafe fn load(at: *const f32) -> Self {
                    // SAFETY: the caller's.
                    unsafe { $load(at) }
                }
                #[inline(always)]
                unsafe fn add_product(self, a: Self, b: Self) -> Self {
                    // SAFETY: the caller's.
                    unsafe { $fma(a, b, self) }
                }
                #[inline(always)]
                unsafe fn total(self) -> f32 {
                    // SAFETY: the caller's.
                    unsafe { $total(self) }
                }
                $($totals)?
            }
        };
    }
    lanes!(
        __m512,
        16,
        _mm512_loadu_ps,
        _mm512_fmadd_ps,
        _mm512_reduce_add_ps,
        #[inline(always)]
        unsafe fn totals<const ACROSS: usize>(tile: [[Self; ACROSS]; DOWN]) -> [[f32; ACROSS]; DOWN] {
            assert!(ACROSS == 4, "sixteen vectors to a tile");
            // SAFETY: both sides have the same size; the vector is the caller's.
            unsafe { std::mem::transmute_copy(&totals512(std::mem::transmute_copy(&tile))) }
        }
    );
    lanes!(__m256, 8, _mm256_loadu_ps, _mm256_fmadd_ps, total256,);

    /// The sums of sixteen vectors, in their order: each step adds halves of two vectors side by side, so that
    /// fifteen additions do for all.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn totals512(v: [__m512; 16]) -> __m512 {
        let pairs: [__m512; 8] = std::array::from_fn(|i| {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b))
        });
        let fours: [__m512; 4] = std::array::from_fn(|i| {
            let (a, b) = (_mm512_castps_pd(pairs[2 * i]), _mm512_castps_pd(pairs[2 * i + 1]));
            let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
            _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
        });
        let eights: [__m512; 2] = std::array::from_fn(|i| {
            let (a, b) = (fours[2 * i], fours[2 * i + 1]);
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
        });
        let (a, b) = (eights[0], eights[1]);
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
    }

    #[target_feature(enable = "avx512f,fma")]
    pub fn avx512(x: &[f32], wx: usize, g: &[f32], wg: usize, rows: usize, shares: &mut [f32]) {
        // SAFETY: this function's features.
        unsafe { pair_sums_of::<__m512, 4>(x, wx, g, wg, rows, shares) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn avx2(x: &[f32], wx: usize, g: &[f32], wg: usize, rows: usize, shares: &mut [f32]) {
        // SAFETY: this function's features.
        unsafe { pair_sums_of::<__m256, 3>(x, wx, g, wg, rows, shares) }
    }
}

/// A term of the ghost sum, raised by 2^-21 of its size: terms of both signs may all but cancel, and rounding must
/// not make the norm too small, or the clip would be too weak.
#[inline(always)]
fn rounded_up(term: f32) -> f32 {
    term + 4.768_371_6e-7 * term.abs()
}

/// Rows t of one tile.
const DOWN: usize = 4;

/// `shares_p = sum over t in rows p of sum over s <= t of w (x_t . x_s)(g_t . g_s)`, with w = 2 but for s = t, and
/// `rows` rows to a share.
///
/// # Panics
/// If `rows` is no multiple of 4.
pub(crate) fn pair_sums(
    x: &[f32],
    width_x: usize,
    g: &[f32],
    width_g: usize,
    rows: usize,
    shares: &mut [f32],
) {
    assert_eq!(rows % DOWN, 0, "rows of a share");
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            return unsafe { x86::avx512(x, width_x, g, width_g, rows, shares) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            return unsafe { x86::avx2(x, width_x, g, width_g, rows, shares) };
        }
    }
    // SAFETY: every processor has arrays.
    unsafe { pair_sums_of::<[f32; 4], 2>(x, width_x, g, width_g, rows, shares) }
}

/// [`pair_sums`] by tiles of 4 rows t by `ACROSS` rows s.
///
/// # Safety
/// The processor has the vector.
#[inline(always)]
unsafe fn pair_sums_of<V: Lanes, const ACROSS: usize>(
    x: &[f32],
    width_x: usize,
    g: &[f32],
    width_g: usize,
    rows: usize,
    shares: &mut [f32],
) {
    let tokens = x.len() / width_x;
    for (p, share) in shares.iter_mut().enumerate() {
        let mut sum = 0.0;
        for t0 in (p * rows..((p + 1) * rows).min(tokens)).step_by(DOWN) {
            for s0 in (0..tokens.min(t0 + DOWN)).step_by(ACROSS) {
                // SAFETY: the caller's.
                let (dots_x, dots_g) = unsafe {
                    (
                        dots::<V, ACROSS>(x, width_x, tokens, t0, s0),
                        dots::<V, ACROSS>(g, width_g, tokens, t0, s0),
                    )
                };
                if s0 + ACROSS <= t0 && t0 + DOWN <= tokens {
                    let products = dots_x.iter().flatten().zip(dots_g.iter().flatten());
                    sum += 2.0 * products.map(|(x, g)| rounded_up(x * g)).sum::<f32>();
                    continue;
                }
                for i in 0..DOWN {
                    for j in 0..ACROSS {
                        let (t, s) = (t0 + i, s0 + j);
                        if s <= t && t < tokens {
                            let weight = if s == t { 1.0 } else { 2.0 };
                            sum += weight * rounded_up(dots_x[i][j] * dots_g[i][j]);
                        }
                    }
                }
            }
        }
        *share = sum;
    }
}

/// Dot products of rows t0.. with rows s0.. of v (tokens, width); rows past the end repeat the last one.
///
/// # Safety
/// The processor has the vector.
#[inline(always)]
unsafe fn dots<V: Lanes, const ACROSS: usize>(
    v: &[f32],
    width: usize,
    tokens: usize,
    t0: usize,
    s0: usize,
) -> [[f32; ACROSS]; DOWN] {
    let row = |t: usize| &v[t.min(tokens - 1) * width..][..width];
    let a: [&[f32]; DOWN] = std::array::from_fn(|i| row(t0 + i));
    let b: [&[f32]; ACROSS] = std::array::from_fn(|j| row(s0 + j));
    let mut sums = [[V::zero(); ACROSS]; DOWN];
    let whole = width / V::N * V::N;
    let mut k = 0;
    while k < whole {
        // SAFETY: all rows have `width` elements, of which k + N <= whole are read; the vector is the caller's.
        unsafe {
            let b: [V; ACROSS] = std::array::from_fn(|j| V::load(b[j].as_ptr().add(k)));
            for i in 0..DOWN {
                let a = V::load(a[i].as_ptr().add(k));
                for j in 0..ACROSS {
                    sums[i][j] = sums[i][j].add_product(a, b[j]);
                }
            }
        }
        k += V::N;
    }
    // SAFETY: the caller's.
    let mut out = unsafe { V::totals(sums) };
    if whole < width {
        for (out, a) in out.iter_mut().zip(a) {
            for (out, b) in out.iter_mut().zip(b) {
                *out += a[whole..].iter().zip(&b[whole..]).map(|(a, b)| a * b).sum::<f32>();
            }
        }
    }
    out
}

/// `sum_i v_i^2`, in 16 partial sums.
pub(crate) fn sum_of_squares(v: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let chunks = v.chunks_exact(16);
    let tail: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(s, x)| *s += x * x);
    }
    sums.iter().sum::<f32>() + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    type PairSums = unsafe fn(&[f32], usize, &[f32], usize, usize, &mut [f32]);

    #[test]
    fn every_vector_gives_the_same_sums() {
        let mut kinds: Vec<(&str, PairSums)> = vec![("array", pair_sums_of::<[f32; 4], 2>)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                kinds.push(("avx2", x86::avx2));
            }
            if is_x86_feature_detected!("avx512f") {
                kinds.push(("avx512", x86::avx512));
            }
        }
        for (tokens, wx, wg) in
            [(1usize, 1usize, 1usize), (3, 4, 5), (8, 16, 17), (17, 33, 64), (65, 31, 128)]
        {
            let x: Vec<f32> = (0..tokens * wx).map(|i| (i * 7 % 13) as f32 - 6.0).collect();
            let g: Vec<f32> = (0..tokens * wg).map(|i| (i * 5 % 11) as f32 - 5.0).collect();
            let dot = |v: &[f32], w: usize, t: usize, s: usize| -> f64 {
                (0..w).map(|k| f64::from(v[t * w + k]) * f64::from(v[s * w + k])).sum()
            };
            for (name, pair_sums) in &kinds {
                let mut shares = vec![f32::NAN; usize::div_ceil(tokens, 8)];
                // SAFETY: the processor has the vector.
                unsafe { pair_sums(&x, wx, &g, wg, 8, &mut shares) };
                for (p, share) in shares.iter().enumerate() {
                    let (mut want, mut size) = (0.0, 0.0);
                    for t in p * 8..((p + 1) * 8).min(tokens) {
                        for s in 0..=t {
                            let weight = if s == t { 1.0 } else { 2.0 };
                            let term = weight * dot(&x, wx, t, s) * dot(&g, wg, t, s);
                            want += term;
                            size += term.abs();
                        }
                    }
                    let error = (f64::from(*share) - want).abs();
                    assert!(error <= 1e-5 * size, "{name} {tokens}x{wx}x{wg}: {share} for {want}");
                }
            }
        }
    }

    #[test]
    fn squares_keep_what_is_not_finite() {
        for n in [1, 15, 16, 17, 100] {
            let mut v = vec![2.0; n];
            assert_eq!(sum_of_squares(&v), 4.0 * n as f32);
            v[n / 2] = f32::NAN;
            assert!(sum_of_squares(&v).is_nan());
        }
    }
}
