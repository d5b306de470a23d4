// Cross-attention: queries of one sequence over keys and values of another (Vaswani et al. 2017).
// spec: HEAD_DIM=16; HEAD_DIM=5
import package::lib::index::{index_group};
import package::lib::attn::{attn_forward, attn_delta, attn_place, attn_query_gradient, attn_key_gradient};
import package::spec::{HEAD_DIM};

@group(0) @binding(1) var<storage, read_write> q: array<f32>;   // (B, Tq, W)
@group(0) @binding(2) var<storage, read_write> kv: array<f32>;  // (B, Tk, 2 W): k | v, heads contiguous in each
@group(0) @binding(7) var<storage, read_write> dq: array<f32>;  // (B, Tq, W)
@group(0) @binding(7) var<storage, read_write> dkv: array<f32>; // (B, Tk, 2 W)

fn attn_kv_at(b: u32, t: u32, part: u32, c: u32) -> u32 {
    return ((b * params.keys + t) * 2u + part) * params.heads * HEAD_DIM + c;
}

fn attn_q_at(b: u32, t: u32, c: u32) -> u32 {
    return (b * params.queries + t) * params.heads * HEAD_DIM + c;
}

fn attn_q(b: u32, t: u32, c: u32) -> f32 {
    return q[attn_q_at(b, t, c)];
}

fn attn_k(b: u32, t: u32, c: u32) -> f32 {
    return kv[attn_kv_at(b, t, 0u, c)];
}

fn attn_v(b: u32, t: u32, c: u32) -> f32 {
    return kv[attn_kv_at(b, t, 1u, c)];
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
            let ix = attn_q_at(at.x, at.z, at.y * HEAD_DIM + c);
            dq[ix] = select(g[c], dq[ix] + g[c], params.accumulate != 0u);
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
            let ix = attn_kv_at(at.x, at.z, 0u, at.y * HEAD_DIM + c);
            let jx = attn_kv_at(at.x, at.z, 1u, at.y * HEAD_DIM + c);
            dkv[ix] = select(g.dk[c], dkv[ix] + g.dk[c], params.accumulate != 0u);
            dkv[jx] = select(g.dv[c], dkv[jx] + g.dv[c], params.accumulate != 0u);
        }
    }
}
