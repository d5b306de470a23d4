// Asks for WORDS words of workgroup memory: for tests of the limits. y[group] = sum of its lanes' numbers.
// One workgroup of 64 per element; each lane clears its share of the memory first, as nothing else does.
// spec: WORDS=64
import package::lib::index::{index_group};
import package::spec::{WORDS};

@group(0) @binding(1) var<storage, read_write> y: array<u32>; // (groups)

var<workgroup> workgroup_words: array<u32, WORDS>;

@compute @workgroup_size(64)
fn sum(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) num: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var i = lane; i < WORDS; i += 64u) {
        workgroup_words[i] = 0u;
    }
    workgroupBarrier();
    workgroup_words[WORDS - 1u - lane] = lane;
    workgroupBarrier();
    if (lane == 0u) {
        var total = 0u;
        for (var i = 0u; i < WORDS; i++) {
            total += workgroup_words[i];
        }
        y[index_group(wg, num)] = total;
    }
}
