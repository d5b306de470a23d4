// out_i = sum_p partials(i, p): an example's squared norm from its shares.
// One workgroup per example; its lanes take every 64th share, and one lane adds the lanes up in order.
// Rounding of sums with terms of both signs may leave a result slightly below 0: it is lifted to 0, but only
// after its exponent bits show that it is finite, for `max` may turn NaN into 0 and hide it from the clip.
import package::lib::index::{index_group};

struct Params {
    batch: u32,
    count: u32, // shares of an example
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> partials: array<f32>; // (batch, count)
@group(0) @binding(2) var<storage, read_write> out: array<f32>;      // (batch)

var<workgroup> weight_grad_total_scratch: array<f32, 64>;

@compute @workgroup_size(64)
fn total(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let example = index_group(wg, num);
    var sum = 0.0;
    if (example < params.batch) {
        for (var p = lane; p < params.count; p += 64u) {
            sum += partials[example * params.count + p];
        }
    }
    weight_grad_total_scratch[lane] = sum;
    workgroupBarrier();
    if (lane == 0u && example < params.batch) {
        var all = 0.0;
        for (var i = 0u; i < 64u; i++) {
            all += weight_grad_total_scratch[i];
        }
        let finite = (bitcast<u32>(all) & 0x7f800000u) != 0x7f800000u;
        out[example] = select(all, 0.0, finite && all < 0.0);
    }
}
