// Sums over the invocations of a workgroup, in a fixed order. Callers have 64 invocations and reach every call in
// uniform control flow; every invocation gets the result.
var<workgroup> reduce_memory: array<f32, 64>;
var<workgroup> reduce_memory_pair: array<vec2<f32>, 64>;

// Sum over all 64 lanes.
fn reduce_sum(value: f32, lane: u32) -> f32 {
    reduce_memory[lane] = value;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
        if (lane < half) {
            reduce_memory[lane] += reduce_memory[lane + half];
        }
        workgroupBarrier();
    }
    let sum = reduce_memory[0];
    workgroupBarrier();
    return sum;
}

// Sum over the 16 lanes that share lane / 16.
fn reduce_sum16(value: f32, lane: u32) -> f32 {
    reduce_memory[lane] = value;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 16u; i++) {
        sum += reduce_memory[(lane & 48u) + i];
    }
    workgroupBarrier();
    return sum;
}

// Two sums over the 16 lanes that share lane / 16.
fn reduce_sum16_pair(value: vec2<f32>, lane: u32) -> vec2<f32> {
    reduce_memory_pair[lane] = value;
    workgroupBarrier();
    var sum = vec2<f32>();
    for (var i = 0u; i < 16u; i++) {
        sum += reduce_memory_pair[(lane & 48u) + i];
    }
    workgroupBarrier();
    return sum;
}
