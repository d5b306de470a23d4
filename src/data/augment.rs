//! Crops, flips and resampling: an RGB image to a normalised planar tensor (3, S, S).

use glam::Vec2;
use image::RgbImage;
use rand_core::Rng;

use crate::rng::{Key, below, unit};

/// ImageNet's channel means, of values in [0, 1].
pub const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// ImageNet's channel standard deviations.
pub const STD: [f32; 3] = [0.229, 0.224, 0.225];

/// A rectangle of an image, in pixels; fractional bounds are allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crop {
    /// Left and top edge.
    pub corner: Vec2,
    /// Width and height.
    pub size: Vec2,
}

impl Crop {
    /// The whole image.
    pub fn whole(image: &RgbImage) -> Self {
        Crop { corner: Vec2::ZERO, size: Vec2::new(image.width() as f32, image.height() as f32) }
    }

    /// The centred square whose side is `share` of the shorter side.
    pub fn centre(image: &RgbImage, share: f32) -> Self {
        let whole = Self::whole(image).size;
        let size = Vec2::splat(whole.min_element() * share);
        Crop { corner: (whole - size) * 0.5, size }
    }
}

/// How training images are varied: a random resized crop (area scale, aspect 3/4 to 4/3, log-uniform) and a flip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Augment {
    /// Smallest share of the image's area.
    pub scale_min: f32,
    /// Largest share.
    pub scale_max: f32,
    /// Flip half of the images.
    pub flip: bool,
}

impl Augment {
    /// ViP's pre-training: area 0.2 to 1.
    pub const PRETRAIN: Augment = Augment { scale_min: 0.2, scale_max: 1.0, flip: true };
    /// The linear probe's training: area 0.08 to 1.
    pub const PROBE: Augment = Augment { scale_min: 0.08, scale_max: 1.0, flip: true };

    /// Draws a crop and whether to flip: up to ten tries for a crop that fits, then the centred one.
    pub fn draw(&self, image: &RgbImage, rng: &mut impl Rng) -> (Crop, bool) {
        let (w, h) = (image.width(), image.height());
        let area = w as f64 * h as f64;
        let mut crop = None;
        for _ in 0..10 {
            let share = self.scale_min as f64 + (self.scale_max - self.scale_min) as f64 * unit(rng);
            let log = (3f64 / 4.0).ln() + (16f64 / 9.0).ln() * unit(rng);
            let aspect = log.exp();
            let cw = (area * share * aspect).sqrt().round() as u32;
            let ch = (area * share / aspect).sqrt().round() as u32;
            if cw > 0 && ch > 0 && cw <= w && ch <= h {
                let x = below(rng, (w - cw + 1) as u64) as f32;
                let y = below(rng, (h - ch + 1) as u64) as f32;
                crop = Some(Crop { corner: Vec2::new(x, y), size: Vec2::new(cw as f32, ch as f32) });
                break;
            }
        }
        let crop = crop.unwrap_or_else(|| {
            let ratio = w as f32 / h as f32;
            let size = if ratio < 0.75 {
                Vec2::new(w as f32, (w as f32 / 0.75).round())
            } else if ratio > 4.0 / 3.0 {
                Vec2::new((h as f32 * 4.0 / 3.0).round(), h as f32)
            } else {
                Vec2::new(w as f32, h as f32)
            };
            Crop { corner: ((Crop::whole(image).size - size) * 0.5).floor(), size }
        });
        (crop, self.flip && rng.next_u32() & 1 == 1)
    }
}

/// How an image becomes a tensor.
#[derive(Clone, Debug)]
pub enum Transform {
    /// Varied per example and step, from this key.
    Augmented(Augment, Key),
    /// The centred square, its side 7/8 of the shorter side for images larger than the tensor (resize 256, crop 224),
    /// the whole shorter side otherwise.
    Centre,
    /// The whole image, whatever its aspect: what captions are about.
    Whole,
}

impl Transform {
    /// Writes an image as (3, side, side), normalised.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn apply(&self, image: &RgbImage, side: usize, step: u64, example: u64, out: &mut [f32]) {
        let (crop, flip) = match self {
            Transform::Augmented(augment, key) => augment.draw(image, &mut key.item(step, example)),
            Transform::Whole => (Crop::whole(image), false),
            Transform::Centre => {
                let small = image.width().min(image.height()) as usize <= side;
                (Crop::centre(image, if small { 1.0 } else { 0.875 }), false)
            }
        };
        resample(image, crop, flip, side, out);
        for (c, plane) in out.chunks_mut(side * side).enumerate() {
            plane.iter_mut().for_each(|x| *x = (*x - MEAN[c]) / STD[c]);
        }
    }
}

/// Weights of one output pixel: first input pixel and weights, which sum to 1.
type Taps = Vec<(usize, Vec<f32>)>;

/// Keys' cubic convolution with a = -0.5 (Keys 1981).
fn cubic(x: f32) -> f32 {
    let x = x.abs();
    if x < 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else if x < 2.0 {
        ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    } else {
        0.0
    }
}

/// Bicubic taps from `size` pixels at `start` to `side` pixels; widened when shrinking, so that nothing aliases.
fn taps(start: f32, size: f32, available: usize, side: usize) -> Taps {
    let scale = size / side as f32;
    let stretch = scale.max(1.0);
    let reach = 2.0 * stretch;
    (0..side)
        .map(|i| {
            let centre = start + (i as f32 + 0.5) * scale;
            let first = ((centre - reach + 0.5).floor().max(start.floor()).max(0.0)) as usize;
            let end =
                ((centre + reach + 0.5).floor() as usize).min((start + size).ceil() as usize).min(available);
            let first = first.min(available - 1);
            let end = end.max(first + 1);
            let mut weights: Vec<f32> =
                (first..end).map(|k| cubic((k as f32 + 0.5 - centre) / stretch)).collect();
            let sum: f32 = weights.iter().sum();
            if sum.abs() > 1e-6 {
                weights.iter_mut().for_each(|w| *w /= sum);
            } else {
                weights.fill(1.0 / (end - first) as f32);
            }
            (first, weights)
        })
        .collect()
}

/// Resamples a crop to (3, side, side) in [0, 1] (bicubic, clamped), optionally mirrored.
///
/// # Panics
/// If `out` has another length.
pub fn resample(image: &RgbImage, crop: Crop, flip: bool, side: usize, out: &mut [f32]) {
    assert_eq!(out.len(), 3 * side * side, "a (3, {side}, {side}) tensor");
    let (w, h) = (image.width() as usize, image.height() as usize);
    let across = taps(crop.corner.x, crop.size.x, w, side);
    let down = taps(crop.corner.y, crop.size.y, h, side);
    let top = down.iter().map(|(first, _)| *first).min().unwrap_or(0);
    let bottom = down.iter().map(|(first, t)| first + t.len()).max().unwrap_or(1);
    // Rows first: (rows, side, 3).
    let mut narrow = vec![0.0f32; (bottom - top) * side * 3];
    let pixels = image.as_raw();
    for (row, line) in narrow.chunks_mut(side * 3).enumerate() {
        let source = &pixels[(top + row) * w * 3..][..w * 3];
        for (to, (first, weights)) in line.chunks_mut(3).zip(&across) {
            for (k, weight) in weights.iter().enumerate() {
                let p = &source[(first + k) * 3..][..3];
                for c in 0..3 {
                    to[c] += weight * p[c] as f32;
                }
            }
        }
    }
    let mut line = vec![0.0f32; side * 3];
    for (y, (first, weights)) in down.iter().enumerate() {
        line.fill(0.0);
        for (k, weight) in weights.iter().enumerate() {
            let source = &narrow[(first - top + k) * side * 3..][..side * 3];
            line.iter_mut().zip(source).for_each(|(l, s)| *l += weight * s);
        }
        for x in 0..side {
            let from = if flip { side - 1 - x } else { x };
            for c in 0..3 {
                out[(c * side + y) * side + x] = (line[from * 3 + c] / 255.0).clamp(0.0, 1.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(w: u32, h: u32) -> RgbImage {
        RgbImage::from_fn(w, h, |x, y| {
            image::Rgb([(x * 37 + y * 11) as u8, (x * 5 + y * 71) as u8, (x * y) as u8])
        })
    }

    #[test]
    fn the_same_size_keeps_every_pixel() {
        let image = picture(16, 16);
        let mut out = vec![0.0; 3 * 256];
        resample(&image, Crop::whole(&image), false, 16, &mut out);
        for (x, y, p) in image.enumerate_pixels() {
            for c in 0..3 {
                let got = out[(c * 16 + y as usize) * 16 + x as usize] * 255.0;
                assert!((got - p[c] as f32).abs() <= 1e-3, "{x} {y} {c}: {got}");
            }
        }
        let mut mirrored = vec![0.0; 3 * 256];
        resample(&image, Crop::whole(&image), true, 16, &mut mirrored);
        for (row, other) in out.chunks(16).zip(mirrored.chunks(16)) {
            assert!(row.iter().eq(other.iter().rev()));
        }
    }

    #[test]
    fn constants_stay_constant_and_means_stay() {
        let flat = RgbImage::from_pixel(50, 31, image::Rgb([10, 128, 250]));
        for (side, crop) in
            [(7, Crop::whole(&flat)), (64, Crop { corner: Vec2::new(3.0, 4.0), size: Vec2::new(11.0, 9.0) })]
        {
            let mut out = vec![0.0; 3 * side * side];
            resample(&flat, crop, false, side, &mut out);
            for (c, want) in [10.0, 128.0, 250.0].into_iter().enumerate() {
                for x in &out[c * side * side..(c + 1) * side * side] {
                    assert!((x * 255.0 - want).abs() <= 1e-2, "{x}");
                }
            }
        }
        let image = picture(64, 64);
        let mut out = vec![0.0; 3 * 16];
        resample(&image, Crop::whole(&image), false, 4, &mut out);
        let mean = |c: usize| image.pixels().map(|p| p[c] as f64).sum::<f64>() / 4096.0 / 255.0;
        for c in 0..3 {
            let got: f64 = out[c * 16..(c + 1) * 16].iter().map(|x| *x as f64).sum::<f64>() / 16.0;
            assert!((got - mean(c)).abs() <= 0.02, "{got} {}", mean(c));
        }
    }

    #[test]
    fn crops_stay_inside_and_vary() {
        let image = picture(40, 30);
        let key = Key::from_seed(2);
        let (mut flips, mut shares) = (0, Vec::new());
        for example in 0..2000 {
            let (crop, flip) = Augment::PRETRAIN.draw(&image, &mut key.item(3, example));
            assert!(crop.corner.min_element() >= 0.0);
            assert!((crop.corner + crop.size).cmple(Vec2::new(40.0, 30.0)).all());
            let aspect = crop.size.x / crop.size.y;
            assert!((0.6..1.7).contains(&aspect), "{aspect}");
            shares.push(crop.size.element_product() / 1200.0);
            flips += flip as u32;
        }
        assert!((900..1100).contains(&flips), "{flips}");
        assert!(
            shares.iter().all(|s| *s > 0.17)
                && shares.iter().any(|s| *s < 0.25)
                && shares.iter().any(|s| *s > 0.9)
        );
        assert_eq!(
            Augment::PROBE.draw(&image, &mut key.item(3, 7)),
            Augment::PROBE.draw(&image, &mut key.item(3, 7))
        );
    }

    #[test]
    fn extreme_shapes_do_not_fail() {
        for (w, h) in [(1, 1), (1, 500), (500, 1), (3, 2)] {
            let image = picture(w, h);
            let mut out = vec![f32::NAN; 3 * 32 * 32];
            for t in [Transform::Augmented(Augment::PROBE, Key::from_seed(1)), Transform::Centre] {
                t.apply(&image, 32, 0, 0, &mut out);
                assert!(out.iter().all(|x| x.is_finite()), "{w} x {h}");
            }
        }
    }
}
