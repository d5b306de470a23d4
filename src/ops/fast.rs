//! Elementwise functions of the f32 twins, branch-free so that they vectorise, compiled for the widest vectors
//! that the processor has. NaN goes through all of them.

/// Defines a function over slices that runs its body in the widest vectors at hand.
macro_rules! widest {
    ($(#[$doc:meta])* pub(crate) fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        pub(crate) fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("fma")
                {
                    // SAFETY: the processor has the features.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has the features.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use widest;

/// `e^x` to about 2 units in the last place for x in (-87, 88); 0 below, large and finite above.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons, not `clamp`: a NaN must stay one.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    // Adding 1.5 * 2^23 rounds to the nearest integer, which then sits in the low bits.
    let shifted = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    // Taylor's series of e^r on |r| <= ln 2 / 2: the remainder is below half a unit in the last place.
    let p = 1.0
        + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))))));
    let power = f32::from_bits(shifted.to_bits().wrapping_shl(23).wrapping_add(0x3f80_0000));
    let y = p * power;
    if x <= -87.0 { 0.0 } else { y }
}

/// The error function as `x P(x^2) / Q(x^2)`; coefficients by `scripts/fit_erf.py`, error below 4e-7.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let z = x * x;
    let p = std::f32::consts::FRAC_2_SQRT_PI
        + z * (2.001_676_4e-1
            + z * (5.060_314e-2
                + z * (3.709_536_5e-3 + z * (1.418_497e-4 + z * (-1.953_456_6e-6 + z * 1.984_125_2e-8)))));
    let q = 1.0 + z * (0.510_725_7 + z * (0.115_096_49 + z * (1.437_161e-2 + z * 9.573_302e-4)));
    let y = x * (p / q);
    let y = if x > 3.925 { 1.0 } else { y };
    if x < -3.925 { -1.0 } else { y }
}

/// `1 / sqrt(2 pi)`
const INV_SQRT_TAU: f32 = 0.398_942_3;

widest! {
    /// `y = x Phi(x)`.
    pub(crate) fn gelu(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
        }
    }
}

widest! {
    /// `dx (+)= dy (Phi(x) + x phi(x))`.
    pub(crate) fn gelu_backward(x: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool) {
        let keep = if accumulate { 1.0 } else { 0.0 };
        for ((d, &x), &g) in dx.iter_mut().zip(x).zip(dy) {
            let cdf = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
            let slope = cdf + x * INV_SQRT_TAU * exp(-0.5 * x * x);
            let slope = if x > 12.0 { 1.0 } else { slope };
            let slope = if x < -12.0 { 0.0 } else { slope };
            let held = if keep == 0.0 { 0.0 } else { *d };
            *d = held + g * slope;
        }
    }
}

widest! {
    /// Turns a row of scores into `e^(scale s - max)` and returns their sum; `max` is that of the scaled row.
    pub(crate) fn exp_row(row: &mut [f32], scale: f32, max: f32) -> f32 {
        let mut sums = [0.0f32; 16];
        let mut chunks = row.chunks_exact_mut(16);
        for chunk in &mut chunks {
            for (s, x) in sums.iter_mut().zip(chunk) {
                *x = exp(*x * scale - max);
                *s += *x;
            }
        }
        let mut tail = 0.0;
        for x in chunks.into_remainder() {
            *x = exp(*x * scale - max);
            tail += *x;
        }
        sums.iter().sum::<f32>() + tail
    }
}

widest! {
    /// The largest value; NaN if there is one.
    pub(crate) fn max_row(row: &[f32]) -> f32 {
        let mut best = f32::MIN;
        let mut nan = false;
        for &x in row {
            best = if x > best { x } else { best };
            nan |= x.is_nan();
        }
        if nan { f32::NAN } else { best }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_and_exp_are_close() {
        for i in -60_000..60_000 {
            let x = i as f32 / 5000.0;
            assert!((erf(x) as f64 - libm::erf(x as f64)).abs() <= 4e-7, "erf({x})");
            let want = ((x * 7.0) as f64).exp();
            assert!((exp(x * 7.0) as f64 - want).abs() <= 3e-6 * want, "exp({})", x * 7.0);
        }
        assert!(erf(f32::NAN).is_nan() && exp(f32::NAN).is_nan());
        assert_eq!((erf(f32::MAX), erf(f32::MIN), exp(-1e30)), (1.0, -1.0, 0.0));
        assert!(exp(1e30).is_finite() && max_row(&[1.0, f32::NAN, 2.0]).is_nan());
    }
}
