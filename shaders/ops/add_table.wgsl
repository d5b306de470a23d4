// y_b = x_b + table: a position table added to every example. One invocation per element.
import package::lib::index::{index_group};

struct Params {
    n: u32,     // B * width
    width: u32, // T * D
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;     // (B, T, D)
@group(0) @binding(2) var<storage, read_write> table: array<f32>; // (T, D)
@group(0) @binding(3) var<storage, read_write> y: array<f32>;     // (B, T, D)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        y[i] = x[i] + table[i % params.width];
    }
}
