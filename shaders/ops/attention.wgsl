// Self-attention over packed q | k | v: y = softmax(q k^T / sqrt(d)) v (Vaswani et al. 2017), full or causal.
// spec: HEAD_DIM=16; HEAD_DIM=5
import package::lib::index::{index_group};
import package::lib::attn::{attn_forward, attn_delta, attn_place, attn_query_gradient, attn_key_gradient};
import package::spec::{HEAD_DIM};

@group(0) @binding(1) var<storage, read_write> qkv: array<f32>;  // (B, T, 3 W): q | k | v, heads contiguous in each
@group(0) @binding(2) var<storage, read_write> dqkv: array<f32>; // (B, T, 3 W)

fn attn_at(b: u32, t: u32, part: u32, c: u32) -> u32 {
    return ((b * params.keys + t) * 3u + part) * params.heads * HEAD_DIM + c;
}

fn attn_q(b: u32, t: u32, c: u32) -> f32 {
    return qkv[attn_at(b, t, 0u, c)];
}

fn attn_k(b: u32, t: u32, c: u32) -> f32 {
    return qkv[attn_at(b, t, 1u, c)];
}

fn attn_v(b: u32, t: u32, c: u32) -> f32 {
    return qkv[attn_at(b, t, 2u, c)];
}

fn attn_store(ix: u32, g: f32) {
    dqkv[ix] = select(g, dqkv[ix] + g, params.accumulate != 0u);
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.batch * params.heads * params.queries) {
        attn_forward(i);
    }
}

@compute @workgroup_size(64)
fn backward_delta(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.batch * params.heads * params.queries) {
        attn_delta(i);
    }
}

@compute @workgroup_size(64)
fn backward_queries(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.batch * params.heads * params.queries) {
        let at = attn_place(i, params.queries);
        var g = attn_query_gradient(i);
        for (var c = 0u; c < HEAD_DIM; c++) {
            attn_store(attn_at(at.x, at.z, 0u, at.y * HEAD_DIM + c), g[c]);
        }
    }
}

@compute @workgroup_size(64)
fn backward_keys(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.batch * params.heads * params.keys) {
        let at = attn_place(i, params.keys);
        var g = attn_key_gradient(i);
        for (var c = 0u; c < HEAD_DIM; c++) {
            attn_store(attn_at(at.x, at.z, 1u, at.y * HEAD_DIM + c), g.dk[c]);
            attn_store(attn_at(at.x, at.z, 2u, at.y * HEAD_DIM + c), g.dv[c]);
        }
    }
}
