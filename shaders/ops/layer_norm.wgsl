// LayerNorm over the last axis: y = (x - mean) rstd gamma + beta. Ba, Kiros, Hinton 2016, arXiv 1607.06450.
// Rows R = B * T of width D. Forward and backward: one workgroup per row, lanes strided over D, sums in a fixed
// order; two passes for the statistics, because E[x^2] - E[x]^2 cancels.
// Row gradients of gamma and beta: one invocation per (example, channel), tokens in order.
import package::lib::index::{index_group};
import package::lib::reduce::{reduce_sum};

struct ParamsForward {
    rows: u32,  // R
    width: u32, // D
    eps: f32,
}
struct Params {
    rows: u32,       // R
    width: u32,      // D
    accumulate: u32, // 1: adds to dx
}
struct ParamsRows {
    batch: u32,  // B
    tokens: u32, // T
    width: u32,  // D
    accumulate_gamma: u32,
    accumulate_beta: u32,
}
@group(0) @binding(0) var<uniform> params_forward: ParamsForward;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(0) var<uniform> params_rows: ParamsRows;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;      // (R, D)
@group(0) @binding(2) var<storage, read_write> gamma: array<f32>;  // (D)
@group(0) @binding(3) var<storage, read_write> beta: array<f32>;   // (D)
@group(0) @binding(4) var<storage, read_write> y: array<f32>;      // (R, D)
@group(0) @binding(5) var<storage, read_write> mean: array<f32>;   // (R)
@group(0) @binding(6) var<storage, read_write> rstd: array<f32>;   // (R)
@group(0) @binding(3) var<storage, read_write> dy: array<f32>;     // (R, D)
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;     // (R, D)
@group(0) @binding(7) var<storage, read_write> dgamma: array<f32>; // (B, D)
@group(0) @binding(8) var<storage, read_write> dbeta: array<f32>;  // (B, D)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let r = index_group(wg, num);
    let width = params_forward.width;
    let live = r < params_forward.rows;
    let start = select(0u, r * width, live);
    var sum = 0.0;
    for (var k = lane; k < width; k += 64u) {
        sum += x[start + k];
    }
    let m = reduce_sum(sum, lane) / f32(width);
    var squares = 0.0;
    for (var k = lane; k < width; k += 64u) {
        let d = x[start + k] - m;
        squares += d * d;
    }
    let s = 1.0 / sqrt(reduce_sum(squares, lane) / f32(width) + params_forward.eps);
    if (live) {
        for (var k = lane; k < width; k += 64u) {
            y[start + k] = (x[start + k] - m) * s * gamma[k] + beta[k];
        }
        if (lane == 0u) {
            mean[r] = m;
            rstd[r] = s;
        }
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let r = index_group(wg, num);
    let width = params.width;
    let live = r < params.rows;
    let row = select(0u, r, live);
    let start = row * width;
    let m = mean[row];
    let s = rstd[row];
    var sum_g = 0.0;
    var sum_gx = 0.0;
    for (var k = lane; k < width; k += 64u) {
        let g = dy[start + k] * gamma[k];
        sum_g += g;
        sum_gx += g * ((x[start + k] - m) * s);
    }
    let mean_g = reduce_sum(sum_g, lane) / f32(width);
    let mean_gx = reduce_sum(sum_gx, lane) / f32(width);
    if (live) {
        for (var k = lane; k < width; k += 64u) {
            let g = s * (dy[start + k] * gamma[k] - mean_g - (x[start + k] - m) * s * mean_gx);
            dx[start + k] = select(g, dx[start + k] + g, params.accumulate != 0u);
        }
    }
}

@compute @workgroup_size(64)
fn backward_rows(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    let width = params_rows.width;
    if (i < params_rows.batch * width) {
        let b = i / width;
        let k = i % width;
        var g = 0.0;
        var h = 0.0;
        for (var t = 0u; t < params_rows.tokens; t++) {
            let r = b * params_rows.tokens + t;
            let d = dy[r * width + k];
            g += d * (x[r * width + k] - mean[r]) * rstd[r];
            h += d;
        }
        dgamma[i] = select(g, dgamma[i] + g, params_rows.accumulate_gamma != 0u);
        dbeta[i] = select(h, dbeta[i] + h, params_rows.accumulate_beta != 0u);
    }
}
