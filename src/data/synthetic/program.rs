//! What a program holds, and how programs are drawn.
//!
//! [`PROGRAM`] numbers per image. 0: mask between two layers (0 none, 1 half plane, 2 disc, 3 noise, 4 bands,
//! 5 average); 1, 2: its direction, centre or shift; 3: level; 4: softness; 5: seed; 6, 7: slope of the light;
//! 8: darker corners; 9: gain; 10: saturation; 11: dark seam. From [`LAYERS`] on two layers of [`LAYER`] numbers:
//! 0: family; 1: seed; 2 to 5: matrix, row-major, and 6, 7: shift of the map from [-1, 1]^2 to the pattern's
//! plane; 8 to 13: shape parameters; 14: kind of palette; 15 to 23: its numbers.

use glam::{Affine2, Mat2, Vec2};
use rand_chacha::ChaCha20Rng;

use super::dice::{Dice, palette};

/// Numbers per image.
pub const PROGRAM: usize = 64;

/// Where the layers start.
pub(super) const LAYERS: usize = 16;

/// Numbers per layer.
pub(super) const LAYER: usize = 24;

/// Names of the families, in the order of their numbers.
pub const FAMILIES: [&str; 24] = [
    "clouds",
    "cells",
    "mosaic",
    "warp",
    "maze",
    "plasma",
    "hills",
    "stripes",
    "hexagons",
    "bricks",
    "truchet",
    "weave",
    "glyphs",
    "checker",
    "blobs",
    "shapes",
    "leaves",
    "curves",
    "facets",
    "julia",
    "kaleidoscope",
    "radial",
    "spirals",
    "drapes",
];

/// How a family lies in the image: half the image's width in its units, from and to.
enum Place {
    /// Anywhere on an endless plane, at any angle, a little sheared.
    Endless(f64, f64),
    /// Near its origin, at any angle.
    Centred(f64, f64),
    /// Near its origin, almost upright.
    Upright(f64, f64),
}

/// A program with one or, one time in three, two layers of any families.
pub(super) fn random(rng: &mut ChaCha20Rng) -> [f32; PROGRAM] {
    let mut dice = Dice(rng);
    let family = dice.below(FAMILIES.len());
    let mut program = single(dice.0, family);
    let mut dice = Dice(rng);
    if dice.chance(1.0 / 3.0) {
        let other = dice.below(FAMILIES.len());
        layer(&mut dice, other, &mut program[LAYERS + LAYER..]);
        mask(&mut dice, &mut program);
    }
    program
}

/// A program with one layer of one family.
pub(super) fn single(rng: &mut ChaCha20Rng, family: usize) -> [f32; PROGRAM] {
    let mut dice = Dice(rng);
    let mut program = [0.0; PROGRAM];
    layer(&mut dice, family, &mut program[LAYERS..LAYERS + LAYER]);
    let (angle, slope) = (dice.range(0.0, std::f64::consts::TAU), dice.range(0.0, 0.35));
    program[6] = (slope * angle.cos()) as f32;
    program[7] = (slope * angle.sin()) as f32;
    program[8] = if dice.chance(0.3) { dice.range(0.0, 0.25) as f32 } else { 0.0 };
    program[9] = dice.range(0.9, 1.3) as f32;
    program[10] = if dice.chance(0.1) { dice.range(0.0, 0.4) } else { dice.range(0.85, 1.25) } as f32;
    program
}

fn mask(dice: &mut Dice<'_>, program: &mut [f32; PROGRAM]) {
    let kind = 1 + dice.below(5);
    let angle = dice.range(0.0, std::f64::consts::TAU);
    let soft = if dice.chance(0.6) { 0.02 } else { dice.range(0.05, 0.6) };
    let (x, y, level) = match kind {
        1 => (angle.cos(), angle.sin(), dice.range(-0.4, 0.4)),
        2 => (dice.range(-0.5, 0.5), dice.range(-0.5, 0.5), dice.range(0.35, 0.8)),
        3 => (dice.range(-50.0, 50.0), dice.range(-50.0, 50.0), dice.range(0.8, 2.5)),
        4 => (angle.cos(), angle.sin(), dice.range(0.5, 2.0)),
        _ => (0.0, 0.0, dice.range(0.35, 0.65)),
    };
    program[0] = kind as f32;
    program[1] = x as f32;
    program[2] = y as f32;
    program[3] = level as f32;
    program[4] = soft as f32;
    program[5] = dice.below(1 << 24) as f32;
    program[11] = if kind != 5 && dice.chance(0.3) { dice.range(0.2, 0.8) as f32 } else { 0.0 };
}

fn layer(dice: &mut Dice<'_>, family: usize, out: &mut [f32]) {
    let (shape, place) = shape(dice, family);
    out[0] = family as f32;
    // Whole numbers below 2^24 are exact in f32.
    out[1] = dice.below(1 << 24) as f32;
    let map = map(dice, &place);
    let (x, y, t) = (map.matrix2.x_axis, map.matrix2.y_axis, map.translation);
    out[2..8].copy_from_slice(&[x.x, y.x, x.y, y.y, t.x, t.y]);
    for (out, x) in out[8..14].iter_mut().zip(shape) {
        *out = x as f32;
    }
    let (kind, colours) = palette(dice);
    out[14] = kind as f32;
    for (out, x) in out[15..24].iter_mut().zip(colours) {
        *out = x as f32;
    }
}

/// From image coordinates in [-1, 1]^2 to the pattern's plane.
fn map(dice: &mut Dice<'_>, place: &Place) -> Affine2 {
    let full = std::f64::consts::TAU;
    let (lo, hi, angle, shift) = match *place {
        Place::Endless(lo, hi) => (lo, hi, dice.range(0.0, full), 40.0),
        Place::Centred(lo, hi) => (lo, hi, dice.range(0.0, full), 0.35),
        Place::Upright(lo, hi) => (lo, hi, dice.range(-0.06, 0.06) * full, 0.15),
    };
    let size = dice.scale(lo, hi);
    let stretch = if dice.chance(0.5) { 1.0 } else { dice.scale(0.75, 1.33) };
    let shear = if dice.chance(0.7) { 0.0 } else { dice.range(-0.3, 0.3) };
    let mirror = dice.sign();
    let scaled = Mat2::from_diagonal(Vec2::new((size * stretch * mirror) as f32, (size / stretch) as f32));
    let sheared = Mat2::from_cols(Vec2::X, Vec2::new(shear as f32, 1.0));
    let turned = Mat2::from_angle(angle as f32);
    let shift = Vec2::new(dice.range(-shift, shift) as f32, dice.range(-shift, shift) as f32);
    Affine2 { matrix2: scaled * sheared * turned, translation: shift }
}

/// Shape parameters and placement of a family; what they mean is said in its shader.
fn shape(dice: &mut Dice<'_>, family: usize) -> ([f64; 6], Place) {
    use Place::{Centred, Endless, Upright};
    let d = dice;
    match FAMILIES[family] {
        "clouds" => {
            let shape = [d.range(0.4, 0.75), d.extreme(), d.range(0.5, 1.3), d.range(0.0, 2.5), 0.0, 0.0];
            (shape, Endless(0.8, 3.5))
        }
        "cells" => {
            let shape = [
                d.extreme(),
                d.extreme(),
                d.range(0.9, 2.5),
                d.range(0.6, 1.0),
                d.range(0.0, 1.0),
                d.range(0.0, 1.0),
            ];
            (shape, Endless(1.2, 4.0))
        }
        "mosaic" => {
            let width = d.pick(&[-0.1, 0.02, 0.06, 0.12]);
            let shape =
                [width, d.range(0.0, 0.8), d.range(0.0, 0.5), d.range(0.5, 1.0), d.extreme(), d.extreme()];
            (shape, Endless(1.0, 3.5))
        }
        "warp" => {
            let gloss = if d.chance(0.3) { 0.3 } else { 0.0 };
            let shape = [
                d.range(0.5, 2.5),
                d.range(0.6, 1.6),
                d.range(-0.8, 0.8),
                d.range(0.4, 0.7),
                d.range(0.0, 0.8),
                gloss,
            ];
            (shape, Endless(0.7, 2.5))
        }
        "maze" => {
            let shape = [
                d.range(0.3, 1.5),
                d.pick(&[0.03, 0.083, 0.083, 0.083]),
                d.range(0.1, 0.6),
                d.range(-0.5, 0.5),
                d.extreme(),
                d.range(0.0, 0.7),
            ];
            (shape, Endless(1.0, 3.5))
        }
        "plasma" => {
            let shape = [
                d.range(-0.6, 0.6),
                d.range(-0.6, 0.6),
                d.range(0.6, 1.8),
                d.range(0.2, 0.7),
                d.extreme(),
                d.range(0.0, 0.4),
            ];
            (shape, Centred(0.8, 2.2))
        }
        "hills" => {
            let shape = [
                d.range(0.2, 0.7),
                d.range(-0.3, 0.3),
                d.range(-0.6, 1.0),
                d.range(0.0, 0.5),
                d.range(0.0, 2.0),
                d.pick(&[0.0, 0.12, 0.2, 0.3]),
            ];
            (shape, Upright(0.8, 1.4))
        }
        "stripes" => {
            let bend = if d.chance(0.4) { 0.0 } else { d.range(0.1, 0.6) };
            let rough = if d.chance(0.5) { 0.0 } else { d.range(0.2, 1.2) };
            let shape = [bend, d.range(0.2, 0.7), rough, d.extreme(), d.range(0.0, 0.8), d.range(0.0, 0.8)];
            (shape, Endless(1.2, 5.0))
        }
        "hexagons" => {
            let shape = [
                d.pick(&[-0.1, 0.02, 0.05, 0.1]),
                d.range(0.0, 0.7),
                d.range(0.3, 1.6),
                d.pick(&[0.0, 0.0, 1.0, 2.5]),
                d.range(0.2, 1.0),
                d.pick(&[0.0, 0.0, 0.3]),
            ];
            (shape, Endless(1.2, 4.0))
        }
        "bricks" => {
            let shape = [
                d.range(1.0, 3.0),
                d.extreme(),
                d.range(0.02, 0.12),
                d.range(0.0, 0.4),
                d.range(0.1, 1.5),
                d.range(0.0, 1.0),
            ];
            (shape, Endless(1.4, 4.5))
        }
        "truchet" => {
            let shape = [
                d.range(0.06, 0.24),
                d.pick(&[0.0, 0.4, 0.8]),
                d.range(0.0, 0.8),
                d.pick(&[0.0, 0.3, 0.6]),
                d.ground(),
                d.range(0.03, 0.12),
            ];
            (shape, Endless(1.2, 3.5))
        }
        "weave" => {
            let shape = [
                d.range(0.3, 0.48),
                d.range(0.2, 0.9),
                d.range(0.2, 1.6),
                d.range(0.1, 0.5),
                d.range(0.5, 2.0),
                d.pick(&[0.0, 0.0, 0.15]),
            ];
            (shape, Endless(1.3, 4.0))
        }
        "glyphs" => {
            let shape = [
                d.range(0.04, 0.1),
                d.pick(&[0.0, 0.1, 0.3]),
                d.range(0.0, 0.5),
                d.range(0.03, 0.1),
                d.ground(),
                d.range(0.0, 0.6),
            ];
            (shape, if d.chance(0.6) { Upright(1.0, 3.2) } else { Endless(1.0, 3.2) })
        }
        "checker" => {
            let shape = [
                d.range(-0.5, 0.3),
                d.range(0.5, 1.6),
                d.extreme(),
                d.pick(&[0.0, 0.0, 1.0]),
                d.range(0.0, 40.0),
                d.range(0.2, 1.0),
            ];
            (shape, Upright(0.9, 1.3))
        }
        "blobs" => {
            let shape = [
                d.range(0.9, 2.2),
                d.range(0.0, 1.0),
                d.pick(&[0.0, 0.4, 0.7]),
                d.range(-0.6, 0.6),
                d.ground(),
                d.range(0.0, 2.0),
            ];
            (shape, Centred(0.8, 1.4))
        }
        "shapes" => {
            let shape = [
                d.range(0.7, 1.3),
                d.pick(&[0.0, 0.5, 0.9]),
                d.range(0.0, 0.35),
                d.range(0.0, 0.5),
                d.range(0.01, 0.05),
                d.ground(),
            ];
            (shape, Centred(0.8, 1.4))
        }
        "leaves" => {
            let shape = [
                d.range(0.0, 0.7),
                d.range(0.0, 0.7),
                d.extreme(),
                d.range(1.1, 1.45),
                d.pick(&[0.0, 0.0, 0.5]),
                d.range(0.4, 2.0),
            ];
            (shape, Endless(0.8, 2.0))
        }
        "curves" => {
            let shape = [
                d.range(0.0, 1.0),
                d.pick(&[0.02, 0.2, 1.0]),
                d.range(0.0, 0.6),
                d.range(0.0, 0.7),
                d.scale(0.04, 0.2),
                d.ground(),
            ];
            (shape, Centred(0.8, 1.4))
        }
        "facets" => {
            let shape = [
                d.range(0.6, 1.3),
                d.range(0.0, 1.5),
                d.range(0.1, 0.45),
                d.pick(&[0.0, 0.3, 0.6]),
                d.range(-0.8, 0.8),
                d.range(0.0, 1.0),
            ];
            (shape, Centred(0.8, 1.6))
        }
        "julia" => {
            // Just off the main cardioid of the Mandelbrot set, where the sets are ornate.
            let (t, off) = (d.range(0.0, std::f64::consts::TAU), d.range(1.0, 1.12));
            let x = off * (0.5 * t.cos() - 0.25 * (2.0 * t).cos());
            let y = off * (0.5 * t.sin() - 0.25 * (2.0 * t).sin());
            let shape = [x, y, d.range(0.5, 1.8), d.range(0.05, 0.3), d.range(0.0, 0.8), d.extreme()];
            (shape, Centred(0.8, 1.4))
        }
        "kaleidoscope" => {
            let shape = [
                d.range(3.0, 9.0),
                d.range(0.2, 0.7),
                d.range(0.05, 0.5),
                d.range(0.0, 1.0),
                d.range(0.4, 1.5),
                d.range(0.0, 0.9),
            ];
            (shape, Centred(0.9, 1.8))
        }
        "radial" => {
            let shape = [
                d.range(1.0, 13.0),
                d.range(-2.0, 2.0),
                d.range(0.5, 3.5),
                d.extreme(),
                d.range(-1.2, 1.2),
                d.range(0.0, 0.8),
            ];
            (shape, Centred(0.7, 1.4))
        }
        "spirals" => {
            let shape = [
                d.range(1.0, 7.0),
                d.sign() * d.range(1.5, 6.0),
                d.range(1.0, 4.5),
                d.extreme(),
                d.extreme(),
                d.range(0.0, 0.4),
            ];
            (shape, Centred(0.7, 1.4))
        }
        _ => {
            let shape = [
                d.range(0.1, 0.5),
                d.range(0.2, 1.0),
                d.range(0.3, 0.9),
                d.range(-0.5, 0.5),
                d.range(0.1, 0.45),
                d.pick(&[0.0, 0.0, 0.3]),
            ];
            (shape, Endless(0.8, 2.2))
        }
    }
}
