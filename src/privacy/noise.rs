//! The noise of the Gaussian mechanism, and the types that make it unavoidable.
//!
//! A [`ClippedSum`] can become a gradient that optimisers accept only through [`NoisyGrad`], which draws
//! `N(0, (sigma C)^2)` per coordinate and divides by the EXPECTED batch. Training without privacy goes through
//! [`PlainGrad::not_private`].

use super::clip::ClippedSum;
use super::config::PrivacyConfig;
use super::normals::{self, StreamWords};
use crate::error::{Error, Result};
use crate::graph::Chunk;
use crate::kernel::{Args, Kernel, Real};
use crate::record::{DType, Layout, Recording, Session, Slice};
use crate::rng::{Key, Purpose};

static ADD: Kernel = crate::kernel!("privacy/noise", "add", add, add_f32);

/// A gradient that may reach the parameters of a private run: noise is part of it. Its only maker takes a
/// [`ClippedSum`] and the configuration that is accounted.
///
/// ```compile_fail
/// use veilgrad::privacy::noise::NoisyGrad;
/// fn quiet(mut noisy: NoisyGrad) -> NoisyGrad {
///     noisy.std = 0.0; // fields are private: the noise is the configuration's
///     noisy
/// }
/// ```
///
/// ```compile_fail
/// use veilgrad::privacy::{clip::ClippedSum, noise::PlainGrad};
/// fn around(sum: ClippedSum) -> PlainGrad {
///     PlainGrad::not_private(sum, 64.0) // a clipped sum cannot be declared plain
/// }
/// ```
///
/// ```compile_fail
/// use veilgrad::optim::adamw::AdamW;
/// use veilgrad::privacy::clip::ClippedSum;
/// use veilgrad::record::Layout;
/// fn direct(layout: &mut Layout, sum: &ClippedSum) {
///     AdamW::default().record(layout, sum).unwrap(); // optimisers take a `Gradient`
/// }
/// ```
///
/// ```compile_fail
/// use veilgrad::graph::Options;
/// use veilgrad::privacy::config::PrivacyConfig;
/// fn faster(config: &mut PrivacyConfig, options: Options) {
///     config.noise_multiplier = options.memory.unwrap() as f64; // a configuration is frozen
/// }
/// ```
#[derive(Clone, Debug)]
pub struct NoisyGrad {
    chunks: Vec<Chunk>,
    noise: NoiseStream,
    std: f64,
    scale: f64,
}

/// The key of the noise, and the words on the device that name the step.
#[derive(Clone, Debug)]
pub(crate) struct NoiseStream {
    slice: Slice,
    key: Key,
}

impl NoiseStream {
    /// Writes the stream of a step.
    pub fn begin_step(&self, session: &mut dyn Session, step: u64) -> Result<()> {
        session.write_u32(self.slice, &StreamWords::new(&self.key, step, 0).0)
    }
}

impl NoisyGrad {
    /// Puts the configuration's noise on a clipped sum. The standard deviation is the noise multiplier times the
    /// sum's own sensitivity; the divisor is the expected batch `q N`, never the realised one; the key is the run
    /// key's for noise. Noise of one key and step is always the same: a step that is repeated after a crash must be
    /// repeated on the same examples.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the sum was clipped by another rule than the configuration's.
    pub fn new(sum: ClippedSum, config: &PrivacyConfig, layout: &mut Layout, run_key: &Key) -> Result<Self> {
        if sum.rule() != config.clip() {
            let why = "the sum was clipped by another rule than the one that is accounted";
            return Err(Error::invalid("clipping_norm", sum.sensitivity(), why));
        }
        Ok(NoisyGrad {
            std: config.noise_multiplier() * sum.sensitivity(),
            scale: 1.0 / config.expected_batch(),
            noise: NoiseStream {
                slice: layout.add("noise stream", DType::U32, 12),
                key: run_key.derive(Purpose::Noise),
            },
            chunks: sum.into_chunks(),
        })
    }

    /// Records `sum += noise` for optimisers that do not fuse it. `scalars[0]` holds the standard deviation.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(crate) fn record_add(&self, rec: &mut Recording, scalars: Slice) -> Result<()> {
        for chunk in &self.chunks {
            rec.dispatch(&ADD)
                .bind("stream", self.stream())
                .bind("scalars", scalars)
                .bind("grad", chunk.grads)
                .n("n", chunk.grads.len)
                .n("block", block(chunk)?)
                .threads(chunk.grads.len / normals::BLOCK)?;
        }
        Ok(())
    }

    pub(crate) fn stream(&self) -> Slice {
        self.noise.slice
    }
}

/// ChaCha20 block of a chunk's first element.
///
/// # Errors
/// [`Error::Limit`] over 2^36 parameters.
pub(crate) fn block(chunk: &Chunk) -> Result<usize> {
    let block = chunk.base as usize / normals::BLOCK;
    let end = block + chunk.grads.len / normals::BLOCK;
    if u32::try_from(end).is_err() {
        return Err(Error::Limit {
            what: "noise blocks".into(),
            needed: end as u64,
            allowed: u32::MAX as u64,
        });
    }
    Ok(block)
}

/// A gradient without privacy, declared as such by name.
#[derive(Clone, Debug)]
pub struct PlainGrad {
    chunks: Vec<Chunk>,
    scale: f64,
}

impl PlainGrad {
    /// The gradient sum of a plan, divided by `batch`. NOT PRIVATE: what is trained with it reveals its data.
    pub fn not_private(chunks: &[Chunk], batch: f64) -> Self {
        PlainGrad { chunks: chunks.to_vec(), scale: 1.0 / batch }
    }
}

/// What an optimiser accepts.
#[derive(Clone, Debug)]
pub enum Gradient {
    /// Of a private run.
    Noisy(NoisyGrad),
    /// Of a run that is not private.
    Plain(PlainGrad),
}

impl Gradient {
    /// The arena.
    pub fn chunks(&self) -> &[Chunk] {
        match self {
            Gradient::Noisy(g) => &g.chunks,
            Gradient::Plain(g) => &g.chunks,
        }
    }

    pub(crate) fn noise(&self) -> Option<&NoiseStream> {
        match self {
            Gradient::Noisy(g) => Some(&g.noise),
            Gradient::Plain(_) => None,
        }
    }

    /// Standard deviation of the noise on the sum; 0 without privacy.
    pub fn std(&self) -> f64 {
        match self {
            Gradient::Noisy(g) => g.std,
            Gradient::Plain(_) => 0.0,
        }
    }

    /// Factor from the sum to the gradient: 1 / expected batch.
    pub fn scale(&self) -> f64 {
        match self {
            Gradient::Noisy(g) => g.scale,
            Gradient::Plain(g) => g.scale,
        }
    }
}

impl From<NoisyGrad> for Gradient {
    fn from(g: NoisyGrad) -> Self {
        Gradient::Noisy(g)
    }
}

impl From<PlainGrad> for Gradient {
    fn from(g: PlainGrad) -> Self {
        Gradient::Plain(g)
    }
}

fn add<F: Real>(a: &mut Args<'_, F>) {
    let (n, block) = (a.n("n"), a.n("block"));
    let (stream, scalars, grad) = (a.input_u32("stream"), a.input("scalars"), a.output("grad"));
    normals::each::<F>(stream, block, n, |e, z| grad[e] += scalars[0] * z);
}

fn add_f32(a: &mut Args<'_, f32>) {
    let block = a.n("block");
    let (stream, scalars, grad) = (a.input_u32("stream"), a.input("scalars"), a.output("grad"));
    normals::add(stream, block, scalars[0], grad);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuEngine;
    use crate::gpu::{GpuEngine, Selector};
    use crate::record::Engine;

    #[test]
    fn counters_carry_past_32_bits_on_every_engine() {
        let mut layout = Layout::default();
        let stream = layout.add("stream", DType::U32, 12);
        let scalars = layout.add("scalars", DType::F32, 1);
        let grad = layout.add("grad", DType::F32, 16 * 12);
        let mut rec = Recording::new();
        let dispatch = rec.dispatch(&ADD).bind("stream", stream).bind("scalars", scalars).bind("grad", grad);
        dispatch.n("n", grad.len).n("block", 3).threads(12).unwrap();
        let gpu = GpuEngine::open_portable(&Selector::named("lavapipe")).expect("lavapipe is installed");
        let engines: [&dyn Engine; 3] = [&CpuEngine::<f32>::new(), &CpuEngine::<f64>::new(), &gpu];
        for engine in engines {
            let mut session = engine.open(&layout).unwrap();
            let program = session.prepare(&rec).unwrap();
            session.write(scalars, &[1.0]).unwrap();
            for (step, offset) in
                [(0, 0), (9, (1 << 32) - 8), (u64::MAX, (7 << 32) - 4), (1 << 33, u64::MAX - 7)]
            {
                let key = Key::from_seed(step ^ 5);
                session.write_u32(stream, &StreamWords::new(&key, step, offset).0).unwrap();
                session.write(grad, &[0.0; 16 * 12]).unwrap();
                session.run(program).unwrap();
                for (e, z) in session.read(grad).unwrap().into_iter().enumerate() {
                    let want = normals::tests::drawn(&key, step, offset.wrapping_add(3), e as u64);
                    assert!((z as f64 - want).abs() <= 2e-6, "{step} {offset} {e}: {z} against {want}");
                }
            }
        }
    }
}
