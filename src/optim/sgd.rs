//! SGD with momentum, and LARS (You, Gitman, Ginsburg 2017, arXiv 1708.03888).

use rayon::prelude::*;

use super::Update;
use crate::error::Result;
use crate::graph::ParamSlot;
use crate::kernel::{Args, Kernel, Real};
use crate::privacy::noise::Gradient;
use crate::record::{DType, Layout};

static NORMS: Kernel = crate::kernel!("optim/sgd", "norms", norms, norms_f32);
static STEP: Kernel = crate::kernel!("optim/sgd", "step", step, step_f32);

/// Settings of SGD; with a positive trust coefficient, of LARS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Momentum.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// LARS: the update of a tensor of more than one axis is multiplied by `trust ||p|| / ||g||`. 0: plain SGD.
    pub trust: f64,
}

impl Sgd {
    /// LARS as in ViP's linear probe: momentum 0.9, trust 0.001, no decay.
    pub fn lars() -> Self {
        Sgd { momentum: 0.9, weight_decay: 0.0, trust: 0.001 }
    }

    /// Records the update, tensor by tensor.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`].
    pub fn record(&self, layout: &mut Layout, gradient: &Gradient, params: &[ParamSlot]) -> Result<Update> {
        let mut update = Update::new(layout, gradient, None);
        if let Gradient::Noisy(g) = gradient {
            g.record_add(&mut update.recording, update.scalars)?;
        }
        for slot in params {
            let Some(grad) = slot.grad else { continue };
            let m = layout.add(format!("momentum of {}", slot.spec.name), DType::F32, grad.len);
            let ratio = layout.add(format!("trust ratio of {}", slot.spec.name), DType::F32, 1);
            update.state.push((format!("m.{}", slot.spec.name), m));
            update.recording.scope(&slot.spec.name);
            let trust = if slot.spec.shape.rank() > 1 { self.trust } else { 0.0 };
            let rec = &mut update.recording;
            rec.dispatch(&NORMS)
                .bind("scalars", update.scalars)
                .bind("grad", grad)
                .bind("values", slot.values)
                .bind("ratio", ratio)
                .n("n", grad.len)
                .param("momentum", self.momentum as f32)
                .param("decay", self.weight_decay as f32)
                .param("trust", trust as f32)
                .groups(1)?;
            rec.dispatch(&STEP)
                .bind("scalars", update.scalars)
                .bind("grad", grad)
                .bind("values", slot.values)
                .bind("m", m)
                .bind("ratio", ratio)
                .n("n", grad.len)
                .param("momentum", self.momentum as f32)
                .param("decay", self.weight_decay as f32)
                .param("trust", trust as f32)
                .threads(grad.len)?;
        }
        Ok(update)
    }
}

fn norms<F: Real>(a: &mut Args<'_, F>) {
    let (decay, trust) = (a.f("decay"), a.f("trust"));
    let (scalars, grad, values) = (a.input("scalars"), a.input("grad"), a.input("values"));
    let p: F = values.iter().map(|&p| p * p).sum::<F>().sqrt();
    let g: F = grad
        .iter()
        .zip(values)
        .map(|(&g, &p)| {
            let g = g * scalars[1] + decay * p;
            g * g
        })
        .sum::<F>()
        .sqrt();
    let usable = p > F::zero() && g > F::zero() && trust > F::zero();
    a.output("ratio")[0] = if usable { trust * p / g } else { F::one() };
}

fn step<F: Real>(a: &mut Args<'_, F>) {
    let (momentum, decay) = (a.f("momentum"), a.f("decay"));
    let (scalars, grad, ratio) = (a.input("scalars"), a.input("grad"), a.input("ratio"));
    let (values, m) = (a.output("values"), a.output("m"));
    for k in 0..grad.len() {
        let g = grad[k] * scalars[1] + decay * values[k];
        m[k] = momentum * m[k] + ratio[0] * g;
        values[k] -= scalars[2] * m[k];
    }
}

/// Elements of one task.
const TASK: usize = 16_384;

/// The same sums by tasks, added up at f64 in their order: over 10^7 elements one running f32 sum would lose digits.
fn norms_f32(a: &mut Args<'_, f32>) {
    let (decay, trust) = (a.f("decay"), a.f("trust"));
    let (scalars, grad, values) = (a.input("scalars"), a.input("grad"), a.input("values"));
    let squares = |(grad, values): (&[f32], &[f32])| {
        grad.iter().zip(values).fold([0.0f64; 2], |[p2, g2], (&g, &p)| {
            let g = (g * scalars[1] + decay * p) as f64;
            [p2 + p as f64 * p as f64, g2 + g * g]
        })
    };
    let sums: Vec<[f64; 2]> = grad.par_chunks(TASK).zip(values.par_chunks(TASK)).map(squares).collect();
    let [p, g] = [0, 1].map(|i| sums.iter().map(|s| s[i]).sum::<f64>().sqrt() as f32);
    a.output("ratio")[0] = if p > 0.0 && g > 0.0 && trust > 0.0 { trust * p / g } else { 1.0 };
}

fn step_f32(a: &mut Args<'_, f32>) {
    let (momentum, decay) = (a.f("momentum"), a.f("decay"));
    let (scalars, grad, ratio) = (a.input("scalars"), a.input("grad"), a.input("ratio")[0]);
    let (values, m) = (a.output("values"), a.output("m"));
    let tasks = values.par_chunks_mut(TASK).zip(m.par_chunks_mut(TASK)).zip(grad.par_chunks(TASK));
    tasks.for_each(|((values, m), grad)| {
        for ((p, m), g) in values.iter_mut().zip(m).zip(grad) {
            *m = momentum * *m + ratio * (g * scalars[1] + decay * *p);
            *p -= scalars[2] * *m;
        }
    });
}
