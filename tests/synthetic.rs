//! Synthetic images: the same for the same key, all different, none blank, alike on every engine.

use veilgrad::cpu::CpuEngine;
use veilgrad::data::synthetic::{Drawing, FAMILIES, PROGRAM, Synthetic, contact_sheet, render};
use veilgrad::error::Error;
use veilgrad::gpu::{GpuEngine, Selector, Tolerance, Verify};
use veilgrad::record::{DType, Engine, Layout, Recording};
use veilgrad::rng::Key;

fn engine() -> CpuEngine<f32> {
    CpuEngine::new()
}

fn source(seed: u64) -> Synthetic {
    Synthetic::new(&Key::from_seed(seed))
}

fn plain(size: usize) -> Drawing {
    Drawing { size, samples: 2, normalise: false }
}

fn draw(programs: &[f32], drawing: Drawing) -> Vec<f32> {
    render(&engine(), programs, drawing).expect("drawn")
}

/// Six images of every family, and as many of all families mixed, alone and in two layers.
fn some_programs() -> Vec<f32> {
    let source = source(3);
    let mut programs: Vec<f32> =
        (0..FAMILIES.len() * 6).flat_map(|i| source.of_family(i / 6, 0, i as u64)).collect();
    programs.extend(source.programs(1, FAMILIES.len() * 6));
    programs
}

fn mean(x: &[f32]) -> f64 {
    x.iter().map(|&x| x as f64).sum::<f64>() / x.len() as f64
}

fn deviation(x: &[f32]) -> f64 {
    let m = mean(x);
    (x.iter().map(|&x| (x as f64 - m).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

/// Root of the mean squared difference.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let sum: f64 = a.iter().zip(b).map(|(a, b)| ((a - b) as f64).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

#[test]
fn the_key_the_step_and_the_index_decide() {
    let programs = source(1).programs(5, 40);
    assert_eq!(programs.len(), 40 * PROGRAM);
    assert_eq!(programs, source(1).programs(5, 40));
    assert_eq!(programs[7 * PROGRAM..19 * PROGRAM], source(1).range(5, 7, 12));
    assert_ne!(programs, source(1).programs(6, 40));
    assert_ne!(programs, source(2).programs(5, 40));
    let images = draw(&programs, plain(16));
    let again = draw(&programs, plain(16));
    assert!(images.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
    // Physical batches of other sizes draw the same images.
    let part = draw(&programs[7 * PROGRAM..19 * PROGRAM], plain(16));
    assert_eq!(part, images[7 * 768..19 * 768]);
}

#[test]
fn every_value_is_finite_and_between_0_and_1() {
    for size in [1, 2, 31, 48] {
        for samples in [1, 3] {
            let drawing = Drawing { size, samples, normalise: false };
            let images = draw(&some_programs(), drawing);
            assert_eq!(images.len(), FAMILIES.len() * 12 * drawing.pixels());
            for (i, x) in images.iter().enumerate() {
                let family = FAMILIES[(i / drawing.pixels() / 6).min(FAMILIES.len() - 1)];
                assert!((0.0..=1.0).contains(x), "{x} in image {} ({family})", i / drawing.pixels());
            }
        }
    }
}

#[test]
fn normalisation_is_that_of_imagenet() {
    let programs = source(4).programs(0, 20);
    let images = draw(&programs, plain(16));
    let normalised = draw(&programs, Drawing { normalise: true, ..plain(16) });
    let (mean, deviation) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    for (i, (x, z)) in images.iter().zip(&normalised).enumerate() {
        let c = i / 256 % 3;
        assert!((z * deviation[c] + mean[c] - x).abs() <= 1e-6, "{z} is not {x} normalised");
    }
    assert!(Drawing::for_training(16).normalise);
}

#[test]
fn images_are_varied_and_not_blank() {
    let count = 600;
    let images = draw(&source(8).programs(0, count), plain(32));
    let images: Vec<&[f32]> = images.chunks(3 * 32 * 32).collect();
    let contrast: Vec<f64> =
        images.iter().map(|x| x.chunks(1024).map(deviation).fold(0.0, f64::max)).collect();
    let blank = contrast.iter().filter(|&&d| !(d >= 0.04)).count();
    assert!(blank * 100 <= count, "{blank} of {count} images are nearly blank");
    let brightness: Vec<f64> = images.iter().map(|x| mean(x)).collect();
    let share =
        |test: &dyn Fn(f64) -> bool, x: &[f64]| x.iter().filter(|x| test(**x)).count() as f64 / count as f64;
    assert!(share(&|x| x < 0.3, &brightness) > 0.08, "too few dark images");
    assert!(share(&|x| x > 0.55, &brightness) > 0.08, "too few bright images");
    assert!(share(&|x| !(0.02..=0.98).contains(&x), &brightness) < 0.01, "black or white images");
    assert!(share(&|x| x > 0.2, &contrast) > 0.25, "too few images of high contrast");
    // Grey images and colourful ones, by the mean distance of the channels from their average.
    let colour: Vec<f64> = images
        .iter()
        .map(|x| {
            let spread = |i: usize| {
                let (r, g, b) = (x[i], x[1024 + i], x[2048 + i]);
                (r.max(g).max(b) - r.min(g).min(b)) as f64
            };
            (0..1024).map(spread).sum::<f64>() / 1024.0
        })
        .collect();
    assert!(share(&|x| x < 0.08, &colour) > 0.03, "too few grey images");
    assert!(share(&|x| x > 0.3, &colour) > 0.25, "too few colourful images");
    // Edges and smooth areas: neighbours that differ much, and neighbours that hardly differ.
    let steps: Vec<f32> = images.iter().flat_map(|x| (0..1023).map(|i| (x[i] - x[i + 1]).abs())).collect();
    let edges = steps.iter().filter(|&&d| d > 0.15).count() as f64 / steps.len() as f64;
    let flats = steps.iter().filter(|&&d| d < 0.02).count() as f64 / steps.len() as f64;
    assert!(edges > 0.08 && flats > 0.25, "{edges:.3} edges, {flats:.3} smooth");
    for (i, a) in images.iter().enumerate() {
        for (j, b) in images[..i].iter().enumerate() {
            assert!(distance(a, b) > 0.03, "images {i} and {j} are alike");
        }
    }
}

#[test]
fn every_family_is_drawn_and_unlike_itself() {
    let programs = source(9).programs(0, 2400);
    let mut seen = [0; FAMILIES.len()];
    let mut masks = [0; 6];
    for program in programs.chunks(PROGRAM) {
        seen[program[16] as usize] += 1;
        masks[program[0] as usize] += 1;
        if program[0] > 0.0 {
            assert!((program[40] as usize) < FAMILIES.len());
        }
    }
    for (family, n) in FAMILIES.iter().zip(seen) {
        assert!((50..=160).contains(&n), "{family}: {n} of 2400");
    }
    assert!(masks.iter().all(|&n| n >= 100) && masks[0] > 1200, "masks {masks:?}");
    let source = source(10);
    for (f, family) in FAMILIES.iter().enumerate() {
        let programs: Vec<f32> = (0..60).flat_map(|i| source.of_family(f, 0, i)).collect();
        let images = draw(&programs, plain(32));
        let images: Vec<&[f32]> = images.chunks(3 * 1024).collect();
        let blank =
            images.iter().filter(|x| !(x.chunks(1024).map(deviation).fold(0.0, f64::max) > 0.03)).count();
        assert!(blank <= 2, "{family}: {blank} of 60 are nearly blank");
        let mut total = 0.0;
        for i in 0..60 {
            for j in 0..i {
                let d = distance(images[i], images[j]);
                assert!(d > 0.02, "{family}: {i} and {j} are alike");
                total += d;
            }
        }
        assert!(total / 1770.0 > 0.2, "{family}: images differ by {:.3} only", total / 1770.0);
    }
}

/// Fails if more than 1 in 500 values differ by more than 1e-3: samples at the edge of a cell may fall on either
/// side, all others agree to rounding.
fn assert_alike(what: &str, a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let off = a.iter().zip(b).filter(|(a, b)| !((*a - *b).abs() <= 1e-3)).count();
    assert!(off * 500 <= a.len(), "{what}: {off} of {} values differ", a.len());
}

/// By family, so that no family hides behind the others.
fn assert_engines_agree(one: &dyn Engine, other: &dyn Engine, sizes: &[usize]) {
    for &size in sizes {
        let drawing = plain(size);
        let programs = some_programs();
        let a = render(one, &programs, drawing).expect("drawn");
        let b = render(other, &programs, drawing).expect("drawn");
        let group = 6 * drawing.pixels();
        for (i, (a, b)) in a.chunks(group).zip(b.chunks(group)).enumerate() {
            let what = FAMILIES.get(i).unwrap_or(&"mixed");
            assert_alike(&format!("{what} at {size}, {} and {}", one.describe(), other.describe()), a, b);
        }
    }
}

#[test]
fn the_fast_twin_agrees_with_the_oracle() {
    assert_engines_agree(&engine(), &CpuEngine::<f64>::new(), &[31, 32, 33, 64]);
}

#[test]
fn the_gpu_agrees_with_the_twin() {
    let lavapipe = Selector::named("lavapipe");
    let whole = GpuEngine::open(&lavapipe).expect("apt install mesa-vulkan-drivers");
    assert_engines_agree(&engine(), &whole, &[31, 33]);
    let portable = GpuEngine::open_portable(&lavapipe).expect("portable limits");
    assert_engines_agree(&engine(), &portable, &[32]);
    // 64 pixels: every family once.
    let programs: Vec<f32> = (0..FAMILIES.len()).flat_map(|f| source(5).of_family(f, 2, 0)).collect();
    assert_alike("64", &draw(&programs, plain(64)), &render(&whole, &programs, plain(64)).expect("drawn"));
    let checked = whole.with_verify(Verify::Every, Tolerance::default());
    render(&checked, &programs, Drawing::for_training(16)).expect("verification knows of edges");
}

#[test]
fn samples_are_pixels_of_a_finer_image() {
    let programs = some_programs();
    let fine = draw(&programs, Drawing { size: 34, samples: 1, normalise: false });
    let coarse = draw(&programs, plain(17));
    let averaged: Vec<f32> = (0..coarse.len())
        .map(|i| {
            let (plane, y, x) = (i / 289, i / 17 % 17, i % 17);
            let at = |dy: usize, dx: usize| fine[plane * 34 * 34 + (2 * y + dy) * 34 + 2 * x + dx];
            (at(0, 0) + at(0, 1) + at(1, 0) + at(1, 1)) / 4.0
        })
        .collect();
    assert_alike("2 x 2 samples", &coarse, &averaged);
}

#[test]
fn a_contact_sheet_shows_every_family() {
    let sheet = contact_sheet(&engine(), &Key::from_seed(1), 16, 6, 8).expect("drawn");
    assert_eq!((sheet.width(), sheet.height()), (8 * 17 + 1, 6 * 17 + 1));
    // Two of each family side by side; the first tile is the first family's first image.
    let first = draw(&source(1).of_family(0, 0, 0), Drawing { size: 16, samples: 3, normalise: false });
    let pixel = sheet.get_pixel(1 + 3, 1 + 2).0;
    let want = [0, 1, 2].map(|c| (first[c * 256 + 2 * 16 + 3] * 255.0).round() as u8);
    assert_eq!(pixel, want);
    assert!(contact_sheet(&engine(), &Key::from_seed(1), 16, 0, 8).is_err());
    contact_sheet(&engine(), &Key::from_seed(1), 8, 1, 3).expect("fewer tiles than families");
}

#[test]
fn faults_are_named() {
    let mut layout = Layout::default();
    let program = layout.add("program", DType::F32, 2 * PROGRAM);
    let images = layout.add("images", DType::F32, 2 * 3 * 64);
    let mut rec = Recording::new();
    plain(8).record(&mut rec, program, images, 2).expect("fits");
    let short = plain(8).record(&mut rec, program, images, 3).expect_err("too short");
    assert!(short.to_string().contains("program"), "{short}");
    let large = plain(9).record(&mut rec, program, images, 2).expect_err("too large");
    assert!(large.to_string().contains("images"), "{large}");
    for drawing in [plain(0), plain(5000), Drawing { samples: 0, ..plain(8) }] {
        let fault = drawing.record(&mut rec, program, images, 2).expect_err("refused");
        assert!(matches!(fault, Error::Invalid { .. }), "{fault}");
    }
    assert_eq!(rec.commands().len(), 1);
}
