// Finite test by exponent bits: drivers may assume that NaN does not occur and fold comparisons.
fn finite_test(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}
