// Standard normals from ChaCha20 words: one block gives 16, for the 16 elements it stands for.
// Box and Muller (1958): u in (0, 1] from word 2 j, an angle from word 2 j + 1. A word under 2^16 is lengthened to 64 bits
// by word 2 j of the block whose counter has the top bit flipped, so |z| <= sqrt(2 ln 2^64) < 9.42.
// Logarithm, sine and cosine are our own, because WGSL allows devices errors that would show in the noise.
import package::lib::chacha::{chacha_block};

@group(0) @binding(1) var<storage, read_write> stream: array<u32>; // (12): key 8, block offset lo, hi, stream lo, hi

// ln(u) for u = (a + 1) / 2^32, or (2^32 a + tail + 1) / 2^64 when a < 2^16: exponent and mantissa m in
// [sqrt(1/2), sqrt(2)), then 2 artanh((m - 1) / (m + 1)). Up to u = 1, m - 1 = u - 1 is taken from the complement of a,
// which keeps the bits that u itself has no room for.
fn noise_log(a: u32, tail: u32) -> f32 {
    let short = (f32(a) + 1.0) * 2.3283064365386963e-10;
    let long = f32(a) * 2.3283064365386963e-10 + (f32(tail) + 1.0) * 5.421010862427522e-20;
    let u = select(short, long, a < 0x10000u);
    let bits = bitcast<u32>(u) - 0x3f3504f3u;
    let e = f32(bitcast<i32>(bits) >> 23u);
    let m = bitcast<f32>((bits & 0x007fffffu) + 0x3f3504f3u);
    let d = select(m - 1.0, -2.3283064365386963e-10 * f32(~a), e == 0.0);
    let s = d / (2.0 + d);
    let q = s * s;
    let artanh = s * (2.0 + q * (0.66666667 + q * (0.4 + q * (0.28571429 + q * 0.22222222))));
    return e * 0.69314718 + artanh;
}

// Two normals from two words.
fn noise_pair(a: u32, tail: u32, b: u32) -> vec2<f32> {
    let r = sqrt(-2.0 * noise_log(a, tail));
    // The angle in turns is b / 2^32; the nearest quarter is taken off exactly.
    let shifted = b + 0x20000000u;
    let quarter = shifted >> 30u;
    let x = f32(bitcast<i32>(shifted & 0x3fffffffu) - 0x20000000) * 1.4629180792671596e-9;
    let q = x * x;
    let s = x * (1.0 + q * (-0.16666667 + q * (8.3333333e-3 + q * (-1.9841270e-4 + q * 2.7557319e-6))));
    let c = 1.0 + q * (-0.5 + q * (0.041666667 + q * (-1.3888889e-3 + q * 2.4801587e-5)));
    let odd = (quarter & 1u) != 0u;
    let cosine = select(c, s, odd) * select(1.0, -1.0, quarter == 1u || quarter == 2u);
    let sine = select(s, c, odd) * select(1.0, -1.0, quarter >= 2u);
    return vec2<f32>(r * cosine, r * sine);
}

// The 16 normals of a block.
fn noise_block(block: u32) -> array<f32, 16> {
    var state: array<u32, 16>;
    state[0] = 0x61707865u;
    state[1] = 0x3320646eu;
    state[2] = 0x79622d32u;
    state[3] = 0x6b206574u;
    for (var i = 0u; i < 8u; i++) {
        state[4u + i] = stream[i];
    }
    state[12] = stream[8] + block;
    state[13] = stream[9] + select(0u, 1u, state[12] < block);
    state[14] = stream[10];
    state[15] = stream[11];
    var words = chacha_block(state);
    var small = false;
    for (var j = 0u; j < 16u; j += 2u) {
        small = small || words[j] < 0x10000u;
    }
    var tails: array<u32, 16>;
    if (small) {
        state[13] ^= 0x80000000u;
        tails = chacha_block(state);
    }
    var z: array<f32, 16>;
    for (var j = 0u; j < 16u; j += 2u) {
        let pair = noise_pair(words[j], tails[j], words[j + 1u]);
        z[j] = pair.x;
        z[j + 1u] = pair.y;
    }
    return z;
}
