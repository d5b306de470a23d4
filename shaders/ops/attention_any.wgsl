// Attention as in ops/attention, for head dims that are no multiples of 4: addresses are of single channels, four are
// read and written together, and those past the head's last count as 0. Formulas, parallelisation and numerics are
// in lib/attn.
// spec: HEAD_DIM=5, PACKED=1; HEAD_DIM=2, PACKED=0
import package::lib::index::{index_group};
import package::lib::attn::{attn_forward, attn_delta, attn_backward};
import package::spec::{HEAD_DIM, PACKED};

// Where PACKED is 1, q and dq are places of one element: queries stand in kv, before the keys.
@group(0) @binding(1) var<storage, read_write> q: array<f32>;   // (B, Tq, H d)
@group(0) @binding(2) var<storage, read_write> kv: array<f32>;  // (B, Tk, 2 H d): k | v; packed: q | k | v
@group(0) @binding(3) var<storage, read_write> dy: array<f32>;  // (B, Tq, H d)
@group(0) @binding(6) var<storage, read_write> y: array<f32>;   // (B, Tq, H d)
@group(0) @binding(6) var<storage, read_write> dq: array<f32>;  // as q
@group(0) @binding(7) var<storage, read_write> dkv: array<f32>; // as kv

const ATTN_UNIT: u32 = 1u;

// The first `left` of four channels, zeros for the others.
fn attn_cut(value: vec4<f32>, left: u32) -> vec4<f32> {
    return select(vec4<f32>(), value, vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(left));
}

fn attn_kv(row: u32, c: u32) -> vec4<f32> {
    let at = row + 4u * c;
    let left = HEAD_DIM - 4u * c;
    let value = vec4<f32>(kv[at], kv[at + select(0u, 1u, left > 1u)], kv[at + select(0u, 2u, left > 2u)], kv[at + select(0u, 3u, left > 3u)]);
    return attn_cut(value, left);
}

fn attn_q(row: u32, c: u32) -> vec4<f32> {
    if (PACKED == 1u) {
        return attn_kv(row, c);
    }
    let at = row + 4u * c;
    let left = HEAD_DIM - 4u * c;
    let value = vec4<f32>(q[at], q[at + select(0u, 1u, left > 1u)], q[at + select(0u, 2u, left > 2u)], q[at + select(0u, 3u, left > 3u)]);
    return attn_cut(value, left);
}

fn attn_y(row: u32, c: u32) -> vec4<f32> {
    let at = row + 4u * c;
    let left = HEAD_DIM - 4u * c;
    let value = vec4<f32>(y[at], y[at + select(0u, 1u, left > 1u)], y[at + select(0u, 2u, left > 2u)], y[at + select(0u, 3u, left > 3u)]);
    return attn_cut(value, left);
}

fn attn_dy(row: u32, c: u32) -> vec4<f32> {
    let at = row + 4u * c;
    let left = HEAD_DIM - 4u * c;
    let value = vec4<f32>(dy[at], dy[at + select(0u, 1u, left > 1u)], dy[at + select(0u, 2u, left > 2u)], dy[at + select(0u, 3u, left > 3u)]);
    return attn_cut(value, left);
}

fn attn_store_y(row: u32, c: u32, value: vec4<f32>) {
    let at = row + 4u * c;
    for (var i = 0u; i < 4u; i++) {
        if (4u * c + i < HEAD_DIM) {
            y[at + i] = value[i];
        }
    }
}

fn attn_store_dkv(row: u32, c: u32, value: vec4<f32>) {
    let at = row + 4u * c;
    for (var i = 0u; i < 4u; i++) {
        if (4u * c + i < HEAD_DIM) {
            dkv[at + i] = select(value[i], dkv[at + i] + value[i], params.accumulate_kv != 0u);
        }
    }
}

fn attn_store_dq(row: u32, c: u32, value: vec4<f32>) {
    let at = row + 4u * c;
    if (PACKED == 1u) {
        for (var i = 0u; i < 4u; i++) {
            if (4u * c + i < HEAD_DIM) {
                dkv[at + i] = select(value[i], dkv[at + i] + value[i], params.accumulate_q != 0u);
            }
        }
    } else {
        for (var i = 0u; i < 4u; i++) {
            if (4u * c + i < HEAD_DIM) {
                dq[at + i] = select(value[i], dq[at + i] + value[i], params.accumulate_q != 0u);
            }
        }
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
