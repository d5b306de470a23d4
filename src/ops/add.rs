//! `y = a + b`, elementwise: the residual connection. The gradient of both terms is the gradient of the sum.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/add", "forward", forward);

/// Sum of two tensors of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Add;

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs {
            [a, b] if a == b => Ok(vec![Tensor::float(a.clone())]),
            _ => Err(Error::shape("add", format!("needs two tensors of one shape, got {inputs:?}"))),
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

    fn passes_through(&self, _input: usize) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let n = io.shapes[0].len();
        rec.dispatch(&FORWARD)
            .bind("a", io.inputs[0])
            .bind("b", io.inputs[1])
            .bind("y", io.outputs[0])
            .n("n", n)
            .threads(n)
    }

    fn backward(&self, _rec: &mut Recording, _io: &Backward<'_>) -> Result<()> {
        Ok(())
    }
}

/// Elements that a worker takes at once.
const SHARE: usize = 1 << 14;

fn forward<F: Real>(args: &mut Args<'_, F>) {
    let (a, b, y) = (args.input("a"), args.input("b"), args.output("y"));
    y.par_chunks_mut(SHARE).zip(a.par_chunks(SHARE).zip(b.par_chunks(SHARE))).for_each(|(y, (a, b))| {
        y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (&a, &b))| *y = a + b);
    });
}
