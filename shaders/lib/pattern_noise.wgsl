// Families of procedural images made of noise, cells and waves. Each takes a point, six shape parameters and a
// seed, and gives (palette coordinate, shade, gloss).
import package::lib::pattern::{pattern_mix, pattern_halves, pattern_lerp, pattern_smooth, pattern_wave, pattern_unit, pattern_noise, pattern_octaves, pattern_nearest};

// Octaves, from billows to ridges (a.y), lit from one side (a.w). a.x gain, a.z contrast.
fn pattern_clouds(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let n = pattern_octaves(p, seed, a.x, 5u);
    let relief = pattern_noise(p, seed) - pattern_noise(p + vec2<f32>(0.15, 0.1), seed);
    let v = pattern_lerp(n, 1.0 - abs(n) * 3.0, a.y);
    return vec3<f32>(0.5 + a.z * v, 1.0 + a.w * relief, 0.0);
}

// Worley cells: a.x metric, a.y from nearest distance to border distance, a.z contrast, a.w jitter, b.x offset, b.y dark rims.
fn pattern_cells(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let near = pattern_nearest(p, seed, a.w, a.x);
    let v = pattern_lerp(near.first, near.second - near.first, a.y);
    return vec3<f32>(v * a.z + b.x, 1.1 - b.y * near.first * near.first, 0.0);
}

// Cells of one colour each, with borders (a.x width), a bevel (a.y), grain (a.z) and jitter (a.w); b.x metric, b.y dark borders.
fn pattern_mosaic(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let near = pattern_nearest(p, seed, a.w, b.x);
    let u = pattern_halves(near.word);
    let border = 1.0 - pattern_smooth(a.x, a.x + 0.06, near.second - near.first);
    let grain = pattern_noise(p * 4.0, seed) * a.z;
    let shade = (1.15 - a.y * near.first + (u.y - 0.5) * 0.4 + grain) * (1.0 - border * b.y);
    return vec3<f32>(u.x * 1.4 + u.y * 0.1, shade, border * (1.0 - b.y) * 0.6);
}

// Noise whose domain is displaced by noise (a.x how far): a.y contrast, a.z colour from the displacement, a.w gain, b.x shading.
fn pattern_warp(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let x = pattern_octaves(p, seed + 11u, 0.5, 2u);
    let y = pattern_octaves(p, seed + 23u, 0.5, 2u);
    let n = pattern_octaves(p + vec2<f32>(x, y) * a.x, seed, a.w, 4u);
    return vec3<f32>(0.5 + a.y * n + a.z * y, 1.0 + b.x * x, b.y * pattern_smooth(0.2, 0.9, n * x * 4.0));
}

// Spots and labyrinths as of reaction and diffusion, in closed form: six waves of one length in random directions,
// displaced by noise (a.x) and cut at a level. a.y spread of directions, a.z softness, a.w level, b.x cut, b.y dark rims.
fn pattern_maze(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let q = p + vec2<f32>(pattern_noise(p * 0.4, seed + 1u), pattern_noise(p * 0.4, seed + 2u)) * a.x;
    var s = 0.0;
    for (var i = 0u; i < 6u; i++) {
        let u = pattern_halves(pattern_mix(seed + i * 0x9e3779b9u));
        let d = pattern_unit((f32(i) + u.x) * a.y);
        s = s + pattern_wave(q.x * d.x + q.y * d.y + u.y);
    }
    s = s * 0.408;
    let v = pattern_smooth(-a.z, a.z, s + a.w);
    let rim = 1.0 - abs(v * 2.0 - 1.0);
    return vec3<f32>(pattern_lerp(0.5 + s * 0.3, v * 0.9, b.x), 1.0 - b.y * rim + 0.15 * s, 0.0);
}

// Interference of four circular waves and a plane one (a.x, a.y): a.z contrast, a.w bands, b.x share of bands, b.y shading.
fn pattern_plasma(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    var s = pattern_wave(p.x * a.x + p.y * a.y);
    for (var i = 0u; i < 4u; i++) {
        let h = pattern_mix(seed + i * 0x9e3779b9u);
        let u = pattern_halves(h);
        let v = pattern_halves(pattern_mix(h));
        let d = p - (u * 4.0 - vec2<f32>(2.0, 2.0));
        s = s + pattern_wave(sqrt(d.x * d.x + d.y * d.y) * (0.4 + v.x * 0.8) + v.y);
    }
    let t = 0.5 + a.z * s * 0.3;
    return vec3<f32>(pattern_lerp(t, 0.5 + 0.5 * pattern_wave(s * a.w), b.x), 1.0 + b.y * pattern_wave(s * 0.5), 0.0);
}

// Ranges of hills before a sky with a sun: a.x height of the hills, a.y colour step, a.z haze, a.w roughness, b.x first colour, b.y sun.
fn pattern_hills(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let u = pattern_halves(pattern_mix(seed));
    let d = p - vec2<f32>(u.x * 1.6 - 0.8, u.y * 0.9 - 0.9);
    let sun = 1.0 - pattern_smooth(b.y, b.y + 0.04, sqrt(d.x * d.x + d.y * d.y));
    var t = b.x + 0.25 * p.y - 0.25;
    var shade = 1.1 + 0.2 * p.y;
    for (var i = 0u; i < 5u; i++) {
        let k = f32(i);
        let v = pattern_halves(pattern_mix(seed + 77u + i));
        let x = p.x * (1.0 + 0.25 * k) + v.x * 40.0;
        let rough = pattern_noise(vec2<f32>(x * 3.1, k * 9.3), seed + 5u) * a.w;
        let top = k * 0.3 - 0.55 + v.y * 0.2 + a.x * (pattern_noise(vec2<f32>(x, k * 7.7), seed) + rough);
        let inside = pattern_smooth(0.0, 0.02, p.y - top);
        let below = min(max(p.y - top, 0.0), 1.0);
        t = pattern_lerp(t, b.x + 0.3 + k * a.y, inside);
        shade = pattern_lerp(shade, 1.1 - a.z * k * 0.16 - 0.35 * below, inside);
    }
    let sky = 1.0 - pattern_smooth(-0.6, 0.3, p.y);
    return vec3<f32>(t, shade, sun * sky * 0.8);
}
