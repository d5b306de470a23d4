//! The graph: what a model computes for one physical batch, from inputs and parameters to per-example losses.
//!
//! A [`Graph`] is built op by op (shapes are checked as it grows), then lowered to a [`Plan`]: a layout of
//! buffers and the recordings of forward, backward with per-example norms, and weighted gradient sums. It knows
//! ops, but no engine, no model and nothing of privacy beyond what "per example" means.

mod lower;
mod memory;
mod recorder;
mod reverse;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use lower::{Chunk, Memory, Mode, Options, ParamSlot, Plan};

use crate::error::{Error, Result};
use crate::ops::{Op, ParamGrad, Tensor};
use crate::shape::Shape;

/// A tensor of a graph. Only valid for the graph that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(usize);

/// How a parameter starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// All elements equal.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform in plus or minus this bound.
    Uniform(f32),
    /// Uniform in plus or minus `sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio 2010), the first extent being
    /// the fan-out and the product of the rest the fan-in.
    XavierUniform,
    /// Given values (position tables).
    Values(Arc<Vec<f32>>),
}

/// A parameter of a model, by its published name.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Name in checkpoints, e.g. `blocks.0.attn.qkv.weight`.
    pub name: String,
    /// Extents in checkpoints.
    pub shape: Shape,
    /// Initial values.
    pub init: Init,
    /// Whether it is trained; frozen parameters are neither clipped nor noised.
    pub trainable: bool,
}

#[derive(Clone, Debug)]
enum Origin {
    Input(String),
    Param(usize),
    Node { node: usize, output: usize },
}

#[derive(Clone, Debug)]
struct ValueInfo {
    tensor: Tensor,
    origin: Origin,
}

#[derive(Debug)]
struct Node {
    op: Box<dyn Op>,
    label: String,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

/// A computation over a physical batch of fixed size.
#[derive(Debug)]
pub struct Graph {
    batch: usize,
    nodes: Vec<Node>,
    values: Vec<ValueInfo>,
    params: Vec<ParamSpec>,
    param_values: BTreeMap<String, Value>,
    scope: Vec<String>,
}

impl Graph {
    /// A graph over physical batches of `batch` examples.
    pub fn new(batch: usize) -> Self {
        Graph {
            batch,
            nodes: Vec::new(),
            values: Vec::new(),
            params: Vec::new(),
            param_values: BTreeMap::new(),
            scope: Vec::new(),
        }
    }

    /// The physical batch size.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The parameters used so far, in order of first use.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> &Shape {
        &self.values[value.0].tensor.shape
    }

    /// Runs `build` with `label` in front of the labels of the nodes it adds.
    pub fn scoped<T>(&mut self, label: impl Into<String>, build: impl FnOnce(&mut Self) -> T) -> T {
        self.scope.push(label.into());
        let out = build(self);
        self.scope.pop();
        out
    }

    /// An input of every physical batch, example axis first.
    ///
    /// # Errors
    /// [`Error::Shape`] if the first extent is not the physical batch, [`Error::Invalid`] if the name is taken.
    pub fn input(&mut self, name: &str, tensor: Tensor) -> Result<Value> {
        if tensor.shape.dims().first() != Some(&self.batch) {
            let what = format!("{} has no leading example axis of {}", tensor.shape, self.batch);
            return Err(Error::shape(format!("input {name}"), what));
        }
        if self.find_input(name).is_some() {
            return Err(Error::invalid("input", name, "the graph has an input of this name already"));
        }
        Ok(self.add_value(tensor, Origin::Input(name.to_owned())))
    }

    /// An input that was made before.
    pub fn find_input(&self, name: &str) -> Option<Value> {
        self.values.iter().position(|v| matches!(&v.origin, Origin::Input(n) if n == name)).map(Value)
    }

    /// A parameter in the shape of its checkpoint; naming one again (weight sharing) gives the same value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name stands for a different parameter already.
    pub fn param(&mut self, spec: &ParamSpec) -> Result<Value> {
        self.param_as(spec, spec.shape.clone())
    }

    /// A parameter seen by ops in another shape of as many elements (a convolution's weight as a matrix).
    ///
    /// # Errors
    /// As [`Graph::param`]; [`Error::Shape`] if the number of elements differs.
    pub fn param_as(&mut self, spec: &ParamSpec, shape: impl Into<Shape>) -> Result<Value> {
        let shape = shape.into();
        if let Some(&value) = self.param_values.get(&spec.name) {
            let Origin::Param(index) = self.values[value.0].origin else { unreachable!("made below") };
            if self.params[index] != *spec || *self.shape(value) != shape {
                return Err(Error::invalid(
                    "parameter",
                    &spec.name,
                    "is in the graph with another shape or state",
                ));
            }
            return Ok(value);
        }
        if shape.len() != spec.shape.len() {
            let what = format!("{} does not hold the elements of {shape}", spec.shape);
            return Err(Error::shape(format!("parameter {}", spec.name), what));
        }
        self.params.push(spec.clone());
        let value = self.add_value(Tensor::float(shape), Origin::Param(self.params.len() - 1));
        self.param_values.insert(spec.name.clone(), value);
        Ok(value)
    }

    /// Applies an op and returns its result.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the op, its label and the shapes; [`Error::Kernel`] for a wrong element type.
    pub fn apply(&mut self, label: &str, op: impl Op + 'static, inputs: &[Value]) -> Result<Value> {
        Ok(self.apply_all(label, op, inputs)?[0])
    }

    /// Applies an op and returns its result and all that it saves (statistics, log-sum-exp).
    ///
    /// # Errors
    /// As [`Graph::apply`].
    pub fn apply_all(&mut self, label: &str, op: impl Op + 'static, inputs: &[Value]) -> Result<Vec<Value>> {
        let mut full = self.scope.join(".");
        if !full.is_empty() && !label.is_empty() {
            full.push('.');
        }
        full.push_str(label);
        let named = |what: String| Error::shape(format!("{} ({full})", op.name()), what);
        let shapes: Vec<Shape> = inputs.iter().map(|v| self.shape(*v).clone()).collect();
        for (i, v) in inputs.iter().enumerate() {
            let got = self.values[v.0].tensor.dtype;
            if got != op.input_dtype(i) {
                return Err(named(format!("input {i} holds {got:?}, wanted is {:?}", op.input_dtype(i))));
            }
        }
        let tensors = op.outputs(&shapes).map_err(|e| match e {
            Error::Shape { what, .. } => named(what),
            other => other,
        })?;
        let node = self.nodes.len();
        let outputs: Vec<Value> = tensors
            .into_iter()
            .enumerate()
            .map(|(output, tensor)| self.add_value(tensor, Origin::Node { node, output }))
            .collect();
        self.nodes.push(Node {
            op: Box::new(op),
            label: full,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
        });
        Ok(outputs)
    }

    /// Refuses what cannot be trained privately: an op that mixes examples, or a parameter used where no
    /// per-example rule exists.
    ///
    /// # Errors
    /// [`Error::Mixes`] with the reason and the alternative.
    pub fn check_per_example(&self) -> Result<()> {
        for node in &self.nodes {
            let name = format!("{} ({})", node.op.name(), node.label);
            if let Some(why) = node.op.mixes() {
                return Err(Error::Mixes { op: name, why: why.into() });
            }
            for (i, v) in node.inputs.iter().enumerate() {
                let is_param = matches!(self.values[v.0].origin, Origin::Param(_));
                let has_rule = node.op.param_grad(i) != ParamGrad::None;
                if has_rule && !is_param {
                    let why = format!(
                        "input {i} is computed from examples but shared by all of them; use a parameter"
                    );
                    return Err(Error::Mixes { op: name, why });
                }
                if is_param && !has_rule {
                    let why = format!("input {i} is a parameter, and the op has no per-example rule for it");
                    return Err(Error::Mixes { op: name, why });
                }
            }
            for v in &node.outputs {
                if self.shape(*v).dims().first() != Some(&self.batch) {
                    let why =
                        format!("its result {} lost the example axis of {}", self.shape(*v), self.batch);
                    return Err(Error::Mixes { op: name, why });
                }
            }
        }
        Ok(())
    }

    /// Floating-point operations of one forward pass over a physical batch.
    pub fn flops(&self) -> u64 {
        self.nodes
            .iter()
            .map(|n| {
                let shapes: Vec<Shape> = n.inputs.iter().map(|v| self.shape(*v).clone()).collect();
                n.op.flops(&shapes)
            })
            .sum()
    }

    /// Lowers the graph to buffers and recordings.
    ///
    /// # Errors
    /// [`Error::Mixes`] for per-example training of what mixes examples; [`Error::Limit`] if the plan exceeds
    /// `options.memory`; [`Error::Shape`] if the loss is not one number per example.
    pub fn lower(&self, options: &Options) -> Result<Plan> {
        lower::lower(self, options)
    }

    fn add_value(&mut self, tensor: Tensor, origin: Origin) -> Value {
        self.values.push(ValueInfo { tensor, origin });
        Value(self.values.len() - 1)
    }

    fn trainable_param(&self, value: Value) -> Option<usize> {
        match self.values[value.0].origin {
            Origin::Param(p) if self.params[p].trainable => Some(p),
            _ => None,
        }
    }
}
