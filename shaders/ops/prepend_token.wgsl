// y_b = [token, x_b]: a learnt token before the tokens of every example. One invocation per written element.
import package::lib::index::{index_group};

struct Params {
    n: u32,          // written elements
    tokens: u32,     // T
    width: u32,      // D
    accumulate: u32, // 1: backward adds to what is there; forward ignores it
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> token: array<f32>; // (D)
@group(0) @binding(2) var<storage, read_write> x: array<f32>;     // (B, T, D)
@group(0) @binding(3) var<storage, read_write> y: array<f32>;     // (B, 1 + T, D)
@group(0) @binding(1) var<storage, read_write> dy: array<f32>;    // (B, 1 + T, D)
@group(0) @binding(2) var<storage, read_write> dx: array<f32>;    // (B, T, D)
@group(0) @binding(2) var<storage, read_write> rows: array<f32>;  // (B, D)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let example = (1u + params.tokens) * params.width;
        let b = i / example;
        let k = i % example;
        if (k < params.width) {
            y[i] = token[k];
        } else {
            y[i] = x[i - (b + 1u) * params.width];
        }
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let b = i / (params.tokens * params.width);
        let g = dy[i + (b + 1u) * params.width];
        dx[i] = select(g, dx[i] + g, params.accumulate != 0u);
    }
}

@compute @workgroup_size(64)
fn backward_token(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let b = i / params.width;
        let g = dy[i + b * params.tokens * params.width];
        rows[i] = select(g, rows[i] + g, params.accumulate != 0u);
    }
}
