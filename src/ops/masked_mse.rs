//! The masked autoencoder's loss: per example, the mean over its removed patches of the mean squared difference
//! over a patch's values (He et al. 2022, arXiv 2111.06377; per example as ViP clips it).

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/masked_mse", "forward", forward);
static BACKWARD: Kernel = crate::kernel!("ops/masked_mse", "backward", backward);

/// Inputs: prediction (B, skip + L, P), target (B, L, P), mask (B, L), 1 where a patch was removed. Result: loss (B);
/// saves the number of removed patches (B). What kept patches hold is never read; an example without removed patches
/// has loss 0 and gradient 0.
#[derive(Clone, Copy, Debug)]
pub struct MaskedMse {
    /// Leading rows of the prediction that stand for no patch (1: the class token).
    pub skip: usize,
}

impl Op for MaskedMse {
    fn name(&self) -> &'static str {
        "masked_mse"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs.iter().map(Shape::dims).collect::<Vec<_>>()[..] {
            [&[b, rows, p], &[b1, l, p1], &[b2, l2]]
                if b == b1 && b == b2 && rows == self.skip + l && l == l2 && p == p1 && l > 0 && p > 0 =>
            {
                Ok(vec![Tensor::float([b]), Tensor::float([b])])
            }
            _ => {
                let skip = self.skip;
                let what = format!(
                    "needs prediction (B, {skip} + L, P), target (B, L, P) and mask (B, L), got {inputs:?}"
                );
                Err(Error::shape("masked_mse", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, _input: usize) -> ParamGrad {
        ParamGrad::None
    }

    fn differentiable(&self, input: usize) -> bool {
        input == 0
    }

    fn reads(&self) -> Reads {
        Reads { inputs: vec![0, 1, 2], outputs: vec![1] }
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let dims = io.shapes[1].dims();
        rec.dispatch(&FORWARD)
            .bind("prediction", io.inputs[0])
            .bind("wanted", io.inputs[1])
            .bind("mask", io.inputs[2])
            .bind("loss", io.outputs[0])
            .bind("removed", io.outputs[1])
            .n("batch", dims[0])
            .n("patches", dims[1])
            .n("width", dims[2])
            .n("skip", self.skip)
            .groups(dims[0])
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let Some(dx) = io.dx[0] else { return Ok(()) };
        let dims = io.shapes[1].dims();
        rec.dispatch(&BACKWARD)
            .bind("prediction", io.inputs[0])
            .bind("wanted", io.inputs[1])
            .bind("mask", io.inputs[2])
            .bind("removed", io.outputs[1])
            .bind("dloss", io.dy)
            .bind("dprediction", dx.slice)
            .n("n", dx.slice.len)
            .n("patches", dims[1])
            .n("width", dims[2])
            .n("skip", self.skip)
            .param("accumulate", dx.flag())
            .threads(dx.slice.len)
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (patches, width, skip) = (a.n("patches"), a.n("width"), a.n("skip"));
    let (prediction, wanted) = (a.input("prediction"), a.input("wanted"));
    let (mask, loss, removed) = (a.input("mask"), a.output("loss"), a.output("removed"));
    loss.par_iter_mut().zip(removed).enumerate().for_each(|(b, (loss, removed))| {
        let mask = &mask[b * patches..][..patches];
        let prediction = &prediction[(b * (skip + patches) + skip) * width..][..patches * width];
        let wanted = &wanted[b * patches * width..][..patches * width];
        let mut sum = F::zero();
        for ((p, w), &m) in prediction.chunks(width).zip(wanted.chunks(width)).zip(mask) {
            if m != F::zero() {
                let squares: F = p.iter().zip(w).map(|(&p, &w)| (p - w) * (p - w)).sum();
                sum += m * squares / F::of(width as f64);
            }
        }
        *removed = mask.iter().copied().sum();
        *loss = if *removed == F::zero() { F::zero() } else { sum / *removed };
    });
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let (patches, width, skip) = (a.n("patches"), a.n("width"), a.n("skip"));
    let accumulate = a.n("accumulate") != 0;
    let (prediction, wanted, mask) = (a.input("prediction"), a.input("wanted"), a.input("mask"));
    let (removed, dloss, dprediction) = (a.input("removed"), a.input("dloss"), a.output("dprediction"));
    let example = (skip + patches) * width;
    dprediction.par_chunks_mut(example).enumerate().for_each(|(b, dx)| {
        let mask = &mask[b * patches..][..patches];
        for (row, dx) in dx.chunks_mut(width).enumerate() {
            let m = if row < skip { F::zero() } else { mask[row - skip] };
            if m == F::zero() {
                if !accumulate {
                    dx.fill(F::zero());
                }
                continue;
            }
            let scale = F::of(2.0) * m * dloss[b] / (removed[b] * F::of(width as f64));
            let p = &prediction[b * example + row * width..][..width];
            let w = &wanted[(b * patches + row - skip) * width..][..width];
            for (d, (&p, &w)) in dx.iter_mut().zip(p.iter().zip(w)) {
                let g = scale * (p - w);
                *d = if accumulate { *d + g } else { g };
            }
        }
    });
}
