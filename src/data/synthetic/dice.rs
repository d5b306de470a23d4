//! Random choices on the host: numbers, and palettes that are neither dark nor flat.

use rand_chacha::ChaCha20Rng;

use crate::rng::{below, unit};

/// Random choices from one stream.
pub(super) struct Dice<'a>(pub &'a mut ChaCha20Rng);

impl Dice<'_> {
    pub fn range(&mut self, lo: f64, hi: f64) -> f64 {
        lo + (hi - lo) * unit(self.0)
    }

    /// Log-uniform: as often between 1 and 2 as between 2 and 4.
    pub fn scale(&mut self, lo: f64, hi: f64) -> f64 {
        self.range(lo.ln(), hi.ln()).exp()
    }

    pub fn chance(&mut self, p: f64) -> bool {
        unit(self.0) < p
    }

    pub fn below(&mut self, n: usize) -> usize {
        below(self.0, n as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn sign(&mut self) -> f64 {
        if self.chance(0.5) { 1.0 } else { -1.0 }
    }

    /// A palette coordinate near one end, from which half a unit on is a different colour.
    pub fn ground(&mut self) -> f64 {
        self.range(0.0, 0.2) + self.below(2) as f64
    }

    /// A value that is usually 0 or 1, now and then between.
    pub fn extreme(&mut self) -> f64 {
        match self.below(3) {
            0 => 0.0,
            1 => 1.0,
            _ => unit(self.0),
        }
    }
}

/// A palette with some light and enough difference between its darkest and lightest colour.
pub(super) fn palette(dice: &mut Dice<'_>) -> (usize, [f64; 9]) {
    loop {
        let (kind, numbers) = any_palette(dice);
        let (lo, hi) = brightness(kind, &numbers);
        if hi - lo >= 0.25 && hi >= 0.45 {
            return (kind, numbers);
        }
    }
}

/// Least and greatest luma of a palette.
fn brightness(kind: usize, k: &[f64; 9]) -> (f64, f64) {
    let luma = |[r, g, b]: [f64; 3]| 0.299 * r + 0.587 * g + 0.114 * b;
    let colour = |t: f64| match kind {
        1 => [0, 1, 2].map(|i| k[i] + k[3 + i] * (std::f64::consts::TAU * (t + k[6 + i])).cos()),
        2 => hsv(k[0] + k[1] * t, k[2], k[3] + k[4] * t),
        _ => {
            let i = 3 * (t * 2.0).round() as usize;
            [k[i], k[i + 1], k[i + 2]]
        }
    };
    (0..=8).map(|i| luma(colour(i as f64 / 8.0))).fold((1.0, 0.0), |(lo, hi), x| (x.min(lo), x.max(hi)))
}

/// Kind and numbers of a palette: bright, pale, dark, greyish or earthen; two or three hues or a run of them.
fn any_palette(dice: &mut Dice<'_>) -> (usize, [f64; 9]) {
    let d = dice;
    match d.below(10) {
        0..5 => {
            let colours = three_colours(d);
            (if d.chance(0.3) { 3 } else { 0 }, colours.concat().try_into().expect("nine"))
        }
        5..8 => {
            let mut out = [0.0; 9];
            for i in 0..3 {
                out[i] = d.range(0.35, 0.65);
                out[3 + i] = d.range(0.2, 0.5);
                out[6 + i] = d.range(0.0, 1.0);
            }
            (1, out)
        }
        _ => {
            let value = d.range(0.1, 1.0);
            let other = if value > 0.55 { d.range(0.0, value - 0.35) } else { d.range(value + 0.35, 1.0) };
            let range = d.sign() * d.scale(0.05, 1.0);
            (2, [d.range(0.0, 1.0), range, d.range(0.25, 1.0), value, other - value, 0.0, 0.0, 0.0, 0.0])
        }
    }
}

fn three_colours(d: &mut Dice<'_>) -> [[f64; 3]; 3] {
    let (saturation, value) = match d.below(8) {
        0..3 => ((0.5, 1.0), (0.25, 1.0)),
        3 => ((0.1, 0.45), (0.7, 1.0)),
        4 => ((0.2, 0.9), (0.02, 0.5)),
        5 => ((0.0, 0.15), (0.05, 1.0)),
        6 => ((0.3, 0.7), (0.15, 0.85)),
        _ => ((0.0, 1.0), (0.1, 1.0)),
    };
    let hue = d.range(0.0, 1.0);
    let steps = d.pick(&[[0.0, 0.0], [0.06, 0.12], [0.08, 0.5], [0.5, 0.55], [0.33, 0.67], [0.42, 0.58]]);
    // Values low, middle and high, in random order, so that no palette is flat.
    let third = (value.1 - value.0) / 3.0;
    let mut values = [0, 1, 2].map(|i| value.0 + third * i as f64 + d.range(0.0, third));
    for i in [2, 1] {
        let j = d.below(i + 1);
        values.swap(i, j);
    }
    [0.0, steps[0], steps[1]]
        .into_iter()
        .zip(values)
        .map(|(step, v)| hsv(hue + step + d.range(-0.03, 0.03), d.range(saturation.0, saturation.1), v))
        .collect::<Vec<_>>()
        .try_into()
        .expect("three")
}

/// Hue, saturation and value to red, green and blue (Smith 1978).
fn hsv(h: f64, s: f64, v: f64) -> [f64; 3] {
    [0.0, 2.0 / 3.0, 1.0 / 3.0].map(|offset| {
        let pure = (((h + offset).rem_euclid(1.0) * 6.0 - 3.0).abs() - 1.0).clamp(0.0, 1.0);
        v * (1.0 - s * (1.0 - pure))
    })
}
