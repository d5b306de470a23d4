//! A learnt token before the tokens of every example: the class token.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/prepend_token", "forward", forward);
static BACKWARD: Kernel = crate::kernel!("ops/prepend_token", "backward", backward);
static BACKWARD_TOKEN: Kernel = crate::kernel!("ops/prepend_token", "backward_token", backward_token);

/// Token (D) and x (B, T, D) to (B, 1 + T, D). Inputs: token, x.
#[derive(Clone, Copy, Debug)]
pub struct PrependToken;

impl Op for PrependToken {
    fn name(&self) -> &'static str {
        "prepend_token"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs {
            [token, x] if x.rank() == 3 && token.dims() == [x.width()] => {
                Ok(vec![Tensor::float([x.dims()[0], 1 + x.dims()[1], x.width()])])
            }
            _ => {
                let what = format!("needs a token (D) and x (B, T, D), got {inputs:?}");
                Err(Error::shape("prepend_token", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        if input == 0 { ParamGrad::Rows } else { ParamGrad::None }
    }

    fn differentiable(&self, _input: usize) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let x = &io.shapes[1];
        let n = io.outputs[0].len;
        rec.dispatch(&FORWARD)
            .bind("token", io.inputs[0])
            .bind("x", io.inputs[1])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("tokens", x.dims()[1])
            .n("width", x.width())
            .n("accumulate", 0)
            .threads(n)
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let x = &io.shapes[1];
        for (grad, kernel, name) in [(io.dx[0], &BACKWARD_TOKEN, "rows"), (io.dx[1], &BACKWARD, "dx")] {
            let Some(grad) = grad else { continue };
            let n = grad.slice.len;
            rec.dispatch(kernel)
                .bind("dy", io.dy)
                .bind(name, grad.slice)
                .n("n", n)
                .n("tokens", x.dims()[1])
                .n("width", x.width())
                .param("accumulate", grad.flag())
                .threads(n)?;
        }
        Ok(())
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width) = (a.n("tokens"), a.n("width"));
    let (token, x, y) = (a.input("token"), a.input("x"), a.output("y"));
    let example = tokens * width;
    y.par_chunks_mut(example + width).enumerate().for_each(|(b, y)| {
        y[..width].copy_from_slice(token);
        y[width..].copy_from_slice(&x[b * example..][..example]);
    });
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width, accumulate) = (a.n("tokens"), a.n("width"), a.n("accumulate") != 0);
    let (dy, dx) = (a.input("dy"), a.output("dx"));
    let example = tokens * width;
    dx.par_chunks_mut(example.max(1)).zip(dy.par_chunks(example + width)).for_each(|(dx, dy)| {
        for (d, &g) in dx.iter_mut().zip(&dy[width..]) {
            *d = if accumulate { *d + g } else { g };
        }
    });
}

fn backward_token<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width, accumulate) = (a.n("tokens"), a.n("width"), a.n("accumulate") != 0);
    let (dy, rows) = (a.input("dy"), a.output("rows"));
    for (row, dy) in rows.chunks_mut(width).zip(dy.chunks((1 + tokens) * width)) {
        for (r, &g) in row.iter_mut().zip(dy) {
            *r = if accumulate { *r + g } else { g };
        }
    }
}
