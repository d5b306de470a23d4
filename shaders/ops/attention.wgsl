// y = softmax(q k^T / sqrt(d)) v per example and head (Vaswani et al. 2017, arXiv 1706.03762, equation 1), and its
// gradients, for head dims that are multiples of 4: every address is of four channels. Formulas, parallelisation
// and numerics are in lib/attn.
// spec: HEAD_DIM=16, PACKED=1; HEAD_DIM=48, PACKED=0
import package::lib::index::{index_group};
import package::lib::attn::{attn_forward, attn_delta, attn_backward};
import package::spec::{PACKED};

// Where PACKED is 1, q and dq are places of one element: queries stand in kv, before the keys.
@group(0) @binding(1) var<storage, read_write> q: array<vec4<f32>>;   // (B, Tq, H d)
@group(0) @binding(2) var<storage, read_write> kv: array<vec4<f32>>;  // (B, Tk, 2 H d): k | v; packed: q | k | v
@group(0) @binding(3) var<storage, read_write> dy: array<vec4<f32>>;  // (B, Tq, H d)
@group(0) @binding(6) var<storage, read_write> y: array<vec4<f32>>;   // (B, Tq, H d)
@group(0) @binding(6) var<storage, read_write> dq: array<vec4<f32>>;  // as q
@group(0) @binding(7) var<storage, read_write> dkv: array<vec4<f32>>; // as kv

const ATTN_UNIT: u32 = 4u;

fn attn_kv(row: u32, c: u32) -> vec4<f32> {
    return kv[row + c];
}

fn attn_q(row: u32, c: u32) -> vec4<f32> {
    if (PACKED == 1u) {
        return kv[row + c];
    }
    return q[row + c];
}

fn attn_y(row: u32, c: u32) -> vec4<f32> {
    return y[row + c];
}

fn attn_dy(row: u32, c: u32) -> vec4<f32> {
    return dy[row + c];
}

fn attn_store_y(row: u32, c: u32, value: vec4<f32>) {
    y[row + c] = value;
}

fn attn_store_dkv(row: u32, c: u32, value: vec4<f32>) {
    dkv[row + c] = select(value, dkv[row + c] + value, params.accumulate_kv != 0u);
}

fn attn_store_dq(row: u32, c: u32, value: vec4<f32>) {
    if (PACKED == 1u) {
        dkv[row + c] = select(value, dkv[row + c] + value, params.accumulate_q != 0u);
    } else {
        dq[row + c] = select(value, dq[row + c] + value, params.accumulate_q != 0u);
    }
}

@compute @workgroup_size(32)
fn forward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    attn_forward(index_group(wg, num), lane);
}

@compute @workgroup_size(32)
fn backward_delta(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    attn_delta(index_group(wg, num), lane);
}

@compute @workgroup_size(32)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    attn_backward(index_group(wg, num), lane);
}
