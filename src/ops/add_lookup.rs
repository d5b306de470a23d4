//! `y_bt = x_bt + table[ids_bt]`: positions of tokens that are not in order.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::{DType, Recording};
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/add_lookup", "forward", forward);

/// Adds rows of a table (V, D), chosen by ids (B, T), to x (B, T, D). Inputs: x, table, ids. An id of V or more
/// adds nothing.
#[derive(Clone, Copy, Debug)]
pub struct AddLookup;

impl Op for AddLookup {
    fn name(&self) -> &'static str {
        "add_lookup"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs {
            [x, table, ids]
                if x.rank() == 3
                    && table.rank() == 2
                    && x.width() == table.width()
                    && x.dims()[..2] == *ids.dims() =>
            {
                Ok(vec![Tensor::float(x.clone())])
            }
            _ => {
                let what = format!("needs x (B, T, D), a table (V, D) and ids (B, T), got {inputs:?}");
                Err(Error::shape("add_lookup", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn input_dtype(&self, input: usize) -> DType {
        if input == 2 { DType::U32 } else { DType::F32 }
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        if input == 1 { ParamGrad::Lookup { ids: 2 } } else { ParamGrad::None }
    }

    fn differentiable(&self, input: usize) -> bool {
        input < 2
    }

    fn passes_through(&self, input: usize) -> bool {
        input == 0
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let n = io.shapes[0].len();
        rec.dispatch(&FORWARD)
            .bind("x", io.inputs[0])
            .bind("table", io.inputs[1])
            .bind("ids", io.inputs[2])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("width", io.shapes[0].width())
            .n("vocabulary", io.shapes[1].rows())
            .threads(n)
    }

    fn backward(&self, _rec: &mut Recording, _io: &Backward<'_>) -> Result<()> {
        Ok(())
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (width, vocabulary) = (a.n("width"), a.n("vocabulary"));
    let (x, table, ids, y) = (a.input("x"), a.input("table"), a.input_u32("ids"), a.output("y"));
    y.par_chunks_mut(width).zip(x.par_chunks(width).zip(ids)).for_each(|(y, (x, &id))| {
        y.copy_from_slice(x);
        if (id as usize) < vocabulary {
            let row = &table[id as usize * width..][..width];
            y.iter_mut().zip(row).for_each(|(y, &t)| *y += t);
        }
    });
}
