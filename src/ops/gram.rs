//! Dot products of the f32 twins of the squared-norm rules, in vectors as wide as the processor has them.
//!
//! Products of a few rows by each other are too small for a general matrix product, which copies its operands
//! first: at 17 rows of 128 that costs ten times the arithmetic.

/// Rows by columns of one tile.
const TILE: usize = 4;

/// `shares_p = sum over t in rows p of sum over s <= t of w (x_t . x_s)(g_t . g_s)`, with w = 2 but for s = t, and
/// `rows` rows to a share.
pub(crate) fn pair_sums(
    x: &[f32],
    width_x: usize,
    g: &[f32],
    width_g: usize,
    rows: usize,
    shares: &mut [f32],
) {
    assert_eq!(rows % TILE, 0, "rows of a share");
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
        {
            // SAFETY: the processor has the features.
            return unsafe { pair_sums_avx512(x, width_x, g, width_g, rows, shares) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            return unsafe { pair_sums_avx2(x, width_x, g, width_g, rows, shares) };
        }
    }
    pair_sums_of::<4, false>(x, width_x, g, width_g, rows, shares);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,fma")]
fn pair_sums_avx512(x: &[f32], wx: usize, g: &[f32], wg: usize, rows: usize, shares: &mut [f32]) {
    pair_sums_of::<16, true>(x, wx, g, wg, rows, shares);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn pair_sums_avx2(x: &[f32], wx: usize, g: &[f32], wg: usize, rows: usize, shares: &mut [f32]) {
    pair_sums_of::<8, true>(x, wx, g, wg, rows, shares);
}

#[inline(always)]
fn pair_sums_of<const LANES: usize, const FMA: bool>(
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
        for t0 in (p * rows..((p + 1) * rows).min(tokens)).step_by(TILE) {
            for s0 in (0..=t0).step_by(TILE) {
                let dots_x = dots::<LANES, FMA>(x, width_x, tokens, t0, s0);
                let dots_g = dots::<LANES, FMA>(g, width_g, tokens, t0, s0);
                for i in 0..TILE {
                    for j in 0..TILE {
                        let (t, s) = (t0 + i, s0 + j);
                        if s <= t && t < tokens {
                            let weight = if s == t { 1.0 } else { 2.0 };
                            sum += weight * dots_x[i][j] * dots_g[i][j];
                        }
                    }
                }
            }
        }
        *share = sum;
    }
}

/// Dot products of rows t0.. with rows s0.. of v (tokens, width); rows past the end repeat the last one.
#[inline(always)]
fn dots<const LANES: usize, const FMA: bool>(
    v: &[f32],
    width: usize,
    tokens: usize,
    t0: usize,
    s0: usize,
) -> [[f32; TILE]; TILE] {
    let row = |t: usize| &v[t.min(tokens - 1) * width..][..width];
    let a: [&[f32]; TILE] = std::array::from_fn(|i| row(t0 + i));
    let b: [&[f32]; TILE] = std::array::from_fn(|j| row(s0 + j));
    let mut sums = [[[0.0f32; LANES]; TILE]; TILE];
    let whole = width / LANES * LANES;
    for k in (0..whole).step_by(LANES) {
        let a: [&[f32; LANES]; TILE] = a.map(|a| a[k..k + LANES].try_into().expect("LANES values"));
        let b: [&[f32; LANES]; TILE] = b.map(|b| b[k..k + LANES].try_into().expect("LANES values"));
        for i in 0..TILE {
            for j in 0..TILE {
                for l in 0..LANES {
                    let s = &mut sums[i][j][l];
                    *s = if FMA { a[i][l].mul_add(b[j][l], *s) } else { *s + a[i][l] * b[j][l] };
                }
            }
        }
    }
    let mut out = [[0.0; TILE]; TILE];
    for i in 0..TILE {
        for j in 0..TILE {
            let tail: f32 = a[i][whole..].iter().zip(&b[j][whole..]).map(|(a, b)| a * b).sum();
            out[i][j] = total(sums[i][j]) + tail;
        }
    }
    out
}

/// The sum of a vector, by halves.
#[inline(always)]
fn total<const LANES: usize>(mut v: [f32; LANES]) -> f32 {
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for l in 0..n {
            v[l] += v[l + n];
        }
    }
    v[0]
}

/// `sum_i v_i^2`, in 16 partial sums.
pub(crate) fn sum_of_squares(v: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let chunks = v.chunks_exact(16);
    let tail: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(s, x)| *s += x * x);
    }
    total(sums) + tail
}
