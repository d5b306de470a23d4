//! Twin of `shaders/lib/pattern_tile.wgsl`, where the families and their parameters are described.

use super::lane::Lane;
use super::pattern::{V, cell, clamp01, fract, hash, high, lerp, low, mix, noise, octaves, smooth, wave};
use super::{Ink, Shape};

/// Two uniforms for a lattice point.
#[inline(always)]
fn at<L: Lane>(p: V<L>, seed: u32) -> V<L> {
    uniforms(hash(cell(p), seed))
}

#[inline(always)]
fn uniforms<L: Lane>(h: L::Bits) -> V<L> {
    V(low::<L>(h), high::<L>(h))
}

/// One of nine points in a unit square.
#[inline(always)]
fn lattice<L: Lane>(h: L::Bits) -> V<L> {
    (uniforms::<L>(h) * 3.0).floor() * 0.3 + V::of(0.2, 0.2)
}

/// 0 or 1: whether a whole number is odd.
#[inline(always)]
fn odd<L: Lane>(x: L) -> L {
    x - (x * 0.5).floor() * 2.0
}

#[inline(always)]
fn one_minus<L: Lane>(x: L) -> L {
    L::of(1.0) - x
}

#[inline(always)]
pub(super) fn stripes<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let x = p.0 + ax * wave(p.1 * ay) + az * noise(p, seed);
    let i = x.floor();
    let f = x - i;
    let u = at(V(i, L::of(0.0)), seed);
    let width = (u.0 - 0.5) * bx + 0.5;
    let v = smooth(L::of(0.0), L::of(0.08), f) * one_minus(smooth(width, width + 0.08, f));
    let c = f * 2.0 - 1.0;
    [lerp(v * 0.8 + 0.1, u.1 + v * 0.4, aw), L::of(1.1) - by * c * c, L::of(0.0)]
}

#[inline(always)]
pub(super) fn hexagons<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let y = p.1 * 0.57735027;
    let u0 = V(fract(p.0) - 0.5, (fract(y) - 0.5) * 1.7320508);
    let u1 = V(fract(p.0 - 0.5) - 0.5, (fract(y - 0.5) - 0.5) * 1.7320508);
    let (d0, d1) = (u0.dot(u0), u1.dot(u1));
    let g = V(d0.if_less(d1, u0.0, u1.0), d0.if_less(d1, u0.1, u1.1));
    let id = V(((p.0 - g.0) * 2.0 + 0.5).floor(), ((p.1 - g.1) * 1.1547005 + 0.5).floor());
    let u = at(id, seed);
    let edge = L::of(0.5) - g.0.abs().max(g.0.abs() * 0.5 + g.1.abs() * 0.8660254);
    let border = one_minus(smooth(ax, ax + 0.04, edge));
    let lit = (g.0 + g.1) * ay;
    let shade = ((u.1 - 0.5) * 0.5 + 1.0 - lit) * one_minus(border * bx);
    [u.0 * az + aw * edge, shade, by * smooth(L::of(0.2), L::of(0.5), edge - lit)]
}

#[inline(always)]
pub(super) fn bricks<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let row = p.1.floor();
    let v = at(V(L::of(7.0), row), seed);
    let x = p.0 / ax + odd(row) * 0.5 + v.0 * ay;
    let column = x.floor();
    let u = at(V(column, row), seed + 1);
    let fx = (L::of(0.5) - (x - column - 0.5).abs()) * ax;
    let fy = L::of(0.5) - (p.1 - row - 0.5).abs();
    let d = fx.min(fy);
    let solid = smooth(az, az + 0.06, d);
    let bevel = smooth(L::of(0.0), az + 0.25, d);
    let grain = octaves(p * 1.7, seed + 2, L::of(0.7), 3) * aw;
    let shade = lerp(L::of(0.75), bevel * 0.3 + 0.7 + (u.1 - 0.5) * 0.5, solid) + grain;
    [lerp(by, u.0 * bx + 0.15, solid), shade, L::of(0.0)]
}

#[inline(always)]
pub(super) fn truchet<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let (zero, half, one) = (L::of(0.0), L::of(0.5), L::of(1.0));
    let i = p.floor();
    let u = at(i, seed);
    let g = p - i;
    let f = V(u.0.if_less(half, one - g.0, g.0), g.1);
    let (r0, r1) = (f.length(), (V(one, one) - f).length());
    let d = (r0 - 0.5).abs().min((r1 - 0.5).abs());
    let line = one_minus(smooth(ax, ax + by, d));
    let c = clamp01(d / ax);
    let sum = i.0 + i.1 + u.0.if_less(half, one, zero) + r0.min(r1).if_less(half, one, zero);
    let ground = bx + aw * odd(sum);
    let ink = bx + 0.5 + ay * (wave(c * 1.5) * 0.5 + 0.5);
    [lerp(ground, ink, line), lerp(L::of(0.9), L::of(1.15) - az * c * c, line), zero]
}

#[inline(always)]
pub(super) fn weave<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let i = p.floor();
    let f = p - i - V::of(0.5, 0.5);
    let (over, half) = (odd(i.0 + i.1), L::of(0.5));
    let h0 = at(V(i.0, L::of(5.0)), seed).0;
    let h1 = at(V(L::of(9.0), i.1), seed + 1).0;
    let across = over.if_less(half, f.0, f.1);
    let along = over.if_less(half, f.1, f.0);
    let top = one_minus(smooth(ax - 0.03, ax + 0.03, across.abs()));
    let under = one_minus(smooth(ax - 0.03, ax + 0.03, along.abs()));
    let t_top = over.if_less(half, h0, h1) * az;
    let t_under = over.if_less(half, h1, h0) * az + 0.1;
    let c = across / ax;
    let fibre = by * wave(c * 2.5 + along);
    let s_top = L::of(1.15) - ay * c * c - bx * along * along + fibre;
    let s_under = L::of(0.85) - bx * (L::of(0.3) - along * along) - ay * 0.3;
    [lerp(t_under, t_top, top), lerp(lerp(aw, s_under, under), s_top, top), L::of(0.0)]
}

#[inline(always)]
pub(super) fn glyphs<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let i = p.floor();
    let f = p - i;
    let mut h = hash(cell(i), seed);
    let blank = low::<L>(mix(h + 99));
    let row = at(V(L::of(3.0), i.1), seed).0;
    let mut from = lattice::<L>(h);
    let mut d = L::of(9.0);
    for k in 0..4 {
        h = mix(h + k);
        let to = lattice::<L>(h);
        let (e, v) = (to - from, f - from);
        let s = clamp01(v.dot(e) / e.dot(e).max(L::of(1e-4)));
        d = d.min((v - e * s).length());
        from = to;
    }
    let ink = blank.if_less(ay, L::of(0.0), one_minus(smooth(ax, ax + aw, d)));
    let stain = noise(p * 0.7, seed + 3) * by;
    [lerp(bx + stain * 0.5, bx + 0.5 + az * row, ink), lerp(stain + 1.05, L::of(0.8), ink), L::of(0.0)]
}

#[inline(always)]
pub(super) fn checker<L: Lane>(p: V<L>, [ax, ay, az, aw, bx, by]: Shape<L>, seed: u32) -> Ink<L> {
    let y = p.1 - ax;
    let z = ay / (y.abs() + 0.03);
    let i = V(p.0 * z + bx, z + bx).floor();
    let dark = odd(i.0 + i.1);
    let u = at(i, seed).0;
    let haze = smooth(L::of(3.0), L::of(14.0), z);
    let square = lerp(lerp(dark * 0.6 + 0.1, u, az), L::of(0.5), haze);
    let square_shade = lerp(L::of(1.1) - dark * 0.35, L::of(0.8), haze);
    let cloud = octaves(V(p.0 * z, z * 2.0) * 0.25, seed + 1, L::of(0.5), 3);
    let fade = one_minus(haze);
    let sky = y * 0.2 + 0.75 + by * cloud * fade;
    let floored = lerp(smooth(L::of(-0.01), L::of(0.01), y), L::of(1.0), aw);
    let sky_shade = cloud * 0.3 * fade * by + 1.0;
    [lerp(sky, square, floored), lerp(sky_shade, square_shade, floored), L::of(0.0)]
}
