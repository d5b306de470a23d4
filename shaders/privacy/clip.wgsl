// Clip factors from the squared norms n_pb of every parameter's gradient, example by example.
//   factors_flat:  c_b = min(1, C / ||g_b||), ||g_b||^2 = sum_p n_pb (Abadi et al. 2016, arXiv 1607.00133), or
//                  C / (||g_b|| + gamma) (Bu et al. 2022, arXiv 2206.07136);
//   factors_layer: c_pb = min(1, C_p / sqrt(n_pb)) with C_p = C / sqrt(P) (McMahan et al. 2018, arXiv 1710.06963).
// One invocation per example, parameters summed in order.
// A total that is not finite, told by its exponent bits, gives factor 0: min, max and comparisons may launder NaN.
// A norm that rounding brought below 0 counts by its size, so that it hides no other.
import package::lib::finite::{finite_test};
import package::lib::index::{index_group};

struct Params {
    batch: u32,     // B
    count: u32,     // P
    stride: u32,    // distance between parameters in `norms`, and in `factors` of factors_layer
    automatic: u32, // 1: C / (||g|| + gamma); factors_flat alone
    bound: f32,     // C; C_p for factors_layer
    gamma: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> norms: array<f32>;   // (P, stride)
@group(0) @binding(2) var<storage, read_write> weights: array<f32>; // (B): 1, or 0 for padding
@group(0) @binding(3) var<storage, read_write> factors: array<f32>; // (B), or (P, stride)
@group(0) @binding(4) var<storage, read_write> counts: array<u32>;  // (3, B): examples seen, clipped, not finite

fn clip_square(b: u32) -> f32 {
    var square = 0.0;
    for (var p = 0u; p < params.count; p++) {
        square += abs(norms[p * params.stride + b]);
    }
    return square;
}

// The root, rounded up by three units, so that the clipped norm does not exceed the bound.
fn clip_norm(square: f32) -> f32 {
    return sqrt(square) * 1.0000003;
}

fn clip_factor(norm: f32) -> f32 {
    return select(1.0, params.bound / max(norm, params.bound), norm > params.bound);
}

fn clip_count(b: u32, live: bool, finite: bool, over: bool) {
    counts[b] += select(0u, 1u, live);
    counts[params.batch + b] += select(0u, 1u, live && finite && over);
    counts[2u * params.batch + b] += select(0u, 1u, live && !finite);
}

@compute @workgroup_size(64)
fn factors_flat(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let b = index_group(wg, num) * 64u + lane;
    if (b < params.batch) {
        let square = clip_square(b);
        let finite = finite_test(square);
        let norm = clip_norm(select(0.0, square, finite));
        let c = select(clip_factor(norm), params.bound / (norm + params.gamma), params.automatic != 0u);
        let live = weights[b] != 0.0;
        factors[b] = select(0.0, c, live && finite);
        clip_count(b, live, finite, norm > params.bound);
    }
}

@compute @workgroup_size(64)
fn factors_layer(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let b = index_group(wg, num) * 64u + lane;
    if (b < params.batch) {
        let finite = finite_test(clip_square(b));
        let live = weights[b] != 0.0;
        var over = false;
        for (var p = 0u; p < params.count; p++) {
            let i = p * params.stride + b;
            let norm = clip_norm(select(0.0, abs(norms[i]), finite));
            over = over || norm > params.bound;
            factors[i] = select(0.0, clip_factor(norm), live && finite);
        }
        clip_count(b, live, finite, over);
    }
}
