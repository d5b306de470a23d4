//! `y = max(x, 0)`, elementwise; the gradient at 0 is 0.

use crate::error::Result;
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/relu", "forward", forward);
static BACKWARD: Kernel = crate::kernel!("ops/relu", "backward", backward);

/// Rectified linear unit over a tensor of any shape.
#[derive(Clone, Copy, Debug)]
pub struct Relu;

impl Op for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        Ok(vec![Tensor::float(inputs[0].clone())])
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
        Reads { inputs: vec![0], outputs: vec![] }
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let n = io.shapes[0].len();
        rec.dispatch(&FORWARD)
            .bind("x", io.inputs[0])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("accumulate", 0)
            .threads(n)
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let Some(dx) = io.dx[0] else { return Ok(()) };
        let n = io.shapes[0].len();
        rec.dispatch(&BACKWARD)
            .bind("x", io.inputs[0])
            .bind("dy", io.dy)
            .bind("dx", dx.slice)
            .n("n", n)
            .param("accumulate", dx.flag())
            .threads(n)
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (x, y) = (a.input("x"), a.output("y"));
    for (y, &x) in y.iter_mut().zip(x) {
        // Not `max`, which would turn a NaN into 0 and hide it from the clip.
        *y = if x < F::zero() { F::zero() } else { x };
    }
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let accumulate = a.n("accumulate") != 0;
    let (x, dy, dx) = (a.input("x"), a.input("dy"), a.output("dx"));
    for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
        let g = if x > F::zero() { dy } else { F::zero() };
        *dx = if accumulate { *dx + g } else { g };
    }
}
