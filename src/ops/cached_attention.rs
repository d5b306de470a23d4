//! Attention of one new token over a cache of keys and values and itself: writing a text token by token.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor};
use crate::record::{DType, Recording};
use crate::shape::Shape;

static FORWARD: Kernel = crate::kernel!("ops/cached_attention", "forward", forward);

/// Inputs: qkv (B, 1, 3 W) of the new token, `[q | k | v]`; cache (B, T, 2 W), `[k | v]` of the tokens before it; filled
/// (B), how many rows of the cache count. Result (B, 1, W). For inference alone: it has no gradient.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention {
    /// Heads; divides the width W.
    pub heads: usize,
}

impl Op for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs.iter().map(Shape::dims).collect::<Vec<_>>()[..] {
            [&[b, 1, w3], &[b2, t, w2], &[b3]]
                if b == b2
                    && b == b3
                    && t > 0
                    && 2 * w3 == 3 * w2
                    && w3 > 0
                    && self.heads > 0
                    && (w3 / 3).is_multiple_of(self.heads) =>
            {
                Ok(vec![Tensor::float([b, 1, w3 / 3])])
            }
            _ => {
                let what = format!(
                    "needs qkv (B, 1, 3 W), cache (B, T, 2 W) and filled (B), W a multiple of {} heads, got {inputs:?}",
                    self.heads
                );
                Err(Error::shape("cached_attention", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn input_dtype(&self, input: usize) -> DType {
        if input == 2 { DType::U32 } else { DType::F32 }
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

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let n = io.outputs[0].len;
        let width = io.shapes[0].width() / 3;
        let head = width / self.heads;
        rec.dispatch(&FORWARD)
            .bind("qkv", io.inputs[0])
            .bind("cache", io.inputs[1])
            .bind("filled", io.inputs[2])
            .bind("y", io.outputs[0])
            .n("n", n)
            .n("width", width)
            .n("head", head)
            .n("capacity", io.shapes[1].dims()[1])
            .param("scale", 1.0 / (head as f32).sqrt())
            .threads(n)
    }

    fn backward(&self, _rec: &mut Recording, _io: &Backward<'_>) -> Result<()> {
        Ok(())
    }

    fn flops(&self, inputs: &[Shape]) -> u64 {
        2 * inputs[1].len() as u64
    }
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (width, head, capacity) = (a.n("width"), a.n("head"), a.n("capacity"));
    let (qkv, cache, filled, y) = (a.input("qkv"), a.input("cache"), a.input_u32("filled"), a.output("y"));
    let scale = F::of(head as f64).sqrt().recip();
    y.par_chunks_mut(width).enumerate().for_each(|(b, y)| {
        let own = &qkv[b * 3 * width..][..3 * width];
        let rows = (filled[b] as usize).min(capacity);
        let cache = &cache[b * capacity * 2 * width..][..rows * 2 * width];
        for (h, y) in y.chunks_mut(head).enumerate() {
            let at = h * head;
            let q = &own[at..][..head];
            let dot = |k: &[F]| scale * q.iter().zip(k).map(|(&q, &k)| q * k).sum::<F>();
            let keys = cache.chunks(2 * width).chain([&own[width..]]);
            let scores: Vec<F> = keys.clone().map(|row| dot(&row[at..][..head])).collect();
            // Not `max`, which drops NaN.
            let top = scores.iter().fold(F::min_value(), |m, &s| if s > m { s } else { m });
            let shares: Vec<F> = scores.iter().map(|&s| (s - top).exp()).collect();
            let sum: F = shares.iter().copied().sum();
            y.fill(F::zero());
            for (&share, row) in shares.iter().zip(keys) {
                let values = &row[width + at..][..head];
                y.iter_mut().zip(values).for_each(|(y, &v)| *y += share / sum * v);
            }
        }
    });
}
