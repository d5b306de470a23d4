//! SGD with momentum, and LARS (You, Gitman, Ginsburg 2017, arXiv 1708.03888).

use super::Update;
use crate::error::Result;
use crate::graph::ParamSlot;
use crate::kernel::{Args, Kernel, Real};
use crate::privacy::noise::Gradient;
use crate::record::{DType, Layout};

static NORMS: Kernel = crate::kernel!("optim/sgd", "norms", norms);
static STEP: Kernel = crate::kernel!("optim/sgd", "step", step);

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
