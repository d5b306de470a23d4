// The rules of ops/weight_grad for any widths, element by element, and the last sum of both.
// spec: TM=8, TN=1|4, LANES=8; TM=8, TN=4, LANES=32
import package::lib::index::{index_group};
import package::spec::{TM, TN, LANES};

struct Params {
    batch: u32,
    tokens: u32,
    width_in: u32,
    width_out: u32,
    rows: u32,     // TM
    partials: u32, // shares of an example
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;        // (B, T, in)
@group(0) @binding(2) var<storage, read_write> g: array<f32>;        // (B, T, out)
@group(0) @binding(3) var<storage, read_write> partials: array<f32>; // (B, partials)

const WEIGHT_GRAD_ANY_TILE: u32 = TM * TN;
const WEIGHT_GRAD_ANY_SLACK: f32 = 4.7683716e-7; // 2^-21
var<workgroup> weight_grad_any_scratch: array<f32, LANES>;

// Adds up the lanes, in order, into one share.
fn weight_grad_any_write(at: u32, lane: u32, value: f32, exists: bool) {
    weight_grad_any_scratch[lane] = value;
    workgroupBarrier();
    if (lane == 0u && exists) {
        var total = 0.0;
        for (var i = 0u; i < LANES; i++) {
            total += weight_grad_any_scratch[i];
        }
        partials[at] = total;
    }
}

@compute @workgroup_size(LANES)
fn ghost(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = index_group(wg, num);
    let example = group / params.partials;
    let t0 = group % params.partials * TM;
    let exists = example < params.batch;
    let last = params.tokens - 1u;
    let first = example * params.tokens;
    var share = 0.0;
    if (exists) {
        var own: array<u32, TM>;
        for (var r = 0u; r < TM; r++) {
            own[r] = first + min(t0 + r, last);
        }
        for (var s0 = 0u; s0 <= min(t0 + TM - 1u, last); s0 += LANES * TN) {
            var others: array<u32, TN>;
            for (var j = 0u; j < TN; j++) {
                others[j] = first + min(s0 + lane + j * LANES, last);
            }
            var dots_x: array<f32, WEIGHT_GRAD_ANY_TILE>;
            for (var k = 0u; k < params.width_in; k++) {
                var rows: array<f32, TM>;
                for (var r = 0u; r < TM; r++) {
                    rows[r] = x[own[r] * params.width_in + k];
                }
                for (var j = 0u; j < TN; j++) {
                    let other = x[others[j] * params.width_in + k];
                    for (var r = 0u; r < TM; r++) {
                        dots_x[r * TN + j] += rows[r] * other;
                    }
                }
            }
            var dots_g: array<f32, WEIGHT_GRAD_ANY_TILE>;
            for (var k = 0u; k < params.width_out; k++) {
                var rows: array<f32, TM>;
                for (var r = 0u; r < TM; r++) {
                    rows[r] = g[own[r] * params.width_out + k];
                }
                for (var j = 0u; j < TN; j++) {
                    let other = g[others[j] * params.width_out + k];
                    for (var r = 0u; r < TM; r++) {
                        dots_g[r * TN + j] += rows[r] * other;
                    }
                }
            }
            for (var r = 0u; r < TM; r++) {
                for (var j = 0u; j < TN; j++) {
                    let t = t0 + r;
                    let s = s0 + lane + j * LANES;
                    let term = dots_x[r * TN + j] * dots_g[r * TN + j];
                    let weighted = select(2.0, 1.0, s == t) * (term + WEIGHT_GRAD_ANY_SLACK * abs(term));
                    share += select(0.0, weighted, s <= t && t <= last);
                }
            }
        }
    }
    weight_grad_any_write(group, lane, share, exists);
}

@compute @workgroup_size(LANES)
fn direct(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = index_group(wg, num);
    let example = group / params.partials;
    let o0 = group % params.partials * TM;
    let exists = example < params.batch;
    var share = 0.0;
    if (exists) {
        for (var base = 0u; base < params.width_in; base += LANES * TN) {
            let column = base + lane;
            var tile: array<f32, WEIGHT_GRAD_ANY_TILE>;
            for (var t = 0u; t < params.tokens; t++) {
                let row = example * params.tokens + t;
                var columns: array<f32, TN>;
                for (var j = 0u; j < TN; j++) {
                    columns[j] = x[row * params.width_in + min(column + j * LANES, params.width_in - 1u)];
                }
                for (var r = 0u; r < TM; r++) {
                    let y = g[row * params.width_out + min(o0 + r, params.width_out - 1u)];
                    for (var j = 0u; j < TN; j++) {
                        tile[r * TN + j] += y * columns[j];
                    }
                }
            }
            for (var r = 0u; r < TM; r++) {
                for (var j = 0u; j < TN; j++) {
                    let inside = o0 + r < params.width_out && column + j * LANES < params.width_in;
                    share += select(0.0, tile[r * TN + j] * tile[r * TN + j], inside);
                }
            }
        }
    }
    weight_grad_any_write(group, lane, share, exists);
}
