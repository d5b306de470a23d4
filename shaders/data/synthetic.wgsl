// Draws procedural images: images[b, c, y, x] from program[b], for masked pre-training without any data. In the
// spirit of learning from procedural image programs (Baradad et al. 2022, arXiv 2211.16412); the programs are ours.
// A sample is one layer, or two joined by a mask. A layer maps the point to the plane of a family of patterns, which
// gives a palette coordinate, a shade and a gloss; a palette makes them a colour. Light and saturation come last.
// One invocation per pixel, workgroups within one image, so that the choice of family never diverges. samples^2
// samples per pixel on a regular grid. Every value is finite and, before normalisation, in [0, 1].
import package::lib::index::{index_group};
import package::lib::pattern::{pattern_lerp, pattern_clamp, pattern_smooth, pattern_fract, pattern_wave, pattern_triangle, pattern_noise};
import package::lib::pattern_noise::{pattern_clouds, pattern_cells, pattern_mosaic, pattern_warp, pattern_maze, pattern_plasma, pattern_hills};
import package::lib::pattern_tile::{pattern_stripes, pattern_hexagons, pattern_bricks, pattern_truchet, pattern_weave, pattern_glyphs, pattern_checker};
import package::lib::pattern_shape::{pattern_blobs, pattern_shapes, pattern_leaves, pattern_curves, pattern_facets};
import package::lib::pattern_field::{pattern_julia, pattern_kaleidoscope, pattern_radial, pattern_spirals, pattern_drapes};

struct Params {
    batch: u32,
    size: u32,
    samples: u32,   // per pixel along each axis
    normalise: u32, // 1: subtract the mean of ImageNet's pixels and divide by their deviation
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> program: array<f32>; // (batch, 64), see src/data/synthetic/program.rs
@group(0) @binding(2) var<storage, read_write> images: array<f32>;  // (batch, 3, size, size)

// (palette coordinate, shade, gloss) of the layer whose 24 numbers start at k.
fn layer_ink(k: u32, p: vec2<f32>) -> vec3<f32> {
    let q = vec2<f32>(
        program[k + 2u] * p.x + program[k + 3u] * p.y + program[k + 6u],
        program[k + 4u] * p.x + program[k + 5u] * p.y + program[k + 7u],
    );
    let a = vec4<f32>(program[k + 8u], program[k + 9u], program[k + 10u], program[k + 11u]);
    let b = vec2<f32>(program[k + 12u], program[k + 13u]);
    let seed = u32(program[k + 1u]);
    switch u32(program[k]) {
        case 0u: { return pattern_clouds(q, a, b, seed); }
        case 1u: { return pattern_cells(q, a, b, seed); }
        case 2u: { return pattern_mosaic(q, a, b, seed); }
        case 3u: { return pattern_warp(q, a, b, seed); }
        case 4u: { return pattern_maze(q, a, b, seed); }
        case 5u: { return pattern_plasma(q, a, b, seed); }
        case 6u: { return pattern_hills(q, a, b, seed); }
        case 7u: { return pattern_stripes(q, a, b, seed); }
        case 8u: { return pattern_hexagons(q, a, b, seed); }
        case 9u: { return pattern_bricks(q, a, b, seed); }
        case 10u: { return pattern_truchet(q, a, b, seed); }
        case 11u: { return pattern_weave(q, a, b, seed); }
        case 12u: { return pattern_glyphs(q, a, b, seed); }
        case 13u: { return pattern_checker(q, a, b, seed); }
        case 14u: { return pattern_blobs(q, a, b, seed); }
        case 15u: { return pattern_shapes(q, a, b, seed); }
        case 16u: { return pattern_leaves(q, a, b, seed); }
        case 17u: { return pattern_curves(q, a, b, seed); }
        case 18u: { return pattern_facets(q, a, b, seed); }
        case 19u: { return pattern_julia(q, a, b, seed); }
        case 20u: { return pattern_kaleidoscope(q, a, b, seed); }
        case 21u: { return pattern_radial(q, a, b, seed); }
        case 22u: { return pattern_spirals(q, a, b, seed); }
        default: { return pattern_drapes(q, a, b, seed); }
    }
}

// One channel of a palette: its nine numbers start at k.
fn palette_channel(k: u32, kind: u32, i: u32, t: f32, f: f32) -> f32 {
    let first = program[k + i];
    let second = program[k + 3u + i];
    let third = program[k + 6u + i];
    switch kind {
        // Three colours, one running into the next.
        case 0u: { return pattern_lerp(pattern_lerp(first, second, pattern_clamp(f * 2.0)), third, pattern_clamp(f * 2.0 - 1.0)); }
        // Mean, amplitude and phase of a cosine (I. Quilez's palettes).
        case 1u: { return first + second * pattern_wave(t + third); }
        // Hue and value ramps: hue, its range, saturation, value, its range (Smith 1978).
        case 2u: {
            let hue = program[k] + program[k + 1u] * f;
            let offset = f32((3u - i) % 3u) * 0.33333334;
            let pure = pattern_clamp(abs(pattern_fract(hue + offset) * 6.0 - 3.0) - 1.0);
            return (program[k + 3u] + program[k + 4u] * f) * (1.0 - program[k + 2u] * (1.0 - pure));
        }
        // Three colours with edges.
        default: { return pattern_lerp(pattern_lerp(first, second, pattern_smooth(0.3, 0.36, f)), third, pattern_smooth(0.62, 0.68, f)); }
    }
}

fn layer_colour(k: u32, p: vec2<f32>) -> vec3<f32> {
    let ink = layer_ink(k, p);
    let kind = u32(program[k + 14u]);
    let f = pattern_triangle(ink.x * 0.5);
    let rgb = vec3<f32>(
        palette_channel(k + 15u, kind, 0u, ink.x, f),
        palette_channel(k + 15u, kind, 1u, ink.x, f),
        palette_channel(k + 15u, kind, 2u, ink.x, f),
    );
    return rgb * max(ink.y, 0.0) + vec3<f32>(ink.z, ink.z, ink.z);
}

// How much of the second layer shows: the sixteen numbers of the whole image start at k.
fn mask_at(k: u32, p: vec2<f32>) -> f32 {
    let m = vec2<f32>(program[k + 1u], program[k + 2u]);
    let level = program[k + 3u];
    let soft = program[k + 4u];
    switch u32(program[k]) {
        case 1u: { return pattern_smooth(-soft, soft, p.x * m.x + p.y * m.y - level); }
        case 2u: {
            let d = p - m;
            return pattern_smooth(-soft, soft, level - sqrt(d.x * d.x + d.y * d.y));
        }
        case 3u: { return pattern_smooth(-soft, soft, pattern_noise(p * level + m, u32(program[k + 5u]))); }
        case 4u: { return pattern_smooth(-soft, soft, pattern_wave((p.x * m.x + p.y * m.y) * level)); }
        default: { return level; }
    }
}

fn sample_at(k: u32, p: vec2<f32>) -> vec3<f32> {
    var c = layer_colour(k + 16u, p);
    if (program[k] > 0.0) {
        let m = mask_at(k, p);
        // The seam is drawn dark by a shadow that both layers share.
        let seam = 1.0 - program[k + 11u] * m * (1.0 - m) * 4.0;
        c = (c + (layer_colour(k + 40u, p) - c) * m) * seam;
    }
    let light = program[k + 9u] * (1.0 + program[k + 6u] * p.x + program[k + 7u] * p.y) * (1.0 - program[k + 8u] * (p.x * p.x + p.y * p.y));
    let grey = (c.x + c.y + c.z) * 0.33333334;
    let g = vec3<f32>(grey, grey, grey);
    c = (g + (c - g) * program[k + 10u]) * light;
    return vec3<f32>(pattern_clamp(c.x), pattern_clamp(c.y), pattern_clamp(c.z));
}

@compute @workgroup_size(64)
fn draw(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let pixels = params.size * params.size;
    let groups = (pixels + 63u) / 64u;
    let group = index_group(wg, num);
    let image = group / groups;
    let i = (group % groups) * 64u + lane;
    if (image < params.batch && i < pixels) {
        let pixel = vec2<f32>(f32(i % params.size), f32(i / params.size));
        let scale = 2.0 / f32(params.size);
        let n = f32(params.samples);
        var sum = vec3<f32>(0.0, 0.0, 0.0);
        for (var s = 0u; s < params.samples * params.samples; s++) {
            let o = vec2<f32>((f32(s % params.samples) + 0.5) / n, (f32(s / params.samples) + 0.5) / n);
            sum = sum + sample_at(image * 64u, (pixel + o) * scale - vec2<f32>(1.0, 1.0));
        }
        sum = sum * (1.0 / (n * n));
        if (params.normalise != 0u) {
            sum = (sum - vec3<f32>(0.485, 0.456, 0.406)) / vec3<f32>(0.229, 0.224, 0.225);
        }
        let at = image * 3u * pixels + i;
        images[at] = sum.x;
        images[at + pixels] = sum.y;
        images[at + 2u * pixels] = sum.z;
    }
}
