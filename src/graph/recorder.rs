//! Records the steps into the recordings of a plan.

use super::lower::Plan;
use super::steps::{Buf, Form, Phase, Steps, Target, Work};
use super::{Graph, Value};
use crate::error::{Error, Result};
use crate::ops::{Backward, Forward, Grad, Sums, accumulate, lookup_grad, row_grad, weight_grad};
use crate::record::{DType, Recording, Slice};
use crate::shape::Shape;

/// The row gradients of a plan.
pub(super) struct Rows {
    buffer: Slice,
    table: Slice,
    segments: Vec<row_grad::Segment>,
}

impl Rows {
    /// Adds the table of `members` (parameter, start) to the plan.
    pub fn new(plan: &mut Plan, buffer: Slice, members: &[(usize, usize)]) -> Result<Self> {
        let first = plan.chunks[0].grads;
        let mut segments = Vec::new();
        for &(p, start) in members {
            let grad = plan.params[p].grad.expect("row parameters are trained");
            if grad.buffer != first.buffer {
                return Err(Error::Limit {
                    what: "all biases and LayerNorm parameters together (the device's largest binding)"
                        .into(),
                    needed: members.iter().map(|&(p, _)| 4 * plan.params[p].spec.shape.len() as u64).sum(),
                    allowed: 4 * first.len as u64,
                });
            }
            segments.push(row_grad::Segment { start, n: grad.len, dst: grad.offset });
        }
        let words = row_grad::table(&segments)?;
        let table = plan.layout.add("row segments", DType::U32, words.len());
        plan.segments = Some((table, words));
        Ok(Rows { buffer, table, segments })
    }
}

pub(super) struct Recorder<'a> {
    graph: &'a Graph,
    steps: &'a Steps,
    places: &'a [Slice],
    rows: Option<Rows>,
    plan: &'a Plan,
    /// Row of `norms` for the next weight.
    next_norm: usize,
}

impl<'a> Recorder<'a> {
    pub fn new(
        graph: &'a Graph,
        steps: &'a Steps,
        places: &'a [Slice],
        rows: Option<Rows>,
        plan: &'a Plan,
    ) -> Self {
        let next_norm = rows.as_ref().map_or(0, |r| r.segments.len());
        Recorder { graph, steps, places, rows, plan, next_norm }
    }

    /// Forward, backward and sums.
    pub fn record(mut self) -> Result<[Recording; 3]> {
        let mut recs: [Recording; 3] = Default::default();
        for step in &self.steps.steps {
            let rec = match step.phase {
                Phase::Forward => &mut recs[0],
                Phase::Backward => &mut recs[1],
                Phase::Sums => &mut recs[2],
            };
            self.work(rec, &step.work)?;
        }
        Ok(recs)
    }

    fn at(&self, buf: Buf) -> Slice {
        self.places[buf.0]
    }

    fn slices(&self, bufs: &[Buf]) -> Vec<Slice> {
        bufs.iter().map(|b| self.at(*b)).collect()
    }

    fn values(&self, values: &[Value]) -> Vec<Slice> {
        values.iter().map(|v| self.at(self.steps.of_value[v])).collect()
    }

    fn shapes(&self, values: &[Value]) -> Vec<Shape> {
        values.iter().map(|v| self.graph.shape(*v).clone()).collect()
    }

    fn work(&mut self, rec: &mut Recording, work: &Work) -> Result<()> {
        match work {
            Work::Forward { node, scratch } => self.forward(rec, *node, scratch),
            Work::Backward { node, dy, dx, fused, scratch } => {
                self.backward(rec, *node, *dy, dx, fused, scratch)
            }
            Work::FusedSums { node, dy, fused, scratch } => self.fused_sums(rec, *node, *dy, fused, scratch),
            Work::Copy { from, to } => rec.copy(self.at(*from), self.at(*to)),
            Work::Accumulate { from, to } => accumulate::record(rec, self.at(*from), self.at(*to)),
            Work::Concat { parts, to } => self.concat(rec, parts, *to),
            Work::Norm { param, form, scratch } => self.norm(rec, *param, *form, scratch),
            Work::Sum { param, form } => self.sum(rec, *param, *form),
            Work::RowNorms => self.row_norms(rec),
            Work::RowSums => self.row_sums(rec),
        }
    }

    fn forward(&self, rec: &mut Recording, n: usize, scratch: &[Buf]) -> Result<()> {
        let node = &self.graph.nodes[n];
        let (shapes, inputs, outputs) =
            (self.shapes(&node.inputs), self.values(&node.inputs), self.values(&node.outputs));
        rec.scope(&node.label);
        let scratch = self.slices(scratch);
        node.op
            .forward(rec, &Forward { shapes: &shapes, inputs: &inputs, outputs: &outputs, scratch: &scratch })
    }

    fn backward(
        &mut self,
        rec: &mut Recording,
        n: usize,
        dy: Buf,
        dx: &[Option<Target>],
        fused: &[(usize, usize)],
        scratch: &[Buf],
    ) -> Result<()> {
        let node = &self.graph.nodes[n];
        let (shapes, inputs, outputs) =
            (self.shapes(&node.inputs), self.values(&node.inputs), self.values(&node.outputs));
        let dx: Vec<Option<Grad>> =
            dx.iter().map(|t| t.map(|t| Grad { slice: self.at(t.buf), accumulate: t.accumulate })).collect();
        rec.scope(&node.label);
        let (dy, scratch) = (self.at(dy), self.slices(scratch));
        let mut norms = vec![None; node.inputs.len()];
        if self.plan.norms.is_some() {
            for &(input, _) in fused {
                norms[input] = Some(self.next_norm());
            }
        }
        let io = Backward {
            shapes: &shapes,
            inputs: &inputs,
            outputs: &outputs,
            dy,
            dx: &dx,
            norms: &norms,
            scratch: &scratch,
        };
        node.op.backward(rec, &io)
    }

    fn fused_sums(
        &self,
        rec: &mut Recording,
        n: usize,
        dy: Buf,
        fused: &[(usize, usize)],
        scratch: &[Buf],
    ) -> Result<()> {
        let node = &self.graph.nodes[n];
        let (shapes, inputs) = (self.shapes(&node.inputs), self.values(&node.inputs));
        let mut sums = vec![None; node.inputs.len()];
        for &(input, param) in fused {
            sums[input] = Some(self.factors_and_grad(param)?);
        }
        rec.scope(&node.label);
        let (dy, scratch) = (self.at(dy), self.slices(scratch));
        node.op.sums(rec, &Sums { shapes: &shapes, inputs: &inputs, dy, sums: &sums, scratch: &scratch })
    }

    /// Where the next weight's squared norms go, (B).
    fn next_norm(&mut self) -> Slice {
        let all = self.plan.norms.expect("per-example plan");
        let out = all.part(self.next_norm * self.plan.stride, self.graph.batch);
        self.next_norm += 1;
        out
    }

    /// The examples' factors for a parameter (B), and the place of its sum.
    fn factors_and_grad(&self, param: usize) -> Result<(Slice, Slice)> {
        let name = &self.graph.params[param].name;
        let no_place = || Error::invalid("parameter", name, "has no place in the gradients");
        let grad = self.plan.params[param].grad.ok_or_else(no_place)?;
        let factors = match self.plan.factor_stride {
            0 => self.factors(),
            stride => {
                let row = self.plan.norm_names.iter().position(|n| n == name).ok_or_else(no_place)?;
                self.factors().part(row * stride, self.graph.batch)
            }
        };
        Ok((factors, grad))
    }

    /// Uses of one parameter side by side: example by example, use by use.
    fn concat(&self, rec: &mut Recording, parts: &[(Buf, usize)], to: Buf) -> Result<()> {
        let to = self.at(to);
        let total: usize = parts.iter().map(|(_, len)| len).sum();
        for example in 0..self.graph.batch {
            let mut offset = example * total;
            for &(from, len) in parts {
                rec.copy(self.at(from).part(example * len, len), to.part(offset, len))?;
                offset += len;
            }
        }
        Ok(())
    }

    fn product(&self, x: Slice, g: Slice, tokens: usize) -> weight_grad::Dims {
        let rows = self.graph.batch * tokens;
        weight_grad::Dims { batch: self.graph.batch, tokens, width_in: x.len / rows, width_out: g.len / rows }
    }

    fn lookup(&self, param: usize, tokens: usize) -> lookup_grad::Dims {
        let shape = &self.graph.params[param].shape;
        lookup_grad::Dims { batch: self.graph.batch, tokens, width: shape.width(), vocabulary: shape.rows() }
    }

    fn norm(&mut self, rec: &mut Recording, param: usize, form: Form, scratch: &[Buf]) -> Result<()> {
        let out = self.next_norm();
        rec.scope(&self.graph.params[param].name);
        match form {
            Form::Product { x, g, tokens } => {
                let (x, g, scratch) = (self.at(x), self.at(g), self.slices(scratch));
                weight_grad::record_sq_norm(rec, self.product(x, g, tokens), x, g, out, &scratch)
            }
            Form::Lookup { ids, g, tokens } => {
                let (ids, g) = (self.at(ids), self.at(g));
                lookup_grad::record_sq_norm(
                    rec,
                    self.lookup(param, tokens),
                    ids,
                    g,
                    out,
                    &self.slices(scratch),
                )
            }
            Form::Output { g } => {
                let n = self.graph.params[param].shape.len();
                row_grad::record_sq_norm_single(rec, self.at(g), self.graph.batch, n, out)
            }
        }
    }

    fn sum(&self, rec: &mut Recording, param: usize, form: Form) -> Result<()> {
        let (factors, grad) = self.factors_and_grad(param)?;
        rec.scope(&self.graph.params[param].name);
        match form {
            Form::Product { x, g, tokens } => {
                let (x, g) = (self.at(x), self.at(g));
                weight_grad::record_sum(rec, self.product(x, g, tokens), x, g, factors, grad)
            }
            Form::Lookup { ids, g, tokens } => {
                let (ids, g) = (self.at(ids), self.at(g));
                lookup_grad::record_sum(rec, self.lookup(param, tokens), ids, g, factors, grad)
            }
            Form::Output { g } => {
                row_grad::record_sum_single(rec, self.at(g), self.graph.batch, grad.len, factors, grad)
            }
        }
    }

    fn factors(&self) -> Slice {
        self.plan.factors.or(self.plan.weights).expect("training plan")
    }

    fn row_norms(&self, rec: &mut Recording) -> Result<()> {
        let rows = self.rows.as_ref().expect("has rows");
        let (batch, stride) = (self.graph.batch, self.plan.stride);
        let norms = self.plan.norms.expect("per-example plan").part(0, rows.segments.len() * stride);
        rec.scope("row gradients");
        row_grad::record_sq_norm(rec, rows.buffer, rows.table, &rows.segments, batch, norms, stride)
    }

    fn row_sums(&self, rec: &mut Recording) -> Result<()> {
        let rows = self.rows.as_ref().expect("has rows");
        let (factors, grads) = (self.factors(), self.plan.chunks[0].grads);
        let (batch, stride) = (self.graph.batch, self.plan.factor_stride);
        rec.scope("row gradients");
        row_grad::record_sum(rec, rows.buffer, rows.table, &rows.segments, batch, factors, stride, grads)
    }
}
