// Rules for explicit per-example gradients, rows of (B, n): squared norms and factor-weighted sums.
// `sq_norm`, `sum`: all segments of a "rows" buffer at once; segment p is (B, n_p) at element start_p and adds to
// grads at dst_p. `sq_norm_single`, `sum_single`: one (B, n) tensor.
// Norms: one workgroup per segment and example; lanes take every 64th element, one lane adds the lanes up in order.
// Sums: one invocation per column, examples in order; an example of factor 0 is not read (0 * NaN is NaN).
import package::lib::index::{index_group};

struct Params {
    batch: u32,
    segments: u32, // number of segments; 1 for a single tensor
    blocks: u32,   // blocks of 64 columns that cover the widest segment
    stride: u32,   // elements of `out` from one segment to the next; of `factors` in `sum`, 0 if all share them
    n: u32,        // width of a single tensor
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> rows: array<f32>;    // all (B, n_p)
@group(0) @binding(2) var<storage, read_write> table: array<u32>;   // (segments, 3): start, n, dst
@group(0) @binding(3) var<storage, read_write> out: array<f32>;     // (segments, stride), example b in column b
@group(0) @binding(3) var<storage, read_write> factors: array<f32>; // (B), or (segments, stride)
@group(0) @binding(4) var<storage, read_write> grads: array<f32>;   // the whole gradient, or (n)

var<workgroup> row_grad_scratch: array<f32, 64>;

// Every 64th square of n elements from `start`.
fn row_grad_squares(start: u32, n: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var i = lane; i < n; i += 64u) {
        let x = rows[start + i];
        sum += x * x;
    }
    return sum;
}

// Adds up the lanes, in order, into one norm.
fn row_grad_write(at: u32, lane: u32, value: f32, exists: bool) {
    row_grad_scratch[lane] = value;
    workgroupBarrier();
    if (lane == 0u && exists) {
        var total = 0.0;
        for (var i = 0u; i < 64u; i++) {
            total += row_grad_scratch[i];
        }
        out[at] = total;
    }
}

// The weighted sum of one column.
fn row_grad_column(start: u32, n: u32, column: u32, first_factor: u32) -> f32 {
    var sum = 0.0;
    for (var b = 0u; b < params.batch; b++) {
        let factor = factors[first_factor + b];
        if (factor != 0.0) {
            sum += factor * rows[start + b * n + column];
        }
    }
    return sum;
}

@compute @workgroup_size(64)
fn sq_norm(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = index_group(wg, num);
    let segment = group / params.batch;
    let example = group % params.batch;
    let exists = segment < params.segments;
    var sum = 0.0;
    if (exists) {
        let n = table[3u * segment + 1u];
        sum = row_grad_squares(table[3u * segment] + example * n, n, lane);
    }
    row_grad_write(segment * params.stride + example, lane, sum, exists);
}

@compute @workgroup_size(64)
fn sq_norm_single(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let example = index_group(wg, num);
    let exists = example < params.batch;
    var sum = 0.0;
    if (exists) {
        sum = row_grad_squares(example * params.n, params.n, lane);
    }
    row_grad_write(example, lane, sum, exists);
}

@compute @workgroup_size(64)
fn sum(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = index_group(wg, num);
    let segment = group / params.blocks;
    let column = group % params.blocks * 64u + lane;
    if (segment < params.segments) {
        let n = table[3u * segment + 1u];
        if (column < n) {
            grads[table[3u * segment + 2u] + column] += row_grad_column(table[3u * segment], n, column, segment * params.stride);
        }
    }
}

@compute @workgroup_size(64)
fn sum_single(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let column = index_group(wg, num) * 64u + lane;
    if (column < params.n) {
        grads[column] += row_grad_column(0u, params.n, column, 0u);
    }
}
