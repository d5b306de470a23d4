// Families of procedural images made of iterated maps and of angles and radii. Each takes a point, six shape
// parameters and a seed, and gives (palette coordinate, shade, gloss).
import package::lib::pattern::{pattern_mix, pattern_halves, pattern_lerp, pattern_clamp, pattern_smooth, pattern_wave, pattern_triangle, pattern_unit, pattern_turn, pattern_angle, pattern_noise};

// A Julia set of z^2 + (a.x, a.y), coloured by how near the orbit comes to a point or a cross (b.y), a.z, and how long it stays, a.w; b.x dark near the trap.
// Fourteen steps: enough to see, few enough that rounding stays invisible.
fn pattern_julia(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let u = pattern_halves(pattern_mix(seed)) - vec2<f32>(0.5, 0.5);
    var z = p;
    var trap = 4.0;
    var stay = 0.0;
    for (var i = 0u; i < 14u; i++) {
        let x2 = z.x * z.x;
        let y2 = z.y * z.y;
        let alive = x2 + y2 < 16.0;
        let next = vec2<f32>(x2 - y2 + a.x, 2.0 * z.x * z.y + a.y);
        z = vec2<f32>(select(z.x, next.x, alive), select(z.y, next.y, alive));
        let d = z - u;
        let near = pattern_lerp(sqrt(d.x * d.x + d.y * d.y), min(abs(d.x), abs(d.y)) * 2.0, b.y);
        trap = select(trap, min(trap, near), alive);
        stay = select(stay, stay + 1.0 / (1.0 + 2.0 * (x2 + y2)), alive);
    }
    let dark = 1.0 - pattern_smooth(0.0, 0.5, trap);
    return vec3<f32>(a.z * trap + a.w * stay, 1.05 - b.x * dark, 0.0);
}

// Mirrors in a.x sectors, then five folds by (a.y, a.z) with a turn of a.w: b.x colour by the trap, b.y dark lines.
fn pattern_kaleidoscope(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let n = floor(a.x);
    let r = sqrt(p.x * p.x + p.y * p.y);
    var q = pattern_unit(pattern_triangle(pattern_angle(p) * n) / (2.0 * n)) * r;
    let u = pattern_unit(a.w);
    var trap = 4.0;
    var line = 4.0;
    var scale = 1.0;
    for (var i = 0u; i < 5u; i++) {
        q = pattern_turn(abs(q) - vec2<f32>(a.y, a.z), u) * 1.3;
        scale = scale * 1.3;
        trap = min(trap, sqrt(q.x * q.x + q.y * q.y));
        line = min(line, abs(q.x) / scale);
    }
    let end = sqrt(q.x * q.x + q.y * q.y);
    let t = trap * b.x + 0.15 * end + pattern_halves(pattern_mix(seed)).x;
    return vec3<f32>(t, pattern_lerp(1.05, pattern_smooth(0.0, 0.06, line) * 0.9 + 0.15, b.y), 0.0);
}

// Petals and rings around a point: a.x petals, a.y twist, a.z rings, a.w from petals to rings, b.x colour by radius, b.y darkness away from the centre.
fn pattern_radial(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let r = sqrt(p.x * p.x + p.y * p.y);
    let u = pattern_halves(pattern_mix(seed));
    let petal = pattern_wave(pattern_angle(p) * floor(a.x) + a.y * r);
    let round = r * (1.0 + 0.25 * petal * u.x);
    let ring = pattern_wave(round * a.z + u.y);
    let v = pattern_lerp(petal, ring, a.w);
    let core = 1.0 - pattern_smooth(0.05, 0.3, r);
    return vec3<f32>(b.x * round + 0.3 * v + u.x, (1.0 + 0.25 * v) / (1.0 + b.y * r * r), core * 0.25);
}

// Spirals (a.x arms, a.y winding) crossed by rings around another point (a.z), which gives moire (a.w): b.x hard edges, b.y shading.
fn pattern_spirals(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let u = pattern_halves(pattern_mix(seed));
    let r = sqrt(p.x * p.x + p.y * p.y);
    let d = p - (u * 1.6 - vec2<f32>(0.8, 0.8));
    let spiral = pattern_wave(pattern_angle(p) * floor(a.x) + a.y * sqrt(r));
    let rings = pattern_wave(sqrt(d.x * d.x + d.y * d.y) * a.z);
    let v = pattern_lerp(spiral, spiral * rings, a.w);
    let hard = pattern_smooth(-0.15, 0.15, v) * 2.0 - 1.0;
    return vec3<f32>(0.5 + 0.42 * pattern_lerp(v, hard, b.x) + u.x, 1.0 + b.y * pattern_lerp(rings, v, 0.5), 0.0);
}

// Folds of cloth: a wave within a wave (a.x, a.y how much, a.z how fine), softly lit. a.w colour along, b.x contrast of light, b.y gloss.
fn pattern_drapes(p: vec2<f32>, a: vec4<f32>, b: vec2<f32>, seed: u32) -> vec3<f32> {
    let n = pattern_noise(p * 0.6, seed);
    let x = p.x + a.x * pattern_wave(p.y * a.z + 0.5 * n) + n * a.y;
    let y = p.y + a.y * pattern_wave(x * 0.7 + n);
    let light = pattern_wave(x * 0.8 + 0.3 * pattern_wave(y * 0.5));
    let gloss = b.y * pattern_smooth(0.7, 1.0, light);
    return vec3<f32>(0.5 + a.w * y + 0.25 * pattern_wave(x * 0.4), 0.95 + b.x * light, gloss);
}
