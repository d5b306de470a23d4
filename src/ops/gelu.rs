//! `y = x Phi(x)` with the exact error function (Hendrycks and Gimpel 2016, arXiv 1606.08415).

use rayon::prelude::*;

use super::fast;
use crate::error::Result;
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/gelu", "forward", forward, forward_f32);
static BACKWARD: Kernel = crate::kernel!("ops/gelu", "backward", backward, backward_f32);

/// Gaussian error linear unit over a tensor of any shape; backward recomputes from x.
#[derive(Clone, Copy, Debug)]
pub struct Gelu;

impl Op for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
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

fn cdf<F: Real>(x: F) -> F {
    F::of(0.5) * (F::one() + (x * F::of(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (x, y) = (a.input("x"), a.output("y"));
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x * cdf(x);
    }
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let accumulate = a.n("accumulate") != 0;
    let (x, dy, dx) = (a.input("x"), a.input("dy"), a.output("dx"));
    let scale = F::of(1.0 / std::f64::consts::TAU.sqrt());
    for ((d, &x), &g) in dx.iter_mut().zip(x).zip(dy) {
        let density = scale * (F::of(-0.5) * x * x).exp();
        // x * density is 0 where x is so large that x * x overflows.
        let slope = cdf(x) + if density == F::zero() { F::zero() } else { x * density };
        *d = if accumulate { *d + g * slope } else { g * slope };
    }
}

/// Elements that a worker takes at once.
const SHARE: usize = 1 << 13;

fn forward_f32(a: &mut Args<'_, f32>) {
    let (x, y) = (a.input("x"), a.output("y"));
    y.par_chunks_mut(SHARE).zip(x.par_chunks(SHARE)).for_each(|(y, x)| fast::gelu(x, y));
}

fn backward_f32(a: &mut Args<'_, f32>) {
    let accumulate = a.n("accumulate") != 0;
    let (x, dy, dx) = (a.input("x"), a.input("dy"), a.output("dx"));
    let shares = x.par_chunks(SHARE).zip(dy.par_chunks(SHARE));
    dx.par_chunks_mut(SHARE).zip(shares).for_each(|(dx, (x, dy))| fast::gelu_backward(x, dy, dx, accumulate));
}
