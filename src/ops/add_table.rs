//! `y_b = x_b + table`: a position table, the same for every example.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/add_table", "forward", forward);

/// Adds a table (T, D) to every example of x (B, T, D).
#[derive(Clone, Copy, Debug)]
pub struct AddTable;

impl Op for AddTable {
    fn name(&self) -> &'static str {
        "add_table"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs {
            [x, table] if x.rank() > 1 && x.dims()[1..] == *table.dims() => {
                Ok(vec![Tensor::float(x.clone())])
            }
            _ => Err(Error::shape(
                "add_table",
                format!("needs x (B, T, D) and a table (T, D), got {inputs:?}"),
            )),
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        if input == 1 { ParamGrad::Output } else { ParamGrad::None }
    }

    fn differentiable(&self, _input: usize) -> bool {
        true
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
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("width", io.shapes[1].len())
            .threads(n)
    }

    fn backward(&self, _rec: &mut Recording, _io: &Backward<'_>) -> Result<()> {
        Ok(())
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let width = a.n("width");
    let (x, table, y) = (a.input("x"), a.input("table"), a.output("y"));
    y.par_chunks_mut(width).zip(x.par_chunks(width)).for_each(|(y, x)| {
        y.iter_mut().zip(x.iter().zip(table)).for_each(|(y, (&x, &t))| *y = x + t);
    });
}
