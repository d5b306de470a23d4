// Clip factors of DP-SGD (Abadi et al. 2016, arXiv 1607.00133): c_b = min(1, C / ||g_b||), from the squared norms of
// every parameter. One invocation per example, parameters summed in order.
// A norm that is not finite, told by its exponent bits, gives factor 0: min, max and comparisons may launder NaN.
import package::lib::index::{index_group};

struct Params {
    batch: u32,     // B
    count: u32,     // P
    stride: u32,    // distance between parameters in `norms`
    automatic: u32, // 1: C / (||g|| + gamma) instead (Bu et al. 2022, arXiv 2206.07136)
    bound: f32,     // C
    gamma: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> norms: array<f32>;   // (P, stride)
@group(0) @binding(2) var<storage, read_write> weights: array<f32>; // (B): 1, or 0 for padding
@group(0) @binding(3) var<storage, read_write> factors: array<f32>; // (B)
@group(0) @binding(4) var<storage, read_write> counts: array<u32>;  // (3, B): examples seen, clipped, not finite

@compute @workgroup_size(64)
fn factors_flat(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let b = index_group(wg, num) * 64u + lane;
    if (b < params.batch) {
        var square = 0.0;
        for (var p = 0u; p < params.count; p++) {
            square += norms[p * params.stride + b];
        }
        let finite = (bitcast<u32>(square) & 0x7f800000u) != 0x7f800000u;
        // The root is rounded up by two units, so that the clipped norm never exceeds C.
        let norm = sqrt(select(0.0, square, finite)) * 1.0000003;
        let over = norm > params.bound;
        var c = select(1.0, params.bound / max(norm, params.bound), over);
        if (params.automatic != 0u) {
            c = params.bound / (norm + params.gamma);
        }
        let live = weights[b] != 0.0;
        factors[b] = select(0.0, c, live && finite);
        counts[b] += select(0u, 1u, live);
        counts[params.batch + b] += select(0u, 1u, live && finite && over);
        counts[2u * params.batch + b] += select(0u, 1u, live && !finite);
    }
}
