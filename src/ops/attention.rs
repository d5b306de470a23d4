//! Multi-head attention with exact softmax: `y = softmax(q k^T / sqrt(d)) v` per example and head (Vaswani et al.
//! 2017, arXiv 1706.03762, equation 1).
//!
//! No map of scores is stored: forward keeps the log-sum-exp of every query's scores, and backward recomputes the
//! probabilities from it (Dao et al. 2022, arXiv 2205.14135), once by queries and once by keys, so that no sum needs
//! atomics and each example stays by itself.

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Grad, Op, ParamGrad, Reads, Tensor, attention_f32};
use crate::record::{Builder, Recording};
use crate::shape::Shape;

/// Head dims that are multiples of 4.
static QUADS: Kernels = Kernels {
    forward: crate::kernel!("ops/attention", "forward", forward, attention_f32::forward),
    delta: crate::kernel!("ops/attention", "backward_delta", delta, attention_f32::delta),
    backward: crate::kernel!("ops/attention", "backward", backward, attention_f32::backward),
};
/// All others.
static ANY: Kernels = Kernels {
    forward: crate::kernel!("ops/attention_any", "forward", forward, attention_f32::forward),
    delta: crate::kernel!("ops/attention_any", "backward_delta", delta, attention_f32::delta),
    backward: crate::kernel!("ops/attention_any", "backward", backward, attention_f32::backward),
};

struct Kernels {
    forward: Kernel,
    delta: Kernel,
    backward: Kernel,
}

/// Rows of one head that a workgroup owns.
const ROWS_PER_GROUP: usize = 32;

/// Attention of H heads, width W = H * head dim.
///
/// Self-attention takes qkv (B, T, 3 W), rows `[q | k | v]`; cross-attention takes q (B, Tq, W) and kv (B, Tk, 2 W), rows
/// `[k | v]`. Heads are contiguous within each part. Result (B, Tq, W); saves the log-sum-exp (B, H, Tq). A query that
/// sees no key gives zeros and has no gradient.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    heads: usize,
    cross: bool,
    causal: bool,
}

impl Attention {
    /// Every token sees every token.
    pub fn full(heads: usize) -> Self {
        Attention { heads, cross: false, causal: false }
    }

    /// Every token sees itself and those before it.
    pub fn causal(heads: usize) -> Self {
        Attention { heads, cross: false, causal: true }
    }

    /// Queries of one sequence see all keys of another.
    pub fn cross(heads: usize) -> Self {
        Attention { heads, cross: true, causal: false }
    }

    /// The last query sees all keys, each one before it one key less: queries that continue a sequence.
    pub fn cross_causal(heads: usize) -> Self {
        Attention { heads, cross: true, causal: true }
    }

    fn dims(&self, inputs: &[Shape]) -> Option<Dims> {
        let (batch, queries, keys, width) = match (self.cross, inputs) {
            (true, [q, kv]) => match (q.dims(), kv.dims()) {
                (&[b, tq, w], &[b2, tk, w2]) if b == b2 && w2 == 2 * w => (b, tq, tk, w),
                _ => return None,
            },
            (false, [qkv]) => match qkv.dims() {
                &[b, t, w3] if w3 % 3 == 0 => (b, t, t, w3 / 3),
                _ => return None,
            },
            _ => return None,
        };
        let fits = self.heads > 0 && width > 0 && width % self.heads == 0 && keys > 0;
        fits.then(|| Dims {
            batch,
            heads: self.heads,
            queries,
            keys,
            head: width / self.heads,
            causal: self.causal,
            packed: !self.cross,
        })
    }
}

/// Extents of one call.
#[derive(Clone, Copy)]
pub(super) struct Dims {
    pub batch: usize,
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    /// Channels of a head.
    pub head: usize,
    pub causal: bool,
    /// Queries, keys and values are one tensor.
    pub packed: bool,
}

impl Dims {
    fn kernels(&self) -> &'static Kernels {
        if self.head.is_multiple_of(4) { &QUADS } else { &ANY }
    }

    fn groups(&self, rows: usize) -> usize {
        self.batch * self.heads * rows.div_ceil(ROWS_PER_GROUP)
    }

    /// Starts a dispatch with the params that every kernel takes.
    fn start<'r>(&self, rec: &'r mut Recording, kernel: &'static Kernel) -> Builder<'r> {
        rec.dispatch(kernel)
            .spec("HEAD_DIM", self.head as u32)
            .spec("PACKED", self.packed as u32)
            .n("batch", self.batch)
            .n("heads", self.heads)
            .n("queries", self.queries)
            .n("keys", self.keys)
            .n("causal", self.causal as usize)
            .n("q_row", self.q_row())
            .n("kv_row", self.kv_row())
            .n("k_at", self.k_at())
            .param("scale", 1.0 / (self.head as f32).sqrt())
    }

    /// From the params of a dispatch and the length of a tensor (B, Tq, W).
    pub fn of<F: Real>(a: &Args<'_, F>, len: usize) -> Self {
        let (batch, heads, queries) = (a.n("batch"), a.n("heads"), a.n("queries"));
        Dims {
            batch,
            heads,
            queries,
            keys: a.n("keys"),
            head: len / (batch * heads * queries),
            causal: a.n("causal") != 0,
            packed: a.n("k_at") != 0,
        }
    }

    /// Width of all heads.
    pub fn width(&self) -> usize {
        self.heads * self.head
    }

    /// Elements from one query to the next.
    pub fn q_row(&self) -> usize {
        if self.packed { 3 * self.width() } else { self.width() }
    }

    /// Elements from one key to the next.
    pub fn kv_row(&self) -> usize {
        if self.packed { 3 * self.width() } else { 2 * self.width() }
    }

    /// First channel of the keys; values follow them.
    pub fn k_at(&self) -> usize {
        if self.packed { self.width() } else { 0 }
    }

    /// Number of keys that query t sees: the first ones.
    pub fn seen(&self, t: usize) -> usize {
        if self.causal { (t + 1 + self.keys).saturating_sub(self.queries).min(self.keys) } else { self.keys }
    }

    /// Index of the first channel of a head: of query t in `q`, of key s and value s in `kv`, of row t in `y`.
    pub fn q(&self, b: usize, h: usize, t: usize) -> usize {
        (b * self.queries + t) * self.q_row() + h * self.head
    }

    pub fn k(&self, b: usize, h: usize, s: usize) -> usize {
        (b * self.keys + s) * self.kv_row() + self.k_at() + h * self.head
    }

    pub fn v(&self, b: usize, h: usize, s: usize) -> usize {
        self.k(b, h, s) + self.width()
    }

    pub fn y(&self, b: usize, h: usize, t: usize) -> usize {
        (b * self.queries + t) * self.width() + h * self.head
    }

    /// Index into `lse` and `delta`.
    pub fn statistic(&self, b: usize, h: usize, t: usize) -> usize {
        (b * self.heads + h) * self.queries + t
    }
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        let Some(d) = self.dims(inputs) else {
            let wanted = if self.cross { "q (B, Tq, W) and kv (B, Tk, 2 W)" } else { "qkv (B, T, 3 W)" };
            let what = format!("needs {wanted} with W a multiple of {} heads, got {inputs:?}", self.heads);
            return Err(Error::shape("attention", what));
        };
        let y = Tensor::float([d.batch, d.queries, d.width()]);
        Ok(vec![y, Tensor::float([d.batch, d.heads, d.queries])])
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn param_grad(&self, _input: usize) -> ParamGrad {
        ParamGrad::None
    }

    fn differentiable(&self, _input: usize) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads { inputs: if self.cross { vec![0, 1] } else { vec![0] }, outputs: vec![0, 1] }
    }

    fn scratch(&self, _inputs: &[Shape]) -> Vec<Tensor> {
        // Stands for q where queries, keys and values are one tensor.
        if self.cross { Vec::new() } else { vec![Tensor::float([1])] }
    }

    fn scratch_backward(&self, inputs: &[Shape]) -> Vec<Tensor> {
        let d = self.dims(inputs).expect("checked by outputs");
        // Delta, then what stands for q, and for gradients that are not wanted.
        vec![Tensor::float([d.batch, d.heads, d.queries]), Tensor::float([1]), Tensor::float([1])]
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let d = self.dims(io.shapes).expect("checked by outputs");
        let (q, kv) = if self.cross { (io.inputs[0], io.inputs[1]) } else { (io.scratch[0], io.inputs[0]) };
        d.start(rec, &d.kernels().forward)
            .bind("q", q)
            .bind("kv", kv)
            .bind("y", io.outputs[0])
            .bind("lse", io.outputs[1])
            .n("query_groups", 0)
            .n("accumulate_q", 0)
            .n("accumulate_kv", 0)
            .groups(d.groups(d.queries))
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let d = self.dims(io.shapes).expect("checked by outputs");
        let (dq, dkv) = if self.cross { (io.dx[0], io.dx[1]) } else { (io.dx[0], io.dx[0]) };
        let (query_groups, key_groups) = (
            if dq.is_some() { d.groups(d.queries) } else { 0 },
            if dkv.is_some() { d.groups(d.keys) } else { 0 },
        );
        if query_groups + key_groups == 0 {
            return Ok(());
        }
        let (delta, place, other) = (io.scratch[0], io.scratch[1], io.scratch[2]);
        d.start(rec, &d.kernels().delta)
            .bind("y", io.outputs[0])
            .bind("dy", io.dy)
            .bind("delta", delta)
            .n("query_groups", 0)
            .n("accumulate_q", 0)
            .n("accumulate_kv", 0)
            .groups(d.groups(d.queries))?;
        let (q, kv) = if self.cross { (io.inputs[0], io.inputs[1]) } else { (place, io.inputs[0]) };
        let dq_slice = if self.cross { dq.map_or(other, |g| g.slice) } else { other };
        let flag = |grad: Option<Grad>| grad.map_or(0, |g| g.flag());
        d.start(rec, &d.kernels().backward)
            .bind("q", q)
            .bind("kv", kv)
            .bind("dy", io.dy)
            .bind("lse", io.outputs[1])
            .bind("delta", delta)
            .bind("dq", dq_slice)
            .bind("dkv", dkv.map_or(place, |g| g.slice))
            .n("query_groups", query_groups)
            .param("accumulate_q", flag(dq))
            .param("accumulate_kv", flag(dkv))
            .groups(query_groups + key_groups)
    }

    fn flops(&self, inputs: &[Shape]) -> u64 {
        let d = self.dims(inputs).expect("checked by outputs");
        4 * (d.batch * d.heads * d.queries * d.keys * d.head) as u64
    }
}

fn dot<F: Real>(a: &[F], b: &[F]) -> F {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

/// `to += factor * row`
fn add<F: Real>(to: &mut [F], factor: F, row: &[F]) {
    to.iter_mut().zip(row).for_each(|(t, &r)| *t += factor * r);
}

/// Every (example, head).
fn heads(d: Dims) -> impl Iterator<Item = (usize, usize)> {
    (0..d.batch).flat_map(move |b| (0..d.heads).map(move |h| (b, h)))
}

fn scale<F: Real>(d: &Dims) -> F {
    F::of(d.head as f64).sqrt().recip()
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let (q, kv, y, lse) = (a.input("q"), a.input("kv"), a.output("y"), a.output("lse"));
    let d = Dims::of(a, y.len());
    let q = if d.packed { kv } else { q };
    let scale: F = scale(&d);
    for (b, h) in heads(d) {
        for t in 0..d.queries {
            let row = &q[d.q(b, h, t)..][..d.head];
            let scores: Vec<F> =
                (0..d.seen(t)).map(|s| scale * dot(row, &kv[d.k(b, h, s)..][..d.head])).collect();
            // Not `max`, which drops NaN.
            let top = scores.iter().fold(F::min_value(), |m, &s| if s > m { s } else { m });
            let shares: Vec<F> = scores.iter().map(|&s| (s - top).exp()).collect();
            let sum: F = shares.iter().copied().sum();
            lse[d.statistic(b, h, t)] = if scores.is_empty() { F::zero() } else { top + sum.ln() };
            let y = &mut y[d.y(b, h, t)..][..d.head];
            y.fill(F::zero());
            for (s, &share) in shares.iter().enumerate() {
                add(y, share / sum, &kv[d.v(b, h, s)..][..d.head]);
            }
        }
    }
}

fn delta<F: Real>(a: &mut Args<'_, F>) {
    let (y, dy, delta) = (a.input("y"), a.input("dy"), a.output("delta"));
    let d = Dims::of(a, y.len());
    for (b, h) in heads(d) {
        for t in 0..d.queries {
            let at = d.y(b, h, t);
            delta[d.statistic(b, h, t)] = dot(&y[at..][..d.head], &dy[at..][..d.head]);
        }
    }
}

/// `dq_t = scale sum_s ds k_s`, `dk_s = scale sum_t ds q_t`, `dv_s = sum_t p dy_t`, with `p = e^(score - lse)` and
/// `ds = p (dy_t . v_s - delta_t)`.
fn backward<F: Real>(a: &mut Args<'_, F>) {
    let (q, kv, dy) = (a.input("q"), a.input("kv"), a.input("dy"));
    let (lse, delta) = (a.input("lse"), a.input("delta"));
    let (dq, dkv) = (a.output("dq"), a.output("dkv"));
    let d = Dims::of(a, dy.len());
    let q = if d.packed { kv } else { q };
    let scale: F = scale(&d);
    let (queries_wanted, keys_wanted) = wanted(a, &d, dkv.len());
    let [keep_q, keep_kv] = ["accumulate_q", "accumulate_kv"].map(|flag| a.n(flag) != 0);
    let store = |to: &mut [F], values: &[F], keep: bool| {
        to.iter_mut().zip(values).for_each(|(t, &v)| *t = if keep { *t + v } else { v });
    };
    for (b, h) in heads(d) {
        let zeros = |rows: usize| vec![F::zero(); rows * d.head];
        let (mut sum_q, mut sum_k, mut sum_v) = (zeros(d.queries), zeros(d.keys), zeros(d.keys));
        for t in 0..d.queries {
            let (row, g) = (&q[d.q(b, h, t)..][..d.head], &dy[d.y(b, h, t)..][..d.head]);
            let i = d.statistic(b, h, t);
            for s in 0..d.seen(t) {
                let (k, v) = (&kv[d.k(b, h, s)..][..d.head], &kv[d.v(b, h, s)..][..d.head]);
                let p = (scale * dot(row, k) - lse[i]).exp();
                let ds = scale * p * (dot(g, v) - delta[i]);
                add(&mut sum_q[t * d.head..][..d.head], ds, k);
                add(&mut sum_k[s * d.head..][..d.head], ds, row);
                add(&mut sum_v[s * d.head..][..d.head], p, g);
            }
        }
        if queries_wanted {
            let dq = if d.packed { &mut *dkv } else { &mut *dq };
            for (t, sum) in sum_q.chunks(d.head).enumerate() {
                store(&mut dq[d.q(b, h, t)..][..d.head], sum, keep_q);
            }
        }
        if keys_wanted {
            for (s, (k, v)) in sum_k.chunks(d.head).zip(sum_v.chunks(d.head)).enumerate() {
                store(&mut dkv[d.k(b, h, s)..][..d.head], k, keep_kv);
                store(&mut dkv[d.v(b, h, s)..][..d.head], v, keep_kv);
            }
        }
    }
}

/// Whether a backward dispatch gives the gradients by queries, and by keys and values.
pub(super) fn wanted<F: Real>(a: &Args<'_, F>, d: &Dims, len_dkv: usize) -> (bool, bool) {
    (a.n("query_groups") > 0, len_dkv >= d.batch * d.keys * d.kv_row())
}
