// Families of procedural images made of separate bodies, one before the other. Each takes a point, six shape
// parameters and a seed, and gives (palette coordinate, shade, gloss).
import package::lib::pattern::{pattern_mix, pattern_cell, pattern_hash, pattern_halves, pattern_lerp, pattern_clamp, pattern_smooth, pattern_wave, pattern_unit, pattern_turn, pattern_angle};

// Seven balls that flow together: a.x level, a.y light's angle, a.z gloss, a.w colour by height outside, b.x ground, b.y rings outside.
fn pattern_blobs(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    var field = 0.0;
    var colour = 0.0;
    var slope = vec2<f32>(0.0, 0.0);
    for (var i = 0u; i < 7u; i++) {
        let h = pattern_mix(seed + i * 0x9e3779b9u);
        let u = pattern_halves(h);
        let v = pattern_halves(pattern_mix(h));
        let d = p - (u * 2.2 - vec2<f32>(1.1, 1.1));
        let r = 0.15 + 0.35 * v.x;
        let w = 1.0 / (d.x * d.x + d.y * d.y + 0.02);
        let g = r * r * w;
        field = field + g;
        colour = colour + g * v.y;
        slope = slope + d * (g * w);
    }
    let v = field - a.x;
    let inside = pattern_smooth(0.0, 0.12, v);
    let steep = 1.0 / sqrt(slope.x * slope.x + slope.y * slope.y + 0.2 + v * v);
    let l = pattern_unit(a.y);
    let light = (slope.x * l.x + slope.y * l.y) * steep;
    let gloss = pattern_smooth(0.6, 0.9, light) * a.z * inside;
    let outside = b.x + a.w * field * 0.4 + 0.1 * pattern_wave(field * b.y);
    return vec3<f32>(pattern_lerp(outside, 0.1 + colour / field, inside), pattern_lerp(0.9, 0.8 + 0.4 * light, inside), gloss);
}

// Nine superellipses, polygons and rings, the later over the earlier: a.x size, a.y outline, a.z gradient, a.w shadow, b.x outline's width, b.y ground.
fn pattern_shapes(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    var t = b.y + 0.15 * p.y;
    var shade = 1.0 - 0.1 * p.x;
    for (var i = 0u; i < 9u; i++) {
        let h1 = pattern_mix(seed + i * 0x9e3779b9u);
        let h2 = pattern_mix(h1);
        let u = pattern_halves(h1);
        let v = pattern_halves(h2);
        let w = pattern_halves(pattern_mix(h2));
        let size = (0.2 + 0.45 * v.x * v.x) * a.x;
        var q = pattern_turn(p - (u * 2.4 - vec2<f32>(1.2, 1.2)), pattern_unit(v.y));
        q.y = q.y * (1.0 + w.x);
        let x2 = q.x * q.x;
        let y2 = q.y * q.y;
        let r = sqrt(x2 + y2);
        let box = sqrt(sqrt(x2 * x2 + y2 * y2)) - size;
        let sides = 3.0 + floor(w.x * 4.0);
        let k = pattern_angle(q) * sides;
        let polygon = r * pattern_wave((k - floor(k + 0.5)) / sides) - size * 0.8;
        let ring = abs(r - size * 0.8) - size * 0.25;
        let d = select(select(ring, polygon, w.y < 0.8), box, w.y < 0.4);
        let inside = 1.0 - pattern_smooth(-0.012, 0.012, d);
        let shadow = 1.0 - a.w * (1.0 - pattern_smooth(0.0, 0.22, d));
        let outline = 1.0 - pattern_smooth(b.x, b.x + 0.02, abs(d + b.x));
        let body = (1.0 + a.z * (q.x + q.y) / size) * (1.0 - a.y * outline);
        t = pattern_lerp(t, u.x * 0.6 + v.x * 0.8, inside);
        shade = pattern_lerp(shade * shadow, body, inside);
    }
    return vec3<f32>(t, shade, 0.0);
}

// Dead leaves (Matheron 1968): six layers of discs or squares (a.z), nearer ones smaller, each hiding what is behind.
// a.x roundness, a.y dark rims, a.w growth from layer to layer, b.x gloss, b.y spread of colours.
fn pattern_leaves(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    var t = 0.0;
    var shade = 0.6;
    var gloss = 0.0;
    var scale = 0.55;
    for (var i = 0u; i < 6u; i++) {
        let o = pattern_halves(pattern_mix(seed + 31u + i));
        let q = pattern_turn(p, pattern_unit(o.x)) * scale + o * 17.0;
        let base = floor(q - vec2<f32>(0.5, 0.5));
        let c = pattern_cell(base);
        var first = -1.0;
        for (var k = 0u; k < 4u; k++) {
            let step = vec2<u32>(k & 1u, k >> 1u);
            let h = pattern_hash(c + step, seed + i);
            let u = pattern_halves(h);
            let v = pattern_halves(pattern_mix(h));
            let d = q - base - vec2<f32>(step) - vec2<f32>(0.5, 0.5) - (u - vec2<f32>(0.5, 0.5)) * 0.5;
            let r = 0.3 + 0.35 * v.x;
            let round = sqrt(d.x * d.x + d.y * d.y);
            let e = pattern_lerp(round, max(abs(d.x), abs(d.y)) * 1.1, a.z) / r;
            let hit = e < 1.0 && first < v.y && u.x + v.y < 1.5;
            first = select(first, v.y, hit);
            t = select(t, v.y * b.y + u.x * 0.3, hit);
            let rim = pattern_smooth(0.86, 0.95, e) * a.y;
            shade = select(shade, (1.15 - a.x * e * e - 0.2 * a.x * (d.x + d.y) / r) * (1.0 - rim), hit);
            gloss = select(gloss, b.x * (1.0 - pattern_smooth(0.1, 0.45, sqrt((d.x + 0.1) * (d.x + 0.1) + (d.y + 0.1) * (d.y + 0.1)) / r)), hit);
        }
        scale = scale * a.w;
    }
    return vec3<f32>(t, shade, gloss);
}

// Nine waving lines: a.x common direction, a.y spread of directions, a.z swing, a.w roundness, b.x width, b.y ground.
fn pattern_curves(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    var t = b.y + 0.2 * p.y;
    var shade = 0.95 + 0.1 * p.x;
    for (var i = 0u; i < 9u; i++) {
        let h1 = pattern_mix(seed + i * 0x9e3779b9u);
        let h2 = pattern_mix(h1);
        let u = pattern_halves(h1);
        let v = pattern_halves(h2);
        let w = pattern_halves(pattern_mix(h2));
        let q = pattern_turn(p, pattern_unit(a.x + (u.x - 0.5) * a.y));
        let f = 0.2 + v.y * 0.6;
        let swing = a.z * v.x;
        let y = q.y - (u.y * 2.6 - 1.3) - swing * pattern_wave(q.x * f + w.x);
        let rise = swing * f * 6.2831855 * pattern_wave(q.x * f + w.x + 0.25);
        let d = abs(y) / sqrt(1.0 + rise * rise);
        let width = b.x * (0.25 + w.y);
        let inside = 1.0 - pattern_smooth(width, width + 0.02, d);
        let c = d / width;
        t = pattern_lerp(t, w.y * 0.7 + u.y * 0.5, inside);
        shade = pattern_lerp(shade, 1.15 - a.w * c * c, inside);
    }
    return vec3<f32>(t, shade, 0.0);
}

// A cut stone: the highest of nine planes, each with a shade of its own. a.x steepness, a.y spread of colours, a.z contrast of shades, a.w light edges, b.x colour by height, b.y light's angle.
fn pattern_facets(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    var first = -9.0;
    var second = -9.0;
    var colour = 0.0;
    var tilt = 0.0;
    for (var i = 0u; i < 9u; i++) {
        let h = pattern_mix(seed + i * 0x9e3779b9u);
        let u = pattern_halves(h);
        let v = pattern_halves(pattern_mix(h));
        let d = pattern_unit((f32(i) + u.x) * 0.111);
        let height = (d.x * p.x + d.y * p.y) * (0.4 + v.x) * a.x + (u.y - 0.5) * 0.9;
        let hit = first < height;
        second = max(second, min(first, height));
        colour = select(colour, v.y, hit);
        let l = pattern_unit(b.y);
        tilt = select(tilt, d.x * l.x + d.y * l.y, hit);
        first = max(first, height);
    }
    let edge = 1.0 - pattern_smooth(0.02, 0.07, first - second);
    return vec3<f32>(colour * a.y + b.x * first, 0.9 + a.z * tilt + 0.1 * first, edge * a.w);
}
