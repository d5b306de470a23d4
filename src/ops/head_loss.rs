//! The head of a language model and its loss in one op: `cross_entropy(x W^T + b, targets)` without ever holding the
//! logits of a physical batch.
//!
//! Logits exist for a block of examples at a time. Backward computes a block again, gives its part of dx and the squared
//! norms of its examples' gradients; the sums, which need the norms of the whole model first, compute it a third time. That
//! is two more products (of five instead of three) for a memory that does not grow with the physical batch.

use crate::error::{Error, Result};
use crate::ops::cross_entropy::CrossEntropy;
use crate::ops::linear::Linear;
use crate::ops::{Backward, Forward, Grad, Op, ParamGrad, Reads, Sums, Tensor, row_grad, weight_grad};
use crate::record::{ALIGN, DType, Recording, Slice};
use crate::shape::Shape;

/// x (B, T, D), weight (V, D), bias (V) and targets (B, T) to losses (B): the mean over an example's targets of
/// `-log softmax(x W^T + b)[target]`. A target that is `ignore`, or V or more, does not count.
#[derive(Clone, Copy, Debug)]
pub struct HeadLoss {
    /// The target that stands for no token (DP-Cap: 0, the padding).
    pub ignore: u32,
    /// Logits of a block, bytes at most; a block holds whole examples, at least one.
    pub block_bytes: usize,
}

impl Default for HeadLoss {
    /// Padding 0, blocks of 64 MiB.
    fn default() -> Self {
        HeadLoss { ignore: 0, block_bytes: 64 << 20 }
    }
}

/// Extents of one call.
#[derive(Clone, Copy)]
struct Dims {
    batch: usize,
    tokens: usize,
    width: usize,
    vocabulary: usize,
    /// Examples of a full block.
    block: usize,
}

/// Scratch of one block, cut to its examples.
struct Block {
    first: usize,
    examples: usize,
    logits: Slice,
    ids: Slice,
    /// Row losses, largest logits, log-sums: (E, T) each.
    rows: [Slice; 3],
    /// Losses, counts: (E) each.
    each: [Slice; 2],
}

impl HeadLoss {
    fn dims(&self, inputs: &[Shape]) -> Option<Dims> {
        match inputs.iter().map(Shape::dims).collect::<Vec<_>>()[..] {
            [&[batch, tokens, width], &[vocabulary, w], &[v], ids]
                if w == width && v == vocabulary && ids == [batch, tokens] && v * w * tokens * batch > 0 =>
            {
                // A block starts where a binding may start.
                let step = ALIGN / gcd(ALIGN, tokens * width);
                let fits = self.block_bytes / (4 * tokens * vocabulary) / step * step;
                Some(Dims { batch, tokens, width, vocabulary, block: fits.max(step).min(batch) })
            }
            _ => None,
        }
    }

    fn loss(&self) -> CrossEntropy {
        CrossEntropy { ignore: Some(self.ignore), smoothing: 0.0 }
    }

    /// Records logits and losses of one block; `scratch` as of `Op::scratch`.
    fn forward_block(
        &self,
        rec: &mut Recording,
        d: &Dims,
        first: usize,
        inputs: &[Slice],
        scratch: &[Slice],
    ) -> Result<Block> {
        let examples = d.block.min(d.batch - first);
        let rows = examples * d.tokens;
        let block = Block {
            first,
            examples,
            logits: scratch[0].part(0, rows * d.vocabulary),
            ids: scratch[1].part(0, rows),
            rows: [2, 3, 4].map(|i| scratch[i].part(0, rows)),
            each: [5, 6].map(|i| scratch[i].part(0, examples)),
        };
        rec.copy(inputs[3].part(first * d.tokens, rows), block.ids)?;
        let shapes = d.linear_shapes(examples);
        let x = block.x(d, inputs[0]);
        let io = Forward {
            shapes: &shapes,
            inputs: &[x, inputs[1], inputs[2]],
            outputs: &[block.logits],
            scratch: &[],
        };
        Linear { bias: true }.forward(rec, &io)?;
        let shapes = d.loss_shapes(examples);
        let [row_loss, peak, log_sum] = block.rows;
        let [loss, count] = block.each;
        let io = Forward {
            shapes: &shapes,
            inputs: &[block.logits, block.ids],
            outputs: &[loss, peak, log_sum, count],
            scratch: &[row_loss],
        };
        self.loss().forward(rec, &io)?;
        Ok(block)
    }

    /// Records a block's logits and their gradient; returns the block and the gradient.
    fn gradient_block(
        &self,
        rec: &mut Recording,
        d: &Dims,
        first: usize,
        inputs: &[Slice],
        dy: Slice,
        scratch: &[Slice],
    ) -> Result<(Block, Slice)> {
        let block = self.forward_block(rec, d, first, inputs, scratch)?;
        let g = scratch[7].part(0, block.logits.len);
        let weights = scratch[8].part(0, block.examples);
        rec.copy(dy.part(first, block.examples), weights)?;
        let [_, peak, log_sum] = block.rows;
        let [loss, count] = block.each;
        let io = Backward {
            shapes: &d.loss_shapes(block.examples),
            inputs: &[block.logits, block.ids],
            outputs: &[loss, peak, log_sum, count],
            dy: weights,
            dx: &[Some(Grad { slice: g, accumulate: false }), None],
            norms: &[],
            scratch: &[],
        };
        self.loss().backward(rec, &io)?;
        Ok((block, g))
    }

    /// Records dx and the bias rows of a block from the gradient of its logits.
    fn linear_backward(
        rec: &mut Recording,
        d: &Dims,
        block: &Block,
        inputs: &[Slice],
        g: Slice,
        dx: Option<Grad>,
        bias_rows: Option<Slice>,
    ) -> Result<()> {
        let rows = bias_rows.map(|slice| Grad { slice, accumulate: false });
        let io = Backward {
            shapes: &d.linear_shapes(block.examples),
            inputs: &[block.x(d, inputs[0]), inputs[1], inputs[2]],
            outputs: &[block.logits],
            dy: g,
            dx: &[dx.map(|dx| Grad { slice: block.x(d, dx.slice), ..dx }), None, rows],
            norms: &[],
            scratch: &[],
        };
        Linear { bias: true }.backward(rec, &io)
    }
}

impl Dims {
    fn linear_shapes(&self, examples: usize) -> [Shape; 3] {
        let weight = [self.vocabulary, self.width];
        [[examples, self.tokens, self.width].into(), weight.into(), [self.vocabulary].into()]
    }

    fn loss_shapes(&self, examples: usize) -> [Shape; 2] {
        [[examples, self.tokens, self.vocabulary].into(), [examples, self.tokens].into()]
    }

    fn starts(&self) -> impl Iterator<Item = usize> {
        (0..self.batch).step_by(self.block)
    }

    fn weight(&self, examples: usize) -> weight_grad::Dims {
        let (width_in, width_out) = (self.width, self.vocabulary);
        weight_grad::Dims { batch: examples, tokens: self.tokens, width_in, width_out }
    }
}

impl Block {
    /// The block's part of a tensor (B, T, D).
    fn x(&self, d: &Dims, whole: Slice) -> Slice {
        whole.part(self.first * d.tokens * d.width, self.examples * d.tokens * d.width)
    }
}

impl Op for HeadLoss {
    fn name(&self) -> &'static str {
        "head_loss"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match self.dims(inputs) {
            Some(d) => Ok(vec![Tensor::float([d.batch])]),
            None => {
                let what =
                    format!("needs x (B, T, D), weight (V, D), bias (V), targets (B, T), got {inputs:?}");
                Err(Error::shape("head_loss", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn input_dtype(&self, input: usize) -> DType {
        if input == 3 { DType::U32 } else { DType::F32 }
    }

    fn param_grad(&self, input: usize) -> ParamGrad {
        if input == 1 || input == 2 { ParamGrad::Fused } else { ParamGrad::None }
    }

    fn differentiable(&self, input: usize) -> bool {
        input == 0
    }

    fn reads(&self) -> Reads {
        Reads { inputs: vec![0, 1, 2, 3], outputs: vec![] }
    }

    fn scratch(&self, inputs: &[Shape]) -> Vec<Tensor> {
        let d = self.dims(inputs).expect("checked by outputs");
        let rows = || Tensor::float([d.block, d.tokens]);
        let each = || Tensor::float([d.block]);
        let logits = Tensor::float([d.block, d.tokens, d.vocabulary]);
        vec![logits, Tensor::uint([d.block, d.tokens]), rows(), rows(), rows(), each(), each()]
    }

    fn scratch_backward(&self, inputs: &[Shape]) -> Vec<Tensor> {
        let d = self.dims(inputs).expect("checked by outputs");
        let mut all = self.scratch(inputs);
        all.push(all[0].clone());
        // Weights of the block's losses; norms, or factors; bias rows; shares of the weight's norm.
        all.extend([Tensor::float([d.block]), Tensor::float([d.block])]);
        all.push(Tensor::float([d.block, d.vocabulary]));
        all.extend(weight_grad::scratch(d.weight(d.block)));
        all
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let d = self.dims(io.shapes).expect("checked by outputs");
        for first in d.starts() {
            let block = self.forward_block(rec, &d, first, io.inputs, io.scratch)?;
            rec.copy(block.each[0], io.outputs[0].part(first, block.examples))?;
        }
        Ok(())
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let d = self.dims(io.shapes).expect("checked by outputs");
        let norm_of = |input: usize| io.norms.get(input).copied().flatten();
        for first in d.starts() {
            let (block, g) = self.gradient_block(rec, &d, first, io.inputs, io.dy, io.scratch)?;
            let e = block.examples;
            let (norm, rows) = (io.scratch[9].part(0, e), io.scratch[10].part(0, e * d.vocabulary));
            let bias_rows = norm_of(2).map(|_| rows);
            Self::linear_backward(rec, &d, &block, io.inputs, g, io.dx[0], bias_rows)?;
            if let Some(out) = norm_of(1) {
                let dims = d.weight(e);
                let shares = weight_grad::scratch(dims)[0].shape.len();
                let scratch = [io.scratch[11].part(0, shares)];
                weight_grad::record_sq_norm(rec, dims, block.x(&d, io.inputs[0]), g, norm, &scratch)?;
                rec.copy(norm, out.part(first, e))?;
            }
            if let Some(out) = norm_of(2) {
                row_grad::record_sq_norm_single(rec, rows, e, d.vocabulary, norm)?;
                rec.copy(norm, out.part(first, e))?;
            }
        }
        Ok(())
    }

    fn sums(&self, rec: &mut Recording, io: &Sums<'_>) -> Result<()> {
        let d = self.dims(io.shapes).expect("checked by outputs");
        for first in d.starts() {
            let (block, g) = self.gradient_block(rec, &d, first, io.inputs, io.dy, io.scratch)?;
            let e = block.examples;
            let factors = io.scratch[9].part(0, e);
            if let Some((all, grad)) = io.sums[1] {
                rec.copy(all.part(first, e), factors)?;
                let x = block.x(&d, io.inputs[0]);
                weight_grad::record_sum(rec, d.weight(e), x, g, factors, grad)?;
            }
            if let Some((all, grad)) = io.sums[2] {
                let rows = io.scratch[10].part(0, e * d.vocabulary);
                Self::linear_backward(rec, &d, &block, io.inputs, g, None, Some(rows))?;
                rec.copy(all.part(first, e), factors)?;
                row_grad::record_sum_single(rec, rows, e, d.vocabulary, factors, grad)?;
            }
        }
        Ok(())
    }

    fn flops(&self, inputs: &[Shape]) -> u64 {
        self.dims(inputs).map_or(0, |d| 2 * (d.batch * d.tokens * d.width * d.vocabulary) as u64)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
