// loss_b = mean over the targets of example b that count of log sum_v exp(x_v) - sum_v q_v x_v, where q is
// (1 - e) onehot(target) + e / V (label smoothing: arXiv 1512.00567); dlogits = (softmax - q) dloss_b / count_b.
// Rows: one workgroup per row of logits, two passes. Mean: one invocation per example. Backward: one per logit.
// All is of logits less the largest of the row, which is saved apart from the logarithm: their sum would lose digits.
import package::lib::index::{index_group};
import package::lib::reduce::{reduce_sum};

struct ParamsRows {
    rows: u32,       // B * T
    tokens: u32,     // T
    vocabulary: u32, // V
    ignore: u32,     // a target that does not count, like V and above
    smoothing: f32,  // e
}
struct ParamsMean {
    batch: u32,      // B
    tokens: u32,     // T
    vocabulary: u32, // V
    ignore: u32,
}
struct Params {
    rows: u32,       // B * T
    tokens: u32,     // T
    vocabulary: u32, // V
    ignore: u32,
    smoothing: f32,  // e
    accumulate: u32, // 1: adds to dlogits
}
@group(0) @binding(0) var<uniform> params_rows: ParamsRows;
@group(0) @binding(0) var<uniform> params_mean: ParamsMean;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> targets: array<u32>;  // (B, T)
@group(0) @binding(2) var<storage, read_write> logits: array<f32>;   // (B, T, V)
@group(0) @binding(3) var<storage, read_write> peak: array<f32>;     // (B, T), largest logit
@group(0) @binding(4) var<storage, read_write> log_sum: array<f32>;  // (B, T), log sum exp(logit - peak)
@group(0) @binding(5) var<storage, read_write> row_loss: array<f32>; // (B, T)
@group(0) @binding(6) var<storage, read_write> loss: array<f32>;     // (B)
@group(0) @binding(7) var<storage, read_write> count: array<f32>;    // (B), targets that count
@group(0) @binding(5) var<storage, read_write> dloss: array<f32>;    // (B)
@group(0) @binding(6) var<storage, read_write> dlogits: array<f32>;  // (B, T, V)

var<workgroup> cross_entropy_peaks: array<f32, 64>;

fn cross_entropy_counts(id: u32, vocabulary: u32, ignore: u32) -> bool {
    return id < vocabulary && id != ignore;
}

@compute @workgroup_size(64)
fn rows(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = index_group(wg, num);
    var id = 0u;
    var counts = false;
    if (row < params_rows.rows) {
        id = targets[row];
        counts = cross_entropy_counts(id, params_rows.vocabulary, params_rows.ignore);
    }
    // A row that does not count takes part in the sums with no logits: they are never read.
    let width = select(0u, params_rows.vocabulary, counts);
    let start = row * params_rows.vocabulary;
    var top = 0.0;
    if (counts) {
        top = logits[start];
    }
    for (var v = lane; v < width; v += 64u) {
        top = select(top, logits[start + v], logits[start + v] > top);
    }
    cross_entropy_peaks[lane] = top;
    workgroupBarrier();
    // A NaN may get lost here; it comes back in the sum.
    for (var i = 0u; i < 64u; i++) {
        top = select(top, cross_entropy_peaks[i], cross_entropy_peaks[i] > top);
    }
    var exps = 0.0;
    var sum = 0.0;
    for (var v = lane; v < width; v += 64u) {
        let x = logits[start + v] - top;
        exps += exp(x);
        sum += x;
    }
    exps = reduce_sum(exps, lane);
    sum = reduce_sum(sum, lane);
    if (lane == 0u && row < params_rows.rows) {
        var lost = 0.0;
        var log_exps = 0.0;
        if (counts) {
            log_exps = log(exps);
            lost = log_exps - (logits[start + id] - top);
            if (params_rows.smoothing != 0.0) {
                lost = log_exps - (1.0 - params_rows.smoothing) * (logits[start + id] - top)
                    - params_rows.smoothing * sum / f32(width);
            }
        }
        peak[row] = top;
        log_sum[row] = log_exps;
        row_loss[row] = lost;
    }
}

@compute @workgroup_size(64)
fn mean(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let b = index_group(wg, num) * 64u + lane;
    if (b < params_mean.batch) {
        var sum = 0.0;
        var counted = 0.0;
        for (var r = b * params_mean.tokens; r < (b + 1u) * params_mean.tokens; r++) {
            sum += row_loss[r];
            counted += select(0.0, 1.0, cross_entropy_counts(targets[r], params_mean.vocabulary, params_mean.ignore));
        }
        count[b] = counted;
        if (counted == 0.0) {
            loss[b] = 0.0;
        } else {
            loss[b] = sum / counted;
        }
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.rows * params.vocabulary) {
        let row = i / params.vocabulary;
        let id = targets[row];
        var g = 0.0;
        if (cross_entropy_counts(id, params.vocabulary, params.ignore)) {
            let b = row / params.tokens;
            let softmax = exp((logits[i] - peak[row]) - log_sum[row]);
            let wanted = params.smoothing / f32(params.vocabulary)
                + select(0.0, 1.0 - params.smoothing, i % params.vocabulary == id);
            g = (softmax - wanted) * (dloss[b] / count[b]);
        }
        dlogits[i] = select(g, dlogits[i] + g, params.accumulate != 0u);
    }
}
