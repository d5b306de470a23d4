// C(i, j) = sum_k A(i, k) B(k, j) [+ bias(j)] [+ C(i, j)], batched, for any extents and strides, element by element.
// Parallelisation: one invocation holds TM rows by TN columns of C in registers, LANES invocations lie side by side
// along the columns; the row comes from the workgroup alone. Rows and columns past the end are read clamped to the
// last one and never written. Factors as in ops/matmul. Sums run over k in order, in f32.
// spec: TM=4|8, TN=1|2|3|4, LANES=8
import package::lib::index::{index_group};
import package::spec::{TM, TN, LANES};

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
@group(0) @binding(1) var<storage, read_write> a: array<f32>;       // (batch, m, k) or (batch, k, m)
@group(0) @binding(2) var<storage, read_write> b: array<f32>;       // (batch, k, n) or (batch, n, k)
@group(0) @binding(3) var<storage, read_write> c: array<f32>;       // (batch, m, n)
@group(0) @binding(4) var<storage, read_write> bias: array<f32>;    // (n)
@group(0) @binding(4) var<storage, read_write> factors: array<f32>; // (k / rows_per_factor)

const MATMUL_ANY_TILE: u32 = TM * TN;

// Where a workgroup works: product, first row, first column of its first lane.
fn matmul_any_place(group: u32) -> vec3<u32> {
    let row_blocks = (params.m + TM - 1u) / TM;
    let column_blocks = (params.n + LANES * TN - 1u) / (LANES * TN);
    let in_product = group % (row_blocks * column_blocks);
    return vec3<u32>(group / (row_blocks * column_blocks), in_product % row_blocks * TM, in_product / row_blocks * LANES * TN);
}

// Where the invocation's columns of B start.
fn matmul_any_columns(place: vec3<u32>, lane: u32) -> array<u32, TN> {
    var at: array<u32, TN>;
    for (var j = 0u; j < TN; j++) {
        at[j] = place.x * params.stride_b + min(place.z + lane + j * LANES, params.n - 1u) * params.col_b;
    }
    return at;
}

// Where the workgroup's rows of A start.
fn matmul_any_rows(place: vec3<u32>) -> array<u32, TM> {
    var at: array<u32, TM>;
    for (var r = 0u; r < TM; r++) {
        at[r] = place.x * params.stride_a + min(place.y + r, params.m - 1u) * params.row_a;
    }
    return at;
}

// Adds the whole product to the tile.
fn matmul_any_product(acc: ptr<function, array<f32, MATMUL_ANY_TILE>>, place: vec3<u32>, lane: u32) {
    let rows = matmul_any_rows(place);
    let columns = matmul_any_columns(place, lane);
    for (var k = 0u; k < params.k; k++) {
        var row: array<f32, TN>;
        for (var j = 0u; j < TN; j++) {
            row[j] = b[columns[j] + k * params.row_b];
        }
        for (var r = 0u; r < TM; r++) {
            let x = a[rows[r] + k * params.col_a];
            for (var j = 0u; j < TN; j++) {
                (*acc)[r * TN + j] += x * row[j];
            }
        }
    }
}

// Writes one element of C, unless it lies outside.
fn matmul_any_store(place: vec3<u32>, row: u32, column: u32, value: f32) {
    if (row < params.m && column < params.n) {
        let at = place.x * params.stride_c + row * params.row_c + column;
        if (params.accumulate != 0u) {
            c[at] += value;
        } else {
            c[at] = value;
        }
    }
}

@compute @workgroup_size(LANES)
fn tile(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = matmul_any_place(index_group(wg, num));
    if (place.x < params.batch) {
        var acc: array<f32, MATMUL_ANY_TILE>;
        matmul_any_product(&acc, place, lane);
        for (var r = 0u; r < TM; r++) {
            for (var j = 0u; j < TN; j++) {
                matmul_any_store(place, place.y + r, place.z + lane + j * LANES, acc[r * TN + j]);
            }
        }
    }
}

@compute @workgroup_size(LANES)
fn tile_bias(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = matmul_any_place(index_group(wg, num));
    if (place.x < params.batch) {
        var acc: array<f32, MATMUL_ANY_TILE>;
        for (var r = 0u; r < TM; r++) {
            for (var j = 0u; j < TN; j++) {
                acc[r * TN + j] = bias[min(place.z + lane + j * LANES, params.n - 1u)];
            }
        }
        matmul_any_product(&acc, place, lane);
        for (var r = 0u; r < TM; r++) {
            for (var j = 0u; j < TN; j++) {
                matmul_any_store(place, place.y + r, place.z + lane + j * LANES, acc[r * TN + j]);
            }
        }
    }
}

@compute @workgroup_size(LANES)
fn tile_factor(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = matmul_any_place(index_group(wg, num));
    if (place.x < params.batch) {
        var acc: array<f32, MATMUL_ANY_TILE>;
        let rows = matmul_any_rows(place);
        let columns = matmul_any_columns(place, lane);
        for (var k = 0u; k < params.k; k++) {
            let factor = factors[k / params.rows_per_factor];
            let counts = factor != 0.0;
            var row: array<f32, TN>;
            for (var j = 0u; j < TN; j++) {
                row[j] = select(0.0, b[columns[j] + k * params.row_b], counts);
            }
            for (var r = 0u; r < TM; r++) {
                let x = select(0.0, factor * a[rows[r] + k * params.col_a], counts);
                for (var j = 0u; j < TN; j++) {
                    acc[r * TN + j] += x * row[j];
                }
            }
        }
        for (var r = 0u; r < TM; r++) {
            for (var j = 0u; j < TN; j++) {
                matmul_any_store(place, place.y + r, place.z + lane + j * LANES, acc[r * TN + j]);
            }
        }
    }
}
