//! Convolution of masses by FFT, with a bound on every entry's rounding error.
//!
//! An FFT's error is about as large at small masses as at large ones, and at the far end of a loss distribution small masses
//! decide. So a factor x is split into its core C, around its largest masses, and the tails T outside of it:
//! `x * y = C_x * C_y + (C_x * T_y + T_x * y)`. The first product has the large error, but is known to vanish outside of a short
//! interval; the second has an error in proportion to the tails (the idea of Wilson and Keich 2016, arXiv 1605.03992).
//! Both real products, and both real parts of a factor, share one complex transform, each scaled to norm 1.

use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

/// Masses under this fraction of the largest are tails, unless they are surrounded by larger ones.
const TAIL: f64 = 1e-8;

/// Factors up to this length are multiplied without FFT.
const DIRECT: usize = 48;

/// A product, and bounds of the absolute errors of its entries.
pub struct Product {
    pub mass: Vec<f64>,
    /// Where both error terms hold.
    pub core: std::ops::Range<usize>,
    pub error_in_core: f64,
    pub error: f64,
}

/// A factor, transformed: spectra of core and tails, both of norm 1, and their norms.
struct Spectrum {
    core: Vec<Complex<f64>>,
    tail: Vec<Complex<f64>>,
    core_norm: f64,
    tail_norm: f64,
    first: usize,
    last: usize,
}

/// Convolves; keeps the tables of the sizes it has met.
pub struct Convolver {
    planner: FftPlanner<f64>,
}

impl Convolver {
    pub fn new() -> Self {
        Convolver { planner: FftPlanner::new() }
    }

    /// `x * y`, or `x * x`. No entry is further from the exact one than its error bound, but may be negative.
    pub fn product(&mut self, x: &[f64], y: Option<&[f64]>) -> Product {
        let other = y.unwrap_or(x);
        let length = x.len() + other.len() - 1;
        if x.len().min(other.len()) <= DIRECT {
            return direct(x, other);
        }
        let size = transform_size(length);
        let a = self.spectrum(x, size);
        let b = y.map(|y| self.spectrum(y, size));
        let b = b.as_ref().unwrap_or(&a);
        let scale = a.core_norm * b.core_norm;
        let parts = [a.core_norm * b.tail_norm, a.tail_norm * b.core_norm, a.tail_norm * b.tail_norm];
        let tail_scale: f64 = parts.iter().sum();
        let weights = parts.map(|p| if tail_scale > 0.0 { p / tail_scale } else { 0.0 });
        let mut packed: Vec<Complex<f64>> = (0..size)
            .map(|k| {
                let tails = a.core[k] * b.tail[k] * weights[0]
                    + a.tail[k] * b.core[k] * weights[1]
                    + a.tail[k] * b.tail[k] * weights[2];
                a.core[k] * b.core[k] + Complex::new(-tails.im, tails.re)
            })
            .collect();
        self.planner.plan_fft_inverse(size).process(&mut packed);
        let core = a.first + b.first..a.last + b.last + 1;
        let normal = 1.0 / size as f64;
        let mut mass: Vec<f64> = packed[..length].iter().map(|z| z.im * normal * tail_scale).collect();
        for k in core.clone() {
            mass[k] += packed[k].re * normal * scale;
        }
        // Componentwise: 3 transforms, each with an error of at most 6.7 u log2(size) (Higham 2002, theorem 24.2), norms of sqrt 2.
        let unit = 20.0 * f64::EPSILON * (size as f64).log2();
        Product { mass, core, error_in_core: unit * (scale + tail_scale), error: unit * tail_scale }
    }

    fn spectrum(&mut self, x: &[f64], size: usize) -> Spectrum {
        let bound = TAIL * x.iter().copied().fold(0.0, f64::max);
        let first = x.iter().position(|m| *m >= bound).unwrap_or(0);
        let last = x.iter().rposition(|m| *m >= bound).unwrap_or(0);
        let norm = |part: &mut dyn Iterator<Item = &f64>| part.map(|m| m * m).sum::<f64>().sqrt();
        let core_norm = norm(&mut x[first..=last].iter());
        // Tails are scaled before they are squared: they may be tiny.
        let top = x[..first].iter().chain(&x[last + 1..]).copied().fold(0.0, f64::max);
        let tail_norm = if top > f64::MIN_POSITIVE {
            top * norm(
                &mut x[..first].iter().chain(&x[last + 1..]).map(|m| m / top).collect::<Vec<_>>().iter(),
            )
        } else {
            0.0
        };
        let (to_core, to_tail) = (1.0 / core_norm, if tail_norm > 0.0 { 1.0 / tail_norm } else { 0.0 });
        let mut packed = vec![Complex::new(0.0, 0.0); size];
        for (k, (slot, &m)) in packed.iter_mut().zip(x).enumerate() {
            if (first..=last).contains(&k) {
                slot.re = m * to_core;
            } else {
                slot.im = m * to_tail;
            }
        }
        self.planner.plan_fft_forward(size).process(&mut packed);
        let mirrored = |k: usize| packed[if k == 0 { 0 } else { size - k }].conj();
        let core = (0..size).map(|k| (packed[k] + mirrored(k)) * 0.5).collect();
        let tail = (0..size)
            .map(|k| {
                let z = (packed[k] - mirrored(k)) * 0.5;
                Complex::new(z.im, -z.re)
            })
            .collect();
        Spectrum { core, tail, core_norm, tail_norm, first, last }
    }
}

/// The smallest of 2^a and 3 * 2^a from `length` on.
fn transform_size(length: usize) -> usize {
    let power = length.next_power_of_two();
    if power / 4 * 3 >= length { power / 4 * 3 } else { power }
}

/// By the definition: no entry is negative, and errors are relative, far below those charged to pieces.
fn direct(x: &[f64], y: &[f64]) -> Product {
    let (short, long) = if x.len() <= y.len() { (x, y) } else { (y, x) };
    let mut mass = vec![0.0; x.len() + y.len() - 1];
    for (i, a) in short.iter().enumerate() {
        for (slot, b) in mass[i..].iter_mut().zip(long) {
            *slot += a * b;
        }
    }
    Product { mass, core: 0..0, error_in_core: 0.0, error: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition, over masses of 40 orders of magnitude.
    #[test]
    fn errors_are_within_their_bounds() {
        let bell = |n: usize, width: f64| -> Vec<f64> {
            (0..n).map(|i| (-((i as f64 - 0.4 * n as f64) / width).powi(2)).exp()).collect()
        };
        let heavy: Vec<f64> = (0..700).map(|i| if i == 3 { 1.0 } else { 1e-9 / (1.0 + i as f64) }).collect();
        let mut convolver = Convolver::new();
        for (x, y) in [
            (bell(400, 20.0), None),
            (bell(333, 30.0), Some(bell(100, 7.0))),
            (heavy.clone(), None),
            (heavy, Some(bell(500, 40.0))),
        ] {
            let got = convolver.product(&x, y.as_deref());
            let want = direct(&x, y.as_deref().unwrap_or(&x));
            assert_eq!(got.mass.len(), want.mass.len());
            for (i, (a, b)) in got.mass.iter().zip(&want.mass).enumerate() {
                let bound = if got.core.contains(&i) { got.error_in_core } else { got.error };
                assert!((a - b).abs() <= bound + 1e-14 * b, "{i}: {a} {b} {bound}");
            }
            assert!(got.error < 1e-6 * got.error_in_core);
        }
        assert_eq!([5, 6, 7, 8, 9, 12, 13].map(transform_size), [6, 6, 8, 8, 12, 12, 16]);
    }
}
