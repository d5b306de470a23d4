//! One model on one device, ready for logical steps: the only place that runs a training step.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::data::synthetic::{Drawing, PROGRAM};
use crate::error::{Error, Result};
use crate::graph::{Graph, Memory, Mode, Options, Plan, Value};
use crate::model::init_values;
use crate::optim::{Update, adamw::AdamW};
use crate::privacy::clip::{ClipCounter, ClipCounts, Clipped};
use crate::privacy::config::PrivacyConfig;
use crate::privacy::noise::{Gradient, NoisyGrad, PlainGrad};
use crate::record::{DType, Engine, Program, Recording, Session, Slice};
use crate::rng::{Key, Purpose};

/// Under which guarantee a model is trained.
#[derive(Clone, Copy, Debug)]
pub enum Guarantee<'a> {
    /// Differentially private, by this mechanism.
    Private(&'a PrivacyConfig),
    /// None: gradients are averaged over `batch` examples as they are.
    NotPrivate {
        /// Logical batch size, the divisor of the gradient.
        batch: f64,
    },
}

/// Settings of speed and memory. They cannot reach the mechanism.
#[derive(Clone, Debug, Default)]
pub struct Performance {
    /// Refuse a plan over this many bytes.
    pub memory: Option<u64>,
    /// Values to read after a physical batch (pictures of reconstructions).
    pub fetch: Vec<Value>,
}

/// A model on a device.
pub struct Stepper {
    session: Box<dyn Session>,
    plan: Plan,
    zero: Program,
    physical: Program,
    forward: Program,
    update: Program,
    rules: Update,
    counter: Option<ClipCounter>,
    loss: Slice,
    fetched: Vec<Slice>,
    /// Draws synthetic images from their programs.
    program: Option<(Program, Slice)>,
    recordings: [Recording; 3],
}

impl Stepper {
    /// Lowers `graph`, allocates its memory on `engine` and records forward, backward, clip, sums, noise and AdamW.
    /// `key` is the run's key: noise is drawn from its noise stream. Parameters are zero until
    /// [`Stepper::initialise`] or [`Stepper::load`].
    ///
    /// # Errors
    /// [`Error::Mixes`] if a private graph mixes examples; [`Error::Limit`] if memory does not suffice; the engine's.
    #[expect(clippy::too_many_arguments, reason = "everything that decides a run")]
    pub fn new(
        engine: &dyn Engine,
        graph: &Graph,
        loss: Value,
        guarantee: Guarantee<'_>,
        optimizer: &AdamW,
        performance: &Performance,
        synthetic: Option<Drawing>,
        key: &Key,
    ) -> Result<Self> {
        let mode = match guarantee {
            Guarantee::Private(_) => Mode::PerExample { loss },
            Guarantee::NotPrivate { .. } => Mode::Plain { loss },
        };
        let fetch: Vec<Value> = std::iter::once(loss).chain(performance.fetch.iter().copied()).collect();
        let mut options = Options::new(mode, engine).fetch(&fetch).memory(performance.memory);
        options.per_layer = matches!(guarantee, Guarantee::Private(config) if config.clip().per_layer());
        let mut plan = graph.lower(&options)?;
        let (physical, counter, gradient) = match guarantee {
            Guarantee::Private(config) => {
                let Clipped { physical, sum, counter } = Clipped::new(&mut plan, config.clip())?;
                let noisy = NoisyGrad::new(sum, config, &mut plan.layout, key)?;
                (physical, Some(counter), Gradient::from(noisy))
            }
            Guarantee::NotPrivate { batch } => {
                let mut physical = Recording::new();
                physical.append(&plan.forward);
                physical.append(&plan.backward);
                physical.append(&plan.sums);
                let plain = PlainGrad::not_private(&plan.chunks, batch);
                (physical, None, Gradient::from(plain))
            }
        };
        let rules = optimizer.record(&mut plan.layout, &gradient)?;
        if let Some(allowed) = performance.memory
            && plan.layout.bytes() > allowed
        {
            return Err(Error::Limit {
                what: format!("a physical batch of {} with the optimiser's state", plan.batch),
                needed: plan.layout.bytes(),
                allowed,
            });
        }
        let mut draw = Recording::new();
        let mut program = None;
        if let (Some(drawing), Some(images)) = (synthetic, plan.inputs.get("images")) {
            let words = plan.layout.add("synthetic programs", DType::F32, plan.batch * PROGRAM);
            draw.scope("synthetic");
            drawing.record(&mut draw, words, *images, plan.batch)?;
            program = Some(words);
        }
        let mut session = engine.open(&plan.layout)?;
        let program = match program {
            Some(words) => Some((session.prepare(&draw)?, words)),
            None => None,
        };
        if let Some((slice, words)) = &plan.segments {
            session.write_u32(*slice, words)?;
        }
        let zero = session.prepare(&plan.zero)?;
        let recordings = [plan.zero.clone(), physical.clone(), rules.recording.clone()];
        let physical = session.prepare(&physical)?;
        let forward = session.prepare(&plan.forward)?;
        let update = session.prepare(&rules.recording)?;
        let (loss, fetched) = (plan.fetched[0], plan.fetched[1..].to_vec());
        Ok(Stepper {
            session,
            plan,
            zero,
            physical,
            forward,
            update,
            rules,
            counter,
            loss,
            fetched,
            program,
            recordings,
        })
    }

    /// Draws a physical batch of synthetic images into the input `images`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stepper was made without synthetic images; the session's.
    pub fn draw(&mut self, programs: &[f32]) -> Result<()> {
        let Some((draw, words)) = self.program else {
            return Err(Error::invalid("synthetic", "none", "the stepper was made without synthetic images"));
        };
        self.session.write(words, programs)?;
        self.session.run(draw)
    }

    /// The lowered plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What a logical step runs: zero, a physical batch, the update.
    pub fn recordings(&self) -> &[Recording; 3] {
        &self.recordings
    }

    /// The memory of the session, for inputs.
    pub fn session(&mut self) -> &mut dyn Session {
        self.session.as_mut()
    }

    /// Planned bytes: the model's, without the optimiser's state.
    pub fn memory(&self) -> Memory {
        self.plan.memory
    }

    /// Bytes of everything allocated on the device.
    pub fn bytes(&self) -> u64 {
        self.plan.layout.bytes()
    }

    /// Fresh parameters from the run's key.
    ///
    /// # Errors
    /// The session's.
    pub fn initialise(&mut self, run_key: &Key) -> Result<()> {
        let key = run_key.derive(Purpose::Init);
        for (i, slot) in self.plan.params.iter().enumerate() {
            self.session.write(slot.values, &init_values(&slot.spec, i, &key))?;
        }
        Ok(())
    }

    /// Parameters from a checkpoint; optimiser state too if `state` is set.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a missing or misshaped tensor.
    pub fn load(&mut self, file: &Checkpoint, path: &std::path::Path, state: bool) -> Result<()> {
        for slot in &self.plan.params {
            self.session.write(slot.values, file.get(path, &slot.spec.name, &slot.spec.shape)?)?;
        }
        for (name, slice) in self.rules.state.iter().filter(|_| state) {
            self.session.write(*slice, file.get(path, &format!("optimizer.{name}"), &[slice.len].into())?)?;
        }
        Ok(())
    }

    /// Parameters to start from: fresh ones from the run's key where `starts_fresh` says so, the checkpoint's otherwise. Returns how many started fresh, and the names in the checkpoint that have no place.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a missing or misshaped tensor.
    pub fn start_from(
        &mut self,
        file: &Checkpoint,
        path: &std::path::Path,
        run_key: &Key,
        starts_fresh: impl Fn(&str) -> bool,
    ) -> Result<(usize, Vec<String>)> {
        let key = run_key.derive(Purpose::Init);
        let mut fresh = 0;
        for (i, slot) in self.plan.params.iter().enumerate() {
            let name = &slot.spec.name;
            if starts_fresh(name) {
                self.session.write(slot.values, &init_values(&slot.spec, i, &key))?;
                fresh += 1;
            } else {
                self.session.write(slot.values, file.get(path, name, &slot.spec.shape)?)?;
            }
        }
        let taken = |name: &str| self.plan.param(name).is_some() && !starts_fresh(name);
        let unused = file.tensors.keys().filter(|name| !taken(name));
        Ok((fresh, unused.cloned().collect()))
    }

    /// Parameters as a checkpoint; optimiser state too if `state` is set.
    ///
    /// # Errors
    /// The session's.
    pub fn save(&mut self, state: bool) -> Result<Checkpoint> {
        let mut out = Checkpoint::default();
        for slot in &self.plan.params {
            let values = self.session.read(slot.values)?;
            out.tensors.insert(slot.spec.name.clone(), Tensor { shape: slot.spec.shape.clone(), values });
        }
        for (name, slice) in self.rules.state.iter().filter(|_| state) {
            let values = self.session.read(*slice)?;
            out.tensors.insert(format!("optimizer.{name}"), Tensor { shape: [slice.len].into(), values });
        }
        Ok(out)
    }

    /// Starts a logical batch: the gradient sum is zero.
    ///
    /// # Errors
    /// The session's.
    pub fn begin(&mut self) -> Result<()> {
        self.session.run(self.zero)
    }

    /// Adds the physical batch whose inputs were written. `weights` (B): 1, or 0 for padding and what could not be
    /// decoded.
    ///
    /// # Errors
    /// The session's.
    pub fn accumulate(&mut self, weights: &[f32]) -> Result<()> {
        self.session.write(self.plan.weights.expect("a training plan has weights"), weights)?;
        self.session.run(self.physical)
    }

    /// Ends a logical batch: noise and optimiser. A batch without any example is a step like any other.
    ///
    /// # Errors
    /// The session's.
    pub fn finish(&mut self, step: u64, learning_rate: f64) -> Result<()> {
        self.rules.begin_step(self.session.as_mut(), step, learning_rate)?;
        self.session.run(self.update)
    }

    /// Waits until the device is done.
    ///
    /// # Errors
    /// The session's.
    pub fn wait(&mut self) -> Result<()> {
        self.session.wait()
    }

    /// Forward alone over the inputs that were written; returns the extra fetched values.
    ///
    /// # Errors
    /// The session's.
    pub fn predict(&mut self) -> Result<Vec<Vec<f32>>> {
        self.session.run(self.forward)?;
        self.fetched.clone().into_iter().map(|s| self.session.read(s)).collect()
    }

    /// Per-example losses of the last physical batch. NOT covered by the guarantee of a private run.
    ///
    /// # Errors
    /// The session's.
    pub fn unprotected_losses(&mut self) -> Result<Vec<f32>> {
        self.session.read(self.loss)
    }

    /// What the clip counted since [`Stepper::begin`]. NOT covered by the guarantee of a private run.
    ///
    /// # Errors
    /// The session's.
    pub fn unprotected_counts(&mut self) -> Result<Option<ClipCounts>> {
        self.counter.map(|counter| counter.read(self.session.as_mut())).transpose()
    }
}
