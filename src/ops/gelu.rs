//! `y = x Phi(x) = x/2 (1 + erf(x / sqrt 2))`, elementwise: the exact GELU (Hendrycks and Gimpel, arXiv
//! 1606.08415, section 2). `dy/dx = Phi(x) + x phi(x)`, computed anew from x.

use rayon::prelude::*;

use crate::error::Result;
use crate::kernel::{Args, Kernel, Real};
use crate::ops::fast;
use crate::ops::lanes::{Lanes, in_lanes};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/gelu", "forward", forward, forward_fast);
static BACKWARD: Kernel = crate::kernel!("ops/gelu", "backward", backward, backward_fast);

/// Gaussian error linear unit over a tensor of any shape.
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

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (x, y) = (a.input("x"), a.output("y"));
    for (y, &x) in y.iter_mut().zip(x) {
        *y = F::of(0.5) * x * (F::one() + (x * F::of(std::f64::consts::FRAC_1_SQRT_2)).erf());
    }
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    let accumulate = a.n("accumulate") != 0;
    let (x, dy, dx) = (a.input("x"), a.input("dy"), a.output("dx"));
    let root_of_two_pi = F::of(std::f64::consts::TAU).sqrt();
    for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
        let cdf = F::of(0.5) * (F::one() + (x * F::of(std::f64::consts::FRAC_1_SQRT_2)).erf());
        let pdf = (F::of(-0.5) * x * x).exp() / root_of_two_pi;
        let g = dy * (cdf + x * pdf);
        *dx = if accumulate { *dx + g } else { g };
    }
}

#[inline(always)]
fn cdf<L: Lanes>(x: L) -> L {
    let half = L::splat(0.5);
    fast::erf(x.mul(L::splat(std::f32::consts::FRAC_1_SQRT_2))).mul_add(half, half)
}

in_lanes! {
    fn values<L>(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.chunks(16).zip(y.chunks_mut(16)) {
            let x = L::load_some(x, 0.0);
            x.mul(cdf(x)).store_some(y);
        }
    }

    fn slopes<L>(x: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool) {
        let root = L::splat(0.398_942_3);
        for ((x, dy), dx) in x.chunks(16).zip(dy.chunks(16)).zip(dx.chunks_mut(16)) {
            let (x, dy) = (L::load_some(x, 0.0), L::load_some(dy, 0.0));
            // Beyond 13 the density is under 1e-37; the square of a huge x would not be finite.
            let t = fast::hold(x, -13.0, 13.0);
            let density = fast::exp(t.mul(t).mul(L::splat(-0.5))).mul(root);
            let slope = t.mul_add(density, cdf(x));
            let held = if accumulate { L::load_some(dx, 0.0) } else { L::splat(0.0) };
            dy.mul_add(slope, held).store_some(dx);
        }
    }
}

fn forward_fast(a: &mut Args<'_, f32>) {
    let (x, y) = (a.input("x"), a.output("y"));
    let task = fast::rows_per_task(x.len(), 1);
    x.par_chunks(task).zip(y.par_chunks_mut(task)).for_each(|(x, y)| values(x, y));
}

fn backward_fast(a: &mut Args<'_, f32>) {
    let accumulate = a.n("accumulate") != 0;
    let (x, dy, dx) = (a.input("x"), a.input("dy"), a.output("dx"));
    let task = fast::rows_per_task(x.len(), 1);
    (x.par_chunks(task), dy.par_chunks(task), dx.par_chunks_mut(task))
        .into_par_iter()
        .for_each(|(x, dy, dx)| slopes(x, dy, dx, accumulate));
}
