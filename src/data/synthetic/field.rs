//! Twin of `shaders/lib/pattern_field.wgsl`, where the families and their parameters are described.

use super::lane::Lane;
use super::pattern::{V, angle, halves, lerp, mix_one, noise, smooth, triangle, turn, unit, wave};
use super::{Ink, Shape};

#[inline(always)]
pub(super) fn julia<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let u = halves::<L>(mix_one(seed)) - V::of(0.5, 0.5);
    let (mut z, mut trap, mut stay) = (p, L::of(4.0), L::of(0.0));
    let bound = L::of(16.0);
    for _ in 0..14 {
        let (x2, y2) = (z.0 * z.0, z.1 * z.1);
        let size = x2 + y2;
        let next = V(x2 - y2 + ax, z.0 * 2.0 * z.1 + ay);
        z = V(size.if_less(bound, next.0, z.0), size.if_less(bound, next.1, z.1));
        let d = z - u;
        let near = lerp(d.length(), d.0.abs().min(d.1.abs()) * 2.0, by);
        trap = size.if_less(bound, trap.min(near), trap);
        stay = size.if_less(bound, stay + L::of(1.0) / (size * 2.0 + 1.0), stay);
    }
    let dark = L::of(1.0) - smooth(L::of(0.0), L::of(0.5), trap);
    [az * trap + aw * stay, L::of(1.05) - bx * dark, L::of(0.0)]
}

#[inline(always)]
pub(super) fn kaleidoscope<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let n = ax.floor();
    let mut q = unit(triangle(angle(p) * n) / (n * 2.0)) * p.length();
    let u = unit(aw);
    let (mut trap, mut line, mut scale) = (L::of(4.0), L::of(4.0), L::of(1.0));
    for _ in 0..5 {
        q = turn(q.abs() - V(ay, az), u) * 1.3;
        scale = scale * 1.3;
        trap = trap.min(q.length());
        line = line.min(q.0.abs() / scale);
    }
    let t = trap * bx + q.length() * 0.15 + halves::<L>(mix_one(seed)).0;
    let lines = smooth(L::of(0.0), L::of(0.06), line) * 0.9 + 0.15;
    [t, lerp(L::of(1.05), lines, by), L::of(0.0)]
}

#[inline(always)]
pub(super) fn radial<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let r = p.length();
    let u = halves::<L>(mix_one(seed));
    let petal = wave(angle(p) * ax.floor() + ay * r);
    let round = r * (petal * 0.25 * u.0 + 1.0);
    let ring = wave(round * az + u.1);
    let v = lerp(petal, ring, aw);
    let core = L::of(1.0) - smooth(L::of(0.05), L::of(0.3), r);
    [bx * round + v * 0.3 + u.0, (v * 0.25 + 1.0) / (by * r * r + 1.0), core * 0.25]
}

#[inline(always)]
pub(super) fn spirals<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let u = halves::<L>(mix_one(seed));
    let d = p - (u * 1.6 - V::of(0.8, 0.8));
    let spiral = wave(angle(p) * ax.floor() + ay * p.length().sqrt());
    let rings = wave(d.length() * az);
    let v = lerp(spiral, spiral * rings, aw);
    let hard = smooth(L::of(-0.15), L::of(0.15), v) * 2.0 - 1.0;
    let shade = by * lerp(rings, v, L::of(0.5)) + 1.0;
    [lerp(v, hard, bx) * 0.42 + 0.5 + u.0, shade, L::of(0.0)]
}

#[inline(always)]
pub(super) fn drapes<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let n = noise(p * 0.6, seed);
    let x = p.0 + ax * wave(p.1 * az + n * 0.5) + n * ay;
    let y = p.1 + ay * wave(x * 0.7 + n);
    let light = wave(x * 0.8 + wave(y * 0.5) * 0.3);
    let gloss = by * smooth(L::of(0.7), L::of(1.0), light);
    [aw * y + 0.5 + wave(x * 0.4) * 0.25, bx * light + 0.95, gloss]
}
