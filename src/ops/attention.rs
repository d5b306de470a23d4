//! Multi-head attention with exact softmax: `y = softmax(q k^T / sqrt(d)) v` per example and head (Vaswani et al. 2017).
//!
//! No map of scores is stored: forward keeps the log-sum-exp of every query's scores, and backward recomputes the
//! probabilities from it (Dao et al. 2022, arXiv 2205.14135), once by queries and once by keys, so that no sum needs
//! atomics and each example stays by itself.

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor, attention_f32};
use crate::record::{Recording, Slice};
use crate::shape::Shape;

static PACKED: Kernels = Kernels {
    forward: crate::kernel!("ops/attention", "forward", forward, attention_f32::forward),
    delta: crate::kernel!("ops/attention", "backward_delta", delta),
    queries: crate::kernel!("ops/attention", "backward_queries", backward_queries, attention_f32::backward),
    keys: crate::kernel!("ops/attention", "backward_keys", backward_keys, attention_f32::nothing),
};
static CROSS: Kernels = Kernels {
    forward: crate::kernel!("ops/attention_cross", "forward", forward, attention_f32::forward),
    delta: crate::kernel!("ops/attention_cross", "backward_delta", delta),
    queries: crate::kernel!("ops/attention_cross", "backward_queries", backward_queries),
    keys: crate::kernel!("ops/attention_cross", "backward_keys", backward_keys),
};

struct Kernels {
    forward: Kernel,
    delta: Kernel,
    queries: Kernel,
    keys: Kernel,
}

/// Which queries see which keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Full,
    Causal,
    Cross,
}

/// Attention of H heads, width W = H * head dim.
///
/// Self-attention takes qkv (B, T, 3 W), rows `[q | k | v]`; cross-attention takes q (B, Tq, W) and kv (B, Tk, 2 W), rows
/// `[k | v]`. Heads are contiguous within each part. Result (B, Tq, W); saves the log-sum-exp (B, H, Tq).
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    heads: usize,
    kind: Kind,
}

impl Attention {
    /// Every token sees every token.
    pub fn full(heads: usize) -> Self {
        Attention { heads, kind: Kind::Full }
    }

    /// Every token sees itself and those before it.
    pub fn causal(heads: usize) -> Self {
        Attention { heads, kind: Kind::Causal }
    }

    /// Queries of one sequence see all keys of another.
    pub fn cross(heads: usize) -> Self {
        Attention { heads, kind: Kind::Cross }
    }

    fn kernels(&self) -> &'static Kernels {
        if self.kind == Kind::Cross { &CROSS } else { &PACKED }
    }

    fn dims(&self, inputs: &[Shape]) -> Option<Dims> {
        let (batch, queries, keys, width) = match (self.kind, inputs) {
            (Kind::Cross, [q, kv]) => match (q.dims(), kv.dims()) {
                (&[b, tq, w], &[b2, tk, w2]) if b == b2 && w2 == 2 * w => (b, tq, tk, w),
                _ => return None,
            },
            (Kind::Full | Kind::Causal, [qkv]) => match qkv.dims() {
                &[b, t, w3] if w3 % 3 == 0 => (b, t, t, w3 / 3),
                _ => return None,
            },
            _ => return None,
        };
        let fits = self.heads > 0 && width > 0 && width % self.heads == 0 && keys > 0;
        fits.then(|| Dims { batch, queries, keys, heads: self.heads, head: width / self.heads })
    }

    /// Binds what every kernel of this op takes.
    fn start<'r>(
        &self,
        rec: &'r mut Recording,
        kernel: &'static Kernel,
        dims: &Dims,
        inputs: &[Slice],
    ) -> crate::record::Builder<'r> {
        let d = rec.dispatch(kernel).spec("HEAD_DIM", dims.head as u32);
        let d = match self.kind {
            Kind::Cross => d.bind("q", inputs[0]).bind("kv", inputs[1]),
            _ => d.bind("qkv", inputs[0]),
        };
        d.n("batch", dims.batch)
            .n("queries", dims.queries)
            .n("keys", dims.keys)
            .n("heads", dims.heads)
            .n("causal", (self.kind == Kind::Causal) as usize)
            .param("scale", 1.0 / (dims.head as f32).sqrt())
    }
}

struct Dims {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    head: usize,
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        let Some(d) = self.dims(inputs) else {
            let wanted = match self.kind {
                Kind::Cross => "q (B, Tq, W) and kv (B, Tk, 2 W)",
                _ => "qkv (B, T, 3 W)",
            };
            let what = format!("needs {wanted} with W a multiple of {} heads, got {inputs:?}", self.heads);
            return Err(Error::shape("attention", what));
        };
        let y = Tensor::float([d.batch, d.queries, d.heads * d.head]);
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
        Reads { inputs: if self.kind == Kind::Cross { vec![0, 1] } else { vec![0] }, outputs: vec![0, 1] }
    }

    fn scratch_backward(&self, inputs: &[Shape]) -> Vec<Tensor> {
        let d = self.dims(inputs).expect("checked by outputs");
        vec![Tensor::float([d.batch, d.heads, d.queries])]
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let d = self.dims(io.shapes).expect("checked by outputs");
        self.start(rec, &self.kernels().forward, &d, io.inputs)
            .bind("y", io.outputs[0])
            .bind("lse", io.outputs[1])
            .n("accumulate", 0)
            .threads(d.batch * d.heads * d.queries)
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let d = self.dims(io.shapes).expect("checked by outputs");
        let kernels = self.kernels();
        let rows = d.batch * d.heads * d.queries;
        rec.dispatch(&kernels.delta)
            .spec("HEAD_DIM", d.head as u32)
            .bind("y", io.outputs[0])
            .bind("dy", io.dy)
            .bind("delta", io.scratch[0])
            .n("batch", d.batch)
            .n("queries", d.queries)
            .n("keys", d.keys)
            .n("heads", d.heads)
            .n("causal", 0)
            .n("accumulate", 0)
            .param("scale", 0.0f32)
            .threads(rows)?;
        let (dq, dkv, names) = match self.kind {
            Kind::Cross => (io.dx[0], io.dx[1], ["dq", "dkv"]),
            _ => (io.dx[0], io.dx[0], ["dqkv", "dqkv"]),
        };
        let passes = [
            (dq, &kernels.queries, names[0], rows),
            (dkv, &kernels.keys, names[1], d.batch * d.heads * d.keys),
        ];
        for (grad, kernel, name, threads) in passes {
            let Some(grad) = grad else { continue };
            self.start(rec, kernel, &d, io.inputs)
                .bind("dy", io.dy)
                .bind("lse", io.outputs[1])
                .bind("delta", io.scratch[0])
                .bind(name, grad.slice)
                .param("accumulate", grad.flag())
                .threads(threads)?;
        }
        Ok(())
    }

    fn flops(&self, inputs: &[Shape]) -> u64 {
        let d = self.dims(inputs).expect("checked by outputs");
        4 * (d.batch * d.heads * d.queries * d.keys * d.head) as u64
    }
}

/// Where queries, keys and values of one call lie: tensor, first channel and distance between tokens.
pub(super) struct Layout<'a, F> {
    pub q: (&'a [F], usize, usize),
    pub k: (&'a [F], usize, usize),
    pub v: (&'a [F], usize, usize),
}

/// Extents of one call.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub heads: usize,
    pub head: usize,
    pub causal: bool,
}

impl Call {
    /// The call's extents; the head dimension follows from a tensor (B, Tq, W).
    pub fn new<F: Real>(a: &Args<'_, F>, width: usize) -> Self {
        let heads = a.n("heads");
        Call {
            batch: a.n("batch"),
            queries: a.n("queries"),
            keys: a.n("keys"),
            heads,
            head: width / heads,
            causal: a.n("causal") != 0,
        }
    }

    pub fn width(&self) -> usize {
        self.heads * self.head
    }

    /// Keys that query t sees.
    pub fn seen(&self, t: usize) -> usize {
        if self.causal { t + 1 } else { self.keys }
    }
}

/// The operands of either module.
pub(super) fn operands<'a, F: Real>(a: &mut Args<'a, F>, width: usize) -> Layout<'a, F> {
    if a.has("qkv") {
        let qkv: &'a [F] = a.input("qkv");
        Layout { q: (qkv, 0, 3 * width), k: (qkv, width, 3 * width), v: (qkv, 2 * width, 3 * width) }
    } else {
        let (q, kv): (&'a [F], &'a [F]) = (a.input("q"), a.input("kv"));
        Layout { q: (q, 0, width), k: (kv, 0, 2 * width), v: (kv, width, 2 * width) }
    }
}

/// The row of token t, head h, example b.
fn row<'a, F>(
    c: &Call,
    (x, channel, stride): (&'a [F], usize, usize),
    tokens: usize,
    b: usize,
    h: usize,
    t: usize,
) -> &'a [F] {
    &x[(b * tokens + t) * stride + channel + h * c.head..][..c.head]
}

fn dot<F: Real>(a: &[F], b: &[F]) -> F {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let y = a.output("y");
    let c = Call::new(a, y.len() / (a.n("batch") * a.n("queries")));
    let scale = F::one() / F::of(c.head as f64).sqrt();
    let l = operands(a, c.width());
    let lse = a.output("lse");
    for b in 0..c.batch {
        for h in 0..c.heads {
            for t in 0..c.queries {
                let q = row(&c, l.q, c.queries, b, h, t);
                let scores: Vec<F> =
                    (0..c.seen(t)).map(|s| scale * dot(q, row(&c, l.k, c.keys, b, h, s))).collect();
                // Not `max`, which drops NaN.
                let max = scores.iter().fold(F::min_value(), |m, &s| if s > m { s } else { m });
                let sum: F = scores.iter().map(|&s| (s - max).exp()).sum();
                lse[(b * c.heads + h) * c.queries + t] = max + sum.ln();
                let y = &mut y[(b * c.queries + t) * c.width() + h * c.head..][..c.head];
                y.fill(F::zero());
                for (s, &score) in scores.iter().enumerate() {
                    let p = (score - max).exp() / sum;
                    let v = row(&c, l.v, c.keys, b, h, s);
                    y.iter_mut().zip(v).for_each(|(y, &v)| *y += p * v);
                }
            }
        }
    }
}

fn delta<F: Real>(a: &mut Args<'_, F>) {
    let (y, dy, delta) = (a.input("y"), a.input("dy"), a.output("delta"));
    let c = Call::new(a, y.len() / (a.n("batch") * a.n("queries")));
    for (i, delta) in delta.iter_mut().enumerate() {
        let (b, h, t) = (i / c.queries / c.heads, i / c.queries % c.heads, i % c.queries);
        let at = (b * c.queries + t) * c.width() + h * c.head;
        *delta = dot(&y[at..][..c.head], &dy[at..][..c.head]);
    }
}

/// What both passes of backward need of a pair: probability and gradient of its score.
struct Pairs<'a, F> {
    c: Call,
    l: Layout<'a, F>,
    dy: &'a [F],
    lse: &'a [F],
    delta: &'a [F],
    scale: F,
}

impl<'a, F: Real> Pairs<'a, F> {
    fn new(a: &mut Args<'a, F>) -> Self {
        let dy: &'a [F] = a.input("dy");
        let c = Call::new(a, dy.len() / (a.n("batch") * a.n("queries")));
        let scale = F::one() / F::of(c.head as f64).sqrt();
        let l = operands(a, c.width());
        Pairs { c, l, dy, lse: a.input("lse"), delta: a.input("delta"), scale }
    }

    fn dy(&self, b: usize, h: usize, t: usize) -> &'a [F] {
        row(&self.c, (self.dy, 0, self.c.width()), self.c.queries, b, h, t)
    }

    fn pair(&self, b: usize, h: usize, t: usize, s: usize) -> (F, F) {
        let c = &self.c;
        let score = self.scale * dot(row(c, self.l.q, c.queries, b, h, t), row(c, self.l.k, c.keys, b, h, s));
        let i = (b * c.heads + h) * c.queries + t;
        let p = (score - self.lse[i]).exp();
        let dp = dot(self.dy(b, h, t), row(c, self.l.v, c.keys, b, h, s));
        (p, p * (dp - self.delta[i]) * self.scale)
    }
}

/// Writes or adds one head's row of a gradient.
fn store<F: Real>(to: &mut [F], values: &[F], accumulate: bool) {
    for (d, &g) in to.iter_mut().zip(values) {
        *d = if accumulate { *d + g } else { g };
    }
}

fn backward_queries<F: Real>(a: &mut Args<'_, F>) {
    let accumulate = a.n("accumulate") != 0;
    let (dq, stride) = if a.has("dqkv") { (a.output("dqkv"), 3) } else { (a.output("dq"), 1) };
    let pairs = Pairs::new(a);
    let c = pairs.c;
    for b in 0..c.batch {
        for h in 0..c.heads {
            for t in 0..c.queries {
                let mut sum = vec![F::zero(); c.head];
                for s in 0..c.seen(t) {
                    let (_, ds) = pairs.pair(b, h, t, s);
                    let k = row(&c, pairs.l.k, c.keys, b, h, s);
                    sum.iter_mut().zip(k).for_each(|(d, &k)| *d += ds * k);
                }
                let at = (b * c.queries + t) * c.width() * stride + h * c.head;
                store(&mut dq[at..][..c.head], &sum, accumulate);
            }
        }
    }
}

fn backward_keys<F: Real>(a: &mut Args<'_, F>) {
    let accumulate = a.n("accumulate") != 0;
    let packed = a.has("dqkv");
    let dkv = if packed { a.output("dqkv") } else { a.output("dkv") };
    let pairs = Pairs::new(a);
    let c = pairs.c;
    let (stride, k_at, v_at) =
        if packed { (3 * c.width(), c.width(), 2 * c.width()) } else { (2 * c.width(), 0, c.width()) };
    for b in 0..c.batch {
        for h in 0..c.heads {
            for s in 0..c.keys {
                let (mut dk, mut dv) = (vec![F::zero(); c.head], vec![F::zero(); c.head]);
                for t in (0..c.queries).filter(|&t| s < c.seen(t)) {
                    let (p, ds) = pairs.pair(b, h, t, s);
                    let q = row(&c, pairs.l.q, c.queries, b, h, t);
                    dk.iter_mut().zip(q).for_each(|(d, &q)| *d += ds * q);
                    dv.iter_mut().zip(pairs.dy(b, h, t)).for_each(|(d, &g)| *d += p * g);
                }
                let at = (b * c.keys + s) * stride + h * c.head;
                store(&mut dkv[at + k_at..][..c.head], &dk, accumulate);
                store(&mut dkv[at + v_at..][..c.head], &dv, accumulate);
            }
        }
    }
}
