//! Several samples at once: the arithmetic of the pattern twins, one sample (any float type, the oracle) or as
//! many as a vector of the processor holds. Every lane computes what one sample would, to the bit.

use std::ops::{Add, BitAnd, BitXor, Div, Mul, Neg, Shr, Sub};

use crate::kernel::Real;

/// Floats of one or more samples. Constants of a formula are `f64` and are rounded once.
pub(super) trait Lane:
    Copy
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Add<f64, Output = Self>
    + Sub<f64, Output = Self>
    + Mul<f64, Output = Self>
{
    /// Samples held.
    const N: usize;
    /// A `u32` per sample.
    type Bits: Bits;
    /// The same value in every sample.
    fn of(x: f64) -> Self;
    /// One value per sample: `N` of them.
    fn load(x: &[f32]) -> Self;
    /// The values, as the element type `F` of an output.
    fn store<F: Real>(self, out: &mut [F]);
    /// Largest whole number not above.
    fn floor(self) -> Self;
    /// Square root of a number that is not negative.
    fn sqrt(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// `yes` where `self < than`, else `no`.
    fn if_less(self, than: Self, yes: Self, no: Self) -> Self;
    /// As [`if_less`](Self::if_less), of words.
    fn bits_if_less(self, than: Self, yes: Self::Bits, no: Self::Bits) -> Self::Bits;
    /// A whole number as a two's complement word.
    fn to_bits(self) -> Self::Bits;
    /// A word below 2^24 as a number.
    fn from_bits(x: Self::Bits) -> Self;
    /// The smaller.
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        self.if_less(b, self, b)
    }
    /// The larger.
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        b.if_less(self, self, b)
    }
}

/// Words of one or more samples, modulo 2^32.
pub(super) trait Bits:
    Copy
    + Add<Output = Self>
    + Add<u32, Output = Self>
    + Mul<u32, Output = Self>
    + BitXor<Output = Self>
    + BitAnd<u32, Output = Self>
    + Shr<u32, Output = Self>
{
}

/// One sample.
#[derive(Clone, Copy)]
pub(super) struct One<F>(pub F);

/// Its word.
#[derive(Clone, Copy)]
pub(super) struct Word(pub u32);

macro_rules! binary {
    ($($trait:ident $method:ident $op:tt),*) => {$(
        impl<F: Real> $trait for One<F> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, b: Self) -> Self { One(self.0 $op b.0) }
        }
        impl<F: Real> $trait<f64> for One<F> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, b: f64) -> Self { One(self.0 $op F::of(b)) }
        }
    )*};
}
binary!(Add add +, Sub sub -, Mul mul *, Div div /);

impl<F: Real> Neg for One<F> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        // As the vectors do it: the same zero.
        One(F::zero() - self.0)
    }
}

impl<F: Real> Lane for One<F> {
    const N: usize = 1;
    type Bits = Word;
    #[inline(always)]
    fn of(x: f64) -> Self {
        One(F::of(x))
    }
    #[inline(always)]
    fn load(x: &[f32]) -> Self {
        One(F::of(x[0] as f64))
    }
    #[inline(always)]
    fn store<G: Real>(self, out: &mut [G]) {
        out[0] = G::of(self.0.as_f64());
    }
    #[inline(always)]
    fn floor(self) -> Self {
        One(self.0.floor())
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        One(self.0.sqrt())
    }
    #[inline(always)]
    fn abs(self) -> Self {
        One(self.0.abs())
    }
    #[inline(always)]
    fn if_less(self, than: Self, yes: Self, no: Self) -> Self {
        if self.0 < than.0 { yes } else { no }
    }
    #[inline(always)]
    fn bits_if_less(self, than: Self, yes: Word, no: Word) -> Word {
        if self.0 < than.0 { yes } else { no }
    }
    #[inline(always)]
    fn to_bits(self) -> Word {
        Word(self.0.to_i32().unwrap_or(i32::MIN) as u32)
    }
    #[inline(always)]
    fn from_bits(x: Word) -> Self {
        One(F::of(x.0 as f64))
    }
}

macro_rules! word {
    ($($trait:ident $method:ident $apply:ident),*) => {$(
        impl $trait<u32> for Word {
            type Output = Self;
            #[inline(always)]
            fn $method(self, b: u32) -> Self { Word(self.0.$apply(b)) }
        }
    )*};
}
word!(Add add wrapping_add, Mul mul wrapping_mul, BitAnd bitand bitand, Shr shr wrapping_shr);

impl Add for Word {
    type Output = Self;
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Word(self.0.wrapping_add(b.0))
    }
}
impl BitXor for Word {
    type Output = Self;
    #[inline(always)]
    fn bitxor(self, b: Self) -> Self {
        Word(self.0 ^ b.0)
    }
}
impl Bits for Word {}

/// Vectors of x86-64. Private to the twins of this folder, which make them only in functions that were entered
/// after the processor was asked for the vector: that is what every `unsafe` below relies on.
#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;
    use std::ops::{Add, BitAnd, BitXor, Div, Mul, Neg, Shr, Sub};

    use super::{Bits, Lane};
    use crate::kernel::Real;

    macro_rules! vector {
        ($lane:ident, $bits:ident, $f:ty, $i:ty, $n:literal, $set1:ident, $loadu:ident, $storeu:ident,
         $set1i:ident, $srl:ident, $and:ident, $xor:ident, $addi:ident, $muli:ident, $cvtt:ident, $cvt:ident,
         $sqrt:ident, [$($trait:ident $method:ident $op:ident),*],
         floor $floor:expr, abs $abs:expr, pick $pick:expr, pick_bits $pick_bits:expr) => {
            #[derive(Clone, Copy)]
            pub struct $lane($f);
            #[derive(Clone, Copy)]
            pub struct $bits($i);
            $(
                impl $trait for $lane {
                    type Output = Self;
                    #[inline(always)]
                    fn $method(self, b: Self) -> Self {
                        // SAFETY: see the module.
                        $lane(unsafe { $op(self.0, b.0) })
                    }
                }
                impl $trait<f64> for $lane {
                    type Output = Self;
                    #[inline(always)]
                    fn $method(self, b: f64) -> Self {
                        // SAFETY: see the module.
                        $lane(unsafe { $op(self.0, $set1(b as f32)) })
                    }
                }
            )*
            impl Neg for $lane {
                type Output = Self;
                #[inline(always)]
                fn neg(self) -> Self {
                    Self::of(0.0) - self
                }
            }
            impl Lane for $lane {
                const N: usize = $n;
                type Bits = $bits;
                #[inline(always)]
                fn of(x: f64) -> Self {
                    // SAFETY: see the module.
                    $lane(unsafe { $set1(x as f32) })
                }
                #[inline(always)]
                fn load(x: &[f32]) -> Self {
                    assert!(x.len() >= $n);
                    // SAFETY: the slice is long enough; see the module.
                    $lane(unsafe { $loadu(x.as_ptr()) })
                }
                #[inline(always)]
                fn store<F: Real>(self, out: &mut [F]) {
                    let mut values = [0f32; $n];
                    // SAFETY: the array is long enough; see the module.
                    unsafe { $storeu(values.as_mut_ptr(), self.0) };
                    for (out, x) in out.iter_mut().zip(values) {
                        *out = F::of(x as f64);
                    }
                }
                #[inline(always)]
                fn floor(self) -> Self {
                    // SAFETY: see the module.
                    $lane(unsafe { $floor(self.0) })
                }
                #[inline(always)]
                fn sqrt(self) -> Self {
                    // SAFETY: see the module.
                    $lane(unsafe { $sqrt(self.0) })
                }
                #[inline(always)]
                fn abs(self) -> Self {
                    // SAFETY: see the module.
                    $lane(unsafe { $abs(self.0) })
                }
                #[inline(always)]
                fn if_less(self, than: Self, yes: Self, no: Self) -> Self {
                    // SAFETY: see the module.
                    $lane(unsafe { $pick(self.0, than.0, yes.0, no.0) })
                }
                #[inline(always)]
                fn bits_if_less(self, than: Self, yes: $bits, no: $bits) -> $bits {
                    // SAFETY: see the module.
                    $bits(unsafe { $pick_bits(self.0, than.0, yes.0, no.0) })
                }
                #[inline(always)]
                fn to_bits(self) -> $bits {
                    // SAFETY: see the module.
                    $bits(unsafe { $cvtt(self.0) })
                }
                #[inline(always)]
                fn from_bits(x: $bits) -> Self {
                    // SAFETY: see the module.
                    $lane(unsafe { $cvt(x.0) })
                }
            }
            impl Add for $bits {
                type Output = Self;
                #[inline(always)]
                fn add(self, b: Self) -> Self {
                    // SAFETY: see the module.
                    $bits(unsafe { $addi(self.0, b.0) })
                }
            }
            impl Add<u32> for $bits {
                type Output = Self;
                #[inline(always)]
                fn add(self, b: u32) -> Self {
                    // SAFETY: see the module.
                    $bits(unsafe { $addi(self.0, $set1i(b as i32)) })
                }
            }
            impl Mul<u32> for $bits {
                type Output = Self;
                #[inline(always)]
                fn mul(self, b: u32) -> Self {
                    // SAFETY: see the module.
                    $bits(unsafe { $muli(self.0, $set1i(b as i32)) })
                }
            }
            impl BitXor for $bits {
                type Output = Self;
                #[inline(always)]
                fn bitxor(self, b: Self) -> Self {
                    // SAFETY: see the module.
                    $bits(unsafe { $xor(self.0, b.0) })
                }
            }
            impl BitAnd<u32> for $bits {
                type Output = Self;
                #[inline(always)]
                fn bitand(self, b: u32) -> Self {
                    // SAFETY: see the module.
                    $bits(unsafe { $and(self.0, $set1i(b as i32)) })
                }
            }
            impl Shr<u32> for $bits {
                type Output = Self;
                #[inline(always)]
                fn shr(self, b: u32) -> Self {
                    // SAFETY: see the module.
                    $bits(unsafe { $srl(self.0, _mm_cvtsi32_si128(b as i32)) })
                }
            }
            impl Bits for $bits {}
        };
    }

    vector!(Eight, EightBits, __m256, __m256i, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps,
    _mm256_set1_epi32, _mm256_srl_epi32, _mm256_and_si256, _mm256_xor_si256, _mm256_add_epi32,
    _mm256_mullo_epi32, _mm256_cvttps_epi32, _mm256_cvtepi32_ps, _mm256_sqrt_ps,
    [Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps],
    floor |x| _mm256_floor_ps(x),
    abs |x| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x),
    pick |a, b, yes, no| _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)),
    pick_bits |a, b, yes, no| {
        _mm256_blendv_epi8(no, yes, _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    });
    vector!(Sixteen, SixteenBits, __m512, __m512i, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps,
        _mm512_set1_epi32, _mm512_srl_epi32, _mm512_and_si512, _mm512_xor_si512, _mm512_add_epi32,
        _mm512_mullo_epi32, _mm512_cvttps_epi32, _mm512_cvtepi32_ps, _mm512_sqrt_ps,
        [Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps],
        floor |x| _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x),
        abs |x| _mm512_abs_ps(x),
        pick |a, b, yes, no| _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes),
        pick_bits |a, b, yes, no| _mm512_mask_blend_epi32(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes));
}
