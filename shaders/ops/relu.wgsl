// y = max(x, 0), elementwise; the gradient at 0 is 0.
// One invocation per element. No `max`: it may turn NaN into 0 and hide it from the clip.
import package::lib::index::{index_group};

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
        y[i] = select(x[i], 0.0, x[i] < 0.0);
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let g = select(0.0, dy[i], x[i] > 0.0);
        dx[i] = select(g, dx[i] + g, params.accumulate != 0u);
    }
}
