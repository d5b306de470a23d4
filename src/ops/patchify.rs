//! Images cut into square patches, row by row: the target of the masked autoencoder.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::Recording;
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/patchify", "forward", forward);
static STANDARDIZE: Kernel = crate::kernel!("ops/patchify", "standardize", standardize);

/// Order of the values inside a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Row, column, channel (channel fastest): the target of the loss.
    RowColumnChannel,
    /// Channel, row, column: the order of a convolution's weight.
    ChannelRowColumn,
}

/// Images (B, 3, H, W) to patches (B, L, 3 p p), L = (H/p)(W/p). Not differentiable: images are data.
#[derive(Clone, Copy, Debug)]
pub struct Patchify {
    /// Side of a patch, p.
    pub patch: usize,
    /// Order inside a patch.
    pub order: Order,
    /// Standardise each patch to `(x - mean) / sqrt(var + 1e-6)` with the unbiased variance (MAE's `norm_pix_loss`).
    pub standardize: bool,
}

impl Op for Patchify {
    fn name(&self) -> &'static str {
        "patchify"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs.first().map(Shape::dims) {
            Some(&[b, 3, h, w]) if self.patch > 0 && h % self.patch == 0 && w % self.patch == 0 => {
                let p = self.patch;
                Ok(vec![Tensor::float([b, h / p * (w / p), 3 * p * p])])
            }
            _ => {
                let what = format!(
                    "needs images (B, 3, H, W) with sides that patch {} divides, got {inputs:?}",
                    self.patch
                );
                Err(Error::shape("patchify", what))
            }
        }
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
        let (n, width) = (io.outputs[0].len, 3 * self.patch * self.patch);
        rec.dispatch(&FORWARD)
            .bind("images", io.inputs[0])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("height", dims[2])
            .n("width", dims[3])
            .n("side", self.patch)
            .n("channel_first", (self.order == Order::ChannelRowColumn) as usize)
            .threads(n)?;
        if !self.standardize {
            return Ok(());
        }
        rec.dispatch(&STANDARDIZE)
            .bind("y", io.outputs[0])
            .n("patches", n / width)
            .n("width", width)
            .groups(n / width)
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (height, width, p, channel_first) =
        (a.n("height"), a.n("width"), a.n("side"), a.n("channel_first") != 0);
    let (images, y) = (a.input("images"), a.output("y"));
    let (per_row, per_image) = (width / p, height / p * (width / p));
    y.par_chunks_mut(3 * p * p).enumerate().for_each(|(patch, y)| {
        let (b, l) = (patch / per_image, patch % per_image);
        let (top, left) = (l / per_row * p, l % per_row * p);
        for (k, y) in y.iter_mut().enumerate() {
            let (c, row, column) =
                if channel_first { (k / (p * p), k / p % p, k % p) } else { (k % 3, k / 3 / p, k / 3 % p) };
            *y = images[((b * 3 + c) * height + top + row) * width + left + column];
        }
    });
}

fn standardize<F: Real>(a: &mut Args<'_, F>) {
    let (width, y) = (a.n("width"), a.output("y"));
    let n = F::of(width as f64);
    y.par_chunks_mut(width).for_each(|y| {
        let mean = y.iter().copied().sum::<F>() / n;
        // The mean of what is left corrects the mean, so that a patch of one colour gives zeros.
        let mean = mean + y.iter().map(|&x| x - mean).sum::<F>() / n;
        let variance = y.iter().map(|&x| (x - mean) * (x - mean)).sum::<F>() / (n - F::one());
        let scale = F::one() / (variance + F::of(1e-6)).sqrt();
        y.iter_mut().for_each(|y| *y = (*y - mean) * scale);
    });
}
