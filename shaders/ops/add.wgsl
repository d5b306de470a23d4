// y = a + b, elementwise. One invocation per element. The gradient passes through, so there is no backward.
import package::lib::index::{index_group};

struct Params {
    n: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> a: array<f32>; // (n)
@group(0) @binding(2) var<storage, read_write> b: array<f32>; // (n)
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // (n)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        y[i] = a[i] + b[i];
    }
}
