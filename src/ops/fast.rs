//! Elementary functions and loops of the f32 twins, written so that the compiler vectorises them.
//!
//! No fused multiply-add and no sum whose order depends on the vector width: every machine gives the same bytes.
//! Constants are fitted by `scripts/fit_erf.py`.

/// Declares functions that are compiled for the widest vector units of the x86-64 family as well, the best picked
/// when called. The body is inlined into each, so what it calls must be `#[inline(always)]`.
macro_rules! widest {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "the caller's")]
            fn body($($arg: $type),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl")]
                #[allow(clippy::too_many_arguments, reason = "the caller's")]
                fn avx512($($arg: $type),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2")]
                #[allow(clippy::too_many_arguments, reason = "the caller's")]
                fn avx2($($arg: $type),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the processor has the features, as just asked.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the features, as just asked.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    )*};
}
pub(crate) use widest;

/// Elements under which a second thread costs more than it brings.
const SMALL: usize = 32_768;
/// Elements of one task.
const TASK: usize = 16_384;

/// Rows of `width` elements per task, so that a task is worth starting; all of them when there are few.
pub(crate) fn rows_per_task(rows: usize, width: usize) -> usize {
    if rows * width < SMALL { rows.max(1) } else { (TASK / width.max(1)).max(1) }
}

/// Independent partial sums of a reduction: as many as the widest vector unit has lanes.
pub(crate) const LANES: usize = 16;

/// The sum of partial sums, in a fixed order.
#[inline(always)]
pub(crate) fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `sum f(a_i)`; element i goes to lane i mod 16.
#[inline(always)]
pub(crate) fn sum(a: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let blocks = a.chunks_exact(LANES);
    let tail = blocks.remainder();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] += f(block[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(tail) {
        *lane += f(x);
    }
    total(lanes)
}

/// `e^x` to 2e-7 for x in [-87.3, 88.3]; 0 below, `e^88.3` above. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, which is also in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; products of the first with small integers are exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let t = if x < -87.3 { -87.3 } else { x };
    let t = if t > 88.3 { 88.3 } else { t };
    let shifted = t * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (t - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.381_461_3e-3;
    p = p * r + 8.368_71e-3;
    p = p * r + 4.166_838_7e-2;
    p = p * r + 1.666_652_1e-1;
    p = p * r + 4.999_999_3e-1;
    let mantissa = r * r * p + r + 1.0;
    let bits = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let y = mantissa * f32::from_bits((bits.wrapping_add(127) << 23) as u32);
    if x < -87.3 { 0.0 } else { y }
}

/// The error function, to 5e-7. Exactly 1 from 4 on; NaN stays NaN.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let t = if x > 4.0 { 4.0 } else { x };
    let t = if t < -4.0 { -4.0 } else { t };
    let z = t * t;
    let mut p = 1.986_755e-6;
    p = p * z + 2.845_626e-4;
    p = p * z + 3.883_31e-3;
    p = p * z + 5.310_164e-2;
    p = p * z + 1.935_446_5e-1;
    p = p * z + std::f32::consts::FRAC_2_SQRT_PI;
    let mut q = 3.741_971e-5;
    q = q * z + 1.185_558e-3;
    q = q * z + 1.520_718_8e-2;
    q = q * z + 1.153_497_84e-1;
    q = q * z + 5.048_570_4e-1;
    q = q * z + 1.0;
    let y = t * p / q;
    // Saturated exactly, or x (1 + erf(x)) would not vanish for large negative x.
    let y = if x >= 4.0 { 1.0 } else { y };
    if x <= -4.0 { -1.0 } else { y }
}

/// Turns a row of scores into `e^(scale s - top)` and returns their sum.
#[inline(always)]
pub(crate) fn exp_sum(row: &mut [f32], scale: f32, top: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let mut blocks = row.chunks_exact_mut(LANES);
    for block in &mut blocks {
        for i in 0..LANES {
            block[i] = exp(block[i] * scale - top);
            lanes[i] += block[i];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(blocks.into_remainder()) {
        *x = exp(*x * scale - top);
        *lane += *x;
    }
    total(lanes)
}

/// The largest value that is not NaN; the lowest float if there is none.
#[inline(always)]
pub(crate) fn largest(row: &[f32]) -> f32 {
    let mut lanes = [f32::MIN; LANES];
    let blocks = row.chunks_exact(LANES);
    let tail = blocks.remainder();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = if block[i] > lanes[i] { block[i] } else { lanes[i] };
        }
    }
    tail.iter().chain(&lanes).fold(f32::MIN, |m, &x| if x > m { x } else { m })
}

/// `sum a_i b_i`; element i goes to lane i mod 16.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (a_blocks, b_blocks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_tail, b_tail) = (a_blocks.remainder(), b_blocks.remainder());
    for (a, b) in a_blocks.zip(b_blocks) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_tail).zip(b_tail) {
        *lane += a * b;
    }
    total(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate() {
        for i in 0..2_000_000 {
            let x = -87.0 + 175.0 * (i as f32 / 2_000_000.0);
            let want = (x as f64).exp();
            assert!((exp(x) as f64 - want).abs() <= 2e-7 * want, "exp({x}) = {}, want {want}", exp(x));
        }
        assert_eq!((exp(0.0), exp(-1e30), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn erf_is_accurate() {
        for i in 0..1_000_000 {
            let x = -5.0 + 10.0 * (i as f32 / 1_000_000.0);
            let want = libm::erf(x as f64);
            assert!((erf(x) as f64 - want).abs() <= 5e-7 * want.abs(), "erf({x}) = {}, want {want}", erf(x));
        }
        assert_eq!((erf(4.0), erf(-1e30), erf(f32::INFINITY), erf(0.0)), (1.0, -1.0, 1.0, 0.0));
        assert!(erf(f32::NAN).is_nan());
    }

    #[test]
    fn sums_take_every_element_once() {
        for n in 0..70 {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(sum(&a, |x| x + 1.0), (n * (n + 1) / 2) as f32);
        }
    }
}
