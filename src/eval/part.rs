//! A graph of a trained model on a device, ready to run forward.

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::graph::{Graph, Mode, Options, Plan, Value};
use crate::record::{Engine, Program, Session};

/// A forward graph with its weights.
pub(super) struct Part {
    session: Box<dyn Session>,
    plan: Plan,
    forward: Program,
}

impl Part {
    /// Lowers `graph` and loads its weights; `fetch` are the values to read afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Checkpoint`] for a missing or misshaped tensor; the engine's.
    pub fn open(
        engine: &dyn Engine,
        graph: &Graph,
        fetch: &[Value],
        file: &Checkpoint,
        path: &std::path::Path,
    ) -> Result<Self> {
        let plan = graph.lower(&Options::new(Mode::Forward, engine).fetch(fetch))?;
        let mut session = engine.open(&plan.layout)?;
        for slot in &plan.params {
            session.write(slot.values, file.get(path, &slot.spec.name, &slot.spec.shape)?)?;
        }
        let forward = session.prepare(&plan.forward)?;
        Ok(Part { session, plan, forward })
    }

    /// Examples of a call.
    pub fn batch(&self) -> usize {
        self.plan.batch
    }

    /// Writes an input of floats.
    ///
    /// # Errors
    /// The session's.
    pub fn write(&mut self, input: &str, values: &[f32]) -> Result<()> {
        self.session.write(self.plan.input(input)?, values)
    }

    /// Writes an input of ids.
    ///
    /// # Errors
    /// The session's.
    pub fn write_u32(&mut self, input: &str, values: &[u32]) -> Result<()> {
        self.session.write_u32(self.plan.input(input)?, values)
    }

    /// Runs forward.
    ///
    /// # Errors
    /// The session's.
    pub fn run(&mut self) -> Result<()> {
        self.session.run(self.forward)
    }

    /// Reads the fetched value of this number.
    ///
    /// # Errors
    /// The session's.
    pub fn read(&mut self, fetched: usize) -> Result<Vec<f32>> {
        self.session.read(self.plan.fetched[fetched])
    }
}
