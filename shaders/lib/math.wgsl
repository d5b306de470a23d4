// Elementary functions that WGSL lacks or leaves undefined for large arguments. Comparisons and `select`, never
// `min`, `max` or `clamp`, so that NaN stays NaN. Constants are fitted by scripts/fit_erf.py.

// The error function, to 5e-7, as x P(x^2) / Q(x^2). Exactly 1 from 4 on.
fn math_erf(x: f32) -> f32 {
    let t = select(select(x, 4.0, x > 4.0), -4.0, x < -4.0);
    let z = t * t;
    var p = 1.986755e-6;
    p = p * z + 2.845626e-4;
    p = p * z + 3.88331e-3;
    p = p * z + 5.310164e-2;
    p = p * z + 1.9354465e-1;
    p = p * z + 1.1283791;
    var q = 3.7419712e-5;
    q = q * z + 1.185558e-3;
    q = q * z + 1.5207188e-2;
    q = q * z + 1.15349784e-1;
    q = q * z + 5.0485704e-1;
    q = q * z + 1.0;
    // Saturated exactly, or x (1 + erf(x)) would not vanish for large negative x.
    return select(select(t * p / q, 1.0, x >= 4.0), -1.0, x <= -4.0);
}

// The standard normal distribution function and density at x; density 0 beyond 13, where it is under 1e-37.
fn math_normal_cdf(x: f32) -> f32 {
    return 0.5 + 0.5 * math_erf(x * 0.70710678);
}

fn math_normal_pdf(x: f32) -> f32 {
    let t = select(select(x, 13.0, x > 13.0), -13.0, x < -13.0);
    let y = 0.3989423 * exp(-0.5 * t * t);
    return select(select(y, 0.0, x > 13.0), 0.0, x < -13.0);
}

// tanh, with the argument held where it already rounds to 1: some drivers return NaN for large arguments.
fn math_tanh(x: f32) -> f32 {
    return tanh(select(select(x, 15.0, x > 15.0), -15.0, x < -15.0));
}
