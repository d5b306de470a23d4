// Families of procedural images made of repeated cells. Each takes a point, six shape parameters and a seed, and
// gives (palette coordinate, shade, gloss).
import package::lib::pattern::{pattern_mix, pattern_cell, pattern_hash, pattern_halves, pattern_lerp, pattern_clamp, pattern_smooth, pattern_fract, pattern_wave, pattern_noise, pattern_octaves};

// Stripes bent by a wave (a.x, a.y) and by noise (a.z), in two tones or one colour each (a.w); b.x uneven width, b.y roundness.
fn pattern_stripes(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let x = p.x + a.x * pattern_wave(p.y * a.y) + a.z * pattern_noise(p, seed);
    let i = floor(x);
    let f = x - i;
    let u = pattern_halves(pattern_hash(pattern_cell(vec2<f32>(i, 0.0)), seed));
    let width = 0.5 + (u.x - 0.5) * b.x;
    let v = pattern_smooth(0.0, 0.08, f) * (1.0 - pattern_smooth(width, width + 0.08, f));
    let c = f * 2.0 - 1.0;
    return vec3<f32>(pattern_lerp(v * 0.8 + 0.1, u.y + v * 0.4, a.w), 1.1 - b.y * c * c, 0.0);
}

// Hexagons: a.x border, a.y bevel, a.z spread of colours, a.w inner rings, b.x dark borders, b.y gloss.
fn pattern_hexagons(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let r = vec2<f32>(1.0, 1.7320508);
    let u0 = vec2<f32>(pattern_fract(p.x) - 0.5, (pattern_fract(p.y * 0.57735027) - 0.5) * r.y);
    let u1 = vec2<f32>(pattern_fract(p.x - 0.5) - 0.5, (pattern_fract(p.y * 0.57735027 - 0.5) - 0.5) * r.y);
    let near = u0.x * u0.x + u0.y * u0.y < u1.x * u1.x + u1.y * u1.y;
    let g = vec2<f32>(select(u1.x, u0.x, near), select(u1.y, u0.y, near));
    let id = vec2<f32>(floor((p.x - g.x) * 2.0 + 0.5), floor((p.y - g.y) * 1.1547005 + 0.5));
    let u = pattern_halves(pattern_hash(pattern_cell(id), seed));
    let edge = 0.5 - max(abs(g.x), abs(g.x) * 0.5 + abs(g.y) * 0.8660254);
    let border = 1.0 - pattern_smooth(a.x, a.x + 0.04, edge);
    let lit = (g.x + g.y) * a.y;
    let shade = (1.0 + (u.y - 0.5) * 0.5 - lit) * (1.0 - border * b.x);
    return vec3<f32>(u.x * a.z + a.w * edge, shade, b.y * pattern_smooth(0.2, 0.5, edge - lit));
}

// Bricks: a.x length, a.y shift of rows, a.z mortar, a.w roughness, b.x spread of colours, b.y mortar's colour.
fn pattern_bricks(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let row = floor(p.y);
    let v = pattern_halves(pattern_hash(pattern_cell(vec2<f32>(7.0, row)), seed));
    let odd = row - 2.0 * floor(row * 0.5);
    let x = p.x / a.x + odd * 0.5 + v.x * a.y;
    let column = floor(x);
    let u = pattern_halves(pattern_hash(pattern_cell(vec2<f32>(column, row)), seed + 1u));
    let fx = (0.5 - abs(x - column - 0.5)) * a.x;
    let fy = 0.5 - abs(p.y - row - 0.5);
    let d = min(fx, fy);
    let solid = pattern_smooth(a.z, a.z + 0.06, d);
    let bevel = pattern_smooth(0.0, a.z + 0.25, d);
    let grain = pattern_octaves(p * 1.7, seed + 2u, 0.7, 3u) * a.w;
    let shade = pattern_lerp(0.75, 0.7 + 0.3 * bevel + (u.y - 0.5) * 0.5, solid) + grain;
    return vec3<f32>(pattern_lerp(b.y, u.x * b.x + 0.15, solid), shade, 0.0);
}

// Truchet's tiles with quarter circles: a.x width, a.y bands across, a.z roundness, a.w two colours of ground, b.x ground, b.y softness.
fn pattern_truchet(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let i = floor(p);
    let u = pattern_halves(pattern_hash(pattern_cell(i), seed));
    let g = p - i;
    let f = vec2<f32>(select(g.x, 1.0 - g.x, u.x < 0.5), g.y);
    let e = vec2<f32>(1.0, 1.0) - f;
    let r0 = sqrt(f.x * f.x + f.y * f.y);
    let r1 = sqrt(e.x * e.x + e.y * e.y);
    let d = min(abs(r0 - 0.5), abs(r1 - 0.5));
    let line = 1.0 - pattern_smooth(a.x, a.x + b.y, d);
    let c = pattern_clamp(d / a.x);
    let sum = i.x + i.y + select(0.0, 1.0, u.x < 0.5) + select(0.0, 1.0, min(r0, r1) < 0.5);
    let side = sum - 2.0 * floor(sum * 0.5);
    let ground = b.x + a.w * side;
    let ink = b.x + 0.5 + a.y * (0.5 + 0.5 * pattern_wave(c * 1.5));
    return vec3<f32>(pattern_lerp(ground, ink, line), pattern_lerp(0.9, 1.15 - a.z * c * c, line), 0.0);
}

// Woven strands: a.x half width, a.y roundness, a.z spread of colours, a.w gap's shade, b.x lift at crossings, b.y fibres.
fn pattern_weave(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let i = floor(p);
    let f = p - i - vec2<f32>(0.5, 0.5);
    let sum = i.x + i.y;
    let over = sum - 2.0 * floor(sum * 0.5) < 0.5;
    let h0 = pattern_halves(pattern_hash(pattern_cell(vec2<f32>(i.x, 5.0)), seed));
    let h1 = pattern_halves(pattern_hash(pattern_cell(vec2<f32>(9.0, i.y)), seed + 1u));
    let across = select(f.y, f.x, over);
    let along = select(f.x, f.y, over);
    let top = 1.0 - pattern_smooth(a.x - 0.03, a.x + 0.03, abs(across));
    let under = 1.0 - pattern_smooth(a.x - 0.03, a.x + 0.03, abs(along));
    let t_top = select(h1.x, h0.x, over) * a.z;
    let t_under = select(h0.x, h1.x, over) * a.z + 0.1;
    let c = across / a.x;
    let fibre = b.y * pattern_wave(c * 2.5 + along);
    let s_top = 1.15 - a.y * c * c - b.x * along * along + fibre;
    let s_under = 0.85 - b.x * (0.3 - along * along) - a.y * 0.3;
    let shade = pattern_lerp(pattern_lerp(a.w, s_under, under), s_top, top);
    return vec3<f32>(pattern_lerp(t_under, t_top, top), shade, 0.0);
}

// Rows of pen strokes, like writing: a.x pen, a.y share of blanks, a.z colours of ink, a.w softness, b.x paper, b.y stains.
fn pattern_glyphs(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let i = floor(p);
    let f = p - i;
    var h = pattern_hash(pattern_cell(i), seed);
    let blank = pattern_halves(pattern_mix(h + 99u)).x < a.y;
    let row = pattern_halves(pattern_hash(pattern_cell(vec2<f32>(3.0, i.y)), seed));
    var start = floor(pattern_halves(h) * 3.0) * 0.3 + vec2<f32>(0.2, 0.2);
    var d = 9.0;
    for (var k = 0u; k < 4u; k++) {
        h = pattern_mix(h + k);
        let to = floor(pattern_halves(h) * 3.0) * 0.3 + vec2<f32>(0.2, 0.2);
        let e = to - start;
        let v = f - start;
        let s = pattern_clamp((v.x * e.x + v.y * e.y) / max(e.x * e.x + e.y * e.y, 1e-4));
        let w = v - e * s;
        d = min(d, sqrt(w.x * w.x + w.y * w.y));
        start = to;
    }
    let ink = select(1.0 - pattern_smooth(a.x, a.x + a.w, d), 0.0, blank);
    let stain = pattern_noise(p * 0.7, seed + 3u) * b.y;
    return vec3<f32>(pattern_lerp(b.x + stain * 0.5, b.x + 0.5 + a.z * row.x, ink), pattern_lerp(1.05 + stain, 0.8, ink), 0.0);
}

// A floor of squares up to a horizon (a.x) below a sky, or between floor and ceiling (a.w): a.y height, a.z colour per square, b.x shift, b.y clouds.
fn pattern_checker(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let y = p.y - a.x;
    let z = a.y / (abs(y) + 0.03);
    let q = vec2<f32>(p.x * z + b.x, z + b.x);
    let i = floor(q);
    let sum = i.x + i.y;
    let odd = sum - 2.0 * floor(sum * 0.5);
    let u = pattern_halves(pattern_hash(pattern_cell(i), seed));
    let haze = pattern_smooth(3.0, 14.0, z);
    let square = pattern_lerp(pattern_lerp(odd * 0.6 + 0.1, u.x, a.z), 0.5, haze);
    let square_shade = pattern_lerp(1.1 - 0.35 * odd, 0.8, haze);
    let cloud = pattern_octaves(vec2<f32>(p.x * z, z * 2.0) * 0.25, seed + 1u, 0.5, 3u);
    let fade = 1.0 - haze;
    let sky = 0.75 + 0.2 * y + b.y * cloud * fade;
    let floored = pattern_lerp(pattern_smooth(-0.01, 0.01, y), 1.0, a.w);
    return vec3<f32>(pattern_lerp(sky, square, floored), pattern_lerp(1.0 + 0.3 * cloud * fade * b.y, square_shade, floored), 0.0);
}
