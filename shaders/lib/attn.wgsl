// The core of attention over one head, for the modules that say how tensors are read and written: they declare
// ATTN_UNIT (elements per address) and attn_q, attn_kv, attn_y, attn_dy (four channels at a row), attn_store_*.
// One invocation owns one row (a query, or a key with its value) and streams the other side in blocks of four.
// A workgroup stays within one head, so that what is streamed is read once for all of its lanes.
// Running maximum and sum (Milakov and Gimelshein 2018, arXiv 1805.02867); backward recomputes the probabilities
// from the log-sum-exp (Dao et al. 2022, arXiv 2205.14135): no map is stored, no atomics, no workgroup memory.
// No `max`: a NaN score leaves the maximum alone and enters the sum, so that the row becomes NaN.
import package::spec::{HEAD_DIM};

struct Params {
    batch: u32,   // B
    heads: u32,   // H
    queries: u32, // Tq
    keys: u32,    // Tk
    causal: u32,  // 1: query t sees keys 0..=t + Tk - Tq
    q_row: u32,   // elements from one query to the next
    kv_row: u32,  // elements from one key to the next
    k_at: u32,    // first channel of the keys; the values follow the keys
    query_groups: u32, // workgroups of backward that own queries; the rest owns keys
    accumulate_q: u32,  // 1: backward adds to dq
    accumulate_kv: u32, // 1: backward adds to dk and dv
    scale: f32,   // 1 / sqrt(head dim)
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;   // (B, H, Tq)
@group(0) @binding(5) var<storage, read_write> delta: array<f32>; // (B, H, Tq): sum of dy * y over a head

const ATTN_QUADS: u32 = (HEAD_DIM + 3u) / 4u;
const ATTN_LANES: u32 = 32u;

// Example, head and first row of the workgroup that has this index among those owning `rows` rows per head.
fn attn_place(group: u32, rows: u32) -> vec3<u32> {
    let blocks = (rows + ATTN_LANES - 1u) / ATTN_LANES;
    let head = group / blocks;
    return vec3<u32>(head / params.heads, head % params.heads, group % blocks * ATTN_LANES);
}

// Addresses of a head's row in q, in kv (keys) and in tensors like y.
fn attn_q_row(b: u32, h: u32, t: u32) -> u32 {
    return ((b * params.queries + t) * params.q_row + h * HEAD_DIM) / ATTN_UNIT;
}

fn attn_k_row(b: u32, h: u32, s: u32) -> u32 {
    return ((b * params.keys + s) * params.kv_row + params.k_at + h * HEAD_DIM) / ATTN_UNIT;
}

fn attn_y_row(b: u32, h: u32, t: u32) -> u32 {
    return ((b * params.queries + t) * params.heads + h) * HEAD_DIM / ATTN_UNIT;
}

// From a key's address to its value's.
fn attn_to_value() -> u32 {
    return params.heads * HEAD_DIM / ATTN_UNIT;
}

// Number of keys that query t sees.
fn attn_seen(t: u32) -> u32 {
    let end = t + 1u + params.keys;
    let causal = select(0u, end - params.queries, end > params.queries);
    return select(params.keys, min(causal, params.keys), params.causal != 0u);
}

// First query that sees key s.
fn attn_first(s: u32) -> u32 {
    let causal = select(0u, s + params.queries - params.keys, s + params.queries > params.keys);
    return select(0u, causal, params.causal != 0u);
}

fn attn_forward(group: u32, lane: u32) {
    let at = attn_place(group, params.queries);
    let t = at.z + lane;
    if (at.x < params.batch && t < params.queries) {
        var q: array<vec4<f32>, ATTN_QUADS>;
        var acc: array<vec4<f32>, ATTN_QUADS>;
        let q_row = attn_q_row(at.x, at.y, t);
        for (var c = 0u; c < ATTN_QUADS; c++) {
            q[c] = attn_q(q_row, c) * params.scale;
            acc[c] = vec4<f32>();
        }
        let seen = attn_seen(t);
        let last = attn_seen(min(at.z + ATTN_LANES, params.queries) - 1u);
        var top = -3.0e38;
        var sum = 0.0;
        for (var s = 0u; s < last; s += 4u) {
            // Past the last key its row stands in, with probability 0.
            let k0 = attn_k_row(at.x, at.y, s);
            let k1 = attn_k_row(at.x, at.y, min(s + 1u, params.keys - 1u));
            let k2 = attn_k_row(at.x, at.y, min(s + 2u, params.keys - 1u));
            let k3 = attn_k_row(at.x, at.y, min(s + 3u, params.keys - 1u));
            var score = vec4<f32>();
            for (var c = 0u; c < ATTN_QUADS; c++) {
                score += vec4<f32>(dot(q[c], attn_kv(k0, c)), dot(q[c], attn_kv(k1, c)), dot(q[c], attn_kv(k2, c)), dot(q[c], attn_kv(k3, c)));
            }
            let live = vec4<u32>(s, s + 1u, s + 2u, s + 3u) < vec4<u32>(seen);
            score = select(vec4<f32>(-3.0e38), score, live);
            var new_top = select(top, score.x, score.x > top);
            new_top = select(new_top, score.y, score.y > new_top);
            new_top = select(new_top, score.z, score.z > new_top);
            new_top = select(new_top, score.w, score.w > new_top);
            let shrink = exp(top - new_top);
            let p = select(vec4<f32>(), exp(score - new_top), live);
            sum = sum * shrink + (p.x + p.y + p.z + p.w);
            let v = attn_to_value();
            for (var c = 0u; c < ATTN_QUADS; c++) {
                acc[c] = acc[c] * shrink + p.x * attn_kv(k0 + v, c) + p.y * attn_kv(k1 + v, c) + p.z * attn_kv(k2 + v, c) + p.w * attn_kv(k3 + v, c);
            }
            top = new_top;
        }
        // A query that sees no key: zeros, and a log-sum-exp that nothing reads.
        let inverse = select(1.0 / sum, 0.0, seen == 0u);
        let y_row = attn_y_row(at.x, at.y, t);
        for (var c = 0u; c < ATTN_QUADS; c++) {
            attn_store_y(y_row, c, acc[c] * inverse);
        }
        lse[(at.x * params.heads + at.y) * params.queries + t] = select(top + log(sum), 0.0, seen == 0u);
    }
}

// One invocation per query and head.
fn attn_delta(group: u32, lane: u32) {
    let at = attn_place(group, params.queries);
    let t = at.z + lane;
    if (at.x < params.batch && t < params.queries) {
        let row = attn_y_row(at.x, at.y, t);
        var sum = 0.0;
        for (var c = 0u; c < ATTN_QUADS; c++) {
            sum += dot(attn_y(row, c), attn_dy(row, c));
        }
        delta[(at.x * params.heads + at.y) * params.queries + t] = sum;
    }
}

// dq_t = scale sum_s ds_ts k_s with ds_ts = p_ts (dy_t . v_s - delta_t).
fn attn_query_gradient(group: u32, lane: u32) {
    let at = attn_place(group, params.queries);
    let t = at.z + lane;
    if (at.x < params.batch && t < params.queries) {
        var q: array<vec4<f32>, ATTN_QUADS>;
        var g: array<vec4<f32>, ATTN_QUADS>;
        var acc: array<vec4<f32>, ATTN_QUADS>;
        let q_row = attn_q_row(at.x, at.y, t);
        let y_row = attn_y_row(at.x, at.y, t);
        for (var c = 0u; c < ATTN_QUADS; c++) {
            q[c] = attn_q(q_row, c) * params.scale;
            g[c] = attn_dy(y_row, c);
            acc[c] = vec4<f32>();
        }
        let statistic = (at.x * params.heads + at.y) * params.queries + t;
        let log_sum = lse[statistic];
        let d = delta[statistic];
        let seen = attn_seen(t);
        let last = attn_seen(min(at.z + ATTN_LANES, params.queries) - 1u);
        let v = attn_to_value();
        for (var s = 0u; s < last; s += 4u) {
            let k0 = attn_k_row(at.x, at.y, s);
            let k1 = attn_k_row(at.x, at.y, min(s + 1u, params.keys - 1u));
            let k2 = attn_k_row(at.x, at.y, min(s + 2u, params.keys - 1u));
            let k3 = attn_k_row(at.x, at.y, min(s + 3u, params.keys - 1u));
            var score = vec4<f32>();
            var dp = vec4<f32>();
            for (var c = 0u; c < ATTN_QUADS; c++) {
                score += vec4<f32>(dot(q[c], attn_kv(k0, c)), dot(q[c], attn_kv(k1, c)), dot(q[c], attn_kv(k2, c)), dot(q[c], attn_kv(k3, c)));
                dp += vec4<f32>(dot(g[c], attn_kv(k0 + v, c)), dot(g[c], attn_kv(k1 + v, c)), dot(g[c], attn_kv(k2 + v, c)), dot(g[c], attn_kv(k3 + v, c)));
            }
            let live = vec4<u32>(s, s + 1u, s + 2u, s + 3u) < vec4<u32>(seen);
            let ds = select(vec4<f32>(), exp(score - log_sum) * (dp - d), live);
            for (var c = 0u; c < ATTN_QUADS; c++) {
                acc[c] += ds.x * attn_kv(k0, c) + ds.y * attn_kv(k1, c) + ds.z * attn_kv(k2, c) + ds.w * attn_kv(k3, c);
            }
        }
        for (var c = 0u; c < ATTN_QUADS; c++) {
            attn_store_dq(q_row, c, acc[c] * params.scale);
        }
    }
}

// dk_s = scale sum_t ds_ts q_t and dv_s = sum_t p_ts dy_t.
fn attn_key_gradient(group: u32, lane: u32) {
    let at = attn_place(group, params.keys);
    let s = at.z + lane;
    if (at.x < params.batch && s < params.keys) {
        var k: array<vec4<f32>, ATTN_QUADS>;
        var v: array<vec4<f32>, ATTN_QUADS>;
        var dk: array<vec4<f32>, ATTN_QUADS>;
        var dv: array<vec4<f32>, ATTN_QUADS>;
        let row = attn_k_row(at.x, at.y, s);
        for (var c = 0u; c < ATTN_QUADS; c++) {
            k[c] = attn_kv(row, c) * params.scale;
            v[c] = attn_kv(row + attn_to_value(), c);
            dk[c] = vec4<f32>();
            dv[c] = vec4<f32>();
        }
        let statistics = (at.x * params.heads + at.y) * params.queries;
        let first = attn_first(s);
        let end = params.queries - 1u;
        for (var t = attn_first(at.z); t < params.queries; t += 4u) {
            let t4 = vec4<u32>(t, min(t + 1u, end), min(t + 2u, end), min(t + 3u, end));
            let q0 = attn_q_row(at.x, at.y, t4.x);
            let q1 = attn_q_row(at.x, at.y, t4.y);
            let q2 = attn_q_row(at.x, at.y, t4.z);
            let q3 = attn_q_row(at.x, at.y, t4.w);
            let y0 = attn_y_row(at.x, at.y, t4.x);
            let y1 = attn_y_row(at.x, at.y, t4.y);
            let y2 = attn_y_row(at.x, at.y, t4.z);
            let y3 = attn_y_row(at.x, at.y, t4.w);
            let log_sum = vec4<f32>(lse[statistics + t4.x], lse[statistics + t4.y], lse[statistics + t4.z], lse[statistics + t4.w]);
            let d = vec4<f32>(delta[statistics + t4.x], delta[statistics + t4.y], delta[statistics + t4.z], delta[statistics + t4.w]);
            var score = vec4<f32>();
            var dp = vec4<f32>();
            for (var c = 0u; c < ATTN_QUADS; c++) {
                score += vec4<f32>(dot(k[c], attn_q(q0, c)), dot(k[c], attn_q(q1, c)), dot(k[c], attn_q(q2, c)), dot(k[c], attn_q(q3, c)));
                dp += vec4<f32>(dot(v[c], attn_dy(y0, c)), dot(v[c], attn_dy(y1, c)), dot(v[c], attn_dy(y2, c)), dot(v[c], attn_dy(y3, c)));
            }
            let index = vec4<u32>(t, t + 1u, t + 2u, t + 3u);
            let live = (index >= vec4<u32>(first)) & (index <= vec4<u32>(end));
            let p = select(vec4<f32>(), exp(score - log_sum), live);
            let ds = select(vec4<f32>(), p * (dp - d), live);
            for (var c = 0u; c < ATTN_QUADS; c++) {
                dk[c] += ds.x * attn_q(q0, c) + ds.y * attn_q(q1, c) + ds.z * attn_q(q2, c) + ds.w * attn_q(q3, c);
                dv[c] += p.x * attn_dy(y0, c) + p.y * attn_dy(y1, c) + p.z * attn_dy(y2, c) + p.w * attn_dy(y3, c);
            }
        }
        for (var c = 0u; c < ATTN_QUADS; c++) {
            attn_store_dkv(row, c, dk[c] * params.scale);
            attn_store_dkv(row + attn_to_value(), c, dv[c]);
        }
    }
}

// Both halves of backward: the first workgroups own queries, the others keys.
fn attn_backward(group: u32, lane: u32) {
    if (group < params.query_groups) {
        attn_query_gradient(group, lane);
    } else {
        attn_key_gradient(group - params.query_groups, lane);
    }
}
