//! LayerNorm over the last axis: `y = (x - mean) rstd gamma + beta` (Ba, Kiros, Hinton 2016, arXiv 1607.06450).
//! Statistics in two passes, because `E[x^2] - E[x]^2` cancels.

use rayon::prelude::*;

use super::fast::widest;
use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/layer_norm", "forward", forward, forward_f32);
static BACKWARD: Kernel = crate::kernel!("ops/layer_norm", "backward", backward, backward_f32);
static BACKWARD_ROWS: Kernel = crate::kernel!("ops/layer_norm", "backward_rows", backward_rows);

/// Normalises the rows of x (B, .., D) with gamma (D) and beta (D). Saves mean and `rstd = 1 / sqrt(var + eps)` of
/// every row; var is the biased variance.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f32,
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs {
            [x, gamma, beta]
                if x.rank() > 1
                    && x.width() > 0
                    && gamma.dims() == [x.width()]
                    && beta.dims() == [x.width()] =>
            {
                let stats = Tensor::float(Shape::new(&x.dims()[..x.rank() - 1]));
                Ok(vec![Tensor::float(x.clone()), stats.clone(), stats])
            }
            _ => {
                let what = format!("needs x (B, .., D), gamma (D) and beta (D), got {inputs:?}");
                Err(Error::shape("layer_norm", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        if input > 0 { ParamGrad::Rows } else { ParamGrad::None }
    }

    fn differentiable(&self, _input: usize) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads { inputs: vec![0, 1], outputs: vec![1, 2] }
    }

    fn scratch_backward(&self, inputs: &[Shape]) -> Vec<Tensor> {
        // Somewhere to put the row gradients of a frozen gamma or beta.
        vec![Tensor::float([inputs[0].dims()[0], inputs[0].width()]); 2]
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let rows = io.shapes[0].rows();
        rec.dispatch(&FORWARD)
            .bind("x", io.inputs[0])
            .bind("gamma", io.inputs[1])
            .bind("beta", io.inputs[2])
            .bind("y", io.outputs[0])
            .bind("mean", io.outputs[1])
            .bind("rstd", io.outputs[2])
            .n("rows", rows)
            .n("width", io.shapes[0].width())
            .param("eps", self.eps)
            .groups(rows)
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let (rows, width, batch) = (io.shapes[0].rows(), io.shapes[0].width(), io.shapes[0].dims()[0]);
        if io.dx[1].is_some() || io.dx[2].is_some() {
            let to = |i: usize| io.dx[i].map_or(io.scratch[i - 1], |g| g.slice);
            let flag = |i: usize| io.dx[i].map_or(0, |g| g.flag());
            rec.dispatch(&BACKWARD_ROWS)
                .bind("x", io.inputs[0])
                .bind("dy", io.dy)
                .bind("mean", io.outputs[1])
                .bind("rstd", io.outputs[2])
                .bind("dgamma", to(1))
                .bind("dbeta", to(2))
                .n("batch", batch)
                .n("tokens", rows / batch.max(1))
                .n("width", width)
                .param("accumulate_gamma", flag(1))
                .param("accumulate_beta", flag(2))
                .threads(batch * width)?;
        }
        let Some(dx) = io.dx[0] else { return Ok(()) };
        rec.dispatch(&BACKWARD)
            .bind("x", io.inputs[0])
            .bind("gamma", io.inputs[1])
            .bind("dy", io.dy)
            .bind("mean", io.outputs[1])
            .bind("rstd", io.outputs[2])
            .bind("dx", dx.slice)
            .n("rows", rows)
            .n("width", width)
            .param("accumulate", dx.flag())
            .groups(rows)
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (width, eps) = (a.n("width"), a.f("eps"));
    let n = F::of(width as f64);
    let (x, gamma, beta) = (a.input("x"), a.input("gamma"), a.input("beta"));
    let (y, means, rstds) = (a.output("y"), a.output("mean"), a.output("rstd"));
    let rows = y.chunks_mut(width).zip(x.chunks(width)).zip(means.iter_mut().zip(rstds));
    for ((y, x), (mean_out, rstd_out)) in rows {
        let mean = x.iter().copied().sum::<F>() / n;
        let variance = x.iter().map(|&x| (x - mean) * (x - mean)).sum::<F>() / n;
        let rstd = F::one() / (variance + eps).sqrt();
        for (k, y) in y.iter_mut().enumerate() {
            *y = (x[k] - mean) * rstd * gamma[k] + beta[k];
        }
        (*mean_out, *rstd_out) = (mean, rstd);
    }
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let (width, accumulate) = (a.n("width"), a.n("accumulate") != 0);
    let n = F::of(width as f64);
    let (x, gamma, dy) = (a.input("x"), a.input("gamma"), a.input("dy"));
    let (means, rstds, dx) = (a.input("mean"), a.input("rstd"), a.output("dx"));
    for (r, dx) in dx.chunks_mut(width).enumerate() {
        let (x, dy) = (&x[r * width..][..width], &dy[r * width..][..width]);
        let (mean, rstd) = (means[r], rstds[r]);
        let normal = |k: usize| (x[k] - mean) * rstd;
        let sum_g = (0..width).map(|k| dy[k] * gamma[k]).sum::<F>() / n;
        let sum_gx = (0..width).map(|k| dy[k] * gamma[k] * normal(k)).sum::<F>() / n;
        for (k, d) in dx.iter_mut().enumerate() {
            let g = rstd * (dy[k] * gamma[k] - sum_g - normal(k) * sum_gx);
            *d = if accumulate { *d + g } else { g };
        }
    }
}

fn backward_rows<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width) = (a.n("tokens"), a.n("width"));
    let (keep_gamma, keep_beta) = (a.n("accumulate_gamma") != 0, a.n("accumulate_beta") != 0);
    let (x, dy, means, rstds) = (a.input("x"), a.input("dy"), a.input("mean"), a.input("rstd"));
    let (dgamma, dbeta) = (a.output("dgamma"), a.output("dbeta"));
    dgamma.par_chunks_mut(width).zip(dbeta.par_chunks_mut(width)).enumerate().for_each(
        |(b, (dgamma, dbeta))| {
            if !keep_gamma {
                dgamma.fill(F::zero());
            }
            if !keep_beta {
                dbeta.fill(F::zero());
            }
            for r in b * tokens..(b + 1) * tokens {
                let (x, dy) = (&x[r * width..][..width], &dy[r * width..][..width]);
                let (mean, rstd) = (means[r], rstds[r]);
                for (((dg, db), &x), &g) in dgamma.iter_mut().zip(dbeta.iter_mut()).zip(x).zip(dy) {
                    *dg += g * (x - mean) * rstd;
                    *db += g;
                }
            }
        },
    );
}

/// Rows that a worker takes at once.
const SHARE: usize = 32;

/// A sum in 16 partial sums, which vectorises.
#[inline(always)]
fn sum_of(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0f32; 16];
    let whole = n / 16 * 16;
    for k in (0..whole).step_by(16) {
        for (l, s) in sums.iter_mut().enumerate() {
            *s += f(k + l);
        }
    }
    sums.iter().sum::<f32>() + (whole..n).map(f).sum::<f32>()
}

widest! {
    /// One row of forward; returns mean and rstd.
    pub(crate) fn forward_row(x: &[f32], gamma: &[f32], beta: &[f32], y: &mut [f32], eps: f32) -> (f32, f32) {
        let n = x.len();
        let mean = sum_of(n, |k| x[k]) / n as f32;
        let variance = sum_of(n, |k| (x[k] - mean) * (x[k] - mean)) / n as f32;
        let rstd = 1.0 / (variance + eps).sqrt();
        for (((y, &x), &g), &b) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
            *y = (x - mean) * rstd * g + b;
        }
        (mean, rstd)
    }
}

widest! {
    /// One row of backward.
    pub(crate) fn backward_row(x: &[f32], gamma: &[f32], dy: &[f32], stats: (f32, f32), dx: &mut [f32], accumulate: bool) {
        let n = x.len();
        let (mean, rstd) = stats;
        let (gamma, dy) = (&gamma[..n], &dy[..n]);
        let sum_g = sum_of(n, |k| dy[k] * gamma[k]) / n as f32;
        let sum_gx = sum_of(n, |k| dy[k] * gamma[k] * ((x[k] - mean) * rstd)) / n as f32;
        if accumulate {
            for (((d, &x), &g), &gamma) in dx.iter_mut().zip(x).zip(dy).zip(gamma) {
                *d += rstd * (g * gamma - sum_g - (x - mean) * rstd * sum_gx);
            }
        } else {
            for (((d, &x), &g), &gamma) in dx.iter_mut().zip(x).zip(dy).zip(gamma) {
                *d = rstd * (g * gamma - sum_g - (x - mean) * rstd * sum_gx);
            }
        }
    }
}

fn forward_f32(a: &mut Args<'_, f32>) {
    let (width, eps) = (a.n("width"), a.f("eps"));
    let (x, gamma, beta) = (a.input("x"), a.input("gamma"), a.input("beta"));
    let (y, means, rstds) = (a.output("y"), a.output("mean"), a.output("rstd"));
    let stats = means.par_chunks_mut(SHARE).zip(rstds.par_chunks_mut(SHARE));
    let rows = y.par_chunks_mut(SHARE * width).zip(x.par_chunks(SHARE * width));
    rows.zip(stats).for_each(|((y, x), (means, rstds))| {
        let rows = y.chunks_mut(width).zip(x.chunks(width)).zip(means.iter_mut().zip(rstds));
        for ((y, x), (mean, rstd)) in rows {
            (*mean, *rstd) = forward_row(x, gamma, beta, y, eps);
        }
    });
}

fn backward_f32(a: &mut Args<'_, f32>) {
    let (width, accumulate) = (a.n("width"), a.n("accumulate") != 0);
    let (x, gamma, dy) = (a.input("x"), a.input("gamma"), a.input("dy"));
    let (means, rstds, dx) = (a.input("mean"), a.input("rstd"), a.output("dx"));
    dx.par_chunks_mut(SHARE * width).enumerate().for_each(|(share, dx)| {
        for (i, dx) in dx.chunks_mut(width).enumerate() {
            let r = share * SHARE + i;
            let (x, dy) = (&x[r * width..][..width], &dy[r * width..][..width]);
            backward_row(x, gamma, dy, (means[r], rstds[r]), dx, accumulate);
        }
    });
}
