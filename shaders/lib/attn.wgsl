// The core of attention over one head, for the modules that say where queries, keys and values lie: they declare
// attn_q, attn_k, attn_v (loads by example, token, channel) and the stores of the gradients.
// One invocation per row; running maximum and sum (Milakov and Gimelshein 2018), so that no map is stored.
import package::spec::{HEAD_DIM};

struct Params {
    batch: u32,   // B
    queries: u32, // Tq
    keys: u32,    // Tk
    heads: u32,   // H
    causal: u32,  // 1: query t sees keys 0..=t
    accumulate: u32, // 1: backward adds to what is there; forward ignores it
    scale: f32,   // 1 / sqrt(head dim)
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;     // (B, Tq, W)
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;   // (B, H, Tq)
@group(0) @binding(5) var<storage, read_write> dy: array<f32>;    // (B, Tq, W)
@group(0) @binding(6) var<storage, read_write> delta: array<f32>; // (B, H, Tq): sum of dy * y over a head

// Row i of (B, H, T): example, head, token.
fn attn_place(i: u32, tokens: u32) -> vec3<u32> {
    return vec3<u32>(i / tokens / params.heads, i / tokens % params.heads, i % tokens);
}

fn attn_row(b: u32, h: u32, t: u32) -> u32 {
    return ((b * params.queries + t) * params.heads + h) * HEAD_DIM;
}

fn attn_forward(i: u32) {
    let at = attn_place(i, params.queries);
    var q: array<f32, HEAD_DIM>;
    var acc: array<f32, HEAD_DIM>;
    for (var c = 0u; c < HEAD_DIM; c++) {
        q[c] = attn_q(at.x, at.z, at.y * HEAD_DIM + c) * params.scale;
        acc[c] = 0.0;
    }
    let seen = select(params.keys, at.z + 1u, params.causal != 0u);
    var top = -3.0e38;
    var sum = 0.0;
    for (var s = 0u; s < seen; s++) {
        var score = 0.0;
        for (var c = 0u; c < HEAD_DIM; c++) {
            score += q[c] * attn_k(at.x, s, at.y * HEAD_DIM + c);
        }
        // A NaN score leaves the maximum and enters the sum, so the row becomes NaN and is dropped by the clip.
        let new_top = select(top, score, score > top);
        let shrink = exp(top - new_top);
        let p = exp(score - new_top);
        sum = sum * shrink + p;
        for (var c = 0u; c < HEAD_DIM; c++) {
            acc[c] = acc[c] * shrink + p * attn_v(at.x, s, at.y * HEAD_DIM + c);
        }
        top = new_top;
    }
    let out = attn_row(at.x, at.y, at.z);
    for (var c = 0u; c < HEAD_DIM; c++) {
        y[out + c] = acc[c] / sum;
    }
    lse[i] = top + log(sum);
}

fn attn_delta(i: u32) {
    let at = attn_place(i, params.queries);
    let row = attn_row(at.x, at.y, at.z);
    var sum = 0.0;
    for (var c = 0u; c < HEAD_DIM; c++) {
        sum += y[row + c] * dy[row + c];
    }
    delta[i] = sum;
}

// Gradient of one query's row: dq = sum_s ds_s k_s.
fn attn_query_gradient(i: u32) -> array<f32, HEAD_DIM> {
    let at = attn_place(i, params.queries);
    let row = attn_row(at.x, at.y, at.z);
    var q: array<f32, HEAD_DIM>;
    var g: array<f32, HEAD_DIM>;
    var sum: array<f32, HEAD_DIM>;
    for (var c = 0u; c < HEAD_DIM; c++) {
        q[c] = attn_q(at.x, at.z, at.y * HEAD_DIM + c) * params.scale;
        g[c] = dy[row + c];
        sum[c] = 0.0;
    }
    let seen = select(params.keys, at.z + 1u, params.causal != 0u);
    for (var s = 0u; s < seen; s++) {
        var score = 0.0;
        var dp = 0.0;
        for (var c = 0u; c < HEAD_DIM; c++) {
            score += q[c] * attn_k(at.x, s, at.y * HEAD_DIM + c);
            dp += g[c] * attn_v(at.x, s, at.y * HEAD_DIM + c);
        }
        let ds = exp(score - lse[i]) * (dp - delta[i]) * params.scale;
        for (var c = 0u; c < HEAD_DIM; c++) {
            sum[c] += ds * attn_k(at.x, s, at.y * HEAD_DIM + c);
        }
    }
    return sum;
}

struct AttnKeyGradient {
    dk: array<f32, HEAD_DIM>,
    dv: array<f32, HEAD_DIM>,
}

// Gradients of one key's row: dk = sum_t ds_t q_t, dv = sum_t p_t dy_t.
fn attn_key_gradient(i: u32) -> AttnKeyGradient {
    let at = attn_place(i, params.keys);
    var k: array<f32, HEAD_DIM>;
    var v: array<f32, HEAD_DIM>;
    var sum: AttnKeyGradient;
    for (var c = 0u; c < HEAD_DIM; c++) {
        k[c] = attn_k(at.x, at.z, at.y * HEAD_DIM + c);
        v[c] = attn_v(at.x, at.z, at.y * HEAD_DIM + c);
        sum.dk[c] = 0.0;
        sum.dv[c] = 0.0;
    }
    let first = select(0u, at.z, params.causal != 0u);
    for (var t = first; t < params.queries; t++) {
        let row = attn_row(at.x, at.y, t);
        let stat = (at.x * params.heads + at.y) * params.queries + t;
        var score = 0.0;
        var dp = 0.0;
        for (var c = 0u; c < HEAD_DIM; c++) {
            score += attn_q(at.x, t, at.y * HEAD_DIM + c) * k[c];
            dp += dy[row + c] * v[c];
        }
        let p = exp(score * params.scale - lse[stat]);
        let ds = p * (dp - delta[stat]) * params.scale;
        for (var c = 0u; c < HEAD_DIM; c++) {
            sum.dk[c] += ds * attn_q(at.x, t, at.y * HEAD_DIM + c);
            sum.dv[c] += p * dy[row + c];
        }
    }
    return sum;
}
