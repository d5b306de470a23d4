// y = (x - mean) rstd by column, rstd = 1/sqrt(var + eps) with the biased variance over all rows (arXiv 1502.03167);
// dx = rstd (dy - mean(dy) - xhat mean(dy xhat)). One invocation per column, rows in order: neighbours read neighbours.
// The mean is corrected by the mean of what is left, so that a constant column of any size has variance 0.
import package::lib::index::{index_group};

struct ParamsForward {
    rows: u32,  // N
    width: u32, // F
    eps: f32,
}
struct Params {
    rows: u32,       // N
    width: u32,      // F
    accumulate: u32, // 1: adds to dx
}
@group(0) @binding(0) var<uniform> params_forward: ParamsForward;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;        // (N, F)
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;     // (F)
@group(0) @binding(3) var<storage, read_write> rstd: array<f32>;     // (F)
@group(0) @binding(4) var<storage, read_write> variance: array<f32>; // (F)
@group(0) @binding(5) var<storage, read_write> y: array<f32>;        // (N, F)
@group(0) @binding(4) var<storage, read_write> dy: array<f32>;       // (N, F)
@group(0) @binding(5) var<storage, read_write> dx: array<f32>;       // (N, F)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let k = index_group(wg, num) * 64u + lane;
    let width = params_forward.width;
    if (k < width) {
        let share = 1.0 / f32(params_forward.rows);
        var m = 0.0;
        for (var row = 0u; row < params_forward.rows; row++) {
            m += x[row * width + k];
        }
        m *= share;
        var left = 0.0;
        for (var row = 0u; row < params_forward.rows; row++) {
            left += x[row * width + k] - m;
        }
        left *= share;
        var squares = 0.0;
        for (var row = 0u; row < params_forward.rows; row++) {
            let d = (x[row * width + k] - m) - left;
            squares += d * d;
        }
        let r = 1.0 / sqrt(squares * share + params_forward.eps);
        for (var row = 0u; row < params_forward.rows; row++) {
            y[row * width + k] = ((x[row * width + k] - m) - left) * r;
        }
        mean[k] = m + left;
        variance[k] = squares * share;
        rstd[k] = r;
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let k = index_group(wg, num) * 64u + lane;
    let width = params.width;
    if (k < width) {
        let m = mean[k];
        let r = rstd[k];
        var sum = 0.0;
        var sum_hat = 0.0;
        for (var row = 0u; row < params.rows; row++) {
            let g = dy[row * width + k];
            sum += g;
            sum_hat += g * ((x[row * width + k] - m) * r);
        }
        sum /= f32(params.rows);
        sum_hat /= f32(params.rows);
        for (var row = 0u; row < params.rows; row++) {
            let at = row * width + k;
            let g = r * (dy[at] - sum - (x[at] - m) * r * sum_hat);
            dx[at] = select(g, dx[at] + g, params.accumulate != 0u);
        }
    }
}
