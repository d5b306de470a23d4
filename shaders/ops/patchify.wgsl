// Images cut into square patches, row by row, optionally standardised: (x - mean) / sqrt(var + 1e-6), unbiased var.
// Forward: one invocation per value. Standardize: one workgroup per patch, in place; two passes for the variance,
// because E[x^2] - E[x]^2 cancels, and a mean corrected by the mean of what is left: one colour gives zeros.
import package::lib::index::{index_group};
import package::lib::reduce::{reduce_sum};

struct Params {
    n: u32,             // B * L * 3 p p
    height: u32,
    width: u32,
    side: u32,          // p
    channel_first: u32, // 1: channel, row, column; 0: row, column, channel
}
struct ParamsStandardize {
    patches: u32, // B * L
    width: u32,   // 3 p p
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(0) var<uniform> params_standardize: ParamsStandardize;
@group(0) @binding(1) var<storage, read_write> images: array<f32>; // (B, 3, H, W)
@group(0) @binding(2) var<storage, read_write> y: array<f32>;      // (B, L, 3 p p)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let p = params.side;
        let k = i % (3u * p * p);
        let patch_ix = i / (3u * p * p);
        let per_row = params.width / p;
        let per_image = per_row * (params.height / p);
        let l = patch_ix % per_image;
        let first = params.channel_first != 0u;
        let c = select(k % 3u, k / (p * p), first);
        let row = select(k / 3u / p, k / p % p, first);
        let column = select(k / 3u % p, k % p, first);
        let top = l / per_row * p + row;
        let left = l % per_row * p + column;
        y[i] = images[((patch_ix / per_image * 3u + c) * params.height + top) * params.width + left];
    }
}

@compute @workgroup_size(64)
fn standardize(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let patch_ix = index_group(wg, num);
    let start = patch_ix * params_standardize.width;
    let n = f32(params_standardize.width);
    // A workgroup past the end takes part in the sums with no values.
    let width = select(0u, params_standardize.width, patch_ix < params_standardize.patches);
    var sum = 0.0;
    for (var k = lane; k < width; k += 64u) {
        sum += y[start + k];
    }
    let mean = reduce_sum(sum, lane) / n;
    sum = 0.0;
    for (var k = lane; k < width; k += 64u) {
        sum += y[start + k] - mean;
    }
    let left = reduce_sum(sum, lane) / n;
    sum = 0.0;
    for (var k = lane; k < width; k += 64u) {
        let d = (y[start + k] - mean) - left;
        sum += d * d;
    }
    let scale = 1.0 / sqrt(reduce_sum(sum, lane) / (n - 1.0) + 1e-6);
    for (var k = lane; k < width; k += 64u) {
        y[start + k] = ((y[start + k] - mean) - left) * scale;
    }
}
