// AdamW with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101) over a flat arena:
// g = scale (sum + std z); m, v running moments; p -= lr (m / bias1 / (sqrt(v / bias2) + eps) + decay p).
// One invocation per block of 16 elements, because one ChaCha20 block gives 16 normals.
import package::lib::index::{index_group};
import package::lib::noise::{noise_block};

struct Params {
    n: u32,     // elements, a multiple of 16
    block: u32, // block of the first element
    beta1: f32,
    beta2: f32,
    eps: f32,
    decay: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> scalars: array<f32>; // (5): std, scale, lr, 1 / (1 - beta1^t), 1 / (1 - beta2^t)
@group(0) @binding(3) var<storage, read_write> grad: array<f32>;    // (n) gradient sum
@group(0) @binding(4) var<storage, read_write> values: array<f32>;  // (n) parameters
@group(0) @binding(5) var<storage, read_write> m: array<f32>;       // (n)
@group(0) @binding(6) var<storage, read_write> v: array<f32>;       // (n)

fn adamw_element(k: u32, sum: f32) {
    let g = sum * scalars[1];
    let mean = params.beta1 * m[k] + (1.0 - params.beta1) * g;
    let square = params.beta2 * v[k] + (1.0 - params.beta2) * g * g;
    m[k] = mean;
    v[k] = square;
    let step = mean * scalars[3] / (sqrt(square * scalars[4]) + params.eps);
    values[k] -= scalars[2] * (step + params.decay * values[k]);
}

@compute @workgroup_size(64)
fn step(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i * 16u < params.n) {
        for (var j = 0u; j < 16u; j++) {
            adamw_element(i * 16u + j, grad[i * 16u + j]);
        }
    }
}

@compute @workgroup_size(64)
fn step_noisy(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i * 16u < params.n) {
        var z = noise_block(params.block + i);
        for (var j = 0u; j < 16u; j++) {
            adamw_element(i * 16u + j, grad[i * 16u + j] + scalars[0] * z[j]);
        }
    }
}
