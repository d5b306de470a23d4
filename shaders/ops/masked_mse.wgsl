// loss_b = (1 / removed_b) sum over removed patches l of mean_k (prediction - wanted)^2 (He et al. 2022).
// Forward: one workgroup per example, patches strided over lanes, a fixed-order sum over lanes.
// Backward: one invocation per row of the prediction. Kept patches are never read, so what they hold cannot matter.
import package::lib::index::{index_group};

struct ParamsForward {
    batch: u32,   // B
    patches: u32, // L
    width: u32,   // P
    skip: u32,    // rows of the prediction before the first patch
}
struct Params {
    rows: u32,       // B * (skip + L)
    patches: u32,    // L
    width: u32,      // P
    skip: u32,
    accumulate: u32, // 1: adds to dprediction
}
@group(0) @binding(0) var<uniform> params_forward: ParamsForward;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> prediction: array<f32>;  // (B, skip + L, P)
@group(0) @binding(2) var<storage, read_write> wanted: array<f32>;      // (B, L, P)
@group(0) @binding(3) var<storage, read_write> mask: array<f32>;        // (B, L)
@group(0) @binding(4) var<storage, read_write> loss: array<f32>;        // (B)
@group(0) @binding(4) var<storage, read_write> dloss: array<f32>;       // (B)
@group(0) @binding(5) var<storage, read_write> dprediction: array<f32>; // (B, skip + L, P)

var<workgroup> masked_mse_sums: array<f32, 64>;
var<workgroup> masked_mse_counts: array<f32, 64>;

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let b = index_group(wg, num);
    let l_n = params_forward.patches;
    let width = params_forward.width;
    var sum = 0.0;
    var count = 0.0;
    if (b < params_forward.batch) {
        for (var l = lane; l < l_n; l += 64u) {
            let m = mask[b * l_n + l];
            if (m != 0.0) {
                var squares = 0.0;
                for (var k = 0u; k < width; k++) {
                    let d = prediction[(b * (params_forward.skip + l_n) + params_forward.skip + l) * width + k]
                        - wanted[(b * l_n + l) * width + k];
                    squares += d * d;
                }
                sum += m * squares / f32(width);
                count += m;
            }
        }
    }
    masked_mse_sums[lane] = sum;
    masked_mse_counts[lane] = count;
    workgroupBarrier();
    if (lane == 0u && b < params_forward.batch) {
        for (var j = 1u; j < 64u; j++) {
            sum += masked_mse_sums[j];
            count += masked_mse_counts[j];
        }
        if (count == 0.0) {
            loss[b] = 0.0;
        } else {
            loss[b] = sum / count;
        }
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.rows) {
        let per_example = params.skip + params.patches;
        let b = i / per_example;
        let row = i % per_example;
        var m = 0.0;
        var count = 0.0;
        if (row >= params.skip) {
            m = mask[b * params.patches + row - params.skip];
            for (var l = 0u; l < params.patches; l++) {
                count += mask[b * params.patches + l];
            }
        }
        if (m != 0.0) {
            let scale = 2.0 * m * dloss[b] / (count * f32(params.width));
            for (var k = 0u; k < params.width; k++) {
                let at = i * params.width + k;
                let g = scale * (prediction[at] - wanted[(b * params.patches + row - params.skip) * params.width + k]);
                dprediction[at] = select(g, dprediction[at] + g, params.accumulate != 0u);
            }
        } else if (params.accumulate == 0u) {
            for (var k = 0u; k < params.width; k++) {
                dprediction[i * params.width + k] = 0.0;
            }
        }
    }
}
