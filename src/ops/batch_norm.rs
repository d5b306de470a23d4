//! Batch normalisation without affine part (Ioffe and Szegedy 2015, arXiv 1502.03167): for linear probes on frozen
//! features, which are not private.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor, fast};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/batch_norm", "forward", forward);
static BACKWARD: Kernel = crate::kernel!("ops/batch_norm", "backward", backward);

/// Normalises every column of x (N, F) by its mean and biased variance over all rows. Mixes examples.
///
/// Results after the first, each (F): mean and biased variance, which running averages are made of (an unbiased
/// variance is `N / (N - 1)` times it), and `1 / sqrt(variance + eps)` for backward.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    /// Added to the variance.
    pub eps: f32,
}

impl Op for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] if x.rank() == 2 && !x.is_empty() => {
                let column = Tensor::float([x.width()]);
                Ok(vec![Tensor::float(x.clone()), column.clone(), column.clone(), column])
            }
            _ => Err(Error::shape("batch_norm", format!("needs x (N, F), got {inputs:?}"))),
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        Some("its mean and variance are taken over all examples of the batch; use layer_norm")
    }

    fn param_grad(&self, _input: usize) -> ParamGrad {
        ParamGrad::None
    }

    fn differentiable(&self, _input: usize) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads { inputs: vec![0], outputs: vec![1, 3] }
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let x = &io.shapes[0];
        rec.dispatch(&FORWARD)
            .bind("x", io.inputs[0])
            .bind("y", io.outputs[0])
            .bind("mean", io.outputs[1])
            .bind("variance", io.outputs[2])
            .bind("rstd", io.outputs[3])
            .n("rows", x.rows())
            .n("width", x.width())
            .param("eps", self.eps)
            .threads(x.width())
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let Some(dx) = io.dx[0] else { return Ok(()) };
        let x = &io.shapes[0];
        rec.dispatch(&BACKWARD)
            .bind("x", io.inputs[0])
            .bind("mean", io.outputs[1])
            .bind("rstd", io.outputs[3])
            .bind("dy", io.dy)
            .bind("dx", dx.slice)
            .n("rows", x.rows())
            .n("width", x.width())
            .param("accumulate", dx.flag())
            .threads(x.width())
    }
}

/// `out_k = sum over rows of term(row, k) / rows`, rows in order.
fn column_means<F: Real>(rows: usize, out: &mut [F], term: impl Fn(usize, usize) -> F) {
    out.fill(F::zero());
    for row in 0..rows {
        out.iter_mut().enumerate().for_each(|(k, o)| *o += term(row, k));
    }
    out.iter_mut().for_each(|o| *o /= F::of(rows as f64));
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (n, width, eps) = (a.n("rows"), a.n("width"), a.f("eps"));
    let (x, y) = (a.input("x"), a.output("y"));
    let (mean, variance, rstd) = (a.output("mean"), a.output("variance"), a.output("rstd"));
    let x = |row: usize, k: usize| x[row * width + k];
    column_means(n, mean, x);
    // The mean of what is left corrects the mean: a constant column has variance 0, and `rstd` is room to hold it.
    column_means(n, rstd, |row, k| x(row, k) - mean[k]);
    mean.iter_mut().zip(&*rstd).for_each(|(m, &left)| *m += left);
    column_means(n, variance, |row, k| (x(row, k) - mean[k]) * (x(row, k) - mean[k]));
    rstd.iter_mut().zip(&*variance).for_each(|(r, &v)| *r = (v + eps).sqrt().recip());
    let (mean, rstd) = (&*mean, &*rstd);
    let task = fast::rows_per_task(n, width);
    y.par_chunks_mut(task * width).enumerate().for_each(|(i, y)| {
        for (row, y) in y.chunks_mut(width).enumerate() {
            y.iter_mut().enumerate().for_each(|(k, y)| *y = (x(i * task + row, k) - mean[k]) * rstd[k]);
        }
    });
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let (n, width, accumulate) = (a.n("rows"), a.n("width"), a.n("accumulate") != 0);
    let (x, mean, rstd) = (a.input("x"), a.input("mean"), a.input("rstd"));
    let (dy, dx) = (a.input("dy"), a.output("dx"));
    let hat = |row: usize, k: usize| (x[row * width + k] - mean[k]) * rstd[k];
    let (mut mean_dy, mut mean_dy_hat) = (vec![F::zero(); width], vec![F::zero(); width]);
    column_means(n, &mut mean_dy, |row, k| dy[row * width + k]);
    column_means(n, &mut mean_dy_hat, |row, k| dy[row * width + k] * hat(row, k));
    let task = fast::rows_per_task(n, width);
    dx.par_chunks_mut(task * width).enumerate().for_each(|(i, dx)| {
        for (row, dx) in dx.chunks_mut(width).enumerate() {
            let row = i * task + row;
            for (k, d) in dx.iter_mut().enumerate() {
                let g = rstd[k] * (dy[row * width + k] - mean_dy[k] - hat(row, k) * mean_dy_hat[k]);
                *d = if accumulate { *d + g } else { g };
            }
        }
    });
}
