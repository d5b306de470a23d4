//! A training step on random images: what `check` verifies and `bench` times.

use crate::error::Result;
use crate::model::mae::{MaeConfig, MaeGraph};
use crate::optim::adamw::AdamW;
use crate::record::Engine;
use crate::rng::{Key, normal};
use crate::train::stepper::{Guarantee, Performance, Stepper};
use crate::train::task::write_masks;

/// A stepper with fresh parameters and a physical batch of random images and masks written.
///
/// # Errors
/// The engine's.
pub fn stepper(
    engine: &dyn Engine,
    config: &MaeConfig,
    graph: &MaeGraph,
    guarantee: Guarantee<'_>,
    key: &Key,
) -> Result<Stepper> {
    let (optimizer, performance) = (AdamW::default(), Performance::default());
    let mut stepper =
        Stepper::new(engine, &graph.graph, graph.loss, guarantee, &optimizer, &performance, None, key)?;
    stepper.initialise(key)?;
    let mut rng = key.stream(1);
    let images = stepper.plan().input("images")?;
    let pixels: Vec<f32> = (0..images.len).map(|_| normal(&mut rng) as f32).collect();
    stepper.session().write(images, &pixels)?;
    let batch = stepper.plan().batch as u64;
    write_masks(&mut stepper, config, key, 0, 0..batch)?;
    Ok(stepper)
}
