//! The kept patches of every image, cut out in the order of a convolution's weight: patch embedding computes
//! nothing for patches that the mask removes.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::{DType, Recording};
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/gather_patches", "forward", forward);

/// Images (B, 3, H, W) and ids (B, K) of patches, numbered row by row, to (B, K, 3 p p) ordered channel, row,
/// column. An id outside the image gives zeros. Not differentiable: images are data.
#[derive(Clone, Copy, Debug)]
pub struct GatherPatches {
    /// Side of a patch, p.
    pub patch: usize,
}

impl Op for GatherPatches {
    fn name(&self) -> &'static str {
        "gather_patches"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs.iter().map(Shape::dims).collect::<Vec<_>>()[..] {
            [&[b, 3, h, w], &[b2, k]]
                if b == b2 && self.patch > 0 && h % self.patch == 0 && w % self.patch == 0 =>
            {
                Ok(vec![Tensor::float([b, k, 3 * self.patch * self.patch])])
            }
            _ => {
                let what = format!(
                    "needs images (B, 3, H, W) with sides that patch {} divides and ids (B, K), got {inputs:?}",
                    self.patch
                );
                Err(Error::shape("gather_patches", what))
            }
        }
    }

    fn input_dtype(&self, input: usize) -> DType {
        if input == 1 { DType::U32 } else { DType::F32 }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, _input: usize) -> ParamGrad {
        ParamGrad::None
    }

    fn differentiable(&self, _input: usize) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn backward(&self, _rec: &mut Recording, _io: &Backward<'_>) -> Result<()> {
        Ok(())
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let dims = io.shapes[0].dims();
        let n = io.outputs[0].len;
        rec.dispatch(&FORWARD)
            .bind("images", io.inputs[0])
            .bind("ids", io.inputs[1])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("kept", io.shapes[1].dims()[1])
            .n("height", dims[2])
            .n("width", dims[3])
            .n("side", self.patch)
            .threads(n)
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (kept, height, width, p) = (a.n("kept"), a.n("height"), a.n("width"), a.n("side"));
    let (images, ids, y) = (a.input("images"), a.input_u32("ids"), a.output("y"));
    let (per_row, rows) = (width / p, height / p);
    y.par_chunks_mut(3 * p * p).enumerate().for_each(|(bk, y)| {
        let (b, l) = (bk / kept, ids[bk] as usize);
        if l >= per_row * rows {
            y.fill(F::zero());
            return;
        }
        let (top, left) = (l / per_row * p, l % per_row * p);
        for (line, y) in y.chunks_mut(p).enumerate() {
            let (c, row) = (line / p, line % p);
            y.copy_from_slice(&images[((b * 3 + c) * height + top + row) * width + left..][..p]);
        }
    });
}
