// loss_b = (1 / removed_b) sum over removed patches l of mean_k (prediction - wanted)^2 (He et al. 2022).
// Forward: one workgroup per example, lanes along the values of a patch, a fixed-order sum over lanes.
// Backward: one invocation per value of the prediction. Kept patches are never read: what they hold cannot matter.
import package::lib::index::{index_group};
import package::lib::reduce::{reduce_sum};

struct ParamsForward {
    batch: u32,   // B
    patches: u32, // L
    width: u32,   // P
    skip: u32,    // rows of the prediction before the first patch
}
struct Params {
    n: u32,          // B * (skip + L) * P
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
@group(0) @binding(4) var<storage, read_write> removed: array<f32>;     // (B), sum of the mask
@group(0) @binding(5) var<storage, read_write> loss: array<f32>;        // (B)
@group(0) @binding(5) var<storage, read_write> dloss: array<f32>;       // (B)
@group(0) @binding(6) var<storage, read_write> dprediction: array<f32>; // (B, skip + L, P)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let b = index_group(wg, num);
    let width = params_forward.width;
    // A workgroup past the end takes part in the sum with no patches.
    let patches = select(0u, params_forward.patches, b < params_forward.batch);
    var sum = 0.0;
    var count = 0.0;
    for (var l = 0u; l < patches; l++) {
        let m = mask[b * patches + l];
        if (m != 0.0) {
            let at = (b * (params_forward.skip + patches) + params_forward.skip + l) * width;
            var squares = 0.0;
            for (var k = lane; k < width; k += 64u) {
                let d = prediction[at + k] - wanted[(b * patches + l) * width + k];
                squares += d * d;
            }
            sum += m * squares;
            count += m;
        }
    }
    sum = reduce_sum(sum, lane);
    if (lane == 0u && patches > 0u) {
        removed[b] = count;
        if (count == 0.0) {
            loss[b] = 0.0;
        } else {
            loss[b] = sum / f32(width) / count;
        }
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let row = i / params.width;
        let b = row / (params.skip + params.patches);
        let place = row % (params.skip + params.patches);
        var g = 0.0;
        if (place >= params.skip) {
            let patch_ix = b * params.patches + place - params.skip;
            let m = mask[patch_ix];
            if (m != 0.0) {
                let scale = 2.0 * m * dloss[b] / (removed[b] * f32(params.width));
                g = scale * (prediction[i] - wanted[patch_ix * params.width + i % params.width]);
            }
        }
        dprediction[i] = select(g, dprediction[i] + g, params.accumulate != 0u);
    }
}
