//! AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), with the noise of a private gradient fused in.

use rayon::prelude::*;

use super::Update;
use crate::error::Result;
use crate::kernel::{Args, Kernel, Real};
use crate::ops::widest;
use crate::privacy::noise::{Gradient, block};
use crate::privacy::normals;
use crate::record::{DType, Layout};

static STEP: Kernel = crate::kernel!("optim/adamw", "step", step, step_f32);
static STEP_NOISY: Kernel = crate::kernel!("optim/adamw", "step_noisy", step_noisy, step_noisy_f32);

/// Settings of AdamW. Weight decay applies to every trainable parameter, as in ViP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the running moments.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, multiplied by the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0 }
    }
}

impl AdamW {
    /// Records the update of every parameter.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`], [`crate::Error::Limit`].
    pub fn record(&self, layout: &mut Layout, gradient: &Gradient) -> Result<Update> {
        let mut update = Update::new(layout, gradient, Some(self.betas));
        update.recording.scope("adamw");
        for (i, chunk) in gradient.chunks().iter().enumerate() {
            let n = chunk.grads.len;
            let m = layout.add(format!("moment m {i}"), DType::F32, n);
            let v = layout.add(format!("moment v {i}"), DType::F32, n);
            update.state.extend([(format!("m.{i}"), m), (format!("v.{i}"), v)]);
            let dispatch = match gradient {
                Gradient::Noisy(g) => update.recording.dispatch(&STEP_NOISY).bind("stream", g.stream()),
                Gradient::Plain(_) => update.recording.dispatch(&STEP),
            };
            dispatch
                .bind("scalars", update.scalars)
                .bind("grad", chunk.grads)
                .bind("values", chunk.params)
                .bind("m", m)
                .bind("v", v)
                .n("n", n)
                .n("block", block(chunk)?)
                .param("beta1", self.betas[0] as f32)
                .param("beta2", self.betas[1] as f32)
                .param("eps", self.eps as f32)
                .param("decay", self.weight_decay as f32)
                .threads(n / normals::BLOCK)?;
        }
        Ok(update)
    }
}

/// Numbers of one step.
#[derive(Clone, Copy)]
pub(crate) struct Step<F> {
    beta1: F,
    beta2: F,
    eps: F,
    decay: F,
    std: F,
    scale: F,
    lr: F,
    bias1: F,
    bias2: F,
}

impl<F: Real> Step<F> {
    fn new(a: &mut Args<'_, F>) -> Self {
        let s = a.input("scalars");
        let (beta1, beta2, eps, decay) = (a.f("beta1"), a.f("beta2"), a.f("eps"), a.f("decay"));
        Step { beta1, beta2, eps, decay, std: s[0], scale: s[1], lr: s[2], bias1: s[3], bias2: s[4] }
    }

    #[inline(always)]
    fn element(&self, sum: F, value: &mut F, m: &mut F, v: &mut F) {
        let g = sum * self.scale;
        *m = self.beta1 * *m + (F::one() - self.beta1) * g;
        *v = self.beta2 * *v + (F::one() - self.beta2) * g * g;
        let step = *m * self.bias1 / ((*v * self.bias2).sqrt() + self.eps);
        *value -= self.lr * (step + self.decay * *value);
    }
}

fn step<F: Real>(a: &mut Args<'_, F>) {
    let s = Step::new(a);
    let (grad, values, m, v) = (a.input("grad"), a.output("values"), a.output("m"), a.output("v"));
    for k in 0..grad.len() {
        s.element(grad[k], &mut values[k], &mut m[k], &mut v[k]);
    }
}

fn step_noisy<F: Real>(a: &mut Args<'_, F>) {
    let s = Step::new(a);
    let (n, block, stream) = (a.n("n"), a.n("block"), a.input_u32("stream"));
    let (grad, values, m, v) = (a.input("grad"), a.output("values"), a.output("m"), a.output("v"));
    normals::each::<F>(stream, block, n, |k, z| {
        s.element(grad[k] + s.std * z, &mut values[k], &mut m[k], &mut v[k]);
    });
}

widest! {
    /// One share of elements; `z` holds their normals.
    pub(crate) fn share(s: &Step<f32>, grad: &[f32], z: &[f32], values: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        let n = grad.len();
        let (z, values, m, v) = (&z[..n], &mut values[..n], &mut m[..n], &mut v[..n]);
        for k in 0..n {
            s.element(grad[k] + s.std * z[k], &mut values[k], &mut m[k], &mut v[k]);
        }
    }
}

/// Runs shares on all threads; `stream` and first block of the noise, if there is any.
fn shares(a: &mut Args<'_, f32>, noise: Option<(&[u32], usize)>) {
    const SHARE: usize = normals::SHARE;
    let s = Step::new(a);
    let (grad, values, m, v) = (a.input("grad"), a.output("values"), a.output("m"), a.output("v"));
    let moments = m.par_chunks_mut(SHARE).zip(v.par_chunks_mut(SHARE));
    let work = values.par_chunks_mut(SHARE).zip(grad.par_chunks(SHARE)).zip(moments);
    work.enumerate().for_each(|(i, ((values, grad), (m, v)))| {
        let mut z = [0.0; SHARE];
        if let Some((stream, block)) = noise {
            normals::fill(stream, block + i * (SHARE / normals::BLOCK), &mut z[..grad.len()]);
        }
        share(&s, grad, &z, values, m, v);
    });
}

fn step_f32(a: &mut Args<'_, f32>) {
    shares(a, None);
}

fn step_noisy_f32(a: &mut Args<'_, f32>) {
    let (stream, block) = (a.input_u32("stream"), a.n("block"));
    shares(a, Some((stream, block)));
}
