// Rules for dE_i[v] = sum_(t: ids_t = v) g_t, the gradient of a lookup table by one example; ids (B, T), g (B, T, D).
// `sq_norm`: tokens of the same id add up before they are squared. The first token of each id takes the whole sum
//   of its id, the others 0, so that every share is a sum of squares: exact, never negative, memory O(B T).
//   One workgroup per token; lanes take every 64th column, one lane adds the lanes up in order.
// `sum`: dE[v] += sum_i factors_i dE_i[v] without atomics: the workgroup of the first token of each id, over all
//   examples, adds every token of that id in order. An example of factor 0 is not read (0 * NaN is NaN).
// Ids past the table add nothing.
import package::lib::index::{index_group};

struct Params {
    batch: u32,
    tokens: u32,
    width: u32,
    vocabulary: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> ids: array<u32>;      // (B, T)
@group(0) @binding(2) var<storage, read_write> g: array<f32>;        // (B, T, D)
@group(0) @binding(3) var<storage, read_write> partials: array<f32>; // (B, T)
@group(0) @binding(3) var<storage, read_write> factors: array<f32>;  // (B)
@group(0) @binding(4) var<storage, read_write> de: array<f32>;       // (vocabulary, D)

var<workgroup> lookup_grad_scratch: array<f32, 64>;
var<workgroup> lookup_grad_seen: array<u32, 64>;

// Whether a row of [begin, end) has this id, among every 64th.
fn lookup_grad_find(id: u32, begin: u32, end: u32, lane: u32) -> u32 {
    var seen = 0u;
    for (var row = begin + lane; row < end; row += 64u) {
        if (ids[row] == id) {
            seen = 1u;
        }
    }
    return seen;
}

// Whether any lane has found one. Only to be called after a barrier.
fn lookup_grad_any() -> bool {
    var any = 0u;
    for (var i = 0u; i < 64u; i++) {
        any |= lookup_grad_seen[i];
    }
    return any != 0u;
}

@compute @workgroup_size(64)
fn sq_norm(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = index_group(wg, num);
    let exists = row < params.batch * params.tokens;
    let first = row / params.tokens * params.tokens;
    var id = 0u;
    var seen = 1u;
    if (exists) {
        id = ids[row];
        seen = lookup_grad_find(id, first, row, lane);
    }
    lookup_grad_seen[lane] = seen;
    workgroupBarrier();
    var sum = 0.0;
    if (!lookup_grad_any() && id < params.vocabulary) {
        for (var column = lane; column < params.width; column += 64u) {
            var total = 0.0;
            for (var r = row; r < first + params.tokens; r++) {
                if (ids[r] == id) {
                    total += g[r * params.width + column];
                }
            }
            sum += total * total;
        }
    }
    lookup_grad_scratch[lane] = sum;
    workgroupBarrier();
    if (lane == 0u && exists) {
        var total = 0.0;
        for (var i = 0u; i < 64u; i++) {
            total += lookup_grad_scratch[i];
        }
        partials[row] = total;
    }
}

@compute @workgroup_size(64)
fn sum(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = index_group(wg, num);
    let rows = params.batch * params.tokens;
    var id = 0u;
    var seen = 1u;
    if (row < rows) {
        id = ids[row];
        seen = lookup_grad_find(id, 0u, row, lane);
    }
    lookup_grad_seen[lane] = seen;
    workgroupBarrier();
    if (!lookup_grad_any() && id < params.vocabulary) {
        for (var column = lane; column < params.width; column += 64u) {
            var total = 0.0;
            for (var r = row; r < rows; r++) {
                if (ids[r] == id) {
                    let factor = factors[r / params.tokens];
                    if (factor != 0.0) {
                        total += factor * g[r * params.width + column];
                    }
                }
            }
            de[id * params.width + column] += total;
        }
    }
}
