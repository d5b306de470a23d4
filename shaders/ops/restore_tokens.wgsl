// y[b, t] = x[b, source[b, t]], or the mask token where the source is S or more (He et al. 2022).
// One invocation per written element; the token's row gradient sums its positions in order.
import package::lib::index::{index_group};

struct Params {
    n: u32,          // written elements
    rows: u32,       // S
    tokens: u32,     // T
    width: u32,      // D
    accumulate: u32, // 1: backward adds to what is there; forward ignores it
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;      // (B, S, D)
@group(0) @binding(2) var<storage, read_write> token: array<f32>;  // (D)
@group(0) @binding(3) var<storage, read_write> source: array<u32>; // (B, T)
@group(0) @binding(4) var<storage, read_write> y: array<f32>;      // (B, T, D)
@group(0) @binding(1) var<storage, read_write> dy: array<f32>;     // (B, T, D)
@group(0) @binding(2) var<storage, read_write> target_ids: array<u32>; // (B, S)
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;     // (B, S, D)
@group(0) @binding(4) var<storage, read_write> drows: array<f32>;  // (B, D)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let bt = i / params.width;
        let k = i % params.width;
        let s = source[bt];
        if (s < params.rows) {
            y[i] = x[(bt / params.tokens * params.rows + s) * params.width + k];
        } else {
            y[i] = token[k];
        }
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let bs = i / params.width;
        let t = target_ids[bs];
        var g = 0.0;
        if (t < params.tokens) {
            g = dy[(bs / params.rows * params.tokens + t) * params.width + i % params.width];
        }
        dx[i] = select(g, dx[i] + g, params.accumulate != 0u);
    }
}

@compute @workgroup_size(64)
fn backward_token(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let b = i / params.width;
        let k = i % params.width;
        var g = 0.0;
        for (var t = 0u; t < params.tokens; t++) {
            if (source[b * params.tokens + t] >= params.rows) {
                g += dy[(b * params.tokens + t) * params.width + k];
            }
        }
        drows[i] = select(g, drows[i] + g, params.accumulate != 0u);
    }
}
