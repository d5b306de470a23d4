//! LayerNorm (Ba, Kiros and Hinton, arXiv 1607.06450) over the last axis: `y = gamma xhat + beta`,
//! `xhat = (x - mean) rstd`, `rstd = 1 / sqrt(var + eps)`, with the biased variance.
//!
//! Backward, with `u = gamma dy`: `dx = rstd (u - mean(u) - xhat mean(u xhat))`; the example's gradients
//! `dgamma_i = sum_t dy xhat` and `dbeta_i = sum_t dy` over the rows of example i.
//! Statistics take two passes, never `E[x^2] - E[x]^2`.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::fast;
use crate::ops::lanes::in_lanes;
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/layer_norm", "forward", forward, forward_fast);
static BACKWARD: Kernel = crate::kernel!("ops/layer_norm", "backward", backward, backward_fast);
static PARAMS: Kernel =
    crate::kernel!("ops/layer_norm", "backward_params", backward_params, backward_params_fast);

/// Rows that a workgroup of the row kernels takes: 64 lanes, 16 to a row.
const ROWS_PER_GROUP: usize = 4;

/// Layer normalisation of x (B, .., D) with parameters gamma (D) and beta (D). Saves mean and rstd, each (B, ..).
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
        let [x, gamma, beta] = inputs else {
            return Err(Error::shape("layer_norm", format!("takes x, gamma and beta, not {inputs:?}")));
        };
        if x.rank() < 2 || gamma.dims() != [x.width()] || beta.dims() != [x.width()] {
            let what = format!("x {x} needs rank 2 or more, gamma {gamma} and beta {beta} its last extent");
            return Err(Error::shape("layer_norm", what));
        }
        let rows = Shape::new(&x.dims()[..x.rank() - 1]);
        Ok(vec![Tensor::float(x.clone()), Tensor::float(rows.clone()), Tensor::float(rows)])
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        if input == 0 { ParamGrad::None } else { ParamGrad::Rows }
    }

    fn differentiable(&self, _input: usize) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads { inputs: vec![0, 1], outputs: vec![1, 2] }
    }

    fn scratch_backward(&self, inputs: &[Shape]) -> Vec<Tensor> {
        // Takes the rows of gamma or beta when only the other's are wanted.
        vec![Tensor::float([inputs[0].dims()[0], inputs[0].width()])]
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let x = &io.shapes[0];
        rec.dispatch(&FORWARD)
            .bind("x", io.inputs[0])
            .bind("gamma", io.inputs[1])
            .bind("beta", io.inputs[2])
            .bind("y", io.outputs[0])
            .bind("mean", io.outputs[1])
            .bind("rstd", io.outputs[2])
            .n("rows", x.rows())
            .n("width", x.width())
            .n("tokens", x.rows() / x.dims()[0].max(1))
            .param("eps", self.eps)
            .param("accumulate", 0u32)
            .param("accumulate_beta", 0u32)
            .groups(x.rows().div_ceil(ROWS_PER_GROUP))
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let x = &io.shapes[0];
        let (batch, tokens) = (x.dims()[0], x.rows() / x.dims()[0].max(1));
        if let Some(dx) = io.dx[0] {
            rec.dispatch(&BACKWARD)
                .bind("x", io.inputs[0])
                .bind("gamma", io.inputs[1])
                .bind("mean", io.outputs[1])
                .bind("rstd", io.outputs[2])
                .bind("dy", io.dy)
                .bind("dx", dx.slice)
                .n("rows", x.rows())
                .n("width", x.width())
                .n("tokens", tokens)
                .param("eps", self.eps)
                .param("accumulate", dx.flag())
                .param("accumulate_beta", 0u32)
                .groups(x.rows().div_ceil(ROWS_PER_GROUP))?;
        }
        if io.dx[1].is_none() && io.dx[2].is_none() {
            return Ok(());
        }
        let [gamma, beta] = [1, 2].map(|i| io.dx[i].map_or((io.scratch[0], 0), |g| (g.slice, g.flag())));
        rec.dispatch(&PARAMS)
            .bind("x", io.inputs[0])
            .bind("mean", io.outputs[1])
            .bind("rstd", io.outputs[2])
            .bind("dy", io.dy)
            .bind("dgamma", gamma.0)
            .bind("dbeta", beta.0)
            .n("rows", x.rows())
            .n("width", x.width())
            .n("tokens", tokens)
            .param("eps", self.eps)
            .param("accumulate", gamma.1)
            .param("accumulate_beta", beta.1)
            .threads(batch * x.width())
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (width, eps) = (a.n("width"), a.f("eps"));
    let (x, gamma, beta) = (a.input("x"), a.input("gamma"), a.input("beta"));
    let (y, mean, rstd) = (a.output("y"), a.output("mean"), a.output("rstd"));
    let n = F::of(width as f64);
    for (row, x) in x.chunks(width).enumerate() {
        let m = x.iter().copied().sum::<F>() / n;
        let variance = x.iter().map(|&x| (x - m) * (x - m)).sum::<F>() / n;
        let r = (variance + eps).sqrt().recip();
        for k in 0..width {
            y[row * width + k] = gamma[k] * (x[k] - m) * r + beta[k];
        }
        (mean[row], rstd[row]) = (m, r);
    }
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let (width, accumulate) = (a.n("width"), a.n("accumulate") != 0);
    let (x, gamma, dy) = (a.input("x"), a.input("gamma"), a.input("dy"));
    let (mean, rstd, dx) = (a.input("mean"), a.input("rstd"), a.output("dx"));
    let n = F::of(width as f64);
    for (row, x) in x.chunks(width).enumerate() {
        let (m, r, at) = (mean[row], rstd[row], row * width);
        let hat = |k: usize| (x[k] - m) * r;
        let u = |k: usize| gamma[k] * dy[at + k];
        let mean_u = (0..width).map(u).sum::<F>() / n;
        let mean_u_hat = (0..width).map(|k| u(k) * hat(k)).sum::<F>() / n;
        for k in 0..width {
            let g = r * (u(k) - mean_u - hat(k) * mean_u_hat);
            dx[at + k] = if accumulate { dx[at + k] + g } else { g };
        }
    }
}

fn backward_params<F: Real>(a: &mut Args<'_, F>) {
    let (width, tokens) = (a.n("width"), a.n("tokens"));
    let keep = [a.n("accumulate") != 0, a.n("accumulate_beta") != 0];
    let (x, dy, mean, rstd) = (a.input("x"), a.input("dy"), a.input("mean"), a.input("rstd"));
    let (dgamma, dbeta) = (a.output("dgamma"), a.output("dbeta"));
    for (i, (dgamma, dbeta)) in dgamma.chunks_mut(width).zip(dbeta.chunks_mut(width)).enumerate() {
        for k in 0..width {
            let rows = i * tokens..(i + 1) * tokens;
            let g =
                rows.clone().map(|t| dy[t * width + k] * (x[t * width + k] - mean[t]) * rstd[t]).sum::<F>();
            let b = rows.map(|t| dy[t * width + k]).sum::<F>();
            dgamma[k] = if keep[0] { dgamma[k] + g } else { g };
            dbeta[k] = if keep[1] { dbeta[k] + b } else { b };
        }
    }
}

in_lanes! {
    fn forward_rows<L>(
        x: &[f32], gamma: &[f32], beta: &[f32], y: &mut [f32], mean: &mut [f32], rstd: &mut [f32], eps: f32,
    ) {
        let width = gamma.len();
        let share = 1.0 / width as f32;
        let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(mean.iter_mut().zip(rstd));
        for ((x, y), (mean, rstd)) in rows {
            let m = fast::sum::<L>(x) * share;
            // The mean of what is left corrects the mean, so that a constant row of any size has variance 0. It is
            // a rounding error: subtracting its square cancels nothing.
            let (rest, squares) = fast::deviations::<L>(x, m);
            let rest = rest * share;
            let variance = squares * share - rest * rest;
            let variance = if variance < 0.0 { 0.0 } else { variance };
            let r = 1.0 / (variance + eps).sqrt();
            (*mean, *rstd) = (m + rest, r);
            let m = (L::splat(m), L::splat(rest));
            let r = L::splat(r);
            let blocks = x.chunks(16).zip(y.chunks_mut(16)).zip(gamma.chunks(16).zip(beta.chunks(16)));
            for ((x, y), (gamma, beta)) in blocks {
                let hat = L::load_some(x, 0.0).sub(m.0).sub(m.1).mul(r);
                hat.mul_add(L::load_some(gamma, 0.0), L::load_some(beta, 0.0)).store_some(y);
            }
        }
    }

    fn backward_rows<L>(
        x: &[f32], gamma: &[f32], mean: &[f32], rstd: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool,
    ) {
        let width = gamma.len();
        let share = 1.0 / width as f32;
        let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
        for (((x, dy), dx), (&m, &r)) in rows.zip(mean.iter().zip(rstd)) {
            let (m, r) = (L::splat(m), L::splat(r));
            let (mut sum, mut sum_hat) = (L::splat(0.0), L::splat(0.0));
            for ((x, dy), gamma) in x.chunks(16).zip(dy.chunks(16)).zip(gamma.chunks(16)) {
                let u = L::load_some(gamma, 0.0).mul(L::load_some(dy, 0.0));
                sum = sum.add(u);
                sum_hat = u.mul_add(L::load_some(x, 0.0).sub(m).mul(r), sum_hat);
            }
            let (mean_u, mean_u_hat) = (L::splat(sum.total() * share), L::splat(sum_hat.total() * share));
            let blocks = x.chunks(16).zip(dy.chunks(16)).zip(gamma.chunks(16).zip(dx.chunks_mut(16)));
            for ((x, dy), (gamma, dx)) in blocks {
                let u = L::load_some(gamma, 0.0).mul(L::load_some(dy, 0.0)).sub(mean_u);
                let hat = L::load_some(x, 0.0).sub(m).mul(r);
                let held = if accumulate { L::load_some(dx, 0.0) } else { L::splat(0.0) };
                u.sub(hat.mul(mean_u_hat)).mul_add(r, held).store_some(dx);
            }
        }
    }

    fn params_of_example<L>(
        x: &[f32], mean: &[f32], rstd: &[f32], dy: &[f32], dgamma: &mut [f32], dbeta: &mut [f32],
    ) {
        let width = dgamma.len();
        for (column, (dgamma, dbeta)) in dgamma.chunks_mut(16).zip(dbeta.chunks_mut(16)).enumerate() {
            let (mut sum, mut sum_hat) = (L::load_some(dbeta, 0.0), L::load_some(dgamma, 0.0));
            let part = 16 * column..16 * column + dgamma.len();
            let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(mean.iter().zip(rstd));
            for ((x, dy), (&m, &r)) in rows {
                let (x, dy) = (L::load_some(&x[part.clone()], 0.0), L::load_some(&dy[part.clone()], 0.0));
                sum = sum.add(dy);
                sum_hat = dy.mul_add(x.sub(L::splat(m)).mul(L::splat(r)), sum_hat);
            }
            sum.store_some(dbeta);
            sum_hat.store_some(dgamma);
        }
    }
}

fn forward_fast(a: &mut Args<'_, f32>) {
    let (width, eps) = (a.n("width"), a.f("eps"));
    let (x, gamma, beta) = (a.input("x"), a.input("gamma"), a.input("beta"));
    let (y, mean, rstd) = (a.output("y"), a.output("mean"), a.output("rstd"));
    let rows = fast::rows_per_task(mean.len(), width);
    (
        x.par_chunks(rows * width),
        y.par_chunks_mut(rows * width),
        mean.par_chunks_mut(rows),
        rstd.par_chunks_mut(rows),
    )
        .into_par_iter()
        .for_each(|(x, y, mean, rstd)| forward_rows(x, gamma, beta, y, mean, rstd, eps));
}

fn backward_fast(a: &mut Args<'_, f32>) {
    let (width, accumulate) = (a.n("width"), a.n("accumulate") != 0);
    let (x, gamma, dy) = (a.input("x"), a.input("gamma"), a.input("dy"));
    let (mean, rstd, dx) = (a.input("mean"), a.input("rstd"), a.output("dx"));
    let rows = fast::rows_per_task(mean.len(), width);
    (
        x.par_chunks(rows * width),
        dy.par_chunks(rows * width),
        dx.par_chunks_mut(rows * width),
        mean.par_chunks(rows),
        rstd.par_chunks(rows),
    )
        .into_par_iter()
        .for_each(|(x, dy, dx, mean, rstd)| backward_rows(x, gamma, mean, rstd, dy, dx, accumulate));
}

fn backward_params_fast(a: &mut Args<'_, f32>) {
    let (width, tokens) = (a.n("width"), a.n("tokens"));
    let keep = [a.n("accumulate") != 0, a.n("accumulate_beta") != 0];
    let (x, dy, mean, rstd) = (a.input("x"), a.input("dy"), a.input("mean"), a.input("rstd"));
    let (dgamma, dbeta) = (a.output("dgamma"), a.output("dbeta"));
    let examples = fast::rows_per_task(dgamma.len() / width, width * tokens);
    (
        x.par_chunks(examples * tokens * width),
        dy.par_chunks(examples * tokens * width),
        mean.par_chunks(examples * tokens),
        rstd.par_chunks(examples * tokens),
        dgamma.par_chunks_mut(examples * width),
        dbeta.par_chunks_mut(examples * width),
    )
        .into_par_iter()
        .for_each(|(x, dy, mean, rstd, dgamma, dbeta)| {
            for (i, (dgamma, dbeta)) in
                dgamma.chunks_exact_mut(width).zip(dbeta.chunks_exact_mut(width)).enumerate()
            {
                for (kept, sum) in keep.into_iter().zip([&mut *dgamma, &mut *dbeta]) {
                    if !kept {
                        sum.fill(0.0);
                    }
                }
                let (t, e) = (i * tokens..(i + 1) * tokens, i * tokens * width..(i + 1) * tokens * width);
                params_of_example(&x[e.clone()], &mean[t.clone()], &rstd[t], &dy[e], dgamma, dbeta);
            }
        });
}
