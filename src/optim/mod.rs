//! Optimisers over the flat parameter arena. They accept a [`Gradient`]: noised, or declared not private by name.

pub mod adamw;
pub mod schedule;
pub mod sgd;

use crate::error::{Error, Result};
use crate::privacy::noise::{Gradient, NoiseStream};
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
    noise: Option<NoiseStream>,
    next_step: u64,
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
            noise: gradient.noise().cloned(),
            next_step: 0,
        }
    }

    /// Writes a step's numbers, and the stream of its noise; `step` counts from 0. To be called before every run of
    /// the recording.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a private step that is not after the last: its noise was used, and the difference of two
    /// updates with the same noise shows what the noise hid. The session's.
    pub fn begin_step(&mut self, session: &mut dyn Session, step: u64, learning_rate: f64) -> Result<()> {
        if let Some(noise) = &self.noise {
            if !(self.next_step..1 << 63).contains(&step) {
                let why = format!("its noise was used; the next step is {}", self.next_step);
                return Err(Error::invalid("step", step, why));
            }
            noise.begin_step(session, step)?;
        }
        self.next_step = step + 1;
        // Of the rounded betas, as the kernels have them: 1 - 0.999 is off by 1e-5 otherwise, and so would the moments be.
        let power = |beta: f64| (beta as f32 as f64).powf(step as f64 + 1.0);
        let correction = |i: usize| self.bias_betas.map_or(1.0, |b| 1.0 / (1.0 - power(b[i])));
        let scalars = [self.std, self.scale, learning_rate, correction(0), correction(1)];
        session.write(self.scalars, &scalars.map(|x| x as f32))
    }
}
