// ChaCha20 (Bernstein 2008) with a 64-bit block counter and a 64-bit stream, word for word as
// rand_chacha::ChaCha20Rng: words 0..4 of the state are the constant, 4..12 the key, 12..14 the counter, 14..16 the stream.

fn chacha_rotate(x: u32, n: u32) -> u32 {
    return (x << n) | (x >> (32u - n));
}

fn chacha_quarter(s: ptr<function, array<u32, 16>>, a: u32, b: u32, c: u32, d: u32) {
    (*s)[a] += (*s)[b];
    (*s)[d] = chacha_rotate((*s)[d] ^ (*s)[a], 16u);
    (*s)[c] += (*s)[d];
    (*s)[b] = chacha_rotate((*s)[b] ^ (*s)[c], 12u);
    (*s)[a] += (*s)[b];
    (*s)[d] = chacha_rotate((*s)[d] ^ (*s)[a], 8u);
    (*s)[c] += (*s)[d];
    (*s)[b] = chacha_rotate((*s)[b] ^ (*s)[c], 7u);
}

fn chacha_block(start: array<u32, 16>) -> array<u32, 16> {
    var first = start;
    var s = start;
    for (var round = 0u; round < 10u; round++) {
        chacha_quarter(&s, 0u, 4u, 8u, 12u);
        chacha_quarter(&s, 1u, 5u, 9u, 13u);
        chacha_quarter(&s, 2u, 6u, 10u, 14u);
        chacha_quarter(&s, 3u, 7u, 11u, 15u);
        chacha_quarter(&s, 0u, 5u, 10u, 15u);
        chacha_quarter(&s, 1u, 6u, 11u, 12u);
        chacha_quarter(&s, 2u, 7u, 8u, 13u);
        chacha_quarter(&s, 3u, 4u, 9u, 14u);
    }
    for (var i = 0u; i < 16u; i++) {
        s[i] += first[i];
    }
    return s;
}
