// y = mean over the tokens of an example from `skip` on. One invocation per written element, tokens in order.
import package::lib::index::{index_group};

struct Params {
    n: u32,          // written elements
    tokens: u32,     // T
    width: u32,      // D
    skip: u32,       // leading tokens left out
    accumulate: u32, // 1: backward adds to dx; forward ignores it
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;  // (B, T, D)
@group(0) @binding(2) var<storage, read_write> y: array<f32>;  // (B, D)
@group(0) @binding(1) var<storage, read_write> dy: array<f32>; // (B, D)
@group(0) @binding(2) var<storage, read_write> dx: array<f32>; // (B, T, D)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let b = i / params.width;
        var sum = 0.0;
        for (var t = params.skip; t < params.tokens; t++) {
            sum += x[(b * params.tokens + t) * params.width + i % params.width];
        }
        y[i] = sum / f32(params.tokens - params.skip);
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let bt = i / params.width;
        let b = bt / params.tokens;
        let g = select(dy[b * params.width + i % params.width] / f32(params.tokens - params.skip), 0.0,
            bt % params.tokens < params.skip);
        dx[i] = select(g, dx[i] + g, params.accumulate != 0u);
    }
}
