// Attention of one new token over the tokens in a cache and itself: y = softmax(q K^T / sqrt(d)) V, K and V being the first
// `length` rows of the cache and the token's own. One invocation per channel: it walks the keys once, with a running
// largest score (Milakov and Gimelshein 2018), so that nothing is stored. Statistics in f32.
import package::lib::index::{index_group};

struct Params {
    n: u32,        // B H d
    width: u32,    // H d
    head: u32,     // d
    capacity: u32, // T, rows of the cache
    scale: f32,    // 1 / sqrt(d)
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> qkv: array<f32>;    // (B, 1, 3 H d): q | k | v
@group(0) @binding(2) var<storage, read_write> cache: array<f32>;  // (B, T, 2 H d): k | v
@group(0) @binding(3) var<storage, read_write> filled: array<u32>; // (B) rows of the cache that count
@group(0) @binding(4) var<storage, read_write> y: array<f32>;      // (B, 1, H d)

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let b = i / params.width;
        let channel = i % params.width;
        let first = channel / params.head * params.head;
        let own = b * 3u * params.width;
        // The token's own key and value come first.
        var top = 0.0;
        for (var c = 0u; c < params.head; c++) {
            top += qkv[own + first + c] * qkv[own + params.width + first + c];
        }
        top *= params.scale;
        var sum = 1.0;
        var value = qkv[own + 2u * params.width + channel];
        let rows = min(filled[b], params.capacity);
        for (var s = 0u; s < rows; s++) {
            let row = (b * params.capacity + s) * 2u * params.width;
            var score = 0.0;
            for (var c = 0u; c < params.head; c++) {
                score += qkv[own + first + c] * cache[row + first + c];
            }
            score *= params.scale;
            let next = max(top, score);
            let keep = exp(top - next);
            let share = exp(score - next);
            sum = sum * keep + share;
            value = value * keep + share * cache[row + params.width + channel];
            top = next;
        }
        y[i] = value / sum;
    }
}
