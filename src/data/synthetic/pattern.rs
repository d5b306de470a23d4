//! Twin of `shaders/lib/pattern.wgsl`: hashes, waves, noise and cells. The same formulas in the same order.

use std::ops::{Add, Mul, Sub};

use super::lane::{Bits, Lane};

/// A point of the plane, or a difference of two.
#[derive(Clone, Copy)]
pub(super) struct V<L>(pub L, pub L);

impl<L: Lane> Add for V<L> {
    type Output = Self;
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        V(self.0 + b.0, self.1 + b.1)
    }
}
impl<L: Lane> Sub for V<L> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        V(self.0 - b.0, self.1 - b.1)
    }
}
impl<L: Lane> Mul<L> for V<L> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, b: L) -> Self {
        V(self.0 * b, self.1 * b)
    }
}
impl<L: Lane> Mul<f64> for V<L> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, b: f64) -> Self {
        V(self.0 * b, self.1 * b)
    }
}
impl<L: Lane> V<L> {
    #[inline(always)]
    pub fn of(x: f64, y: f64) -> Self {
        V(L::of(x), L::of(y))
    }
    #[inline(always)]
    pub fn dot(self, b: Self) -> L {
        self.0 * b.0 + self.1 * b.1
    }
    #[inline(always)]
    pub fn length(self) -> L {
        self.dot(self).sqrt()
    }
    #[inline(always)]
    pub fn floor(self) -> Self {
        V(self.0.floor(), self.1.floor())
    }
    #[inline(always)]
    pub fn abs(self) -> Self {
        V(self.0.abs(), self.1.abs())
    }
}

/// The words of a lattice point.
#[inline(always)]
pub(super) fn cell<L: Lane>(p: V<L>) -> [L::Bits; 2] {
    [p.0.to_bits(), p.1.to_bits()]
}

#[inline(always)]
pub(super) fn mix<B: Bits>(x: B) -> B {
    let h = (x ^ (x >> 16)) * 0x21f0aaad;
    let h = (h ^ (h >> 15)) * 0x735a2d97;
    h ^ (h >> 15)
}

/// [`mix`] of one word, for what is the same in all samples.
pub(super) fn mix_one(x: u32) -> u32 {
    mix(super::lane::Word(x)).0
}

#[inline(always)]
pub(super) fn hash<B: Bits>(c: [B; 2], seed: u32) -> B {
    mix((c[0] * 0x9e3779b1 + seed) ^ (c[1] * 0x85ebca77))
}

#[inline(always)]
pub(super) fn low<L: Lane>(h: L::Bits) -> L {
    L::from_bits(h & 0xffff) * (1.0 / 65536.0)
}

#[inline(always)]
pub(super) fn high<L: Lane>(h: L::Bits) -> L {
    L::from_bits(h >> 16) * (1.0 / 65536.0)
}

/// [`low`] and [`high`] of a word that is the same in all samples.
#[inline(always)]
pub(super) fn halves<L: Lane>(h: u32) -> V<L> {
    V(L::of((h & 0xffff) as f64 / 65536.0), L::of((h >> 16) as f64 / 65536.0))
}

#[inline(always)]
pub(super) fn lerp<L: Lane>(a: L, b: L, t: L) -> L {
    a + (b - a) * t
}

#[inline(always)]
pub(super) fn clamp01<L: Lane>(x: L) -> L {
    x.max(L::of(0.0)).min(L::of(1.0))
}

#[inline(always)]
pub(super) fn smooth<L: Lane>(lo: L, hi: L, x: L) -> L {
    let t = clamp01((x - lo) / (hi - lo));
    t * t * (L::of(3.0) - t * 2.0)
}

#[inline(always)]
pub(super) fn fract<L: Lane>(x: L) -> L {
    x - x.floor()
}

#[inline(always)]
pub(super) fn wave<L: Lane>(t: L) -> L {
    let x = t - (t + 0.5).floor();
    let y = L::of(0.25) - x.abs();
    let z = y * y;
    let s = z * -15.094643 + 42.058693;
    let s = s * z - 76.70586;
    let s = s * z + 81.60525;
    let s = s * z - 41.341702;
    let s = s * z + 6.2831855;
    s * y
}

#[inline(always)]
pub(super) fn triangle<L: Lane>(t: L) -> L {
    (t - (t + 0.5).floor()).abs() * 2.0
}

#[inline(always)]
pub(super) fn unit<L: Lane>(turns: L) -> V<L> {
    V(wave(turns), wave(turns - 0.25))
}

#[inline(always)]
pub(super) fn turn<L: Lane>(p: V<L>, u: V<L>) -> V<L> {
    V(p.0 * u.0 - p.1 * u.1, p.0 * u.1 + p.1 * u.0)
}

#[inline(always)]
pub(super) fn angle<L: Lane>(p: V<L>) -> L {
    let V(x, y) = p.abs();
    let r = x.min(y) / x.max(y).max(L::of(1e-6));
    let z = r * r;
    let s = z * 0.0208351 - 0.085133;
    let s = s * z + 0.180141;
    let s = s * z - 0.3302995;
    let s = s * z + 0.999866;
    let t = s * r * 0.15915494;
    let t = x.if_less(y, L::of(0.25) - t, t);
    let t = p.0.if_less(L::of(0.0), L::of(0.5) - t, t);
    p.1.if_less(L::of(0.0), -t, t)
}

#[inline(always)]
fn corner<L: Lane>(c: [L::Bits; 2], seed: u32, d: V<L>) -> L {
    let h = hash(c, seed);
    (low::<L>(h) * 2.0 - 1.0) * d.0 + (high::<L>(h) * 2.0 - 1.0) * d.1
}

#[inline(always)]
fn ease<L: Lane>(f: L) -> L {
    f * f * f * (f * (f * 6.0 - 15.0) + 10.0)
}

#[inline(always)]
pub(super) fn noise<L: Lane>(p: V<L>, seed: u32) -> L {
    let i = p.floor();
    let f = p - i;
    let c = cell(i);
    let (w, e) = (c[0], c[0] + 1);
    let (n, s) = (c[1], c[1] + 1);
    let a = corner([w, n], seed, f);
    let b = corner([e, n], seed, f - V::of(1.0, 0.0));
    let c = corner([w, s], seed, f - V::of(0.0, 1.0));
    let d = corner([e, s], seed, f - V::of(1.0, 1.0));
    let u = ease(f.0);
    lerp(lerp(a, b, u), lerp(c, d, u), ease(f.1))
}

#[inline(always)]
pub(super) fn octaves<L: Lane>(p: V<L>, seed: u32, gain: L, count: u32) -> L {
    let (mut q, mut amplitude) = (p, L::of(1.0));
    let (mut sum, mut total) = (L::of(0.0), L::of(0.0));
    for i in 0..count {
        sum = sum + noise(q, seed.wrapping_add(i.wrapping_mul(0x3c6ef35f))) * amplitude;
        total = total + amplitude;
        amplitude = amplitude * gain;
        q = V(q.0 * 1.6 + q.1 * 1.2 + 3.7, q.1 * 1.6 - q.0 * 1.2 + 1.9);
    }
    sum * 2.0 / total
}

/// Nearest and second nearest distance, and the word of the nearest.
pub(super) struct Near<L: Lane> {
    pub first: L,
    pub second: L,
    pub word: L::Bits,
}

#[inline(always)]
pub(super) fn nearest<L: Lane>(p: V<L>, seed: u32, jitter: L, metric: L) -> Near<L> {
    let base = p.floor();
    let f = p - base;
    let c = cell(base);
    let mut near = Near { first: L::of(9.0), second: L::of(9.0), word: c[0] };
    for k in 0..9u32 {
        let (dx, dy) = ((k % 3) as f64 - 1.0, (k / 3) as f64 - 1.0);
        let h = hash([c[0] + (k % 3).wrapping_sub(1), c[1] + (k / 3).wrapping_sub(1)], seed);
        let o = V((low::<L>(h) - 0.5) * jitter + 0.5, (high::<L>(h) - 0.5) * jitter + 0.5);
        let d = (V::of(dx, dy) + o - f).abs();
        let d = lerp(d.length(), (d.0 + d.1) * 0.8, metric);
        near.second = near.second.min(near.first.max(d));
        near.word = d.bits_if_less(near.first, h, near.word);
        near.first = near.first.min(d);
    }
    near
}
