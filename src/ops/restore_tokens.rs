//! The masked autoencoder's way back: encoder rows to their places, the mask token everywhere else
//! (He et al. 2022, arXiv 2111.06377).

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::{DType, Recording};
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/restore_tokens", "forward", forward);
static BACKWARD: Kernel = crate::kernel!("ops/restore_tokens", "backward", backward);
static BACKWARD_TOKEN: Kernel = crate::kernel!("ops/restore_tokens", "backward_token", backward_token);

/// `y[b, t] = x[b, source[b, t]]`, or the mask token where the source is S or more.
///
/// Inputs: x (B, S, D), token (D), source (B, T), target (B, S). `target` is the inverse of `source`: the place of
/// every row of x. A target of T or more gives its row no gradient.
#[derive(Clone, Copy, Debug)]
pub struct RestoreTokens;

impl Op for RestoreTokens {
    fn name(&self) -> &'static str {
        "restore_tokens"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs {
            [x, token, source, target]
                if x.rank() == 3
                    && token.dims() == [x.width()]
                    && source.rank() == 2
                    && source.dims()[0] == x.dims()[0]
                    && target.dims() == &x.dims()[..2] =>
            {
                Ok(vec![Tensor::float([x.dims()[0], source.dims()[1], x.width()])])
            }
            _ => {
                let what =
                    format!("needs x (B, S, D), token (D), source (B, T), target (B, S), got {inputs:?}");
                Err(Error::shape("restore_tokens", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn input_dtype(&self, input: usize) -> DType {
        if input < 2 { DType::F32 } else { DType::U32 }
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        if input == 1 { ParamGrad::Rows } else { ParamGrad::None }
    }

    fn differentiable(&self, input: usize) -> bool {
        input < 2
    }

    fn reads(&self) -> Reads {
        Reads { inputs: vec![2, 3], outputs: vec![] }
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let n = io.outputs[0].len;
        rec.dispatch(&FORWARD)
            .bind("x", io.inputs[0])
            .bind("token", io.inputs[1])
            .bind("source", io.inputs[2])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("rows", io.shapes[0].dims()[1])
            .n("tokens", io.shapes[2].dims()[1])
            .n("width", io.shapes[0].width())
            .n("accumulate", 0)
            .threads(n)
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let index =
            [(io.dx[0], &BACKWARD, "target_ids", 3, "dx"), (io.dx[1], &BACKWARD_TOKEN, "source", 2, "drows")];
        for (grad, kernel, table, input, name) in index {
            let Some(grad) = grad else { continue };
            let n = grad.slice.len;
            rec.dispatch(kernel)
                .bind("dy", io.dy)
                .bind(table, io.inputs[input])
                .bind(name, grad.slice)
                .n("n", n)
                .n("rows", io.shapes[0].dims()[1])
                .n("tokens", io.shapes[2].dims()[1])
                .n("width", io.shapes[0].width())
                .param("accumulate", grad.flag())
                .threads(n)?;
        }
        Ok(())
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (rows, tokens, width) = (a.n("rows"), a.n("tokens"), a.n("width"));
    let (x, token, source, y) = (a.input("x"), a.input("token"), a.input_u32("source"), a.output("y"));
    y.par_chunks_mut(width).enumerate().for_each(|(bt, y)| {
        let s = source[bt] as usize;
        let from = if s < rows { &x[(bt / tokens * rows + s) * width..][..width] } else { token };
        y.copy_from_slice(from);
    });
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let (rows, tokens, width, accumulate) =
        (a.n("rows"), a.n("tokens"), a.n("width"), a.n("accumulate") != 0);
    let (dy, target, dx) = (a.input("dy"), a.input_u32("target_ids"), a.output("dx"));
    dx.par_chunks_mut(width).enumerate().for_each(|(bs, dx)| {
        let t = target[bs] as usize;
        if !accumulate {
            dx.fill(F::zero());
        }
        if t < tokens {
            let dy = &dy[(bs / rows * tokens + t) * width..][..width];
            dx.iter_mut().zip(dy).for_each(|(d, &g)| *d += g);
        }
    });
}

fn backward_token<F: Real>(a: &mut Args<'_, F>) {
    let (rows, tokens, width, accumulate) =
        (a.n("rows"), a.n("tokens"), a.n("width"), a.n("accumulate") != 0);
    let (dy, source, drows) = (a.input("dy"), a.input_u32("source"), a.output("drows"));
    drows.par_chunks_mut(width).enumerate().for_each(|(b, row)| {
        if !accumulate {
            row.fill(F::zero());
        }
        for t in (0..tokens).filter(|t| source[b * tokens + t] as usize >= rows) {
            let dy = &dy[(b * tokens + t) * width..][..width];
            row.iter_mut().zip(dy).for_each(|(r, &g)| *r += g);
        }
    });
}
