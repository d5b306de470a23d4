//! The order of work: forward, the reverse pass, per-example norms and weighted sums, as steps over virtual
//! buffers that the memory plan will place.

use std::collections::{BTreeMap, BTreeSet};

use super::steps::{Buf, Fixed, Form, Phase, Steps, Target, Work};
use super::{Graph, Mode, Origin, Value};
use crate::error::{Error, Result};
use crate::ops::{ParamGrad, lookup_grad, weight_grad};
use crate::record::DType;

/// Lists the steps of a graph in this mode.
pub(super) fn steps(graph: &Graph, mode: &Mode, fetch: &[Value], fixed: &mut dyn Fixed) -> Result<Steps> {
    let mut steps = Steps::default();
    let loss = match mode {
        Mode::Forward => None,
        Mode::PerExample { loss } | Mode::Plain { loss } => Some(*loss),
    };
    let wanted: Vec<Value> = fetch.iter().copied().chain(loss).collect();
    let live = live_nodes(graph, &wanted);
    forward(graph, &live, fixed, &mut steps);
    if let Some(loss) = loss {
        let live = live_nodes(graph, &[loss]);
        Reverse::new(graph, matches!(mode, Mode::PerExample { .. }), &live, fixed, &mut steps).run(loss)?;
    }
    Ok(steps)
}

/// Nodes that some wanted value depends on.
fn live_nodes(graph: &Graph, wanted: &[Value]) -> BTreeSet<usize> {
    let mut live = BTreeSet::new();
    let mut todo: Vec<Value> = wanted.to_vec();
    while let Some(value) = todo.pop() {
        if let Origin::Node { node, .. } = graph.values[value.0].origin
            && live.insert(node)
        {
            todo.extend(&graph.nodes[node].inputs);
        }
    }
    live
}

fn forward(graph: &Graph, live: &BTreeSet<usize>, fixed: &mut dyn Fixed, steps: &mut Steps) {
    for &n in live {
        let node = &graph.nodes[n];
        for &v in node.inputs.iter().chain(&node.outputs) {
            if steps.of_value.contains_key(&v) {
                continue;
            }
            let info = &graph.values[v.0];
            let (name, slice) = match &info.origin {
                Origin::Input(name) => (name.clone(), Some(fixed.input(name, &info.tensor))),
                Origin::Param(p) => (graph.params[*p].name.clone(), Some(fixed.param(*p))),
                Origin::Node { output, .. } => (format!("{}.{output}", node.label), None),
            };
            let buf = steps.buf(name, info.tensor.dtype, info.tensor.shape.len(), slice);
            steps.of_value.insert(v, buf);
        }
        let shapes: Vec<_> = node.inputs.iter().map(|v| graph.shape(*v).clone()).collect();
        let scratch = steps.scratch(&node.label, node.op.scratch(&shapes));
        let touches: Vec<Buf> = node
            .inputs
            .iter()
            .chain(&node.outputs)
            .map(|v| steps.of_value[v])
            .chain(scratch.clone())
            .collect();
        steps.push(Phase::Forward, Work::Forward { node: n, scratch }, touches);
    }
}

/// Inputs of an op and their parameters.
type FusedParams = Vec<(usize, usize)>;

/// State of the reverse pass.
struct Reverse<'a> {
    graph: &'a Graph,
    per_example: bool,
    live: &'a BTreeSet<usize>,
    fixed: &'a mut dyn Fixed,
    steps: &'a mut Steps,
    /// Values that depend on a trainable parameter.
    needs: BTreeSet<Value>,
    /// Gradient so far of each value, until it is consumed.
    grads: BTreeMap<Value, Buf>,
    /// How many unconsumed gradients lie in a buffer (a sum hands one buffer to both its terms).
    owners: BTreeMap<Buf, usize>,
    /// Buffers that a later norm or sum reads: never changed in place.
    kept: BTreeSet<Buf>,
    /// Uses of each parameter, collected until all are there.
    uses: BTreeMap<usize, Vec<Form>>,
    uses_left: BTreeMap<usize, usize>,
    sums: Vec<(usize, Form)>,
    /// Sums that ops compute themselves: node, gradient of its result, inputs and their parameters.
    fused: Vec<(usize, Buf, FusedParams)>,
}

impl<'a> Reverse<'a> {
    fn new(
        graph: &'a Graph,
        per_example: bool,
        live: &'a BTreeSet<usize>,
        fixed: &'a mut dyn Fixed,
        steps: &'a mut Steps,
    ) -> Self {
        let mut needs = BTreeSet::new();
        let mut uses_left = BTreeMap::new();
        for &n in live {
            let node = &graph.nodes[n];
            for v in &node.inputs {
                if let Some(p) = graph.trainable_param(*v) {
                    *uses_left.entry(p).or_insert(0) += 1;
                    needs.insert(*v);
                }
            }
            if node.inputs.iter().any(|v| needs.contains(v)) {
                needs.extend(&node.outputs);
            }
        }
        Reverse {
            graph,
            per_example,
            live,
            fixed,
            steps,
            needs,
            grads: BTreeMap::new(),
            owners: BTreeMap::new(),
            kept: BTreeSet::new(),
            uses: BTreeMap::new(),
            uses_left,
            sums: Vec::new(),
            fused: Vec::new(),
        }
    }

    fn run(mut self, loss: Value) -> Result<()> {
        let graph = self.graph;
        if graph.shape(loss).dims() != [graph.batch] {
            let what = format!(
                "the loss is {}, not one number for each of {} examples",
                graph.shape(loss),
                graph.batch
            );
            return Err(Error::shape("loss", what));
        }
        if self.uses_left.is_empty() {
            return Err(Error::invalid("loss", "", "depends on no trainable parameter"));
        }
        let slice = self.fixed.weights();
        let weights = self.steps.buf("weights", DType::F32, graph.batch, Some(slice));
        self.kept.insert(weights);
        self.give(loss, weights);
        for &n in self.live.iter().rev() {
            self.node(n)?;
        }
        if let Some((&p, _)) = self.uses.iter().next() {
            // A norm left out would be a parameter that is never clipped.
            return Err(Error::Mixes {
                op: format!("parameter {}", graph.params[p].name),
                why: "its uses have gradients of different forms; use separate parameters".into(),
            });
        }
        if !self.steps.rows.is_empty() {
            let rows: Vec<Buf> = self.steps.rows.iter().map(|(_, b)| *b).collect();
            if self.per_example {
                self.steps.push(Phase::Backward, Work::RowNorms, rows.clone());
            }
            self.steps.push(Phase::Sums, Work::RowSums, rows);
        }
        for (param, form) in std::mem::take(&mut self.sums) {
            self.steps.push(Phase::Sums, Work::Sum { param, form }, form.bufs());
        }
        for (node, dy, fused) in std::mem::take(&mut self.fused) {
            self.fused_sums(Phase::Sums, node, dy, fused);
        }
        Ok(())
    }

    fn give(&mut self, value: Value, buf: Buf) {
        self.grads.insert(value, buf);
        *self.owners.entry(buf).or_insert(0) += 1;
    }

    fn take(&mut self, value: Value) -> Option<Buf> {
        let buf = self.grads.remove(&value)?;
        *self.owners.get_mut(&buf).expect("owned") -= 1;
        Some(buf)
    }

    fn node(&mut self, n: usize) -> Result<()> {
        let node = &self.graph.nodes[n];
        let Some(dy) = self.take(node.outputs[0]) else { return Ok(()) };
        if !node.inputs.iter().any(|v| self.needs.contains(v)) {
            return Ok(());
        }
        let mut dx = vec![None; node.inputs.len()];
        let mut later = Vec::new();
        let mut used = Vec::new();
        let mut fused = Vec::new();
        for (i, &v) in node.inputs.iter().enumerate() {
            if !self.needs.contains(&v) {
                continue;
            }
            if let Origin::Node { output: 1.., .. } = self.graph.values[v.0].origin {
                let what = format!("input {i} is a saved statistic, through which no gradient flows");
                return Err(Error::shape(format!("{} ({})", node.op.name(), node.label), what));
            }
            if let Some(p) = self.graph.trainable_param(v) {
                match self.param_use(n, i, p, dy)? {
                    Use::Rows(target) => dx[i] = Some(target),
                    Use::Form(form) => used.push((p, form)),
                    Use::Fused => fused.push((i, p)),
                }
            } else if node.op.param_grad(i) != ParamGrad::None {
                // Backward writes rows per example there, or nothing: either would be taken for a gradient.
                let what = format!("input {i} is for a parameter: what is computed has no gradient there");
                return Err(Error::shape(format!("{} ({})", node.op.name(), node.label), what));
            } else if node.op.passes_through(i) {
                self.pass_through(v, dy);
            } else if node.op.differentiable(i) {
                if node.inputs[..i].contains(&v) {
                    // Two gradients of one value in one step cannot share a buffer: add the second afterwards.
                    let buf = self.new_grad(v);
                    dx[i] = Some(Target { buf, accumulate: false });
                    later.push((v, buf));
                } else {
                    dx[i] = Some(self.target(v, dy));
                }
            } else {
                let what = format!("input {i} depends on trainable parameters but has no gradient");
                return Err(Error::shape(format!("{} ({})", node.op.name(), node.label), what));
            }
        }
        if dx.iter().any(Option::is_some) || (self.per_example && !fused.is_empty()) {
            let shapes: Vec<_> = node.inputs.iter().map(|v| self.graph.shape(*v).clone()).collect();
            let scratch = self.steps.scratch(&node.label, node.op.scratch_backward(&shapes));
            let reads = node.op.reads();
            let touches: Vec<Buf> = reads
                .inputs
                .iter()
                .map(|&i| self.steps.of_value[&node.inputs[i]])
                .chain(reads.outputs.iter().map(|&o| self.steps.of_value[&node.outputs[o]]))
                .chain([dy])
                .chain(dx.iter().flatten().map(|t| t.buf))
                .chain(scratch.clone())
                .collect();
            let work = Work::Backward { node: n, dy, dx, fused: fused.clone(), scratch };
            self.steps.push(Phase::Backward, work, touches);
        }
        if !fused.is_empty() {
            self.kept.insert(dy);
            match self.per_example {
                true => self.fused.push((n, dy, fused)),
                false => self.fused_sums(Phase::Backward, n, dy, fused),
            }
        }
        for (v, buf) in later {
            let to = self.grads[&v];
            self.steps.push(Phase::Backward, Work::Accumulate { from: buf, to }, [buf, to]);
        }
        for (p, form) in used {
            self.use_form(p, form)?;
        }
        Ok(())
    }

    fn fused_sums(&mut self, phase: Phase, n: usize, dy: Buf, fused: FusedParams) {
        let node = &self.graph.nodes[n];
        let shapes: Vec<_> = node.inputs.iter().map(|v| self.graph.shape(*v).clone()).collect();
        let scratch = self.steps.scratch(&node.label, node.op.scratch_backward(&shapes));
        let inputs = node.op.reads().inputs;
        let inputs = inputs.iter().map(|&i| self.steps.of_value[&node.inputs[i]]);
        let touches: Vec<Buf> = inputs.chain([dy]).chain(scratch.clone()).collect();
        self.steps.push(phase, Work::FusedSums { node: n, dy, fused, scratch }, touches);
    }

    fn new_grad(&mut self, v: Value) -> Buf {
        let name = format!("grad of {}", self.steps.bufs[self.steps.of_value[&v].0].name);
        self.steps.buf(name, DType::F32, self.graph.shape(v).len(), None)
    }

    /// Where the gradient of `v` goes, in place if nobody else needs what lies there.
    fn target(&mut self, v: Value, dy: Buf) -> Target {
        match self.grads.get(&v).copied() {
            None => {
                let buf = self.new_grad(v);
                self.give(v, buf);
                Target { buf, accumulate: false }
            }
            Some(buf) if self.owners[&buf] == 1 && !self.kept.contains(&buf) && buf != dy => {
                Target { buf, accumulate: true }
            }
            Some(_) => Target { buf: self.own_copy(v), accumulate: true },
        }
    }

    fn own_copy(&mut self, v: Value) -> Buf {
        let from = self.take(v).expect("has a gradient");
        let to = self.new_grad(v);
        self.steps.push(Phase::Backward, Work::Copy { from, to }, [from, to]);
        self.give(v, to);
        to
    }

    fn pass_through(&mut self, v: Value, dy: Buf) {
        if self.grads.contains_key(&v) {
            let Target { buf: to, .. } = self.target(v, dy);
            self.steps.push(Phase::Backward, Work::Accumulate { from: dy, to }, [dy, to]);
        } else {
            self.give(v, dy);
        }
    }

    fn param_use(&mut self, n: usize, i: usize, p: usize, dy: Buf) -> Result<Use> {
        let node = &self.graph.nodes[n];
        let batch = self.graph.batch;
        let tokens = |width: usize| self.graph.shape(node.outputs[0]).len() / batch / width;
        Ok(match node.op.param_grad(i) {
            ParamGrad::Rows => {
                let found = self.steps.rows.iter().find(|(q, _)| *q == p).map(|(_, b)| *b);
                let buf = found.unwrap_or_else(|| {
                    let len = batch * self.graph.params[p].shape.len();
                    let slice = self.fixed.rows(p, len);
                    let buf = self.steps.buf(
                        format!("rows of {}", self.graph.params[p].name),
                        DType::F32,
                        len,
                        Some(slice),
                    );
                    self.steps.rows.push((p, buf));
                    buf
                });
                Use::Rows(Target { buf, accumulate: found.is_some() })
            }
            ParamGrad::Product { x } => {
                let width = self.graph.shape(node.outputs[0]).width();
                let x = self.steps.of_value[&node.inputs[x]];
                Use::Form(Form::Product { x, g: dy, tokens: tokens(width) })
            }
            ParamGrad::Lookup { ids } => {
                let width = self.graph.params[p].shape.width();
                let ids = self.steps.of_value[&node.inputs[ids]];
                Use::Form(Form::Lookup { ids, g: dy, tokens: tokens(width) })
            }
            ParamGrad::Output => Use::Form(Form::Output { g: dy }),
            ParamGrad::Fused if self.uses_left[&p] == 1 => Use::Fused,
            ParamGrad::Fused => {
                return Err(Error::Mixes {
                    op: format!("parameter {}", self.graph.params[p].name),
                    why: format!("{} computes its norm, and something else uses it too", node.op.name()),
                });
            }
            ParamGrad::None => {
                let why = format!(
                    "input {i} is a trainable parameter ({}) without a gradient rule",
                    self.graph.params[p].name
                );
                return Err(Error::shape(format!("{} ({})", node.op.name(), node.label), why));
            }
        })
    }

    fn use_form(&mut self, p: usize, form: Form) -> Result<()> {
        if !self.per_example {
            self.steps.push(Phase::Backward, Work::Sum { param: p, form }, form.bufs());
            return Ok(());
        }
        self.kept.extend(form.bufs());
        self.uses.entry(p).or_default().push(form);
        let left = self.uses_left.get_mut(&p).expect("counted");
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        let uses = self.uses.remove(&p).expect("pushed above");
        let form = if uses.len() == 1 { uses[0] } else { self.join(p, &uses)? };
        let batch = self.graph.batch;
        let width = |buf: Buf, tokens: usize| self.steps.bufs[buf.0].len / batch / tokens;
        let shape = &self.graph.params[p].shape;
        let tensors = match form {
            Form::Product { x, g, tokens } => {
                let (width_in, width_out) = (width(x, tokens), width(g, tokens));
                weight_grad::scratch(weight_grad::Dims { batch, tokens, width_in, width_out })
            }
            Form::Lookup { tokens, .. } => {
                let (width, vocabulary) = (shape.width(), shape.rows());
                lookup_grad::scratch(lookup_grad::Dims { batch, tokens, width, vocabulary })
            }
            Form::Output { .. } => Vec::new(),
        };
        let scratch = self.steps.scratch(&self.graph.params[p].name, tensors);
        let touches: Vec<Buf> = form.bufs().into_iter().chain(scratch.clone()).collect();
        self.steps.push(Phase::Backward, Work::Norm { param: p, form, scratch }, touches);
        self.sums.push((p, form));
        Ok(())
    }

    /// One form for several uses of a parameter: uses side by side along the token axis, because the squared
    /// norm of a sum needs the cross terms.
    fn join(&mut self, p: usize, uses: &[Form]) -> Result<Form> {
        let name = self.graph.params[p].name.clone();
        let batch = self.graph.batch;
        let mut concat = |parts: Vec<(Buf, usize)>| {
            let dtype = self.steps.bufs[parts[0].0.0].dtype;
            let len = parts.iter().map(|(b, _)| self.steps.bufs[b.0].len).sum();
            let to = self.steps.buf(format!("uses of {name}"), dtype, len, None);
            let touches: Vec<Buf> = parts.iter().map(|(b, _)| *b).chain([to]).collect();
            let parts = parts.iter().map(|(b, _)| (*b, self.steps.bufs[b.0].len / batch)).collect();
            self.steps.push(Phase::Backward, Work::Concat { parts, to }, touches);
            to
        };
        let mut products = Vec::new();
        let mut lookups = Vec::new();
        for form in uses {
            match *form {
                Form::Product { x, g, tokens } => products.push((x, g, tokens)),
                Form::Lookup { ids, g, tokens } => lookups.push((ids, g, tokens)),
                Form::Output { .. } => {}
            }
        }
        if products.len() == uses.len() {
            let x = concat(products.iter().map(|&(x, _, t)| (x, t)).collect());
            let g = concat(products.iter().map(|&(_, g, t)| (g, t)).collect());
            return Ok(Form::Product { x, g, tokens: products.iter().map(|u| u.2).sum() });
        }
        if lookups.len() == uses.len() {
            let ids = concat(lookups.iter().map(|&(i, _, t)| (i, t)).collect());
            let g = concat(lookups.iter().map(|&(_, g, t)| (g, t)).collect());
            return Ok(Form::Lookup { ids, g, tokens: lookups.iter().map(|u| u.2).sum() });
        }
        Err(Error::Mixes {
            op: format!("parameter {name}"),
            why: format!(
                "its {} uses have gradients of different forms; use separate parameters",
                uses.len()
            ),
        })
    }
}

enum Use {
    Rows(Target),
    Form(Form),
    Fused,
}
