//! Steps over virtual buffers: what the reverse pass lists, the memory plan places and the recorder records.

use std::collections::BTreeMap;

use super::Value;
use crate::ops::Tensor;
use crate::record::{DType, Slice};

/// A virtual buffer: a tensor before it has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Buf(pub usize);

/// What is known of a virtual buffer.
#[derive(Clone, Debug)]
pub(super) struct BufInfo {
    pub name: String,
    pub dtype: DType,
    pub len: usize,
    /// Set where the buffer is not the plan's to place: inputs, parameters, row gradients, loss weights.
    pub fixed: Option<Slice>,
}

/// Which recording a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Forward,
    Backward,
    Sums,
}

/// Destination of one input's gradient in a backward step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub buf: Buf,
    pub accumulate: bool,
}

/// One parameter's per-example gradient in the form its op declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `g^T x`; tokens per example.
    Product { x: Buf, g: Buf, tokens: usize },
    /// Rows of `g` scattered by id; tokens per example.
    Lookup { ids: Buf, g: Buf, tokens: usize },
    /// `g` itself.
    Output { g: Buf },
}

#[derive(Clone, Debug)]
pub(super) enum Work {
    Forward {
        node: usize,
        scratch: Vec<Buf>,
    },
    Backward {
        node: usize,
        dy: Buf,
        dx: Vec<Option<Target>>,
        /// Inputs whose parameters' norms backward itself writes, and the parameters.
        fused: Vec<(usize, usize)>,
        scratch: Vec<Buf>,
    },
    /// Sums of the parameters that belong to an op itself.
    FusedSums {
        node: usize,
        dy: Buf,
        fused: Vec<(usize, usize)>,
        scratch: Vec<Buf>,
    },
    /// `to = from`
    Copy {
        from: Buf,
        to: Buf,
    },
    /// `to += from`
    Accumulate {
        from: Buf,
        to: Buf,
    },
    /// Copies the uses of a parameter side by side along the token axis: (B, sum of T, width).
    Concat {
        parts: Vec<(Buf, usize)>,
        to: Buf,
    },
    Norm {
        param: usize,
        form: Form,
        scratch: Vec<Buf>,
    },
    Sum {
        param: usize,
        form: Form,
    },
    /// Norms of all row gradients at once.
    RowNorms,
    /// Sums of all row gradients at once.
    RowSums,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub phase: Phase,
    pub work: Work,
    pub touches: Vec<Buf>,
}

/// Everything that will happen, in order.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub bufs: Vec<BufInfo>,
    pub steps: Vec<Step>,
    /// Buffer of each value that is computed or given.
    pub of_value: BTreeMap<Value, Buf>,
    /// Row gradients: parameter and its rows (B, n), in order.
    pub rows: Vec<(usize, Buf)>,
}

/// Allocation of what the plan does not place, made by the caller.
pub(super) trait Fixed {
    fn input(&mut self, name: &str, tensor: &Tensor) -> Slice;
    fn param(&mut self, param: usize) -> Slice;
    fn rows(&mut self, param: usize, len: usize) -> Slice;
    fn weights(&mut self) -> Slice;
}

impl Steps {
    pub fn buf(&mut self, name: impl Into<String>, dtype: DType, len: usize, fixed: Option<Slice>) -> Buf {
        self.bufs.push(BufInfo { name: name.into(), dtype, len, fixed });
        Buf(self.bufs.len() - 1)
    }

    pub fn push(&mut self, phase: Phase, work: Work, touches: impl IntoIterator<Item = Buf>) {
        self.steps.push(Step { phase, work, touches: touches.into_iter().collect() });
    }

    pub fn scratch(&mut self, label: &str, tensors: Vec<Tensor>) -> Vec<Buf> {
        tensors
            .into_iter()
            .map(|t| self.buf(format!("{label}.scratch"), t.dtype, t.shape.len(), None))
            .collect()
    }
}

impl Form {
    pub fn bufs(self) -> Vec<Buf> {
        match self {
            Form::Product { x, g, .. } => vec![x, g],
            Form::Lookup { ids, g, .. } => vec![ids, g],
            Form::Output { g } => vec![g],
        }
    }
}
