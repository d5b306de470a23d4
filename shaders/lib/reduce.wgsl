// Sums over the 64 lanes of a workgroup, in a fixed order. Every lane must call (there are barriers inside).
var<workgroup> reduce_scratch: array<f32, 64>;

fn reduce_sum(value: f32, lane: u32) -> f32 {
    reduce_scratch[lane] = value;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
        if (lane < half) {
            reduce_scratch[lane] += reduce_scratch[lane + half];
        }
        workgroupBarrier();
    }
    let total = reduce_scratch[0];
    // The scratch may be written again at once by the next call.
    workgroupBarrier();
    return total;
}
