// y_bt = table[ids_bt]; an id outside the table gives zeros. One invocation per element.
import package::lib::index::{index_group};

struct Params {
    n: u32,          // B * T * D
    width: u32,      // D
    vocabulary: u32, // V
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> table: array<f32>; // (V, D)
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;   // (B, T)
@group(0) @binding(3) var<storage, read_write> y: array<f32>;     // (B, T, D)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let id = ids[i / params.width];
        var value = 0.0;
        if (id < params.vocabulary) {
            value = table[id * params.width + i % params.width];
        }
        y[i] = value;
    }
}
