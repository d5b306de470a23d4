//! `y = x W^T + b` over the last axis; x (B, .., in), W (out, in), b (out), y (B, .., out).

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::matmul::{self, Extras};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static BACKWARD_BIAS: Kernel =
    crate::kernel!("ops/linear", "backward_bias", backward_bias, backward_bias_f32);

/// A dense layer; inputs x, weight and, if it has one, bias.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Whether there is a bias.
    pub bias: bool,
}

impl Linear {
    /// The product of forward: all rows of x at once.
    fn product(&self, inputs: &[Shape]) -> matmul::Spec {
        let (x, out) = (&inputs[0], inputs[1].rows());
        matmul::Spec::new(x.rows(), out, x.width(), false, true)
    }
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        let fail = |rule: &str| {
            let shapes: Vec<String> = inputs.iter().map(Shape::to_string).collect();
            Err(Error::shape("linear", format!("{rule}, got {}", shapes.join(" and "))))
        };
        if inputs.len() != 2 + self.bias as usize {
            return fail(if self.bias { "needs x, weight and bias" } else { "needs x and weight" });
        }
        let (x, weight) = (&inputs[0], &inputs[1]);
        if x.rank() < 2 || weight.rank() != 2 || x.width() != weight.width() {
            return fail("needs x (B, .., in) and weight (out, in)");
        }
        let out = weight.dims()[0];
        if self.bias && inputs[2].dims() != [out] {
            return fail("needs a bias (out) beside x (B, .., in) and weight (out, in)");
        }
        if weight.is_empty() {
            return fail("needs at least one input and one output");
        }
        Ok(vec![Tensor::float(x.with_width(out))])
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        match input {
            1 => ParamGrad::Product { x: 0 },
            2 => ParamGrad::Rows,
            _ => ParamGrad::None,
        }
    }

    fn differentiable(&self, _input: usize) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads { inputs: vec![0, 1], outputs: vec![] }
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let extras = Extras { bias: self.bias.then(|| io.inputs[2]), ..Extras::default() };
        matmul::record(rec, &self.product(io.shapes), io.inputs[0], io.inputs[1], io.outputs[0], &extras)
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let matmul::Spec { m: rows, n: out, k: width, .. } = self.product(io.shapes);
        if let Some(dx) = io.dx[0] {
            let spec = matmul::Spec::new(rows, width, out, false, false);
            let extras = Extras { accumulate: dx.accumulate, ..Extras::default() };
            matmul::record(rec, &spec, io.dy, io.inputs[1], dx.slice, &extras)?;
        }
        if let Some(db) = io.dx.get(2).copied().flatten() {
            let batch = io.shapes[0].dims()[0];
            rec.dispatch(&BACKWARD_BIAS)
                .bind("dy", io.dy)
                .bind("db", db.slice)
                .n("batch", batch)
                .n("tokens", rows / batch.max(1))
                .n("width", out)
                .param("accumulate", db.flag())
                .threads(batch * out)?;
        }
        Ok(())
    }

    fn flops(&self, inputs: &[Shape]) -> u64 {
        self.product(inputs).flops()
    }
}

fn backward_bias<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width, accumulate) = (a.n("tokens"), a.n("width"), a.n("accumulate") != 0);
    let (dy, db) = (a.input("dy"), a.output("db"));
    for (i, db) in db.chunks_mut(width).take(a.n("batch")).enumerate() {
        column_sums(db, &dy[i * tokens * width..][..tokens * width], accumulate);
    }
}

fn backward_bias_f32(a: &mut Args<'_, f32>) {
    let (tokens, width, accumulate) = (a.n("tokens"), a.n("width"), a.n("accumulate") != 0);
    let (dy, db) = (a.input("dy"), a.output("db"));
    db.par_chunks_mut(width).take(a.n("batch")).enumerate().for_each(|(i, db)| {
        column_sums(db, &dy[i * tokens * width..][..tokens * width], accumulate);
    });
}

/// The sum over the rows of one example.
fn column_sums<F: Real>(db: &mut [F], dy: &[F], accumulate: bool) {
    if !accumulate {
        db.fill(F::zero());
    }
    for row in dy.chunks(db.len()) {
        db.iter_mut().zip(row).for_each(|(d, &g)| *d += g);
    }
}
