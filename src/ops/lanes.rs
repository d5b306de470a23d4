//! Sixteen floats at a time, in the in_lanes vectors that the processor has: the arithmetic of the f32 twins.
//!
//! Element i of a sum goes to lane i mod 16 whatever the vectors are, so that only fused multiply-adds, where there
//! are any, tell machines apart.

/// Sixteen floats. Every method may be called only where the processor has the vectors of the type, which
/// [`in_lanes!`](super::lanes::in_lanes) sees to.
pub(crate) trait Lanes: Copy {
    fn splat(x: f32) -> Self;
    fn load(from: &[f32; 16]) -> Self;
    fn store(self, to: &mut [f32; 16]);
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    /// `self * b + c`
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `1 / self`, to 2 units in the last place, for normal numbers.
    fn recip(self) -> Self;
    /// `yes` where `self < b`, else (NaN too) `no`.
    fn if_less(self, b: Self, yes: Self, no: Self) -> Self;
    /// `2^n` for floats `1.5 * 2^23 + n`.
    fn power_of_two(self) -> Self;

    /// The sum of the lanes, by halves.
    #[inline(always)]
    fn total(self) -> f32 {
        let mut x = [0.0; 16];
        self.store(&mut x);
        let eight: [f32; 8] = std::array::from_fn(|i| x[i] + x[i + 8]);
        let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    /// As many floats as there are, up to sixteen; `fill` for the others.
    #[inline(always)]
    fn load_some(from: &[f32], fill: f32) -> Self {
        match from.first_chunk() {
            Some(all) => Self::load(all),
            None => {
                let mut x = [fill; 16];
                x[..from.len()].copy_from_slice(from);
                Self::load(&x)
            }
        }
    }

    /// Stores as many floats as there is room for, up to sixteen.
    #[inline(always)]
    fn store_some(self, to: &mut [f32]) {
        match to.first_chunk_mut() {
            Some(all) => self.store(all),
            None => {
                let mut x = [0.0; 16];
                self.store(&mut x);
                let n = to.len();
                to.copy_from_slice(&x[..n]);
            }
        }
    }
}

/// Without vectors of the processor's own.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; 16]);

impl Plain {
    #[inline(always)]
    fn with(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Plain(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }
}

impl Lanes for Plain {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Plain([x; 16])
    }
    #[inline(always)]
    fn load(from: &[f32; 16]) -> Self {
        Plain(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; 16]) {
        *to = self.0;
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.with(b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self.with(b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.with(b, |a, b| a * b)
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        self.mul(b).add(c)
    }
    #[inline(always)]
    fn recip(self) -> Self {
        self.with(self, |a, _| 1.0 / a)
    }
    #[inline(always)]
    fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
        Plain(std::array::from_fn(|i| if self.0[i] < b.0[i] { yes.0[i] } else { no.0[i] }))
    }
    #[inline(always)]
    fn power_of_two(self) -> Self {
        self.with(self, |a, _| f32::from_bits(a.to_bits().wrapping_shl(23).wrapping_add(0x3f80_0000)))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::Lanes;

    /// One vector of AVX-512.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512);

    /// Two vectors of AVX2.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256, __m256);

    // SAFETY, of all blocks below: the processor has the vectors, as the trait demands of callers; loads and
    // stores are unaligned and inside their arrays.
    impl Lanes for Avx512 {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            Avx512(unsafe { _mm512_set1_ps(x) })
        }
        #[inline(always)]
        fn load(from: &[f32; 16]) -> Self {
            Avx512(unsafe { _mm512_loadu_ps(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut [f32; 16]) {
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, b: Self) -> Self {
            Avx512(unsafe { _mm512_add_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            Avx512(unsafe { _mm512_sub_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            Avx512(unsafe { _mm512_mul_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            Avx512(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
        }
        #[inline(always)]
        fn recip(self) -> Self {
            // Newton's step doubles the 14 good bits.
            let guess = Avx512(unsafe { _mm512_rcp14_ps(self.0) });
            let error = Self::splat(1.0).sub(self.mul(guess));
            guess.mul_add(error, guess)
        }
        #[inline(always)]
        fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
            Avx512(unsafe {
                let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, b.0);
                _mm512_mask_blend_ps(less, no.0, yes.0)
            })
        }
        #[inline(always)]
        fn power_of_two(self) -> Self {
            Avx512(unsafe {
                let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
                _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f80_0000)))
            })
        }
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            let x = unsafe { _mm256_set1_ps(x) };
            Avx2(x, x)
        }
        #[inline(always)]
        fn load(from: &[f32; 16]) -> Self {
            let at = from.as_ptr();
            unsafe { Avx2(_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))) }
        }
        #[inline(always)]
        fn store(self, to: &mut [f32; 16]) {
            let at = to.as_mut_ptr();
            unsafe {
                _mm256_storeu_ps(at, self.0);
                _mm256_storeu_ps(at.add(8), self.1);
            }
        }
        #[inline(always)]
        fn add(self, b: Self) -> Self {
            unsafe { Avx2(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
        }
        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            unsafe { Avx2(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
        }
        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            unsafe { Avx2(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
        }
        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { Avx2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
        }
        #[inline(always)]
        fn recip(self) -> Self {
            let one = Self::splat(1.0);
            unsafe { Avx2(_mm256_div_ps(one.0, self.0), _mm256_div_ps(one.1, self.1)) }
        }
        #[inline(always)]
        fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
            unsafe {
                let less = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, b.0);
                let more = _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, b.1);
                Avx2(_mm256_blendv_ps(no.0, yes.0, less), _mm256_blendv_ps(no.1, yes.1, more))
            }
        }
        #[inline(always)]
        fn power_of_two(self) -> Self {
            unsafe {
                let one = _mm256_set1_epi32(0x3f80_0000);
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
                let m = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.1));
                let power = (_mm256_add_epi32(n, one), _mm256_add_epi32(m, one));
                Avx2(_mm256_castsi256_ps(power.0), _mm256_castsi256_ps(power.1))
            }
        }
    }
}

/// Declares functions compiled for each kind of vector, the best picked when called. The body sees the kind as `L`;
/// it is inlined, so what it calls must be `#[inline(always)]`.
macro_rules! in_lanes {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident<L>($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "the caller's")]
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, clippy::extra_unused_type_parameters, reason = "the caller's")]
            fn body<L: $crate::ops::lanes::Lanes>($($arg: $type),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,fma")]
                #[allow(clippy::too_many_arguments, reason = "the caller's")]
                fn avx512($($arg: $type),*) $(-> $ret)? {
                    body::<$crate::ops::lanes::x86::Avx512>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments, reason = "the caller's")]
                fn avx2($($arg: $type),*) $(-> $ret)? {
                    body::<$crate::ops::lanes::x86::Avx2>($($arg),*)
                }
                let fma = is_x86_feature_detected!("fma");
                if fma
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                {
                    // SAFETY: the processor has the features, as just asked.
                    return unsafe { avx512($($arg),*) };
                }
                if fma && is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the features, as just asked.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body::<$crate::ops::lanes::Plain>($($arg),*)
        }
    )*};
}
pub(crate) use in_lanes;

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees<L: Lanes>() {
        let x: [f32; 16] = std::array::from_fn(|i| 0.37 * i as f32 - 2.0);
        let y: [f32; 16] = std::array::from_fn(|i| 1.5 - 0.21 * i as f32);
        fn pair<L: Lanes>(x: &[f32; 16], y: &[f32; 16]) -> Vec<f32> {
            let (a, b) = (L::load(x), L::load(y));
            let shifted = L::splat(12_582_912.0 - 3.0);
            let all = [a.add(b), a.sub(b), a.mul(b), a.mul_add(b, a), a.recip(), a.if_less(b, a, b)];
            let mut out = vec![a.total(), L::load_some(&x[..5], 7.0).total()];
            for v in all.into_iter().chain([shifted.power_of_two()]) {
                let mut some = [0.0; 21];
                v.store_some(&mut some[..16]);
                v.store_some(&mut some[16..]);
                out.extend(some);
            }
            out
        }
        let (got, want) = (pair::<L>(&x, &y), pair::<Plain>(&x, &y));
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!((g - w).abs() <= 3e-7 * w.abs().max(1.0), "{i}: {g}, want {w}");
        }
    }

    #[test]
    fn all_vectors_compute_the_same() {
        agrees::<Plain>();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                agrees::<x86::Avx512>();
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                agrees::<x86::Avx2>();
            }
        }
        assert_eq!(Plain::splat(12_582_912.0 - 3.0).power_of_two().total(), 2.0);
    }
}
