// Images cut into square patches, row by row, optionally standardised: (x - mean) / sqrt(var + 1e-6), unbiased var.
// One invocation per patch; two passes over it for the statistics, because E[x^2] - E[x]^2 cancels.
import package::lib::index::{index_group};

struct Params {
    patches: u32,       // B * L
    height: u32,
    width: u32,
    side: u32,         // p
    channel_first: u32, // 1: channel, row, column; 0: row, column, channel
    standardize: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> images: array<f32>; // (B, 3, H, W)
@group(0) @binding(2) var<storage, read_write> y: array<f32>;      // (B, L, 3 p p)

fn patchify_pixel(patch_ix: u32, k: u32) -> f32 {
    let p = params.side;
    let per_row = params.width / p;
    let per_image = per_row * (params.height / p);
    let l = patch_ix % per_image;
    let first = params.channel_first != 0u;
    let c = select(k % 3u, k / (p * p), first);
    let row = select(k / 3u / p, k / p % p, first);
    let column = select(k / 3u % p, k % p, first);
    let top = l / per_row * p + row;
    let left = l % per_row * p + column;
    return images[((patch_ix / per_image * 3u + c) * params.height + top) * params.width + left];
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.patches) {
        let n = 3u * params.side * params.side;
        var mean = 0.0;
        var scale = 1.0;
        if (params.standardize != 0u) {
            for (var k = 0u; k < n; k++) {
                mean += patchify_pixel(i, k);
            }
            mean /= f32(n);
            var sum = 0.0;
            for (var k = 0u; k < n; k++) {
                let d = patchify_pixel(i, k) - mean;
                sum += d * d;
            }
            scale = 1.0 / sqrt(sum / (f32(n) - 1.0) + 1e-6);
        }
        for (var k = 0u; k < n; k++) {
            y[i * n + k] = (patchify_pixel(i, k) - mean) * scale;
        }
    }
}
