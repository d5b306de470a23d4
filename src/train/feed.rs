//! What a run trains on: physical batches of read or drawn images, step by step.

use std::sync::Arc;

use super::recipe::Recipe;
use super::stepper::Stepper;
use super::task::Task;
use crate::data::Source;
use crate::data::augment::{Augment, Transform};
use crate::data::loader::{Job, Prefetch, Report};
use crate::data::synthetic::Synthetic;
use crate::error::{Error, Result};
use crate::privacy::sampling::{PoissonSampler, physical_batches};
use crate::rng::{Key, Purpose, permutation};

/// Who is in the logical batch of a step.
pub enum Sampling {
    /// Poisson sampling, of a private run.
    Poisson(PoissonSampler),
    /// Consecutive batches of shuffled epochs. Not private.
    Epochs(Epochs),
}

/// Epochs in random order, cut into batches; a batch may span two epochs.
pub struct Epochs {
    examples: u64,
    batch: u64,
    key: Key,
    /// The epoch at hand and its order: shuffled once, not once a batch.
    order: Option<(u64, Vec<u32>)>,
}

impl Epochs {
    /// Shuffles `examples` examples anew for every epoch by a stream of `key`, in logical batches of `batch`.
    pub fn new(examples: u64, batch: u64, key: Key) -> Self {
        Epochs { examples, batch, key, order: None }
    }

    fn example(&mut self, i: u64) -> u64 {
        let (epoch, place) = (i / self.examples, (i % self.examples) as usize);
        if self.order.as_ref().is_none_or(|(e, _)| *e != epoch) {
            self.order = Some((epoch, permutation(&mut self.key.stream(epoch), self.examples as usize)));
        }
        self.order.as_ref().expect("made above").1[place] as u64
    }
}

impl Sampling {
    fn logical(&mut self, step: u64) -> Vec<u64> {
        match self {
            Sampling::Poisson(sampler) => sampler.batch(step),
            Sampling::Epochs(epochs) => {
                (step * epochs.batch..(step + 1) * epochs.batch).map(|i| epochs.example(i)).collect()
            }
        }
    }
}

/// The jobs of steps `start..steps`. An empty logical batch is one physical batch of padding.
fn jobs(mut sampling: Sampling, start: u64, steps: u64, size: usize) -> impl Iterator<Item = Job> + Send {
    (start..steps).flat_map(move |step| {
        let mut batches = physical_batches(&sampling.logical(step), size);
        if batches.is_empty() {
            batches.push(vec![None; size]);
        }
        let last = batches.len() - 1;
        batches
            .into_iter()
            .enumerate()
            .map(move |(i, indices)| Job { step, last: i == last, indices })
            .collect::<Vec<_>>()
    })
}

/// Images for a [`Stepper`].
pub enum Feed {
    /// Read from a source, ahead of the device.
    Read(Prefetch),
    /// Drawn on the device.
    Drawn {
        /// Draws the programs.
        synthetic: Synthetic,
        /// Logical batch size.
        batch: u64,
    },
}

impl Feed {
    /// A feed of images read from `source`, from step `start` on.
    ///
    /// # Errors
    /// [`Error::Device`] if threads cannot be started.
    pub fn read(
        source: Arc<dyn Source>,
        sampling: Sampling,
        recipe: &Recipe,
        side: usize,
        start: u64,
        run_key: &Key,
    ) -> Result<Self> {
        let augment =
            Augment { scale_min: recipe.data.crop_scale_min as f32, scale_max: 1.0, flip: recipe.data.flip };
        let transform = Transform::Augmented(augment, run_key.derive(Purpose::Augmentation));
        let jobs = jobs(sampling, start, recipe.train.steps, recipe.train.physical_batch);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
        Ok(Feed::Read(Prefetch::new(source, transform, side, threads, jobs)?))
    }

    /// Runs all physical batches of a logical step through the stepper.
    ///
    /// # Errors
    /// The stepper's, the loader's and the task's.
    pub fn step(&mut self, stepper: &mut Stepper, task: &mut Task, step: u64) -> Result<()> {
        let size = stepper.plan().batch;
        match self {
            Feed::Read(prefetch) => loop {
                let batch = prefetch
                    .next_batch()?
                    .ok_or_else(|| Error::Device("the loader stopped before the run's end".into()))?;
                debug_assert_eq!(batch.job.step, step);
                let images = stepper.plan().input("images")?;
                stepper.session().write(images, &batch.images)?;
                task.write(stepper, step, &batch.job.indices)?;
                stepper.accumulate(&batch.weights)?;
                if batch.job.last {
                    return Ok(());
                }
            },
            Feed::Drawn { synthetic, batch } => {
                for first in (0..*batch).step_by(size) {
                    let live = (*batch - first).min(size as u64) as usize;
                    stepper.draw(&synthetic.range(step, first as usize, size))?;
                    let examples: Vec<Option<u64>> = (first..first + size as u64).map(Some).collect();
                    task.write(stepper, step, &examples)?;
                    let weights: Vec<f32> = (0..size).map(|i| (i < live) as u8 as f32).collect();
                    stepper.accumulate(&weights)?;
                }
                Ok(())
            }
        }
    }

    /// Files that could not be used so far.
    pub fn report(&self) -> Report {
        match self {
            Feed::Read(prefetch) => prefetch.report(),
            Feed::Drawn { .. } => Report::default(),
        }
    }
}
