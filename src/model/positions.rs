//! Fixed sine and cosine position tables (Vaswani et al. 2017; two axes as in MAE, He et al. 2022), computed in
//! f64 and stored in f32.

/// One axis: `[sin(p w_0) .. sin(p w_{n-1}), cos(p w_0) .. cos(p w_{n-1})]` with `w_i = 10000^(-i/n)` and
/// `n = width / 2`.
fn axis(position: f64, width: usize, out: &mut Vec<f32>) {
    let n = width / 2;
    let angle = |i: usize| position * 10_000f64.powf(-(i as f64) / n as f64);
    out.extend((0..n).map(|i| angle(i).sin() as f32));
    out.extend((0..n).map(|i| angle(i).cos() as f32));
}

/// (1 + grid^2, width): row 0, the class token's, is zero; then the patches row by row. The first half of the
/// channels encodes the column, the second half the row.
pub fn table_2d(grid: usize, width: usize) -> Vec<f32> {
    let mut out = vec![0.0; width];
    for row in 0..grid {
        for column in 0..grid {
            axis(column as f64, width / 2, &mut out);
            axis(row as f64, width / 2, &mut out);
        }
    }
    out
}

/// (length, width): one axis, for text.
pub fn table_1d(length: usize, width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(length * width);
    for position in 0..length {
        axis(position as f64, width, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values() {
        let table = table_2d(14, 768);
        let at = |token: usize, channel: usize| table[token * 768 + channel];
        assert!(table[..768].iter().all(|&x| x == 0.0));
        let token = 1 + 2 * 14 + 5;
        for (channel, want) in [(0, -0.958924), (384, 0.909297)] {
            assert!((at(token, channel) - want).abs() <= 1e-6);
        }
        let row0_column1 =
            [(0, 0.841471), (1, 0.815251), (2, 0.788593), (192, 0.540302), (193, 0.579108), (194, 0.614915)];
        for (channel, want) in row0_column1 {
            assert!((at(2, channel) - want).abs() <= 1e-6, "{channel}");
        }
        assert!((384..576).all(|c| at(2, c) == 0.0) && (576..768).all(|c| at(2, c) == 1.0));
    }

    #[test]
    fn a_longer_text_table_starts_with_the_shorter() {
        assert_eq!(table_1d(77, 32)[..40 * 32], table_1d(40, 32));
    }
}
