// Functions that WGSL lacks, branch-free. NaN goes through all of them.

// erf(x) = x P(x^2) / Q(x^2); coefficients by scripts/fit_erf.py, error below 4e-7.
fn math_erf(x: f32) -> f32 {
    let z = x * x;
    let p = 1.1283791 + z * (0.20016764 + z * (0.05060314 + z * (3.7095365e-3 + z * (1.4184970e-4
        + z * (-1.9534566e-6 + z * 1.9841252e-8)))));
    let q = 1.0 + z * (0.51072568 + z * (0.11509649 + z * (0.01437161 + z * 9.5733023e-4)));
    let y = select(x * (p / q), 1.0, x > 3.925);
    return select(y, -1.0, x < -3.925);
}
