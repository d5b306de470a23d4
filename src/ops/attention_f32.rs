//! The f32 twins of attention: small matrix products per example and head, examples spread over threads.

use rayon::prelude::*;

use super::attention::{Call, Layout, operands};
use super::{fast, gemm};
use crate::kernel::Args;

/// A matrix of one head inside a packed tensor.
fn matrix<'a>(
    c: &Call,
    (x, channel, stride): (&'a [f32], usize, usize),
    tokens: usize,
    b: usize,
    h: usize,
) -> gemm::Matrix<'a> {
    gemm::Matrix { data: &x[b * tokens * stride + channel + h * c.head..], row: stride, col: 1 }
}

fn transposed(m: gemm::Matrix<'_>) -> gemm::Matrix<'_> {
    gemm::Matrix { data: m.data, row: m.col, col: m.row }
}

/// `p = e^(scale q k^T - row max)`, unnormalised; `row` is told each row's index, maximum and sum.
fn scores(c: &Call, l: &Layout<'_, f32>, b: usize, h: usize, p: &mut [f32]) {
    let q = matrix(c, l.q, c.queries, b, h);
    let k = transposed(matrix(c, l.k, c.keys, b, h));
    gemm::product((c.queries, c.head, c.keys), q, k, gemm::Start::Zero, p, c.keys, 1);
}

pub(super) fn forward(a: &mut Args<'_, f32>) {
    let y = a.output("y");
    let c = Call::new(a, y.len() / (a.n("batch") * a.n("queries")));
    let scale = a.f("scale");
    let l = operands(a, c.width());
    let lse = a.output("lse");
    let per_example = y.par_chunks_mut(c.queries * c.width()).zip(lse.par_chunks_mut(c.heads * c.queries));
    per_example.enumerate().for_each(|(b, (y, lse))| {
        gemm::with_scratch(c.queries * c.keys, |p| {
            for h in 0..c.heads {
                scores(&c, &l, b, h, p);
                for (t, row) in p.chunks_mut(c.keys).enumerate() {
                    let (seen, hidden) = row.split_at_mut(c.seen(t));
                    hidden.fill(0.0);
                    let max = fast::max_row(seen) * scale;
                    let sum = fast::exp_row(seen, scale, max);
                    lse[h * c.queries + t] = max + sum.ln();
                    let inverse = 1.0 / sum;
                    seen.iter_mut().for_each(|p| *p *= inverse);
                }
                let p = gemm::Matrix { data: p, row: c.keys, col: 1 };
                let v = matrix(&c, l.v, c.keys, b, h);
                let (size, y) = ((c.queries, c.keys, c.head), &mut y[h * c.head..]);
                gemm::product(size, p, v, gemm::Start::Zero, y, c.width(), 1);
            }
        });
    });
}

/// All of self-attention's backward in one pass: gradients by queries, keys and values.
pub(super) fn backward(a: &mut Args<'_, f32>) {
    let start = if a.n("accumulate") != 0 { gemm::Start::Held } else { gemm::Start::Zero };
    let scale = a.f("scale");
    let dqkv = a.output("dqkv");
    let dy = a.input("dy");
    let c = Call::new(a, dy.len() / (a.n("batch") * a.n("queries")));
    let l = operands(a, c.width());
    let (lse, delta) = (a.input("lse"), a.input("delta"));
    let (n, width) = (c.queries, c.width());
    dqkv.par_chunks_mut(n * 3 * width).enumerate().for_each(|(b, dqkv)| {
        gemm::with_scratch(2 * n * n, |scratch| {
            let (p, ds) = scratch.split_at_mut(n * n);
            for h in 0..c.heads {
                scores(&c, &l, b, h, p);
                let g = matrix(&c, (dy, 0, width), n, b, h);
                let v = transposed(matrix(&c, l.v, n, b, h));
                gemm::product((n, c.head, n), g, v, gemm::Start::Zero, ds, n, 1);
                for (t, (p, ds)) in p.chunks_mut(n).zip(ds.chunks_mut(n)).enumerate() {
                    let at = (b * c.heads + h) * n + t;
                    let (seen, hidden) = p.split_at_mut(c.seen(t));
                    hidden.fill(0.0);
                    fast::exp_row(seen, scale, lse[at]);
                    let (ds, hidden) = ds.split_at_mut(seen.len());
                    hidden.fill(0.0);
                    for (d, &p) in ds.iter_mut().zip(seen.iter()) {
                        *d = p * (*d - delta[at]) * scale;
                    }
                }
                let p = gemm::Matrix { data: p, row: n, col: 1 };
                let ds = gemm::Matrix { data: ds, row: n, col: 1 };
                let (q, k) = (matrix(&c, l.q, n, b, h), matrix(&c, l.k, n, b, h));
                let size = (n, n, c.head);
                let at = h * c.head;
                gemm::product(size, ds, k, start, &mut dqkv[at..], 3 * width, 1);
                gemm::product(size, transposed(ds), q, start, &mut dqkv[at + width..], 3 * width, 1);
                gemm::product(size, transposed(p), g, start, &mut dqkv[at + 2 * width..], 3 * width, 1);
            }
        });
    });
}

/// The pass by keys of self-attention: [`backward`] has done it.
pub(super) fn nothing(_: &mut Args<'_, f32>) {}
