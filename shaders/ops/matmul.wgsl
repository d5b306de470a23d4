// C(i, j) = sum_k A(i, k) B(k, j) [+ bias(j)] [+ C(i, j)], batched, each operand as stored or transposed.
// Every address is of four consecutive elements: the contiguous extent of each operand is a multiple of 4.
// Parallelisation: one invocation holds TM rows by TN quads of columns of C in registers, LANES invocations lie
// side by side along the columns; the row comes from the workgroup alone, so that A is read once for all lanes.
// No workgroup memory but in `split`, where SLICES invocations share the sum over k and add up in fixed order.
// Transposing four quads in registers costs nothing on scalar machines, so all four products share one loop.
// `*_factor` (A transposed, B not): row k of both operands carries the factor of its example,
// factors[k / rows_per_factor]; a factor of 0 makes both rows exact zeros, whatever they hold (0 * NaN is NaN).
// Sums run over k in order, in f32.
// spec: TRANS_A=0|1, TRANS_B=0|1, TM=4|8, TN=1|2|3|4, LANES=8, SLICES=1
// spec: TRANS_A=0|1, TRANS_B=0|1, TM=4, TN=1, LANES=8, SLICES=8
import package::lib::index::{index_group};
import package::spec::{TRANS_A, TRANS_B, TM, TN, LANES, SLICES};

struct Params {
    m: u32,
    n: u32,
    k: u32,
    batch: u32,
    stride_a: u32, // elements from one product's A to the next one's; 0: shared
    row_a: u32,    // elements from A(i, k) to A(i + 1, k)
    col_a: u32,    // elements from A(i, k) to A(i, k + 1)
    stride_b: u32,
    row_b: u32,
    col_b: u32,
    stride_c: u32,
    row_c: u32,
    accumulate: u32,      // 1: add to C
    rows_per_factor: u32, // rows of one example
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> a: array<vec4<f32>>;    // (batch, m, k) or (batch, k, m)
@group(0) @binding(2) var<storage, read_write> b: array<vec4<f32>>;    // (batch, k, n) or (batch, n, k)
@group(0) @binding(3) var<storage, read_write> c: array<vec4<f32>>;    // (batch, m, n)
@group(0) @binding(4) var<storage, read_write> bias: array<vec4<f32>>; // (n)
@group(0) @binding(4) var<storage, read_write> factors: array<f32>;    // (k / rows_per_factor)

const MATMUL_TILE: u32 = TM * TN;

// Where a workgroup works: product, first row, first quad of columns of its first lane.
fn matmul_place(group: u32) -> vec3<u32> {
    let row_blocks = (params.m + TM - 1u) / TM;
    let quad_blocks = (params.n / 4u + LANES * TN - 1u) / (LANES * TN);
    let in_product = group % (row_blocks * quad_blocks);
    // Rows first: neighbouring workgroups share their columns of B in cache.
    return vec3<u32>(group / (row_blocks * quad_blocks), in_product % row_blocks * TM, in_product / row_blocks * LANES * TN);
}

// Where the invocation's quads of B start: its column of row 0, or row `quad` of the transposed B.
fn matmul_columns(place: vec3<u32>, lane: u32) -> array<u32, TN> {
    var at: array<u32, TN>;
    for (var j = 0u; j < TN; j++) {
        let quad = min(place.z + lane + j * LANES, params.n / 4u - 1u);
        at[j] = place.x * params.stride_b / 4u + select(quad, quad * params.col_b, TRANS_B == 1u);
    }
    return at;
}

// Where the workgroup's quads of A start: one per row, or one per four rows of the transposed A.
fn matmul_lines(place: vec3<u32>) -> array<u32, TM> {
    var at: array<u32, TM>;
    for (var r = 0u; r < TM; r++) {
        let row = select(min(place.y + r, params.m - 1u) * params.row_a, min(place.y + 4u * r, params.m - 4u), TRANS_A == 1u);
        at[r] = (place.x * params.stride_a + row) / 4u;
    }
    return at;
}

// Adds k in [first, last) of the product to the tile; last - first is a multiple of 4.
fn matmul_quads(acc: ptr<function, array<vec4<f32>, MATMUL_TILE>>, place: vec3<u32>, lane: u32, first: u32, last: u32) {
    let lines = matmul_lines(place);
    let columns = matmul_columns(place, lane);
    let next_a = params.col_a / 4u;
    let next_b = select(params.row_b / 4u, params.col_b / 4u, TRANS_B == 1u);
    for (var k = first; k < last; k += 4u) {
        var rows: array<vec4<f32>, TM>;
        if (TRANS_A == 0u) {
            for (var r = 0u; r < TM; r++) {
                rows[r] = a[lines[r] + k / 4u];
            }
        } else {
            for (var q = 0u; q < TM / 4u; q++) {
                let at = lines[q] + k * next_a;
                let p0 = a[at];
                let p1 = a[at + next_a];
                let p2 = a[at + 2u * next_a];
                let p3 = a[at + 3u * next_a];
                rows[4u * q] = vec4<f32>(p0.x, p1.x, p2.x, p3.x);
                rows[4u * q + 1u] = vec4<f32>(p0.y, p1.y, p2.y, p3.y);
                rows[4u * q + 2u] = vec4<f32>(p0.z, p1.z, p2.z, p3.z);
                rows[4u * q + 3u] = vec4<f32>(p0.w, p1.w, p2.w, p3.w);
            }
        }
        for (var j = 0u; j < TN; j++) {
            let at = columns[j] + select(k * next_b, k / 4u, TRANS_B == 1u);
            let p0 = b[at];
            let p1 = b[at + next_b];
            let p2 = b[at + 2u * next_b];
            let p3 = b[at + 3u * next_b];
            if (TRANS_B == 0u) {
                for (var r = 0u; r < TM; r++) {
                    let x = rows[r];
                    (*acc)[r * TN + j] += x.x * p0 + x.y * p1 + x.z * p2 + x.w * p3;
                }
            } else {
                for (var r = 0u; r < TM; r++) {
                    let x = rows[r];
                    (*acc)[r * TN + j] += vec4<f32>(dot(x, p0), dot(x, p1), dot(x, p2), dot(x, p3));
                }
            }
        }
    }
}

// A transposed, B not: both operands are read along their rows, so that any k will do.
fn matmul_rows(acc: ptr<function, array<vec4<f32>, MATMUL_TILE>>, place: vec3<u32>, lane: u32, first: u32, last: u32) {
    let lines = matmul_lines(place);
    let columns = matmul_columns(place, lane);
    for (var k = first; k < last; k++) {
        var row: array<vec4<f32>, TN>;
        for (var j = 0u; j < TN; j++) {
            row[j] = b[columns[j] + k * (params.row_b / 4u)];
        }
        for (var q = 0u; q < TM / 4u; q++) {
            let x = a[lines[q] + k * (params.col_a / 4u)];
            for (var j = 0u; j < TN; j++) {
                (*acc)[4u * q * TN + j] += x.x * row[j];
                (*acc)[(4u * q + 1u) * TN + j] += x.y * row[j];
                (*acc)[(4u * q + 2u) * TN + j] += x.z * row[j];
                (*acc)[(4u * q + 3u) * TN + j] += x.w * row[j];
            }
        }
    }
}

// As matmul_rows, with the factor of each row's example.
fn matmul_factor_rows(acc: ptr<function, array<vec4<f32>, MATMUL_TILE>>, place: vec3<u32>, lane: u32, first: u32, last: u32) {
    let lines = matmul_lines(place);
    let columns = matmul_columns(place, lane);
    for (var k = first; k < last; k++) {
        let factor = factors[k / params.rows_per_factor];
        let counts = factor != 0.0;
        var row: array<vec4<f32>, TN>;
        for (var j = 0u; j < TN; j++) {
            row[j] = select(vec4<f32>(0.0), b[columns[j] + k * (params.row_b / 4u)], counts);
        }
        for (var q = 0u; q < TM / 4u; q++) {
            let x = select(vec4<f32>(0.0), factor * a[lines[q] + k * (params.col_a / 4u)], counts);
            for (var j = 0u; j < TN; j++) {
                (*acc)[4u * q * TN + j] += x.x * row[j];
                (*acc)[(4u * q + 1u) * TN + j] += x.y * row[j];
                (*acc)[(4u * q + 2u) * TN + j] += x.z * row[j];
                (*acc)[(4u * q + 3u) * TN + j] += x.w * row[j];
            }
        }
    }
}

// Writes one quad of C, unless it lies outside.
fn matmul_store(place: vec3<u32>, lane: u32, r: u32, j: u32, value: vec4<f32>) {
    let row = place.y + r;
    let quad = place.z + lane + j * LANES;
    if (row < params.m && quad < params.n / 4u) {
        let at = (place.x * params.stride_c + row * params.row_c) / 4u + quad;
        if (params.accumulate != 0u) {
            c[at] += value;
        } else {
            c[at] = value;
        }
    }
}

@compute @workgroup_size(LANES)
fn tile(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = matmul_place(index_group(wg, num));
    if (place.x < params.batch) {
        var acc: array<vec4<f32>, MATMUL_TILE>;
        if (TRANS_A == 1u && TRANS_B == 0u) {
            matmul_rows(&acc, place, lane, 0u, params.k);
        } else {
            matmul_quads(&acc, place, lane, 0u, params.k);
        }
        for (var r = 0u; r < TM; r++) {
            for (var j = 0u; j < TN; j++) {
                matmul_store(place, lane, r, j, acc[r * TN + j]);
            }
        }
    }
}

@compute @workgroup_size(LANES)
fn tile_bias(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = matmul_place(index_group(wg, num));
    if (place.x < params.batch) {
        var acc: array<vec4<f32>, MATMUL_TILE>;
        for (var r = 0u; r < TM; r++) {
            for (var j = 0u; j < TN; j++) {
                acc[r * TN + j] = bias[min(place.z + lane + j * LANES, params.n / 4u - 1u)];
            }
        }
        if (TRANS_A == 1u && TRANS_B == 0u) {
            matmul_rows(&acc, place, lane, 0u, params.k);
        } else {
            matmul_quads(&acc, place, lane, 0u, params.k);
        }
        for (var r = 0u; r < TM; r++) {
            for (var j = 0u; j < TN; j++) {
                matmul_store(place, lane, r, j, acc[r * TN + j]);
            }
        }
    }
}

@compute @workgroup_size(LANES)
fn tile_factor(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = matmul_place(index_group(wg, num));
    if (place.x < params.batch) {
        var acc: array<vec4<f32>, MATMUL_TILE>;
        matmul_factor_rows(&acc, place, lane, 0u, params.k);
        for (var r = 0u; r < TM; r++) {
            for (var j = 0u; j < TN; j++) {
                matmul_store(place, lane, r, j, acc[r * TN + j]);
            }
        }
    }
}

var<workgroup> matmul_scratch: array<vec4<f32>, LANES * SLICES * MATMUL_TILE>;

// The part of k that one slice sums: a multiple of 4, but for what is left at the end.
fn matmul_slice(slice: u32) -> vec2<u32> {
    let length = ((params.k + 3u) / 4u + SLICES - 1u) / SLICES * 4u;
    return vec2<u32>(min(slice * length, params.k), min((slice + 1u) * length, params.k));
}

// Adds up the slices, in order, and writes: slice s finishes the entries s, s + SLICES, ... of each lane's tile.
fn matmul_join(place: vec3<u32>, lane: u32, slice: u32) {
    for (var e = slice; e < MATMUL_TILE; e += SLICES) {
        var total = vec4<f32>(0.0);
        for (var s = 0u; s < SLICES; s++) {
            total += matmul_scratch[(s * LANES + lane) * MATMUL_TILE + e];
        }
        matmul_store(place, lane, e / TN, e % TN, total);
    }
}

@compute @workgroup_size(LANES, SLICES)
fn split(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let place = matmul_place(index_group(wg, num));
    var acc: array<vec4<f32>, MATMUL_TILE>;
    if (place.x < params.batch) {
        let part = matmul_slice(local.y);
        if (TRANS_A == 1u && TRANS_B == 0u) {
            matmul_rows(&acc, place, local.x, part.x, part.y);
        } else {
            matmul_quads(&acc, place, local.x, part.x, part.y);
        }
    }
    for (var e = 0u; e < MATMUL_TILE; e++) {
        matmul_scratch[(local.y * LANES + local.x) * MATMUL_TILE + e] = acc[e];
    }
    workgroupBarrier();
    if (place.x < params.batch) {
        matmul_join(place, local.x, local.y);
    }
}

@compute @workgroup_size(LANES, SLICES)
fn split_factor(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let place = matmul_place(index_group(wg, num));
    var acc: array<vec4<f32>, MATMUL_TILE>;
    if (place.x < params.batch) {
        let part = matmul_slice(local.y);
        matmul_factor_rows(&acc, place, local.x, part.x, part.y);
    }
    for (var e = 0u; e < MATMUL_TILE; e++) {
        matmul_scratch[(local.y * LANES + local.x) * MATMUL_TILE + e] = acc[e];
    }
    workgroupBarrier();
    if (place.x < params.batch) {
        matmul_join(place, local.x, local.y);
    }
}
