//! Twin of `shaders/lib/pattern_shape.wgsl`, where the families and their parameters are described.

use super::lane::Lane;
use super::pattern::{V, angle, cell, halves, hash, high, lerp, low, mix, mix_one, smooth, turn, unit, wave};
use super::{Ink, Shape};

/// The word of body `i`, the same in all samples.
fn body(seed: u32, i: u32) -> u32 {
    mix_one(seed.wrapping_add(i.wrapping_mul(0x9e3779b9)))
}

#[inline(always)]
pub(super) fn blobs<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let (mut field, mut colour, mut slope) = (L::of(0.0), L::of(0.0), V::<L>::of(0.0, 0.0));
    for i in 0..7 {
        let h = body(seed, i);
        let (u, v) = (halves::<L>(h), halves::<L>(mix_one(h)));
        let d = p - (u * 2.2 - V::of(1.1, 1.1));
        let r = v.0 * 0.35 + 0.15;
        let w = L::of(1.0) / (d.dot(d) + 0.02);
        let g = r * r * w;
        field = field + g;
        colour = colour + g * v.1;
        slope = slope + d * (g * w);
    }
    let v = field - ax;
    let inside = smooth(L::of(0.0), L::of(0.12), v);
    let steep = L::of(1.0) / (slope.dot(slope) + 0.2 + v * v).sqrt();
    let light = slope.dot(unit(ay)) * steep;
    let gloss = smooth(L::of(0.6), L::of(0.9), light) * az * inside;
    let outside = bx + aw * field * 0.4 + wave(field * by) * 0.1;
    let t = lerp(outside, colour / field + 0.1, inside);
    [t, lerp(L::of(0.9), light * 0.4 + 0.8, inside), gloss]
}

#[inline(always)]
pub(super) fn shapes<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let one = L::of(1.0);
    let mut t = by + p.1 * 0.15;
    let mut shade = one - p.0 * 0.1;
    for i in 0..9 {
        let h1 = body(seed, i);
        let h2 = mix_one(h1);
        let (u, v, w) = (halves::<L>(h1), halves::<L>(h2), halves::<L>(mix_one(h2)));
        let size = (v.0 * v.0 * 0.45 + 0.2) * ax;
        let q = turn(p - (u * 2.4 - V::of(1.2, 1.2)), unit(v.1));
        let q = V(q.0, q.1 * (w.0 + 1.0));
        let (x2, y2) = (q.0 * q.0, q.1 * q.1);
        let r = (x2 + y2).sqrt();
        let boxed = (x2 * x2 + y2 * y2).sqrt().sqrt() - size;
        let sides = (w.0 * 4.0).floor() + 3.0;
        let k = angle(q) * sides;
        let polygon = r * wave((k - (k + 0.5).floor()) / sides) - size * 0.8;
        let ring = (r - size * 0.8).abs() - size * 0.25;
        let d = w.1.if_less(L::of(0.4), boxed, w.1.if_less(L::of(0.8), polygon, ring));
        let inside = one - smooth(L::of(-0.012), L::of(0.012), d);
        let shadow = one - aw * (one - smooth(L::of(0.0), L::of(0.22), d));
        let outline = one - smooth(bx, bx + 0.02, (d + bx).abs());
        let body = (az * (q.0 + q.1) / size + 1.0) * (one - ay * outline);
        t = lerp(t, u.0 * 0.6 + v.0 * 0.8, inside);
        shade = lerp(shade * shadow, body, inside);
    }
    [t, shade, L::of(0.0)]
}

#[inline(always)]
pub(super) fn leaves<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let one = L::of(1.0);
    let (mut t, mut shade, mut gloss, mut scale) = (L::of(0.0), L::of(0.6), L::of(0.0), L::of(0.55));
    for i in 0..6u32 {
        let o = halves::<L>(mix_one(seed.wrapping_add(31 + i)));
        let q = turn(p, unit(o.0)) * scale + o * 17.0;
        let base = (q - V::of(0.5, 0.5)).floor();
        let c = cell(base);
        let mut first = L::of(-1.0);
        for k in 0..4u32 {
            let (dx, dy) = (k & 1, k >> 1);
            let h = hash([c[0] + dx, c[1] + dy], seed.wrapping_add(i));
            let g = mix(h);
            let (u, v) = (V(low::<L>(h), high::<L>(h)), V(low::<L>(g), high::<L>(g)));
            let corner = q - base - V::of(dx as f64, dy as f64) - V::of(0.5, 0.5);
            let d = corner - (u - V::of(0.5, 0.5)) * 0.5;
            let r = v.0 * 0.35 + 0.3;
            let e = lerp(d.length(), d.0.abs().max(d.1.abs()) * 1.1, az) / r;
            let rim = smooth(L::of(0.86), L::of(0.95), e) * ay;
            let lit = (L::of(1.15) - ax * e * e - ax * 0.2 * (d.0 + d.1) / r) * (one - rim);
            let spot = (d + V::of(0.1, 0.1)).length() / r;
            let shine = bx * (one - smooth(L::of(0.1), L::of(0.45), spot));
            // Hit: inside, in front of what this layer has shown so far, and there at all.
            let hit = |yes: L, no: L| {
                let there = (u.0 + v.1).if_less(L::of(1.5), yes, no);
                e.if_less(one, first.if_less(v.1, there, no), no)
            };
            t = hit(v.1 * by + u.0 * 0.3, t);
            shade = hit(lit, shade);
            gloss = hit(shine, gloss);
            first = hit(v.1, first);
        }
        scale = scale * aw;
    }
    [t, shade, gloss]
}

#[inline(always)]
pub(super) fn curves<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let mut t = by + p.1 * 0.2;
    let mut shade = p.0 * 0.1 + 0.95;
    for i in 0..9 {
        let h1 = body(seed, i);
        let h2 = mix_one(h1);
        let (u, v, w) = (halves::<L>(h1), halves::<L>(h2), halves::<L>(mix_one(h2)));
        let q = turn(p, unit(ax + (u.0 - 0.5) * ay));
        let f = v.1 * 0.6 + 0.2;
        let swing = az * v.0;
        let y = q.1 - (u.1 * 2.6 - 1.3) - swing * wave(q.0 * f + w.0);
        let rise = swing * f * 6.2831855 * wave(q.0 * f + w.0 + 0.25);
        let d = y.abs() / (rise * rise + 1.0).sqrt();
        let width = bx * (w.1 + 0.25);
        let inside = L::of(1.0) - smooth(width, width + 0.02, d);
        let c = d / width;
        t = lerp(t, w.1 * 0.7 + u.1 * 0.5, inside);
        shade = lerp(shade, L::of(1.15) - aw * c * c, inside);
    }
    [t, shade, L::of(0.0)]
}

#[inline(always)]
pub(super) fn facets<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let (mut first, mut second) = (L::of(-9.0), L::of(-9.0));
    let (mut colour, mut tilt) = (L::of(0.0), L::of(0.0));
    let light = unit(by);
    for i in 0..9 {
        let h = body(seed, i);
        let (u, v) = (halves::<L>(h), halves::<L>(mix_one(h)));
        let d = unit((u.0 + i as f64) * 0.111);
        let height = d.dot(p) * (v.0 + 0.4) * ax + (u.1 - 0.5) * 0.9;
        second = second.max(first.min(height));
        colour = first.if_less(height, v.1, colour);
        tilt = first.if_less(height, d.dot(light), tilt);
        first = first.max(height);
    }
    let edge = L::of(1.0) - smooth(L::of(0.02), L::of(0.07), first - second);
    [colour * ay + bx * first, az * tilt + 0.9 + first * 0.1, edge * aw]
}
