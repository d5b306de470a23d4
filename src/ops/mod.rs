//! Ops: one file each, holding shape rule, forward, backward, per-example rules and twins.
//!
//! An op only records; it knows no engine, no graph and no privacy. Tensors are row-major; per-example
//! tensors have the example axis first. Losses are per example and never averaged here.

pub mod accumulate;
pub mod add;
pub mod add_lookup;
pub mod add_table;
pub mod attention;
mod attention_f32;
pub mod batch_norm;
pub mod cached_attention;
pub mod cross_entropy;
pub mod embedding;
mod fast;
pub mod gather_patches;
pub mod gelu;
pub(crate) mod gemm;
pub(crate) mod gram;
pub mod head_loss;
pub(crate) mod lanes;
pub mod layer_norm;
pub mod linear;
pub mod lookup_grad;
pub mod masked_mse;
pub mod matmul;
pub mod mean_tokens;
pub mod patchify;
pub mod prepend_token;
pub mod relu;
pub mod restore_tokens;
pub mod row_grad;
pub(crate) mod shares;
mod small_product;
pub mod weight_grad;

use std::fmt::Debug;

pub(crate) use fast::widest;

use crate::error::Result;
use crate::record::{DType, Recording, Slice};
use crate::shape::Shape;

/// A tensor that an op makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Extents.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
}

impl Tensor {
    /// A float tensor.
    pub fn float(shape: impl Into<Shape>) -> Self {
        Tensor { shape: shape.into(), dtype: DType::F32 }
    }

    /// A `u32` tensor.
    pub fn uint(shape: impl Into<Shape>) -> Self {
        Tensor { shape: shape.into(), dtype: DType::U32 }
    }
}

/// How one example's gradient of a parameter follows from what the graph keeps. `g` is always `dLoss_i/dy`
/// of the op's first output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamGrad {
    /// The input is no parameter slot.
    None,
    /// `backward` writes the example's gradient itself, as one row of a (B, n) tensor: for parameters so small
    /// that B copies do not matter (biases, LayerNorm, class and mask tokens).
    Rows,
    /// `dW_i = sum_t g_t x_t^T`, (out, in), with `x` (B, T, in) the input of this index and `g` (B, T, out).
    Product {
        /// Index of the input `x`.
        x: usize,
    },
    /// `dE_i[v] = sum_{t: ids_t = v} g_t`, with `ids` (B, T) the `u32` input of this index and `g` (B, T, D).
    Lookup {
        /// Index of the input `ids`.
        ids: usize,
    },
    /// The example's gradient is `g` itself, row i of (B, n): a position table added to every example.
    Output,
    /// The op keeps no `g`: its `backward` writes the squared norms, and [`Op::sums`] adds the weighted sum. For what is
    /// too large to store and cheap to compute again (the logits of a vocabulary).
    Fused,
}

/// Where a gradient goes.
#[derive(Clone, Copy, Debug)]
pub struct Grad {
    /// Destination, of the input's shape.
    pub slice: Slice,
    /// Add to what is there instead of overwriting it.
    pub accumulate: bool,
}

impl Grad {
    /// The flag as the kernels take it.
    pub fn flag(&self) -> u32 {
        self.accumulate as u32
    }
}

/// What backward reads besides the gradient of the output; the plan keeps these alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Indices of inputs.
    pub inputs: Vec<usize>,
    /// Indices of outputs (0 is the result, the rest is what forward saved).
    pub outputs: Vec<usize>,
}

/// Arguments of [`Op::forward`].
#[derive(Debug)]
pub struct Forward<'a> {
    /// Shapes of the inputs.
    pub shapes: &'a [Shape],
    /// The inputs.
    pub inputs: &'a [Slice],
    /// The result, then what the op saves for backward, as declared by [`Op::outputs`].
    pub outputs: &'a [Slice],
    /// Scratch as declared by [`Op::scratch`].
    pub scratch: &'a [Slice],
}

/// Arguments of [`Op::backward`].
#[derive(Debug)]
pub struct Backward<'a> {
    /// Shapes of the inputs.
    pub shapes: &'a [Shape],
    /// The inputs; only those named by [`Op::reads`] hold values.
    pub inputs: &'a [Slice],
    /// The outputs; only those named by [`Op::reads`] hold values.
    pub outputs: &'a [Slice],
    /// Gradient of the loss by the result. For a loss op, whose result is (B): the weight of each example's
    /// loss (1, or 0 for padding).
    pub dy: Slice,
    /// Per input: where its gradient goes. For a parameter slot of form [`ParamGrad::Rows`] the (B, n) rows;
    /// `None` where no gradient is wanted, and for every other parameter form.
    pub dx: &'a [Option<Grad>],
    /// Per input of form [`ParamGrad::Fused`]: where the squared norm of each example's gradient goes, (B). `None` where
    /// none is wanted.
    pub norms: &'a [Option<Slice>],
    /// Scratch as declared by [`Op::scratch_backward`].
    pub scratch: &'a [Slice],
}

/// Arguments of [`Op::sums`].
#[derive(Debug)]
pub struct Sums<'a> {
    /// Shapes of the inputs.
    pub shapes: &'a [Shape],
    /// The inputs; only those named by [`Op::reads`] hold values.
    pub inputs: &'a [Slice],
    /// As in [`Backward::dy`].
    pub dy: Slice,
    /// Per input of form [`ParamGrad::Fused`]: the examples' factors (B) and the parameter's gradient sum, to be added to.
    pub sums: &'a [Option<(Slice, Slice)>],
    /// Scratch as declared by [`Op::scratch_backward`].
    pub scratch: &'a [Slice],
}

/// An operation of the graph.
pub trait Op: Debug + Send + Sync {
    /// The file stem, e.g. `layer_norm`.
    fn name(&self) -> &'static str;

    /// Shapes of the result and of what forward saves for backward, from the inputs'. The only place that
    /// validates shapes.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] naming the op and the shapes.
    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>>;

    /// Why row i of a result would depend on another example than i; `None` for ops fit for private training.
    fn mixes(&self) -> Option<&'static str>;

    /// Element type of an input. Floats unless said otherwise.
    fn input_dtype(&self, _input: usize) -> DType {
        DType::F32
    }

    /// Gradient form of an input that is a parameter slot. No default: saying nothing must not mean "no gradient".
    fn param_grad(&self, input: usize) -> ParamGrad;

    /// Whether backward can give the gradient by this (non-parameter) input; `false` for ids, masks, targets.
    fn differentiable(&self, input: usize) -> bool;

    /// For results that are the sum of inputs: the gradient of these inputs IS the gradient of the result, and
    /// backward need not write it.
    fn passes_through(&self, _input: usize) -> bool {
        false
    }

    /// What backward reads.
    fn reads(&self) -> Reads;

    /// Scratch tensors of forward.
    fn scratch(&self, _inputs: &[Shape]) -> Vec<Tensor> {
        Vec::new()
    }

    /// Scratch tensors of backward.
    fn scratch_backward(&self, _inputs: &[Shape]) -> Vec<Tensor> {
        Vec::new()
    }

    /// Records the forward kernels.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] on a fault in the op itself.
    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()>;

    /// Records the backward kernels.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] on a fault in the op itself.
    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()>;

    /// Records `grad += sum_i factor_i dW_i` for parameters of form [`ParamGrad::Fused`].
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] on a fault in the op itself.
    fn sums(&self, _rec: &mut Recording, _io: &Sums<'_>) -> Result<()> {
        Err(crate::Error::kernel(self.name(), "declares fused parameters but no sums".to_owned()))
    }

    /// Floating-point operations of forward (a multiply-add counts two); 0 where memory traffic decides.
    fn flops(&self, _inputs: &[Shape]) -> u64 {
        0
    }
}
