//! Position tables for other image sides and caption lengths.

use super::Tensor;
use crate::model::positions::table_1d;

/// Keys' cubic convolution (1981) with the coefficient that PyTorch uses.
const A: f64 = -0.75;

/// Weights of the four neighbours at distances `1 + t`, `t`, `1 - t`, `2 - t`.
fn weights(t: f64) -> [f64; 4] {
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    [far(1.0 + t), near(t), near(1.0 - t), far(2.0 - t)]
}

/// For each of `new` places on an axis of `old`: its four neighbours, clamped to the axis, and their weights. Centres
/// of pixels are mapped to one another, not corners.
fn taps(old: usize, new: usize) -> Vec<[(usize, f64); 4]> {
    let place = |i: usize| {
        let at = (i as f64 + 0.5) * old as f64 / new as f64 - 0.5;
        let (floor, weights) = (at.floor(), weights(at - at.floor()));
        std::array::from_fn(|k| {
            let neighbour = (floor as i64 + k as i64 - 1).clamp(0, old as i64 - 1);
            (neighbour as usize, weights[k])
        })
    };
    (0..new).map(place).collect()
}

/// A table (1, 1 + old^2, width) for `grid x grid` patches: bicubic, the class token's row as it is.
///
/// # Errors
/// If the table is of no square of patches.
pub fn positions(table: &Tensor, grid: usize) -> Result<Tensor, String> {
    let &[1, rows, width] = table.shape.dims() else {
        return Err(format!("is {}, must be (1, rows, width)", table.shape));
    };
    let old = rows.saturating_sub(1).isqrt();
    if old == 0 || 1 + old * old != rows {
        return Err(format!("has {rows} rows, which is not one more than a square of patches"));
    }
    if old == grid {
        return Ok(table.clone());
    }
    let (class, patches) = table.values.split_at(width);
    let taps = taps(old, grid);
    let mut values = class.to_vec();
    values.reserve(grid * grid * width);
    for row in &taps {
        for column in &taps {
            for channel in 0..width {
                let at = |r: usize, c: usize| patches[(r * old + c) * width + channel] as f64;
                let across = |r: usize| column.iter().map(|&(c, w)| w * at(r, c)).sum::<f64>();
                values.push(row.iter().map(|&(r, w)| w * across(r)).sum::<f64>() as f32);
            }
        }
    }
    Ok(Tensor { shape: [1, 1 + grid * grid, width].into(), values })
}

/// A table of captions (1, rows, width) for `length` tokens: its first rows, or more rows of the same sines and cosines.
///
/// # Errors
/// If it must grow but does not hold sines and cosines.
pub fn captions(table: &Tensor, length: usize) -> Result<Tensor, String> {
    let &[1, rows, width] = table.shape.dims() else {
        return Err(format!("is {}, must be (1, rows, width)", table.shape));
    };
    let mut values = table.values.clone();
    if length > rows {
        let sines = table_1d(length, width);
        let same = values.iter().zip(&sines).all(|(a, b)| (a - b).abs() <= 1e-4);
        if !same {
            return Err(format!("is no table of sines and cosines, so there is no row {rows}"));
        }
        values.extend(&sines[values.len()..]);
    }
    values.truncate(length * width);
    Ok(Tensor { shape: [1, length, width].into(), values })
}
