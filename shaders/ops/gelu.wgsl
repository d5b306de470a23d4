// y = x Phi(x), Phi the standard normal distribution function: the exact GELU (arXiv 1606.08415, section 2).
// dx = dy (Phi(x) + x phi(x)), computed anew from x. One invocation per element.
// Finite for every finite x: the density is 0 far out, and Phi saturates exactly.
import package::lib::index::{index_group};
import package::lib::math::{math_normal_cdf, math_normal_pdf};

struct Params {
    n: u32,
    accumulate: u32, // 1: backward adds to dx; forward ignores it
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;  // (n)
@group(0) @binding(2) var<storage, read_write> y: array<f32>;  // (n)
@group(0) @binding(2) var<storage, read_write> dy: array<f32>; // (n)
@group(0) @binding(3) var<storage, read_write> dx: array<f32>; // (n)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        y[i] = x[i] * math_normal_cdf(x[i]);
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let v = x[i];
        let g = dy[i] * (math_normal_cdf(v) + v * math_normal_pdf(v));
        dx[i] = select(g, dx[i] + g, params.accumulate != 0u);
    }
}
