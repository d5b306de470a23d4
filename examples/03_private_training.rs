//! Private training on images of the caller's own, in sixty lines.
//!
//! Success looks like: `epsilon 3.00 at delta 2.5e-3 ...` before the first step, and the same epsilon after the last.

use std::path::Path;
use std::sync::Arc;

use veilgrad::cpu::CpuEngine;
use veilgrad::data::{Record, Source};
use veilgrad::train::recipe::Recipe;
use veilgrad::train::run::{Run, RunOptions};

/// Two hundred circles; an application would hand out its user's photos here.
struct Circles;

impl Source for Circles {
    fn len(&self) -> u64 {
        200
    }

    fn record(&self, index: u64) -> veilgrad::Result<Record> {
        let radius = 3.0 + (index % 12) as f32;
        let colour = image::Rgb([(index * 40) as u8, 200, (index * 90) as u8]);
        let picture = image::RgbImage::from_fn(32, 32, |x, y| {
            let inside = (x as f32 - 16.0).hypot(y as f32 - 16.0) < radius;
            if inside { colour } else { image::Rgb([250, 250, 250]) }
        });
        let mut png = std::io::Cursor::new(Vec::new());
        picture.write_to(&mut png, image::ImageFormat::Png).expect("memory is writable");
        Ok(Record { name: format!("circle {index}"), image: png.into_inner(), ..Record::default() })
    }

    fn classes(&self) -> &[String] {
        &[]
    }

    fn describe(&self) -> String {
        "200 circles".into()
    }

    fn fingerprint(&self) -> u64 {
        1
    }

    fn warnings(&self) -> &[String] {
        &[]
    }
}

const RECIPE: &str = r#"
model = { size = "micro32" }
data = { path = "circles" }
train = { steps = 4, batch = 16, physical_batch = 8, learning_rate = 5e-4 }
privacy = { clipping_norm = 0.1, epsilon = 3.0 }
"#;

fn main() -> veilgrad::Result<()> {
    let recipe = Recipe::parse(RECIPE, Path::new("recipe"))?;
    let engine = CpuEngine::<f32>::new();
    let mut run = Run::with_source(&engine, recipe, RunOptions::default(), Some(Arc::new(Circles)))?;
    let p = run.summary().privacy.clone().expect("the recipe is private");
    println!("epsilon {:.2} at delta {:.1e}, noise multiplier {:.3}", p.epsilon, p.delta, p.noise_multiplier);
    run.train(|record| {
        println!("step {}: epsilon {:.3} spent", record.step, record.epsilon.expect("private"));
        true
    })?;
    let model = run.model()?;
    println!("{} tensors to publish", model.tensors.len());
    Ok(())
}
