// grad += std * z, z standard normal by element (see lib/noise). One invocation per block of 16 elements.
import package::lib::index::{index_group};
import package::lib::noise::{noise_block};

struct Params {
    n: u32,     // elements, a multiple of 16
    block: u32, // block of the first element
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> scalars: array<f32>; // (1): standard deviation, sigma C
@group(0) @binding(3) var<storage, read_write> grad: array<f32>;    // (n)

@compute @workgroup_size(64)
fn add(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index_group(wg, num) * 64u + lane;
    if (i * 16u < params.n) {
        var z = noise_block(params.block + i);
        for (var j = 0u; j < 16u; j++) {
            grad[i * 16u + j] += scalars[0] * z[j];
        }
    }
}
