// The linear index of a workgroup: dispatches of over 65,535 groups are folded into x and y.
fn index_group(wg: vec3<u32>, num: vec3<u32>) -> u32 {
    return wg.x + wg.y * num.x;
}
