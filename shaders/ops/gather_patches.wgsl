// The kept patches of every image in the order channel, row, column. One invocation per value.
import package::lib::index::{index_group};

struct Params {
    n: u32,    // B * K * 3 p p
    kept: u32, // K
    height: u32,
    width: u32,
    side: u32, // p
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> images: array<f32>; // (B, 3, H, W)
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;    // (B, K)
@group(0) @binding(3) var<storage, read_write> y: array<f32>;      // (B, K, 3 p p)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let p = params.side;
        let n = 3u * p * p;
        let bk = i / n;
        let k = i % n;
        let per_row = params.width / p;
        let l = ids[bk];
        var value = 0.0;
        if (l < per_row * (params.height / p)) {
            let top = l / per_row * p + k / p % p;
            let left = l % per_row * p + k % p;
            value = images[((bk / params.kept * 3u + k / (p * p)) * params.height + top) * params.width + left];
        }
        y[i] = value;
    }
}
