// y = gamma xhat + beta, xhat = (x - mean) rstd, rstd = 1/sqrt(var + eps) over rows: LayerNorm (arXiv 1607.06450).
// dx = rstd (u - mean(u) - xhat mean(u xhat)) with u = gamma dy; per example dgamma = sum dy xhat, dbeta = sum dy.
// Rows: 64 invocations take four rows, 16 lanes to a row. Parameters: one invocation per example and column.
// The mean is corrected by the mean of what is left, so that a constant row of any size has variance 0.
import package::lib::index::{index_group};
import package::lib::reduce::{reduce_sum16, reduce_sum16_pair};

struct Params {
    rows: u32,
    width: u32,
    tokens: u32, // rows of one example
    eps: f32,
    accumulate: u32,      // 1: backward adds to dx, or to dgamma
    accumulate_beta: u32, // 1: backward_params adds to dbeta
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;      // (rows, width)
@group(0) @binding(2) var<storage, read_write> gamma: array<f32>;  // (width)
@group(0) @binding(3) var<storage, read_write> mean: array<f32>;   // (rows)
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;   // (rows)
@group(0) @binding(5) var<storage, read_write> beta: array<f32>;   // (width)
@group(0) @binding(6) var<storage, read_write> y: array<f32>;      // (rows, width)
@group(0) @binding(5) var<storage, read_write> dy: array<f32>;     // (rows, width)
@group(0) @binding(6) var<storage, read_write> dx: array<f32>;     // (rows, width)
@group(0) @binding(6) var<storage, read_write> dgamma: array<f32>; // (examples, width)
@group(0) @binding(7) var<storage, read_write> dbeta: array<f32>;  // (examples, width)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = index_group(wg, num) * 4u + lane / 16u;
    let start = row * params.width;
    // A row past the end takes part in the sums with no elements.
    let width = select(0u, params.width, row < params.rows);
    let share = 1.0 / f32(params.width);
    var sum = 0.0;
    for (var k = lane % 16u; k < width; k += 16u) {
        sum += x[start + k];
    }
    let m = reduce_sum16(sum, lane) * share;
    var left = vec2<f32>();
    for (var k = lane % 16u; k < width; k += 16u) {
        let d = x[start + k] - m;
        left += vec2<f32>(d, d * d);
    }
    left = reduce_sum16_pair(left, lane) * share;
    // var = E[d^2] - E[d]^2, where E[d] is a rounding error: no cancellation, but do not go below 0.
    let variance = left.y - left.x * left.x;
    let r = 1.0 / sqrt(select(variance, 0.0, variance < 0.0) + params.eps);
    for (var k = lane % 16u; k < width; k += 16u) {
        y[start + k] = ((x[start + k] - m) - left.x) * r * gamma[k] + beta[k];
    }
    if (lane % 16u == 0u && width > 0u) {
        mean[row] = m + left.x;
        rstd[row] = r;
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = index_group(wg, num) * 4u + lane / 16u;
    let start = row * params.width;
    let width = select(0u, params.width, row < params.rows);
    let share = 1.0 / f32(params.width);
    var m = 0.0;
    var r = 0.0;
    if (width > 0u) {
        m = mean[row];
        r = rstd[row];
    }
    var sum = vec2<f32>();
    for (var k = lane % 16u; k < width; k += 16u) {
        let u = gamma[k] * dy[start + k];
        sum += vec2<f32>(u, u * ((x[start + k] - m) * r));
    }
    sum = reduce_sum16_pair(sum, lane) * share;
    for (var k = lane % 16u; k < width; k += 16u) {
        let u = gamma[k] * dy[start + k];
        let g = r * (u - sum.x - (x[start + k] - m) * r * sum.y);
        dx[start + k] = select(g, dx[start + k] + g, params.accumulate != 0u);
    }
}

@compute @workgroup_size(64)
fn backward_params(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    let width = params.width;
    let example = i / width;
    let column = i % width;
    if (example * params.tokens < params.rows) {
        var g = 0.0;
        var b = 0.0;
        for (var t = example * params.tokens; t < (example + 1u) * params.tokens; t++) {
            let d = dy[t * width + column];
            g += d * ((x[t * width + column] - mean[t]) * rstd[t]);
            b += d;
        }
        dgamma[i] = select(g, dgamma[i] + g, params.accumulate != 0u);
        dbeta[i] = select(b, dbeta[i] + b, params.accumulate_beta != 0u);
    }
}
