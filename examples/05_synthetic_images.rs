//! Synthetic images: draws a contact sheet of every family, and one of a training batch.
//!
//! `cargo run --release --example 05_synthetic_images [FOLDER [PIXELS]]` writes `families.png` and `batch.png`.

use std::path::PathBuf;

use veilgrad::cpu::CpuEngine;
use veilgrad::data::synthetic::{Drawing, FAMILIES, Synthetic, contact_sheet, render, sheet};
use veilgrad::error::{Error, Result};
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::record::Engine;
use veilgrad::rng::Key;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().unwrap_or_else(|| std::env::temp_dir().display().to_string()));
    let size = args
        .next()
        .map_or(Ok(64), |a| a.parse::<usize>().map_err(|e| Error::invalid("PIXELS", a, e.to_string())))?;
    let engine: Box<dyn Engine> = match GpuEngine::open(&Selector::Gpu) {
        Ok(gpu) => Box::new(gpu),
        Err(_) => Box::new(CpuEngine::<f32>::new()),
    };
    let key = Key::from_seed(1);

    let families = contact_sheet(&*engine, &key, size, FAMILIES.len() / 2, 16)?;
    save(&families, folder.join("families.png"))?;
    println!("two families a row: {}", FAMILIES.join(", "));

    // What a training step sees: programs drawn for the step, pixels drawn on the device.
    let drawing = Drawing { size, samples: 2, normalise: false };
    let programs = Synthetic::new(&key).programs(0, 12 * 16);
    let start = std::time::Instant::now();
    let images = render(&*engine, &programs, drawing)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.0} images/s at {size} px on {}", 192.0 / seconds, engine.describe());
    save(&sheet(&images, size, 16), folder.join("batch.png"))
}

fn save(picture: &image::RgbImage, path: PathBuf) -> Result<()> {
    picture.save(&path).map_err(|e| Error::data(&path, e.to_string()))?;
    println!("{}", path.display());
    Ok(())
}
