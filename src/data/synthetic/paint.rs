//! Twin of `shaders/data/synthetic.wgsl`: layers, palettes, masks and light. See there.

use rayon::prelude::*;

use super::lane::{Lane, One};
use super::pattern::{V, clamp01, fract, lerp, noise, smooth, triangle, wave};
use super::program::{LAYER, LAYERS, PROGRAM};
use super::{Ink, field, noise as families, shape, tile};
use crate::kernel::{Args, Real};

/// Mean and deviation of ImageNet's pixels, by channel.
const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f64; 3] = [0.229, 0.224, 0.225];

/// Pixels that one thread draws at a time.
const BAND: usize = 4096;

#[inline(always)]
fn layer_ink<L: Lane>(k: &[f64], p: V<L>) -> Ink<L> {
    let n = |i: usize| L::of(k[i]);
    let q = V(n(2) * p.0 + n(3) * p.1 + n(6), n(4) * p.0 + n(5) * p.1 + n(7));
    let a = [n(8), n(9), n(10), n(11), n(12), n(13)];
    let seed = k[1] as u32;
    match k[0] as u32 {
        0 => families::clouds(q, a, seed),
        1 => families::cells(q, a, seed),
        2 => families::mosaic(q, a, seed),
        3 => families::warp(q, a, seed),
        4 => families::maze(q, a, seed),
        5 => families::plasma(q, a, seed),
        6 => families::hills(q, a, seed),
        7 => tile::stripes(q, a, seed),
        8 => tile::hexagons(q, a, seed),
        9 => tile::bricks(q, a, seed),
        10 => tile::truchet(q, a, seed),
        11 => tile::weave(q, a, seed),
        12 => tile::glyphs(q, a, seed),
        13 => tile::checker(q, a, seed),
        14 => shape::blobs(q, a, seed),
        15 => shape::shapes(q, a, seed),
        16 => shape::leaves(q, a, seed),
        17 => shape::curves(q, a, seed),
        18 => shape::facets(q, a, seed),
        19 => field::julia(q, a, seed),
        20 => field::kaleidoscope(q, a, seed),
        21 => field::radial(q, a, seed),
        22 => field::spirals(q, a, seed),
        _ => field::drapes(q, a, seed),
    }
}

#[inline(always)]
fn palette_channel<L: Lane>(k: &[f64], kind: u32, i: usize, t: L, f: L) -> L {
    let (first, second, third) = (L::of(k[i]), L::of(k[3 + i]), L::of(k[6 + i]));
    match kind {
        0 => lerp(lerp(first, second, clamp01(f * 2.0)), third, clamp01(f * 2.0 - 1.0)),
        1 => first + second * wave(t + third),
        2 => {
            let hue = L::of(k[0]) + L::of(k[1]) * f;
            let offset = ((3 - i) % 3) as f64 * 0.33333334;
            let pure = clamp01((fract(hue + offset) * 6.0 - 3.0).abs() - 1.0);
            (L::of(k[3]) + L::of(k[4]) * f) * (L::of(1.0) - L::of(k[2]) * (L::of(1.0) - pure))
        }
        _ => {
            let two = lerp(first, second, smooth(L::of(0.3), L::of(0.36), f));
            lerp(two, third, smooth(L::of(0.62), L::of(0.68), f))
        }
    }
}

#[inline(always)]
fn mask_at<L: Lane>(k: &[f64], p: V<L>) -> L {
    let (m, level, soft) = (V::of(k[1], k[2]), L::of(k[3]), L::of(k[4]));
    match k[0] as u32 {
        1 => smooth(-soft, soft, p.dot(m) - level),
        2 => smooth(-soft, soft, level - (p - m).length()),
        3 => smooth(-soft, soft, noise(p * level + m, k[5] as u32)),
        4 => smooth(-soft, soft, wave(p.dot(m) * level)),
        _ => level,
    }
}

#[inline(always)]
fn sample_at<L: Lane>(k: &[f64], p: V<L>) -> [L; 3] {
    let (zero, one) = (L::of(0.0), L::of(1.0));
    let mut c = [zero; 3];
    let layers = if k[0] > 0.0 { 2 } else { 1 };
    // A loop, so that the families are compiled in once.
    for l in 0..layers {
        let layer = &k[LAYERS + l * LAYER..][..LAYER];
        let [t, shade, gloss] = layer_ink(layer, p);
        let f = triangle(t * 0.5);
        let kind = layer[14] as u32;
        let mut rgb = [zero; 3];
        for (i, rgb) in rgb.iter_mut().enumerate() {
            *rgb = palette_channel(&layer[15..], kind, i, t, f) * shade.max(zero) + gloss;
        }
        if l == 0 {
            c = rgb;
        } else {
            let m = mask_at(k, p);
            let seam = one - L::of(k[11]) * m * (one - m) * 4.0;
            for (c, rgb) in c.iter_mut().zip(rgb) {
                *c = (*c + (rgb - *c) * m) * seam;
            }
        }
    }
    let slope = L::of(k[6]) * p.0 + 1.0 + L::of(k[7]) * p.1;
    let light = L::of(k[9]) * slope * (one - L::of(k[8]) * p.dot(p));
    let grey = (c[0] + c[1] + c[2]) * 0.33333334;
    for c in &mut c {
        *c = clamp01((grey + (*c - grey) * L::of(k[10])) * light);
    }
    c
}

/// A run of pixels of one image, by plane.
struct Band<'a, F> {
    program: &'a [F],
    start: usize,
    planes: [&'a mut [F]; 3],
}

#[derive(Clone, Copy)]
struct Draw {
    size: usize,
    samples: usize,
    normalise: bool,
}

#[inline(always)]
fn paint<L: Lane, F: Real>(band: &mut Band<'_, F>, draw: Draw) {
    let mut k = [0.0; PROGRAM];
    for (k, x) in k.iter_mut().zip(band.program) {
        *k = x.as_f64();
    }
    let (scale, n) = (2.0 / draw.size as f64, draw.samples as f64);
    let count = band.planes[0].len();
    for at in (0..count).step_by(L::N) {
        let (mut x, mut y) = ([0f32; 16], [0f32; 16]);
        for i in 0..L::N {
            // Lanes past the end draw pixels that nobody stores.
            let pixel = band.start + at + i;
            (x[i], y[i]) = ((pixel % draw.size) as f32, (pixel / draw.size) as f32);
        }
        let pixel = V(L::load(&x), L::load(&y));
        let mut sum = [L::of(0.0); 3];
        for s in 0..draw.samples * draw.samples {
            let o = V::of(((s % draw.samples) as f64 + 0.5) / n, ((s / draw.samples) as f64 + 0.5) / n);
            let p = (pixel + o) * scale - V::of(1.0, 1.0);
            let c = sample_at(&k, p);
            for (sum, c) in sum.iter_mut().zip(c) {
                *sum = *sum + c;
            }
        }
        for (i, (plane, sum)) in band.planes.iter_mut().zip(sum).enumerate() {
            let mut c = sum * (1.0 / (n * n));
            if draw.normalise {
                c = (c - MEAN[i]) / L::of(DEVIATION[i]);
            }
            let end = (at + L::N).min(count);
            c.store(&mut plane[at..end]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn paint_sixteen(band: &mut Band<'_, f32>, draw: Draw) {
    paint::<super::lane::x86::Sixteen, f32>(band, draw);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn paint_eight(band: &mut Band<'_, f32>, draw: Draw) {
    paint::<super::lane::x86::Eight, f32>(band, draw);
}

fn paint_fastest(band: &mut Band<'_, f32>, draw: Draw) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has it.
            return unsafe { paint_sixteen(band, draw) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
            return unsafe { paint_eight(band, draw) };
        }
    }
    paint::<One<f32>, f32>(band, draw);
}

fn draw_with<F: Real>(a: &mut Args<'_, F>, paint: impl Fn(&mut Band<'_, F>, Draw) + Sync) {
    let (batch, size) = (a.n("batch"), a.n("size"));
    let draw = Draw { size, samples: a.n("samples"), normalise: a.n("normalise") != 0 };
    let (program, images) = (a.input("program"), a.output("images"));
    let pixels = size * size;
    let mut bands = Vec::new();
    for (program, image) in program.chunks_exact(PROGRAM).zip(images.chunks_exact_mut(3 * pixels)).take(batch)
    {
        let (red, rest) = image.split_at_mut(pixels);
        let (green, blue) = rest.split_at_mut(pixels);
        let planes = red.chunks_mut(BAND).zip(green.chunks_mut(BAND)).zip(blue.chunks_mut(BAND));
        bands.extend(planes.enumerate().map(|(i, ((red, green), blue))| Band {
            program,
            start: i * BAND,
            planes: [red, green, blue],
        }));
    }
    bands.par_iter_mut().for_each(|band| paint(band, draw));
}

/// The oracle: one sample after the other.
pub(super) fn draw<F: Real>(a: &mut Args<'_, F>) {
    draw_with(a, paint::<One<F>, F>);
}

/// As many samples at a time as the processor takes; the same bits as [`draw`] at `f32`.
pub(super) fn draw_fast(a: &mut Args<'_, f32>) {
    draw_with(a, paint_fastest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::synthetic::{FAMILIES, Synthetic};
    use crate::rng::Key;

    fn drawn(
        program: &[f32],
        pixels: usize,
        draw: Draw,
        paint: impl Fn(&mut Band<'_, f32>, Draw),
    ) -> Vec<[u32; 3]> {
        let mut planes = [vec![f32::NAN; pixels], vec![f32::NAN; pixels], vec![f32::NAN; pixels]];
        let [red, green, blue] = &mut planes;
        paint(&mut Band { program, start: 5, planes: [red, green, blue] }, draw);
        (0..pixels).map(|i| [0, 1, 2].map(|c: usize| planes[c][i].to_bits())).collect()
    }

    #[test]
    fn every_width_of_vector_draws_the_same_bits() {
        let source = Synthetic::new(&Key::from_seed(11));
        let draw = Draw { size: 13, samples: 2, normalise: true };
        // 151 pixels: whole vectors and a rest, for all widths.
        let mut programs: Vec<_> =
            (0..FAMILIES.len()).map(|f| source.of_family(f, 0, f as u64).to_vec()).collect();
        programs.extend(source.programs(1, 60).chunks(PROGRAM).map(<[f32]>::to_vec));
        for program in &programs {
            let one = drawn(program, 151, draw, paint::<One<f32>, f32>);
            assert_eq!(one, drawn(program, 151, draw, paint_fastest), "{program:?}");
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has it.
                let eight = drawn(program, 151, draw, |band, draw| unsafe { paint_eight(band, draw) });
                assert_eq!(one, eight, "{program:?}");
            }
        }
    }
}
