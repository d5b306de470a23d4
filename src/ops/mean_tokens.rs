//! The mean over an example's tokens: its feature vector.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/mean_tokens", "forward", forward);
static BACKWARD: Kernel = crate::kernel!("ops/mean_tokens", "backward", backward);

/// x (B, T, D) to (B, D): mean over the tokens from `skip` on.
#[derive(Clone, Copy, Debug)]
pub struct MeanTokens {
    /// Leading tokens left out (1: the class token).
    pub skip: usize,
}

impl Op for MeanTokens {
    fn name(&self) -> &'static str {
        "mean_tokens"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs.first().map(Shape::dims) {
            Some(&[b, t, d]) if t > self.skip => Ok(vec![Tensor::float([b, d])]),
            _ => {
                let what = format!("needs x (B, T, D) with more than {} tokens, got {inputs:?}", self.skip);
                Err(Error::shape("mean_tokens", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, _input: usize) -> ParamGrad {
        ParamGrad::None
    }

    fn differentiable(&self, _input: usize) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let dims = io.shapes[0].dims();
        let n = io.outputs[0].len;
        rec.dispatch(&FORWARD)
            .bind("x", io.inputs[0])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("tokens", dims[1])
            .n("width", dims[2])
            .n("skip", self.skip)
            .n("accumulate", 0)
            .threads(n)
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let Some(dx) = io.dx[0] else { return Ok(()) };
        let dims = io.shapes[0].dims();
        let n = io.shapes[0].len();
        rec.dispatch(&BACKWARD)
            .bind("dy", io.dy)
            .bind("dx", dx.slice)
            .n("n", n)
            .n("tokens", dims[1])
            .n("width", dims[2])
            .n("skip", self.skip)
            .param("accumulate", dx.flag())
            .threads(n)
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width, skip) = (a.n("tokens"), a.n("width"), a.n("skip"));
    let (x, y) = (a.input("x"), a.output("y"));
    let scale = F::one() / F::of((tokens - skip) as f64);
    y.par_chunks_mut(width).zip(x.par_chunks(tokens * width)).for_each(|(y, x)| {
        y.fill(F::zero());
        for row in x[skip * width..].chunks(width) {
            y.iter_mut().zip(row).for_each(|(y, &x)| *y += x);
        }
        y.iter_mut().for_each(|y| *y *= scale);
    });
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width, skip) = (a.n("tokens"), a.n("width"), a.n("skip"));
    let accumulate = a.n("accumulate") != 0;
    let (dy, dx) = (a.input("dy"), a.output("dx"));
    let scale = F::one() / F::of((tokens - skip) as f64);
    dx.par_chunks_mut(tokens * width).zip(dy.par_chunks(width)).for_each(|(dx, dy)| {
        for (t, row) in dx.chunks_mut(width).enumerate() {
            for (d, &g) in row.iter_mut().zip(dy) {
                let g = if t < skip { F::zero() } else { g * scale };
                *d = if accumulate { *d + g } else { g };
            }
        }
    });
}
