//! Reconstructions as pictures: original, masked, reconstructed, side by side.

use image::{Rgb, RgbImage, imageops};

use crate::data::augment::{MEAN, STD};
use crate::model::mae::MaeConfig;

/// Pixels between tiles.
const GAP: u32 = 4;
/// Smallest side of a tile: small images are enlarged by a whole factor.
const TILE: u32 = 96;

/// One row per image: original, masked, reconstructed (removed patches as predicted, kept ones as given).
///
/// `images` (B, 3, S, S) normalised; `predictions` (B, 1 + L, P) as the model gives them; `mask` (B, L), 1 where
/// a patch was removed.
///
/// # Panics
/// If the lengths do not fit the configuration.
pub fn reconstructions(config: &MaeConfig, images: &[f32], predictions: &[f32], mask: &[f32]) -> RgbImage {
    let (side, l, p) = (config.image, config.patches(), config.patch_len());
    let count = images.len() / (3 * side * side);
    assert_eq!(predictions.len(), count * (1 + l) * p, "predictions");
    assert_eq!(mask.len(), count * l, "mask");
    let scale = (TILE as usize).div_ceil(side).max(1) as u32;
    let tile = side as u32 * scale;
    let mut sheet =
        RgbImage::from_pixel(3 * (tile + GAP) + GAP, count as u32 * (tile + GAP) + GAP, Rgb([255, 255, 255]));
    for i in 0..count {
        let image = &images[i * 3 * side * side..][..3 * side * side];
        let prediction = &predictions[(i * (1 + l) + 1) * p..][..l * p];
        let mask = &mask[i * l..][..l];
        let tiles = [
            picture(config, |c, y, x| Some(image[(c * side + y) * side + x])),
            picture(config, |c, y, x| {
                (mask[patch_at(config, y, x)] == 0.0).then(|| image[(c * side + y) * side + x])
            }),
            picture(config, |c, y, x| {
                let patch = patch_at(config, y, x);
                Some(if mask[patch] == 0.0 {
                    image[(c * side + y) * side + x]
                } else {
                    predicted(config, image, &prediction[patch * p..][..p], patch, c, y, x)
                })
            }),
        ];
        for (j, t) in tiles.iter().enumerate() {
            let t = imageops::resize(t, tile, tile, imageops::FilterType::Nearest);
            let at = (GAP + j as u32 * (tile + GAP), GAP + i as u32 * (tile + GAP));
            imageops::replace(&mut sheet, &t, at.0 as i64, at.1 as i64);
        }
    }
    sheet
}

fn patch_at(config: &MaeConfig, y: usize, x: usize) -> usize {
    y / config.patch * config.grid() + x / config.patch
}

/// A predicted pixel; with `norm_pix` the patch's own mean and deviation are put back.
fn predicted(
    config: &MaeConfig,
    image: &[f32],
    values: &[f32],
    patch: usize,
    c: usize,
    y: usize,
    x: usize,
) -> f32 {
    let n = config.patch;
    let value = values[((y % n) * n + x % n) * 3 + c];
    if !config.norm_pix {
        return value;
    }
    let (top, left) = (patch / config.grid() * n, patch % config.grid() * n);
    let pixels: Vec<f32> = (0..3 * n * n)
        .map(|k| image[(k / (n * n) * config.image + top + k % (n * n) / n) * config.image + left + k % n])
        .collect();
    let mean = pixels.iter().sum::<f32>() / pixels.len() as f32;
    let variance = pixels.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / (pixels.len() - 1) as f32;
    value * (variance + 1e-6).sqrt() + mean
}

/// An image from normalised values; `None` is drawn grey.
fn picture(config: &MaeConfig, at: impl Fn(usize, usize, usize) -> Option<f32>) -> RgbImage {
    let side = config.image as u32;
    RgbImage::from_fn(side, side, |x, y| {
        Rgb(std::array::from_fn(|c| match at(c, y as usize, x as usize) {
            Some(v) => ((v * STD[c] + MEAN[c]).clamp(0.0, 1.0) * 255.0).round() as u8,
            None => 160,
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perfect_prediction_gives_the_original() {
        for norm_pix in [false, true] {
            let config = MaeConfig { norm_pix, ..MaeConfig::preset("micro32").unwrap() };
            let (side, l, n) = (32, config.patches(), config.patch);
            let images: Vec<f32> =
                (0..3 * side * side).map(|i| ((i * 37) % 101) as f32 / 60.0 - 0.8).collect();
            let mut predictions = vec![9.0; config.patch_len()];
            for patch in 0..l {
                let (top, left) = (patch / 8 * n, patch % 8 * n);
                let pixel = |k: usize| images[(k % 3 * side + top + k / 3 / n) * side + left + k / 3 % n];
                let values: Vec<f32> = (0..config.patch_len()).map(pixel).collect();
                let mean = values.iter().sum::<f32>() / 48.0;
                let var = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 47.0;
                let shown = |x: f32| if norm_pix { (x - mean) / (var + 1e-6).sqrt() } else { x };
                predictions.extend(values.into_iter().map(shown));
            }
            let mask: Vec<f32> = (0..l).map(|p| (p % 4 != 0) as u8 as f32).collect();
            let sheet = reconstructions(&config, &images, &predictions, &mask);
            let (tile, mut grey) = (96, 0);
            for y in 0..tile {
                for x in 0..tile {
                    let at = |j: u32| sheet.get_pixel(GAP + j * (tile + GAP) + x, GAP + y);
                    for c in 0..3 {
                        assert!(at(0)[c].abs_diff(at(2)[c]) <= 1, "{x} {y}");
                    }
                    grey += (*at(1) == Rgb([160, 160, 160])) as u32;
                }
            }
            assert!(grey >= tile * tile * 3 / 4);
        }
    }
}
