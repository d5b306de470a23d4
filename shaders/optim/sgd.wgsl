// SGD with momentum, and LARS (You, Gitman, Ginsburg 2017, arXiv 1708.03888): mu = momentum mu + t (g + decay p); p -= lr mu,
// with t = trust ||p|| / ||g + decay p|| for tensors of more than one axis, 1 otherwise or where either norm is 0.
// `norms` sums in a fixed order over one workgroup per tensor.
import package::lib::index::{index_group};
import package::lib::reduce::{reduce_sum};

struct Params {
    n: u32, // elements
    momentum: f32,
    decay: f32,
    trust: f32, // 0: plain SGD
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> scalars: array<f32>; // (3): std (unused), scale, lr
@group(0) @binding(3) var<storage, read_write> grad: array<f32>;    // (n) gradient sum, noise included
@group(0) @binding(4) var<storage, read_write> values: array<f32>;  // (n) parameters
@group(0) @binding(5) var<storage, read_write> m: array<f32>;       // (n) momentum
@group(0) @binding(6) var<storage, read_write> ratio: array<f32>;   // (1) trust ratio of this tensor

fn sgd_gradient(k: u32) -> f32 {
    return grad[k] * scalars[1] + params.decay * values[k];
}

@compute @workgroup_size(64)
fn norms(@builtin(local_invocation_index) lane: u32) {
    var p2 = 0.0;
    var g2 = 0.0;
    for (var k = lane; k < params.n; k += 64u) {
        let g = sgd_gradient(k);
        p2 += values[k] * values[k];
        g2 += g * g;
    }
    let p = sqrt(reduce_sum(p2, lane));
    let g = sqrt(reduce_sum(g2, lane));
    if (lane == 0u) {
        let usable = p > 0.0 && g > 0.0 && params.trust > 0.0;
        ratio[0] = select(1.0, params.trust * p / select(1.0, g, usable), usable);
    }
}

@compute @workgroup_size(64)
fn step(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i < params.n) {
        let mu = params.momentum * m[i] + ratio[0] * sgd_gradient(i);
        m[i] = mu;
        values[i] -= scalars[2] * mu;
    }
}
