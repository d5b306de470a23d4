//! From steps to buffers and recordings.

use std::collections::BTreeMap;
use std::fmt;

use super::memory::{self, Lifetime};
use super::recorder::{Recorder, Rows};
use super::reverse;
use super::steps::{Fixed, Steps, Work};
use super::{Graph, ParamSpec, Value};
use crate::error::{Error, Result};
use crate::ops::{ParamGrad, Tensor};
use crate::record::{ALIGN, DType, Engine, Layout, Recording, Slice};

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forward alone.
    Forward,
    /// Forward, backward, the squared norm of every example's gradient, and sums weighted by per-example factors
    /// that the caller computes from these norms in between.
    PerExample {
        /// Per-example losses, (B).
        loss: Value,
    },
    /// Forward, backward and the sum of all examples' gradients, weighted by the examples' weights.
    Plain {
        /// Per-example losses, (B).
        loss: Value,
    },
}

/// Options of [`Graph::lower`].
#[derive(Clone, Debug)]
pub struct Options {
    /// What is wanted.
    pub mode: Mode,
    /// Values to keep readable after the run.
    pub fetch: Vec<Value>,
    /// Largest buffer of the engine, bytes.
    pub max_buffer_bytes: u64,
    /// Largest binding of the engine, bytes.
    pub max_binding_bytes: u64,
    /// Refuse a plan over this many bytes.
    pub memory: Option<u64>,
    /// Per-example plans: a factor for each parameter and example, instead of one for each example.
    pub per_layer: bool,
}

impl Options {
    /// Options for an engine, without a memory limit.
    pub fn new(mode: Mode, engine: &dyn Engine) -> Self {
        Options {
            mode,
            fetch: Vec::new(),
            max_buffer_bytes: engine.max_buffer_bytes(),
            max_binding_bytes: engine.max_binding_bytes(),
            memory: None,
            per_layer: false,
        }
    }

    /// Keeps these values readable after the run.
    pub fn fetch(mut self, values: &[Value]) -> Self {
        self.fetch = values.to_vec();
        self
    }

    /// Refuses a plan over this many bytes.
    pub fn memory(mut self, bytes: Option<u64>) -> Self {
        self.memory = bytes;
        self
    }
}

/// A piece of the flat parameter arena: as many parameters as one binding can cover.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Parameter values.
    pub params: Slice,
    /// Their gradient sums, same layout. Zero length in forward plans.
    pub grads: Slice,
    /// Index of the first element in the whole arena; independent of how the arena is cut.
    pub base: u64,
}

/// Where a parameter lies.
#[derive(Clone, Debug)]
pub struct ParamSlot {
    /// The parameter.
    pub spec: ParamSpec,
    /// Its values.
    pub values: Slice,
    /// Its gradient sum, if it is trained in this plan.
    pub grad: Option<Slice>,
}

/// Bytes of a plan by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parameters, frozen ones included.
    pub parameters: u64,
    /// Gradient sums.
    pub gradients: u64,
    /// Activations, their gradients and scratch, after reuse.
    pub transients: u64,
    /// Inputs of a physical batch.
    pub inputs: u64,
    /// Norms, factors and row gradients.
    pub per_example: u64,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.transients + self.inputs + self.per_example
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |b: u64| b as f64 / (1 << 20) as f64;
        write!(
            f,
            "{:.1} MiB (parameters {:.1}, gradients {:.1}, activations {:.1}, inputs {:.1}, per example {:.1})",
            mib(self.total()),
            mib(self.parameters),
            mib(self.gradients),
            mib(self.transients),
            mib(self.inputs),
            mib(self.per_example)
        )
    }
}

/// A lowered graph: buffers and recordings. Other rooms add their buffers to `layout` before it is opened.
#[derive(Clone)]
pub struct Plan {
    /// The buffers.
    pub layout: Layout,
    /// The physical batch size.
    pub batch: usize,
    /// Inputs by name.
    pub inputs: BTreeMap<String, Slice>,
    /// Parameters, in the order of first use.
    pub params: Vec<ParamSlot>,
    /// Trainable parameters as flat pieces.
    pub chunks: Vec<Chunk>,
    /// Slices of the fetched values, in the order asked for.
    pub fetched: Vec<Slice>,
    /// (B) weight of each example's loss: 1, or 0 for padding. Written by the caller.
    pub weights: Option<Slice>,
    /// (P, stride) squared norms, parameter by parameter: what the clip reads. Per-example plans only.
    pub norms: Option<Slice>,
    /// Name of each row of `norms`.
    pub norm_names: Vec<String>,
    /// Distance between rows of `norms`: the batch rounded up to [`ALIGN`].
    pub stride: usize,
    /// (B) factors by which the sums weight each example, or (P, stride) by parameter and example. Per-example plans
    /// only; plain plans use `weights`.
    pub factors: Option<Slice>,
    /// Distance between the factors of one parameter and the next: 0, or `stride` if each has its own.
    pub factor_stride: usize,
    /// Forward.
    pub forward: Recording,
    /// Backward, and norms in per-example plans.
    pub backward: Recording,
    /// Adds the weighted sums to the gradients.
    pub sums: Recording,
    /// Sets the gradients to zero: once per logical batch.
    pub zero: Recording,
    /// Row-gradient segments to write before the first run: (P, 3) words.
    pub segments: Option<(Slice, Vec<u32>)>,
    /// Bytes by purpose; `layout.bytes()` equals their total.
    pub memory: Memory,
}

impl Plan {
    /// Slot of a parameter.
    pub fn param(&self, name: &str) -> Option<&ParamSlot> {
        self.params.iter().find(|p| p.spec.name == name)
    }

    /// Slice of an input.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the inputs there are.
    pub fn input(&self, name: &str) -> Result<Slice> {
        self.inputs.get(name).copied().ok_or_else(|| {
            let known: Vec<_> = self.inputs.keys().cloned().collect();
            Error::invalid("input", name, format!("the graph's inputs are {}", known.join(", ")))
        })
    }
}

/// Allocates what the memory plan does not place.
struct Outside<'a> {
    graph: &'a Graph,
    layout: Layout,
    inputs: BTreeMap<String, Slice>,
    slots: Vec<ParamSlot>,
    weights: Option<Slice>,
    row_buffer: Option<(Slice, usize)>,
    segments: Vec<(usize, usize)>,
}

impl Fixed for Outside<'_> {
    fn input(&mut self, name: &str, tensor: &Tensor) -> Slice {
        let layout = &mut self.layout;
        *self
            .inputs
            .entry(name.to_owned())
            .or_insert_with(|| layout.add(format!("input {name}"), tensor.dtype, tensor.shape.len()))
    }

    fn param(&mut self, param: usize) -> Slice {
        self.slots[param].values
    }

    fn rows(&mut self, param: usize, len: usize) -> Slice {
        let (buffer, used) = self.row_buffer.as_mut().expect("training plans have a row buffer");
        let slice = buffer.part(*used, len);
        self.segments.push((param, *used));
        *used += len.next_multiple_of(ALIGN);
        slice
    }

    fn weights(&mut self) -> Slice {
        *self.weights.get_or_insert_with(|| self.layout.add("weights", DType::F32, self.graph.batch))
    }
}

pub(super) fn lower(graph: &Graph, options: &Options) -> Result<Plan> {
    let training = options.mode != Mode::Forward;
    if let Mode::PerExample { .. } = options.mode {
        graph.check_per_example()?;
    }
    let mut layout = Layout::default();
    let (slots, chunks) = parameters(graph, options, training, &mut layout)?;
    let row_buffer = row_buffer(graph, training, &mut layout);
    let mut outside = Outside {
        graph,
        layout,
        inputs: BTreeMap::new(),
        slots,
        weights: None,
        row_buffer,
        segments: Vec::new(),
    };
    let steps = reverse::steps(graph, &options.mode, &options.fetch, &mut outside)?;
    let Outside { mut layout, inputs, slots, weights, row_buffer, segments, .. } = outside;
    let places = place(&steps, options, &mut layout)?;
    let mut plan = Plan {
        batch: graph.batch,
        inputs,
        params: slots,
        chunks,
        fetched: options.fetch.iter().map(|v| places[steps.of_value[v].0]).collect(),
        weights,
        norms: None,
        norm_names: Vec::new(),
        stride: graph.batch.next_multiple_of(ALIGN),
        factors: None,
        factor_stride: 0,
        forward: Recording::new(),
        backward: Recording::new(),
        sums: Recording::new(),
        zero: Recording::new(),
        segments: None,
        memory: Memory::default(),
        layout,
    };
    let rows = match row_buffer {
        Some((buffer, used)) if !segments.is_empty() => {
            Some(Rows::new(&mut plan, buffer.part(0, used), &segments)?)
        }
        _ => None,
    };
    if let Mode::PerExample { .. } = options.mode {
        per_example_buffers(graph, options, &steps, &segments, &mut plan);
    }
    for chunk in &plan.chunks {
        plan.zero.clear(chunk.grads);
    }
    let [forward, backward, sums] = Recorder::new(graph, &steps, &places, rows, &plan).record()?;
    (plan.forward, plan.backward, plan.sums) = (forward, backward, sums);
    plan.memory = account(&plan);
    if let Some(allowed) = options.memory
        && plan.memory.total() > allowed
    {
        return Err(Error::Limit {
            what: format!("a physical batch of {} ({})", graph.batch, plan.memory),
            needed: plan.memory.total(),
            allowed,
        });
    }
    Ok(plan)
}

/// Lays out parameters: trainable ones flat, those with row gradients first (one binding must cover them all),
/// frozen ones in buffers of their own.
fn parameters(
    graph: &Graph,
    options: &Options,
    training: bool,
    layout: &mut Layout,
) -> Result<(Vec<ParamSlot>, Vec<Chunk>)> {
    let rows = row_params(graph);
    let trained = |p: usize| training && graph.params[p].trainable;
    let mut order: Vec<usize> = (0..graph.params.len()).filter(|&p| trained(p)).collect();
    order.sort_by_key(|p| !rows.contains(p));
    let most = (options.max_binding_bytes.min(options.max_buffer_bytes) / 4) as usize / ALIGN * ALIGN;
    let mut groups: Vec<(Vec<(usize, usize)>, usize)> = Vec::new();
    for p in order {
        let len = graph.params[p].shape.len();
        let padded = len.next_multiple_of(ALIGN);
        if padded > most {
            return Err(Error::Limit {
                what: format!("parameter {} (the device's largest binding)", graph.params[p].name),
                needed: 4 * padded as u64,
                allowed: 4 * most as u64,
            });
        }
        match groups.last_mut() {
            Some((members, used)) if *used + padded <= most => {
                members.push((p, *used));
                *used += padded;
            }
            _ => groups.push((vec![(p, 0)], padded)),
        }
    }
    let mut chunks = Vec::new();
    let mut at: BTreeMap<usize, (Slice, Slice)> = BTreeMap::new();
    let mut base = 0;
    for (i, (members, used)) in groups.iter().enumerate() {
        let params = layout.add(format!("parameters {i}"), DType::F32, *used);
        let grads = layout.add(format!("gradients {i}"), DType::F32, *used);
        chunks.push(Chunk { params, grads, base });
        base += *used as u64;
        for &(p, offset) in members {
            let len = graph.params[p].shape.len();
            at.insert(p, (params.part(offset, len), grads.part(offset, len)));
        }
    }
    let slots = graph
        .params
        .iter()
        .enumerate()
        .map(|(p, spec)| match at.get(&p) {
            Some(&(values, grad)) => ParamSlot { spec: spec.clone(), values, grad: Some(grad) },
            None => {
                let values = layout.add(format!("parameter {}", spec.name), DType::F32, spec.shape.len());
                ParamSlot { spec: spec.clone(), values, grad: None }
            }
        })
        .collect();
    Ok((slots, chunks))
}

/// Trainable parameters whose op writes row gradients.
fn row_params(graph: &Graph) -> Vec<usize> {
    let mut found = Vec::new();
    for node in &graph.nodes {
        for (i, v) in node.inputs.iter().enumerate() {
            if let (Some(p), ParamGrad::Rows) = (graph.trainable_param(*v), node.op.param_grad(i))
                && !found.contains(&p)
            {
                found.push(p);
            }
        }
    }
    found
}

fn row_buffer(graph: &Graph, training: bool, layout: &mut Layout) -> Option<(Slice, usize)> {
    let len: usize = row_params(graph)
        .into_iter()
        .map(|p| (graph.batch * graph.params[p].shape.len()).next_multiple_of(ALIGN))
        .sum();
    (training && len > 0).then(|| (layout.add("row gradients", DType::F32, len), 0))
}

fn place(steps: &Steps, options: &Options, layout: &mut Layout) -> Result<Vec<Slice>> {
    let end = steps.steps.len();
    let mut life = vec![(usize::MAX, 0); steps.bufs.len()];
    for (t, step) in steps.steps.iter().enumerate() {
        for b in &step.touches {
            life[b.0] = (life[b.0].0.min(t), life[b.0].1.max(t));
        }
    }
    for v in &options.fetch {
        life[steps.of_value[v].0].1 = end;
    }
    let mut places: Vec<Option<Slice>> = steps.bufs.iter().map(|b| b.fixed).collect();
    let most = (options.max_binding_bytes.min(options.max_buffer_bytes) / 4).min(usize::MAX as u64) as usize;
    for dtype in [DType::F32, DType::U32] {
        let members: Vec<usize> = (0..steps.bufs.len())
            .filter(|&i| steps.bufs[i].fixed.is_none() && steps.bufs[i].dtype == dtype)
            .collect();
        let lives: Vec<Lifetime> = members
            .iter()
            .map(|&i| Lifetime { len: steps.bufs[i].len, first: life[i].0, last: life[i].1 })
            .collect();
        let (found, arenas) = memory::place(&lives, most / ALIGN * ALIGN)?;
        let arenas: Vec<Slice> = arenas
            .iter()
            .enumerate()
            .map(|(i, len)| layout.add(format!("arena {dtype:?} {i}"), dtype, *len))
            .collect();
        for (&i, place) in members.iter().zip(found) {
            places[i] = Some(arenas[place.arena].part(place.offset, steps.bufs[i].len));
        }
    }
    Ok(places.into_iter().map(|p| p.expect("placed above")).collect())
}

fn per_example_buffers(
    graph: &Graph,
    options: &Options,
    steps: &Steps,
    segments: &[(usize, usize)],
    plan: &mut Plan,
) {
    let of = |p: usize| graph.params[p].name.clone();
    plan.norm_names = segments.iter().map(|&(p, _)| of(p)).collect();
    for step in &steps.steps {
        match &step.work {
            Work::Norm { param, .. } => plan.norm_names.push(of(*param)),
            Work::Backward { fused, .. } => plan.norm_names.extend(fused.iter().map(|&(_, p)| of(p))),
            _ => {}
        }
    }
    let all = plan.norm_names.len() * plan.stride;
    plan.norms = Some(plan.layout.add("squared norms", DType::F32, all));
    plan.factor_stride = if options.per_layer { plan.stride } else { 0 };
    let factors = if options.per_layer { all } else { graph.batch };
    plan.factors = Some(plan.layout.add("factors", DType::F32, factors));
}

fn account(plan: &Plan) -> Memory {
    let mut memory = Memory::default();
    for buffer in plan.layout.buffers() {
        let bytes = (buffer.len.max(1).next_multiple_of(ALIGN) * 4) as u64;
        let group = match buffer.name.split(' ').next() {
            Some("parameters" | "parameter") => &mut memory.parameters,
            Some("gradients") => &mut memory.gradients,
            Some("arena") => &mut memory.transients,
            Some("input" | "weights") => &mut memory.inputs,
            _ => &mut memory.per_example,
        };
        *group += bytes;
    }
    memory
}
