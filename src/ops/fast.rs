//! Elementary functions and sums of the f32 twins, sixteen floats at a time. NaN goes through all of them.
//! Constants are fitted by `scripts/fit_erf.py`.

use super::lanes::Lanes;

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

/// `sum a_i`
#[inline(always)]
pub(crate) fn sum<L: Lanes>(a: &[f32]) -> f32 {
    let (mut even, mut odd) = (L::splat(0.0), L::splat(0.0));
    for pair in a.chunks(32) {
        let (first, second) = pair.split_at(pair.len().min(16));
        even = even.add(L::load_some(first, 0.0));
        odd = odd.add(L::load_some(second, 0.0));
    }
    even.add(odd).total()
}

/// `sum (a_i - centre)` and `sum (a_i - centre)^2`
#[inline(always)]
pub(crate) fn deviations<L: Lanes>(a: &[f32], centre: f32) -> (f32, f32) {
    let (mut sum, mut squares) = (L::splat(0.0), L::splat(0.0));
    for block in a.chunks(16) {
        let d = L::load_some(block, centre).sub(L::splat(centre));
        sum = sum.add(d);
        squares = d.mul_add(d, squares);
    }
    (sum.total(), squares.total())
}

/// `sum a_i b_i`
#[inline(always)]
pub(crate) fn dot<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = L::splat(0.0);
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        sum = L::load_some(a, 0.0).mul_add(L::load_some(b, 0.0), sum);
    }
    sum.total()
}

/// `c_0 + c_1 x + ..`
#[inline(always)]
fn polynomial<L: Lanes, const N: usize>(x: L, c: [f32; N]) -> L {
    let mut y = L::splat(c[N - 1]);
    for i in (0..N - 1).rev() {
        y = y.mul_add(x, L::splat(c[i]));
    }
    y
}

/// `x` held between `low` and `high`.
#[inline(always)]
pub(crate) fn hold<L: Lanes>(x: L, low: f32, high: f32) -> L {
    let (low, high) = (L::splat(low), L::splat(high));
    let x = x.if_less(low, low, x);
    high.if_less(x, high, x)
}

/// `e^x` to 2e-7 for x in [-87.3, 88.3]; 0 below, `e^88.3` above.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, which then sits in the low bits.
    let round = L::splat(12_582_912.0);
    let t = hold(x, -87.3, 88.3);
    let shifted = t.mul_add(L::splat(std::f32::consts::LOG2_E), round);
    let n = shifted.sub(round);
    // ln 2 in two parts; products of the first with small integers are exact.
    let r = n.mul_add(L::splat(-0.693_359_4), t);
    let r = n.mul_add(L::splat(2.121_944_4e-4), r);
    let p = polynomial(r, [4.999_999_3e-1, 1.666_652_1e-1, 4.166_838_7e-2, 8.368_71e-3, 1.381_461_3e-3]);
    let mantissa = r.mul(r).mul_add(p, r).add(L::splat(1.0));
    let y = mantissa.mul(shifted.power_of_two());
    x.if_less(L::splat(-87.3), L::splat(0.0), y)
}

/// The error function, to 5e-7. Exactly 1 from 4 on.
#[inline(always)]
pub(crate) fn erf<L: Lanes>(x: L) -> L {
    let t = hold(x, -4.0, 4.0);
    let z = t.mul(t);
    let p = [
        std::f32::consts::FRAC_2_SQRT_PI,
        1.935_446_5e-1,
        5.310_164e-2,
        3.883_31e-3,
        2.845_626e-4,
        1.986_755e-6,
    ];
    let q = [1.0, 5.048_570_4e-1, 1.153_497_84e-1, 1.520_718_8e-2, 1.185_558e-3, 3.741_971e-5];
    let y = t.mul(polynomial(z, p)).mul(polynomial(z, q).recip());
    // Saturated exactly, or x (1 + erf(x)) would not vanish for large negative x.
    let (end, one) = (3.999_999, 1.0);
    let y = x.if_less(L::splat(-end), L::splat(-one), y);
    L::splat(end).if_less(x, L::splat(one), y)
}

/// Turns scores into `e^(scale s - top)` and returns their sum. The length is a multiple of 16.
#[inline(always)]
pub(crate) fn exp_sum<L: Lanes>(row: &mut [f32], scale: f32, top: f32) -> f32 {
    let (scale, top) = (L::splat(scale), L::splat(top));
    let mut sum = L::splat(0.0);
    for block in row.chunks_exact_mut(16) {
        let p = exp(L::load_some(block, 0.0).mul(scale).sub(top));
        p.store_some(block);
        sum = sum.add(p);
    }
    sum.total()
}

/// The largest value that is not NaN; the lowest float if there is none. The length is a multiple of 16.
#[inline(always)]
pub(crate) fn largest<L: Lanes>(row: &[f32]) -> f32 {
    let mut top = L::splat(f32::MIN);
    for block in row.chunks_exact(16) {
        let x = L::load_some(block, 0.0);
        top = top.if_less(x, x, top);
    }
    let mut tops = [0.0; 16];
    top.store(&mut tops);
    tops.iter().fold(f32::MIN, |m, &x| if x > m { x } else { m })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::lanes::in_lanes;

    in_lanes! {
        fn exps<L>(x: &[f32], y: &mut [f32]) {
            for (x, y) in x.chunks(16).zip(y.chunks_mut(16)) {
                exp(L::load_some(x, 0.0)).store_some(y);
            }
        }
        fn erfs<L>(x: &[f32], y: &mut [f32]) {
            for (x, y) in x.chunks(16).zip(y.chunks_mut(16)) {
                erf(L::load_some(x, 0.0)).store_some(y);
            }
        }
        fn sums<L>(x: &[f32]) -> [f32; 4] {
            let (d, d2) = deviations::<L>(x, 2.0);
            [sum::<L>(x), dot::<L>(x, x), d, d2]
        }
        fn tops<L>(x: &[f32]) -> f32 {
            largest::<L>(x)
        }
    }

    fn applied(f: fn(&[f32], &mut [f32]), x: &[f32]) -> Vec<f32> {
        let mut y = vec![f32::NAN; x.len()];
        f(x, &mut y);
        y
    }

    #[test]
    fn exp_is_accurate() {
        let x: Vec<f32> = (0..2_000_003).map(|i| -87.0 + 175.0 * (i as f32 / 2_000_003.0)).collect();
        for (x, y) in x.iter().zip(applied(exps, &x)) {
            let want = (*x as f64).exp();
            assert!((y as f64 - want).abs() <= 2e-7 * want, "exp({x}) = {y}, want {want}");
        }
        let y = applied(exps, &[0.0, -1e30, f32::NEG_INFINITY, f32::NAN, 1e30]);
        assert!(y[..3] == [1.0, 0.0, 0.0] && y[3].is_nan() && y[4].is_finite(), "{y:?}");
    }

    #[test]
    fn erf_is_accurate() {
        let x: Vec<f32> = (0..1_000_003).map(|i| -5.0 + 10.0 * (i as f32 / 1_000_003.0)).collect();
        for (x, y) in x.iter().zip(applied(erfs, &x)) {
            let want = libm::erf(*x as f64);
            assert!((y as f64 - want).abs() <= 5e-7 * want.abs(), "erf({x}) = {y}, want {want}");
        }
        let y = applied(erfs, &[4.0, -1e30, f32::INFINITY, 0.0, f32::NAN]);
        assert!(y[..4] == [1.0, -1.0, 1.0, 0.0] && y[4].is_nan(), "{y:?}");
    }

    #[test]
    fn sums_take_every_element_once() {
        for n in 0..100 {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let of = |f: &dyn Fn(f32) -> f32| a.iter().map(|&a| f(a)).sum::<f32>();
            let want = [of(&|a| a), of(&|a| a * a), of(&|a| a - 2.0), of(&|a| (a - 2.0) * (a - 2.0))];
            assert_eq!(sums(&a), want);
        }
        let row: Vec<f32> = (0..48).map(|i| if i == 20 { f32::NAN } else { -(i as f32) - 1.0 }).collect();
        assert_eq!(tops(&row), -1.0);
    }
}
