// ||dW_i||^2 of dW_i = sum_t g_t x_t^T, without storing dW_i; x (B, T, in), g (B, T, out).
// `ghost`: sum_(t, s) (x_t . x_s)(g_t . g_s), each pair s < t once with weight 2. Goodfellow 2015,
//   https://arxiv.org/abs/1510.01799; Li et al. 2022, https://arxiv.org/abs/2110.05679, section 4.
// `direct`: tiles of dW_i in registers, squared and summed.
// Parallelisation: a workgroup takes TM rows (tokens t, or outputs o) of one example and writes their share to
// partials; its LANES invocations lie side by side along the other side. `finish` adds the shares of an example.
// Widths are multiples of 4; ops/weight_grad_any takes any. All sums in f32, in fixed order. The ghost sum has
// terms of both signs, which may all but cancel: rounding would then make the norm too small and the clip too
// weak. Each term is therefore rounded up by SLACK of its size. What still falls below 0 `total` lifts to 0, but
// only if it is finite: a NaN must reach the clip.
// spec: TM=8, TN=1|4, LANES=8; TM=8, TN=2, LANES=8|16
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
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;     // (B, T, in)
@group(0) @binding(2) var<storage, read_write> g: array<vec4<f32>>;     // (B, T, out)
@group(0) @binding(3) var<storage, read_write> partials: array<f32>;    // (B, partials)

const WEIGHT_GRAD_TILE: u32 = TM * TN;
const WEIGHT_GRAD_SLACK: f32 = 4.7683716e-7; // 2^-21
var<workgroup> weight_grad_scratch: array<f32, LANES>;

// Adds up the lanes, in order, into one share.
fn weight_grad_write(at: u32, lane: u32, value: f32, exists: bool) {
    weight_grad_scratch[lane] = value;
    workgroupBarrier();
    if (lane == 0u && exists) {
        var total = 0.0;
        for (var i = 0u; i < LANES; i++) {
            total += weight_grad_scratch[i];
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
    let quads_in = params.width_in / 4u;
    let quads_out = params.width_out / 4u;
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
            var dots_x: array<f32, WEIGHT_GRAD_TILE>;
            for (var k = 0u; k < quads_in; k++) {
                var rows: array<vec4<f32>, TM>;
                for (var r = 0u; r < TM; r++) {
                    rows[r] = x[own[r] * quads_in + k];
                }
                for (var j = 0u; j < TN; j++) {
                    let other = x[others[j] * quads_in + k];
                    for (var r = 0u; r < TM; r++) {
                        dots_x[r * TN + j] += dot(rows[r], other);
                    }
                }
            }
            var dots_g: array<f32, WEIGHT_GRAD_TILE>;
            for (var k = 0u; k < quads_out; k++) {
                var rows: array<vec4<f32>, TM>;
                for (var r = 0u; r < TM; r++) {
                    rows[r] = g[own[r] * quads_out + k];
                }
                for (var j = 0u; j < TN; j++) {
                    let other = g[others[j] * quads_out + k];
                    for (var r = 0u; r < TM; r++) {
                        dots_g[r * TN + j] += dot(rows[r], other);
                    }
                }
            }
            for (var r = 0u; r < TM; r++) {
                for (var j = 0u; j < TN; j++) {
                    let t = t0 + r;
                    let s = s0 + lane + j * LANES;
                    let term = dots_x[r * TN + j] * dots_g[r * TN + j];
                    let weighted = select(2.0, 1.0, s == t) * (term + WEIGHT_GRAD_SLACK * abs(term));
                    share += select(0.0, weighted, s <= t && t <= last);
                }
            }
        }
    }
    weight_grad_write(group, lane, share, exists);
}

@compute @workgroup_size(LANES)
fn direct(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = index_group(wg, num);
    let example = group / params.partials;
    let o0 = group % params.partials * TM;
    let exists = example < params.batch;
    let quads_in = params.width_in / 4u;
    var share = 0.0;
    if (exists) {
        for (var base = 0u; base < quads_in; base += LANES * TN) {
            let quad = base + lane;
            var tile: array<vec4<f32>, WEIGHT_GRAD_TILE>;
            for (var t = 0u; t < params.tokens; t++) {
                let row = example * params.tokens + t;
                var columns: array<vec4<f32>, TN>;
                for (var j = 0u; j < TN; j++) {
                    columns[j] = x[row * quads_in + min(quad + j * LANES, quads_in - 1u)];
                }
                for (var q = 0u; q < TM; q += 4u) {
                    let y = g[(row * params.width_out + min(o0 + q, params.width_out - 4u)) / 4u];
                    for (var j = 0u; j < TN; j++) {
                        tile[q * TN + j] += y.x * columns[j];
                        tile[(q + 1u) * TN + j] += y.y * columns[j];
                        tile[(q + 2u) * TN + j] += y.z * columns[j];
                        tile[(q + 3u) * TN + j] += y.w * columns[j];
                    }
                }
            }
            for (var r = 0u; r < TM; r++) {
                for (var j = 0u; j < TN; j++) {
                    let inside = o0 + r < params.width_out && quad + j * LANES < quads_in;
                    share += select(0.0, dot(tile[r * TN + j], tile[r * TN + j]), inside);
                }
            }
        }
    }
    weight_grad_write(group, lane, share, exists);
}
