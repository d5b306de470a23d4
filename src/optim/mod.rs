//! Optimisers over the flat parameter arena. They accept a [`Gradient`]: noised, or declared not private by name.

pub mod adamw;
pub mod schedule;
pub mod sgd;

use crate::error::Result;
use crate::privacy::noise::Gradient;
use crate::record::{DType, Layout, Recording, Session, Slice};

/// An optimiser recorded for one plan.
#[derive(Clone)]
pub struct Update {
    /// Noise, if any, and the optimiser's step: run once per logical batch.
    pub recording: Recording,
    /// Optimiser state by name (`m.0`, `v.0` ...), to be saved and restored.
    pub state: Vec<(String, Slice)>,
    scalars: Slice,
    std: f64,
    scale: f64,
    bias_betas: Option<[f64; 2]>,
}

impl Update {
    fn new(layout: &mut Layout, gradient: &Gradient, bias_betas: Option<[f64; 2]>) -> Self {
        Update {
            recording: Recording::new(),
            state: Vec::new(),
            scalars: layout.add("step scalars", DType::F32, 5),
            std: gradient.std(),
            scale: gradient.scale(),
            bias_betas,
        }
    }

    /// Writes a step's numbers: `step` counts from 0.
    ///
    /// # Errors
    /// The session's.
    pub fn begin_step(&self, session: &mut dyn Session, step: u64, learning_rate: f64) -> Result<()> {
        let correction =
            |i: usize| self.bias_betas.map_or(1.0, |b| 1.0 / (1.0 - b[i].powf(step as f64 + 1.0)));
        let scalars = [self.std, self.scale, learning_rate, correction(0), correction(1)];
        session.write(self.scalars, &scalars.map(|x| x as f32))
    }
}
