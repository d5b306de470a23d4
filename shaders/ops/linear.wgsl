// Per-example bias gradient of y = x W^T + b: db_i = sum_t dy_(i, t). The products are in ops/matmul.
// One invocation per example and output, which adds up the tokens in order.
import package::lib::index::{index_group};

struct Params {
    batch: u32,
    tokens: u32,
    width: u32,
    accumulate: u32, // 1: add to db
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> dy: array<f32>; // (batch, tokens, width)
@group(0) @binding(2) var<storage, read_write> db: array<f32>; // (batch, width)

@compute @workgroup_size(64)
fn backward_bias(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.batch * params.width) {
        let start = i / params.width * params.tokens * params.width + i % params.width;
        var sum = 0.0;
        for (var t = 0u; t < params.tokens; t++) {
            sum += dy[start + t * params.width];
        }
        if (params.accumulate != 0u) {
            sum += db[i];
        }
        db[i] = sum;
    }
}
