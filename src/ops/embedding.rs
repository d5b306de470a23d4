//! `y_bt = table[ids_bt]`: token embedding.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::{DType, Recording};
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/embedding", "forward", forward);

/// Rows of a table (V, D), chosen by ids (B, T), as tokens (B, T, D). Inputs: table, ids. An id of V or more gives
/// zeros and no gradient.
#[derive(Clone, Copy, Debug)]
pub struct Embedding;

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs.iter().map(Shape::dims).collect::<Vec<_>>()[..] {
            [&[v, d], &[b, t]] if v > 0 => Ok(vec![Tensor::float([b, t, d])]),
            _ => {
                let what = format!("needs a table (V, D) and ids (B, T), got {inputs:?}");
                Err(Error::shape("embedding", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn input_dtype(&self, input: usize) -> DType {
        if input == 1 { DType::U32 } else { DType::F32 }
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        if input == 0 { ParamGrad::Lookup { ids: 1 } } else { ParamGrad::None }
    }

    fn differentiable(&self, _input: usize) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let n = io.outputs[0].len;
        rec.dispatch(&FORWARD)
            .bind("table", io.inputs[0])
            .bind("ids", io.inputs[1])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("width", io.shapes[0].width())
            .n("vocabulary", io.shapes[0].rows())
            .threads(n)
    }

    fn backward(&self, _rec: &mut Recording, _io: &Backward<'_>) -> Result<()> {
        Ok(())
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (width, vocabulary) = (a.n("width"), a.n("vocabulary"));
    let (table, ids, y) = (a.input("table"), a.input_u32("ids"), a.output("y"));
    y.par_chunks_mut(width).zip(ids).for_each(|(y, &id)| {
        if (id as usize) < vocabulary {
            y.copy_from_slice(&table[id as usize * width..][..width]);
        } else {
            y.fill(F::zero());
        }
    });
}
