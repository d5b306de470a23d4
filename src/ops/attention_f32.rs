//! The f32 twins of attention: small matrix products per example and head, examples spread over threads.

use rayon::prelude::*;

use super::attention::{Dims, wanted};
use super::fast::{self, widest};
use super::gemm::{self, Matrix, Start};
use crate::kernel::Args;

/// A head's rows: `row` elements apart from `first` on.
fn head(data: &[f32], first: usize, row: usize) -> Matrix<'_> {
    Matrix { data: &data[first..], row, col: 1 }
}

fn transposed(m: Matrix<'_>) -> Matrix<'_> {
    Matrix { data: m.data, row: m.col, col: m.row }
}

pub(super) fn forward(a: &mut Args<'_, f32>) {
    let (q, kv, y, lse) = (a.input("q"), a.input("kv"), a.output("y"), a.output("lse"));
    let d = Dims::of(a, y.len());
    let q = if d.packed { kv } else { q };
    let scale = a.f("scale");
    let (n, m) = (d.queries, d.keys);
    let examples = y.par_chunks_mut(n * d.width()).zip(lse.par_chunks_mut(d.heads * n));
    examples.enumerate().for_each(|(b, (y, lse))| {
        gemm::with_scratch(n * m, |p| {
            for h in 0..d.heads {
                let k = transposed(head(kv, d.k(b, h, 0), d.kv_row()));
                let rows = head(q, d.q(b, h, 0), d.q_row());
                gemm::product((n, d.head, m), rows, k, Start::Zero, p, m, 1);
                softmax(p, m, scale, &mut lse[h * n..(h + 1) * n], d);
                let v = head(kv, d.v(b, h, 0), d.kv_row());
                let y = &mut y[h * d.head..];
                gemm::product((n, m, d.head), head(p, 0, m), v, Start::Zero, y, d.width(), 1);
            }
        });
    });
}

widest! {
    /// Turns the rows of scores into probabilities; keeps their log-sum-exp.
    fn softmax(scores: &mut [f32], keys: usize, scale: f32, lse: &mut [f32], d: Dims) {
        for ((t, row), lse) in scores.chunks_exact_mut(keys).enumerate().zip(lse) {
            let (seen, hidden) = row.split_at_mut(d.seen(t));
            hidden.fill(0.0);
            if seen.is_empty() {
                *lse = 0.0;
                continue;
            }
            let top = fast::largest(seen) * scale;
            let sum = fast::exp_sum(seen, scale, top);
            *lse = top + sum.ln();
            let inverse = 1.0 / sum;
            seen.iter_mut().for_each(|p| *p *= inverse);
        }
    }

    /// Turns scores into probabilities `p` and `g v^T` into the gradient of the scores, `scale p (g v^T - delta)`.
    fn score_gradient(p: &mut [f32], ds: &mut [f32], keys: usize, scale: f32, lse: &[f32], delta: &[f32], d: Dims) {
        let rows = p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys)).zip(lse.iter().zip(delta));
        for (t, ((p, ds), (&lse, &delta))) in rows.enumerate() {
            let seen = d.seen(t);
            for (p, ds) in p[..seen].iter_mut().zip(&mut ds[..seen]) {
                *p = fast::exp(*p * scale - lse);
                *ds = *p * (*ds - delta) * scale;
            }
            p[seen..].fill(0.0);
            ds[seen..].fill(0.0);
        }
    }

    /// `delta = sum dy y` over each head, for the tokens of one example.
    fn deltas(y: &[f32], dy: &[f32], delta: &mut [f32], d: Dims) {
        for (t, (y, dy)) in y.chunks_exact(d.width()).zip(dy.chunks_exact(d.width())).enumerate() {
            for (h, (y, dy)) in y.chunks_exact(d.head).zip(dy.chunks_exact(d.head)).enumerate() {
                delta[h * d.queries + t] = fast::dot(y, dy);
            }
        }
    }
}

pub(super) fn delta(a: &mut Args<'_, f32>) {
    let (y, dy, delta) = (a.input("y"), a.input("dy"), a.output("delta"));
    let d = Dims::of(a, y.len());
    let example = d.queries * d.width();
    let examples = fast::rows_per_task(d.batch, example);
    (
        y.par_chunks(examples * example),
        dy.par_chunks(examples * example),
        delta.par_chunks_mut(examples * d.heads * d.queries),
    )
        .into_par_iter()
        .for_each(|(y, dy, delta)| {
            let each = y.chunks_exact(example).zip(dy.chunks_exact(example));
            for ((y, dy), delta) in each.zip(delta.chunks_exact_mut(d.heads * d.queries)) {
                deltas(y, dy, delta, d);
            }
        });
}

pub(super) fn backward(a: &mut Args<'_, f32>) {
    let (q, kv, dy) = (a.input("q"), a.input("kv"), a.input("dy"));
    let (lse, delta) = (a.input("lse"), a.input("delta"));
    let (dq, dkv) = (a.output("dq"), a.output("dkv"));
    let d = Dims::of(a, dy.len());
    let q = if d.packed { kv } else { q };
    let (queries_wanted, keys_wanted) = wanted(a, &d, dkv.len());
    let [start_q, start_kv] =
        ["accumulate_q", "accumulate_kv"].map(|flag| if a.n(flag) != 0 { Start::Held } else { Start::Zero });
    let scale = a.f("scale");
    let (n, m) = (d.queries, d.keys);
    // Gradients of one example by queries, and by keys; one and the same slice where they are packed.
    let run = |b: usize, mut dq: Option<&mut [f32]>, mut dkv: Option<&mut [f32]>| {
        gemm::with_scratch(2 * n * m, |scratch| {
            let (p, ds) = scratch.split_at_mut(n * m);
            for h in 0..d.heads {
                let rows = head(q, d.q(b, h, 0), d.q_row());
                let g = head(dy, d.y(b, h, 0), d.width());
                let k = head(kv, d.k(b, h, 0), d.kv_row());
                let v = head(kv, d.v(b, h, 0), d.kv_row());
                gemm::product((n, d.head, m), rows, transposed(k), Start::Zero, p, m, 1);
                gemm::product((n, d.head, m), g, transposed(v), Start::Zero, ds, m, 1);
                let of_head = d.statistic(b, h, 0)..d.statistic(b, h, 0) + n;
                score_gradient(p, ds, m, scale, &lse[of_head.clone()], &delta[of_head], d);
                let (p, ds) = (head(p, 0, m), head(ds, 0, m));
                if let Some(dq) = if d.packed { dkv.as_deref_mut() } else { dq.as_deref_mut() } {
                    let to = &mut dq[d.q(0, h, 0)..];
                    gemm::product((n, m, d.head), ds, k, start_q, to, d.q_row(), 1);
                }
                if let Some(dkv) = dkv.as_deref_mut() {
                    let to = &mut dkv[d.k(0, h, 0)..];
                    gemm::product((m, n, d.head), transposed(ds), rows, start_kv, to, d.kv_row(), 1);
                    let to = &mut dkv[d.v(0, h, 0)..];
                    gemm::product((m, n, d.head), transposed(p), g, start_kv, to, d.kv_row(), 1);
                }
            }
        });
    };
    let (dq_len, dkv_len) = (n * d.q_row(), m * d.kv_row());
    match (queries_wanted && !d.packed, keys_wanted) {
        (true, true) => (dq.par_chunks_mut(dq_len).zip(dkv.par_chunks_mut(dkv_len)).enumerate())
            .for_each(|(b, (dq, dkv))| run(b, Some(dq), Some(dkv))),
        (true, false) => dq.par_chunks_mut(dq_len).enumerate().for_each(|(b, dq)| run(b, Some(dq), None)),
        (false, _) => dkv.par_chunks_mut(dkv_len).enumerate().for_each(|(b, dkv)| run(b, None, Some(dkv))),
    }
}
