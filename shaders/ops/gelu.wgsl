// y = x Phi(x), the exact Gaussian error linear unit (Hendrycks and Gimpel 2016). One invocation per element.
// Backward recomputes from x: dx = dy (Phi(x) + x phi(x)). Beyond |x| = 12 the slope is 1 or 0 in f32, which also
// keeps x * x from overflowing.
import package::lib::index::{index_group};
import package::lib::math::{math_erf};

struct Params {
    n: u32,
    accumulate: u32, // 1: backward adds to dx; forward ignores it
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;  // (n)
@group(0) @binding(2) var<storage, read_write> y: array<f32>;  // (n)
@group(0) @binding(2) var<storage, read_write> dy: array<f32>; // (n)
@group(0) @binding(3) var<storage, read_write> dx: array<f32>; // (n)

fn gelu_cdf(v: f32) -> f32 {
    return 0.5 * (1.0 + math_erf(v * 0.70710678));
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        y[i] = x[i] * gelu_cdf(x[i]);
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let v = x[i];
        var slope = gelu_cdf(v) + v * 0.39894228 * exp(-0.5 * v * v);
        slope = select(slope, 1.0, v > 12.0);
        slope = select(slope, 0.0, v < -12.0);
        let g = dy[i] * slope;
        dx[i] = select(g, dx[i] + g, params.accumulate != 0u);
    }
}
