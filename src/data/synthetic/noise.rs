//! Twin of `shaders/lib/pattern_noise.wgsl`, where the families and their parameters are described.

use super::lane::Lane;
use super::pattern::{V, halves, lerp, low, mix_one, nearest, noise, octaves, smooth, unit, wave};
use super::{Ink, Shape};

#[inline(always)]
pub(super) fn clouds<L: Lane>(p: V<L>, [ax, ay, az, aw, ..]: Shape<L>, seed: u32) -> Ink<L> {
    let n = octaves(p, seed, ax, 5);
    let relief = noise(p, seed) - noise(p + V::of(0.15, 0.1), seed);
    let v = lerp(n, L::of(1.0) - n.abs() * 3.0, ay);
    [az * v + 0.5, aw * relief + 1.0, L::of(0.0)]
}

#[inline(always)]
pub(super) fn cells<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let near = nearest(p, seed, aw, ax);
    let v = lerp(near.first, near.second - near.first, ay);
    [v * az + bx, L::of(1.1) - by * near.first * near.first, L::of(0.0)]
}

#[inline(always)]
pub(super) fn mosaic<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let near = nearest(p, seed, aw, bx);
    let u = V(low::<L>(near.word), super::pattern::high::<L>(near.word));
    let border = L::of(1.0) - smooth(ax, ax + 0.06, near.second - near.first);
    let grain = noise(p * 4.0, seed) * az;
    let shade = (L::of(1.15) - ay * near.first + (u.1 - 0.5) * 0.4 + grain) * (L::of(1.0) - border * by);
    [u.0 * 1.4 + u.1 * 0.1, shade, border * (L::of(1.0) - by) * 0.6]
}

#[inline(always)]
pub(super) fn warp<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let x = octaves(p, seed + 11, L::of(0.5), 2);
    let y = octaves(p, seed + 23, L::of(0.5), 2);
    let n = octaves(p + V(x, y) * ax, seed, aw, 4);
    let gloss = by * smooth(L::of(0.2), L::of(0.9), n * x * 4.0);
    [ay * n + 0.5 + az * y, bx * x + 1.0, gloss]
}

#[inline(always)]
pub(super) fn maze<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let q = p + V(noise(p * 0.4, seed + 1), noise(p * 0.4, seed + 2)) * ax;
    let mut s = L::of(0.0);
    for i in 0..6u32 {
        let u = halves::<L>(mix_one(seed.wrapping_add(i.wrapping_mul(0x9e3779b9))));
        let d = unit((u.0 + i as f64) * ay);
        s = s + wave(q.dot(d) + u.1);
    }
    let s = s * 0.408;
    let v = smooth(-az, az, s + aw);
    let rim = L::of(1.0) - (v * 2.0 - 1.0).abs();
    [lerp(s * 0.3 + 0.5, v * 0.9, bx), L::of(1.0) - by * rim + s * 0.15, L::of(0.0)]
}

#[inline(always)]
pub(super) fn plasma<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let mut s = wave(p.dot(V(ax, ay)));
    for i in 0..4u32 {
        let h = mix_one(seed.wrapping_add(i.wrapping_mul(0x9e3779b9)));
        let (u, v) = (halves::<L>(h), halves::<L>(mix_one(h)));
        let d = p - (u * 4.0 - V::of(2.0, 2.0));
        s = s + wave(d.length() * (v.0 * 0.8 + 0.4) + v.1);
    }
    let t = az * s * 0.3 + 0.5;
    [lerp(t, wave(s * aw) * 0.5 + 0.5, bx), by * wave(s * 0.5) + 1.0, L::of(0.0)]
}

#[inline(always)]
pub(super) fn hills<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let u = halves::<L>(mix_one(seed));
    let d = p - V(u.0 * 1.6 - 0.8, u.1 * 0.9 - 0.9);
    let sun = L::of(1.0) - smooth(by, by + 0.04, d.length());
    let mut t = bx + p.1 * 0.25 - 0.25;
    let mut shade = p.1 * 0.2 + 1.1;
    for i in 0..5u32 {
        let k = i as f64;
        let v = halves::<L>(mix_one(seed.wrapping_add(77 + i)));
        let x = p.0 * (1.0 + 0.25 * k) + v.0 * 40.0;
        let rough = noise(V(x * 3.1, L::of(k * 9.3)), seed + 5) * aw;
        let top = v.1 * 0.2 + (k * 0.3 - 0.55) + ax * (noise(V(x, L::of(k * 7.7)), seed) + rough);
        let inside = smooth(L::of(0.0), L::of(0.02), p.1 - top);
        let below = super::pattern::clamp01(p.1 - top);
        t = lerp(t, bx + 0.3 + ay * k, inside);
        shade = lerp(shade, L::of(1.1) - az * (k * 0.16) - below * 0.35, inside);
    }
    let sky = L::of(1.0) - smooth(L::of(-0.6), L::of(0.3), p.1);
    [t, shade, sun * sky * 0.8]
}
