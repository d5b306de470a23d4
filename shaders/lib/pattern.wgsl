// What the procedural images are made of: hashes, waves, noise and cells of the plane.
// Built-in sine, arctangent and logarithm differ between drivers, by up to 2^-11; everything here is +, -, *, /,
// sqrt and floor, so that images agree between devices and with the twin, but at the edges of cells.
// Angles and phases are in turns: a wave has period 1.

// A mixing permutation of u32 (xor of shifts and products; constants of C. Wellons' public-domain search).
fn pattern_mix(x: u32) -> u32 {
    var h = (x ^ (x >> 16u)) * 0x21f0aaadu;
    h = (h ^ (h >> 15u)) * 0x735a2d97u;
    return h ^ (h >> 15u);
}

// The words of a lattice point, and a word for it.
fn pattern_cell(p: vec2<f32>) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(i32(p.x)), bitcast<u32>(i32(p.y)));
}

fn pattern_hash(c: vec2<u32>, seed: u32) -> u32 {
    return pattern_mix((c.x * 0x9e3779b1u + seed) ^ (c.y * 0x85ebca77u));
}

// Two uniforms in [0, 1) from the halves of a word.
fn pattern_halves(h: u32) -> vec2<f32> {
    return vec2<f32>(f32(h & 0xffffu), f32(h >> 16u)) * (1.0 / 65536.0);
}

fn pattern_lerp(a: f32, b: f32, t: f32) -> f32 {
    return a + (b - a) * t;
}

fn pattern_clamp(x: f32) -> f32 {
    return min(max(x, 0.0), 1.0);
}

// 0 below lo, 1 above hi, a cubic between.
fn pattern_smooth(lo: f32, hi: f32, x: f32) -> f32 {
    let t = pattern_clamp((x - lo) / (hi - lo));
    return t * t * (3.0 - t * 2.0);
}

fn pattern_fract(x: f32) -> f32 {
    return x - floor(x);
}

// cos(2 pi t): the sine series on a quarter turn, to 1e-6.
fn pattern_wave(t: f32) -> f32 {
    let x = t - floor(t + 0.5);
    let y = 0.25 - abs(x);
    let z = y * y;
    var s = z * -15.094643 + 42.058693;
    s = s * z - 76.70586;
    s = s * z + 81.60525;
    s = s * z - 41.341702;
    s = s * z + 6.2831855;
    return s * y;
}

// 0 at whole numbers, 1 halfway.
fn pattern_triangle(t: f32) -> f32 {
    return abs(t - floor(t + 0.5)) * 2.0;
}

// The unit vector at an angle, and rotation by it.
fn pattern_unit(turns: f32) -> vec2<f32> {
    return vec2<f32>(pattern_wave(turns), pattern_wave(turns - 0.25));
}

fn pattern_turn(p: vec2<f32>, u: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(p.x * u.x - p.y * u.y, p.x * u.y + p.y * u.x);
}

// The angle of a vector in (-1/2, 1/2], to 2e-6 (Abramowitz and Stegun 1964, 4.4.49); 0 for the zero vector.
fn pattern_angle(p: vec2<f32>) -> f32 {
    let x = abs(p.x);
    let y = abs(p.y);
    let r = min(x, y) / max(max(x, y), 1e-6);
    let z = r * r;
    var s = z * 0.0208351 - 0.085133;
    s = s * z + 0.180141;
    s = s * z - 0.3302995;
    s = s * z + 0.999866;
    var t = s * r * 0.15915494;
    t = select(t, 0.25 - t, x < y);
    t = select(t, 0.5 - t, p.x < 0.0);
    return select(t, -t, p.y < 0.0);
}

fn pattern_corner(c: vec2<u32>, seed: u32, d: vec2<f32>) -> f32 {
    let h = pattern_halves(pattern_hash(c, seed));
    return (h.x * 2.0 - 1.0) * d.x + (h.y * 2.0 - 1.0) * d.y;
}

fn pattern_ease(f: f32) -> f32 {
    return f * f * f * (f * (f * 6.0 - 15.0) + 10.0);
}

// Gradient noise (Perlin 2002) with gradients of the square: mean 0, mostly within 1/2.
fn pattern_noise(p: vec2<f32>, seed: u32) -> f32 {
    let i = floor(p);
    let f = p - i;
    let c = pattern_cell(i);
    let a = pattern_corner(c, seed, f);
    let b = pattern_corner(c + vec2<u32>(1u, 0u), seed, f - vec2<f32>(1.0, 0.0));
    let d = pattern_corner(c + vec2<u32>(0u, 1u), seed, f - vec2<f32>(0.0, 1.0));
    let e = pattern_corner(c + vec2<u32>(1u, 1u), seed, f - vec2<f32>(1.0, 1.0));
    let u = pattern_ease(f.x);
    return pattern_lerp(pattern_lerp(a, b, u), pattern_lerp(d, e, u), pattern_ease(f.y));
}

// Octaves of noise, each twice as fine, turned and weaker by `gain`: mean 0, mostly within 1.
fn pattern_octaves(p: vec2<f32>, seed: u32, gain: f32, count: u32) -> f32 {
    var q = p;
    var amplitude = 1.0;
    var sum = 0.0;
    var total = 0.0;
    for (var i = 0u; i < count; i++) {
        sum = sum + pattern_noise(q, seed + i * 0x3c6ef35fu) * amplitude;
        total = total + amplitude;
        amplitude = amplitude * gain;
        q = vec2<f32>(q.x * 1.6 + q.y * 1.2 + 3.7, q.y * 1.6 - q.x * 1.2 + 1.9);
    }
    return sum * 2.0 / total;
}

// Cells around one point in each unit square (Worley 1996): distances to the two nearest points, the word of the
// nearest. `jitter` moves the points off the lattice, `metric` goes from Euclid's distance to the taxi's.
struct PatternNear {
    first: f32,
    second: f32,
    word: u32,
}

fn pattern_nearest(p: vec2<f32>, seed: u32, jitter: f32, metric: f32) -> PatternNear {
    let base = floor(p);
    let f = p - base;
    let c = pattern_cell(base);
    var near = PatternNear(9.0, 9.0, c.x);
    for (var k = 0u; k < 9u; k++) {
        let step = vec2<u32>(k % 3u, k / 3u);
        let h = pattern_hash(c + step - vec2<u32>(1u, 1u), seed);
        let o = (pattern_halves(h) - vec2<f32>(0.5, 0.5)) * jitter + vec2<f32>(0.5, 0.5);
        let v = abs(vec2<f32>(step) - vec2<f32>(1.0, 1.0) + o - f);
        let d = pattern_lerp(sqrt(v.x * v.x + v.y * v.y), (v.x + v.y) * 0.8, metric);
        near.second = min(near.second, max(near.first, d));
        near.word = select(near.word, h, d < near.first);
        near.first = min(near.first, d);
    }
    return near;
}
