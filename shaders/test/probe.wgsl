// Small kernels for the tests of the engines: they show order, reach and padding.
// One invocation per element (`quads`: per four).
import package::lib::index::{index_group};

struct Params {
    n: u32,
    base: u32, // first value of `count`; others ignore it
    step: f32, // addend of `increment`, factor of `quads`
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;        // (n)
@group(0) @binding(1) var<storage, read_write> words: array<u32>;    // (n)
@group(0) @binding(1) var<storage, read_write> four: array<vec4<f32>>; // (n)
@group(0) @binding(2) var<storage, read_write> y: array<f32>;        // (n)

// x = x + step.
@compute @workgroup_size(64)
fn increment(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        x[i] += params.step;
    }
}

// y = x + step.
@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        y[i] = x[i] + params.step;
    }
}

// words[i] = base + i.
@compute @workgroup_size(64)
fn count(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        words[i] = params.base + i;
    }
}

// four = step * four, whole vectors.
@compute @workgroup_size(64)
fn quads(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i * 4u < params.n) {
        four[i] *= params.step;
    }
}
