//! The f32 twins of attention: small matrix products per example and head, examples spread over threads.
//!
//! Scores of a head stand in scratch, with rows filled up to a multiple of 16 keys; so are head dims. Operands are
//! copied there first, because rows that are a multiple of a large power of 2 apart share few lines of the cache.

use rayon::prelude::*;

use super::attention::{Dims, wanted};
use super::fast;
use super::gemm::with_scratch;
use super::lanes::in_lanes;
use super::small_product::{Left, product, transpose};
use crate::kernel::Args;

/// Extents in scratch: keys and head dim, filled up.
#[derive(Clone, Copy)]
struct Padded {
    keys: usize,
    head: usize,
}

impl Padded {
    fn of(d: &Dims) -> Self {
        Padded { keys: d.keys.next_multiple_of(16), head: d.head.next_multiple_of(16) }
    }
}

/// Copies the rows of a head, each filled up with zeros to `width`.
fn copy_rows(from: &[f32], row: usize, head: usize, to: &mut [f32], width: usize) {
    for (from, to) in from.chunks(row).zip(to.chunks_exact_mut(width)) {
        to[..head].copy_from_slice(&from[..head]);
        to[head..].fill(0.0);
    }
}

/// Writes or adds rows of `width` to those of a head.
fn store_rows(from: &[f32], width: usize, head: usize, to: &mut [f32], row: usize, add: bool) {
    for (from, to) in from.chunks_exact(width).zip(to.chunks_mut(row)) {
        if add {
            to[..head].iter_mut().zip(from).for_each(|(t, f)| *t += f);
        } else {
            to[..head].copy_from_slice(&from[..head]);
        }
    }
}

fn rows(data: &[f32], width: usize) -> Left<'_> {
    Left { data, row: width, col: 1 }
}

fn columns(data: &[f32], width: usize) -> Left<'_> {
    Left { data, row: 1, col: width }
}

/// Cuts `len` floats off the front.
fn cut<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (front, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    front
}

pub(super) fn forward(a: &mut Args<'_, f32>) {
    let (q, kv, y, lse) = (a.input("q"), a.input("kv"), a.output("y"), a.output("lse"));
    let d = Dims::of(a, y.len());
    let q = if d.packed { kv } else { q };
    let scale = a.f("scale");
    let (n, m, p) = (d.queries, d.keys, Padded::of(&d));
    let examples = y.par_chunks_mut(n * d.width()).zip(lse.par_chunks_mut(d.heads * n));
    examples.enumerate().for_each(|(b, (y, lse))| {
        with_scratch(n * p.keys + (d.head + m) * p.keys.max(p.head) + n * p.head, |mut scratch| {
            let scores = cut(&mut scratch, n * p.keys);
            let k_t = cut(&mut scratch, d.head * p.keys);
            let v = cut(&mut scratch, m * p.head);
            let out = cut(&mut scratch, n * p.head);
            for h in 0..d.heads {
                transpose(m, d.head, &kv[d.k(b, h, 0)..], d.kv_row(), k_t, p.keys);
                let left = Left { data: &q[d.q(b, h, 0)..], row: d.q_row(), col: 1 };
                product((n, d.head, p.keys), left, k_t, p.keys, scores, p.keys, false);
                softmax(scores, p.keys, scale, &mut lse[h * n..(h + 1) * n], d);
                copy_rows(&kv[d.v(b, h, 0)..], d.kv_row(), d.head, v, p.head);
                let (left, y) = (rows(scores, p.keys), &mut y[h * d.head..]);
                if d.head == p.head {
                    product((n, m, p.head), left, v, p.head, y, d.width(), false);
                } else {
                    product((n, m, p.head), left, v, p.head, out, p.head, false);
                    store_rows(out, p.head, d.head, y, d.width(), false);
                }
            }
        });
    });
}

in_lanes! {
    /// Turns the rows of scores into probabilities; keeps their log-sum-exp.
    fn softmax<L>(scores: &mut [f32], width: usize, scale: f32, lse: &mut [f32], d: Dims) {
        for ((t, row), lse) in scores.chunks_exact_mut(width).enumerate().zip(lse) {
            let seen = d.seen(t);
            if seen == 0 {
                row.fill(0.0);
                *lse = 0.0;
                continue;
            }
            row[seen..].fill(f32::MIN);
            let top = fast::largest::<L>(row) * scale;
            let sum = fast::exp_sum::<L>(row, scale, top);
            *lse = top + sum.ln();
            let inverse = L::splat(1.0 / sum);
            for p in row.chunks_exact_mut(16) {
                L::load_some(p, 0.0).mul(inverse).store_some(p);
            }
        }
    }

    /// Turns scores into probabilities `p`, and `g v^T` into the gradient of the scores, `scale p (g v^T - delta)`.
    fn score_gradient<L>(p: &mut [f32], ds: &mut [f32], width: usize, scale: f32, lse: &[f32], delta: &[f32], d: Dims) {
        let rows = p.chunks_exact_mut(width).zip(ds.chunks_exact_mut(width)).zip(lse.iter().zip(delta));
        let factor = L::splat(scale);
        for (t, ((p, ds), (&lse, &delta))) in rows.enumerate() {
            let seen = d.seen(t);
            let (lse, delta) = (L::splat(lse), L::splat(delta));
            for (p, ds) in p.chunks_exact_mut(16).zip(ds.chunks_exact_mut(16)) {
                let share = fast::exp(L::load_some(p, 0.0).mul(factor).sub(lse));
                share.store_some(p);
                share.mul(factor).mul(L::load_some(ds, 0.0).sub(delta)).store_some(ds);
            }
            p[seen..].fill(0.0);
            ds[seen..].fill(0.0);
        }
    }

    /// `delta = sum dy y` over each head, for the tokens of one example.
    fn deltas<L>(y: &[f32], dy: &[f32], delta: &mut [f32], d: Dims) {
        for (t, (y, dy)) in y.chunks_exact(d.width()).zip(dy.chunks_exact(d.width())).enumerate() {
            for (h, (y, dy)) in y.chunks_exact(d.head).zip(dy.chunks_exact(d.head)).enumerate() {
                delta[h * d.queries + t] = fast::dot::<L>(y, dy);
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

/// What backward reads.
#[derive(Clone, Copy)]
struct Given<'a> {
    d: Dims,
    q: &'a [f32],
    kv: &'a [f32],
    dy: &'a [f32],
    lse: &'a [f32],
    delta: &'a [f32],
    scale: f32,
    add_q: bool,
    add_kv: bool,
}

pub(super) fn backward(a: &mut Args<'_, f32>) {
    let (q, kv, dy) = (a.input("q"), a.input("kv"), a.input("dy"));
    let (lse, delta) = (a.input("lse"), a.input("delta"));
    let (dq, dkv) = (a.output("dq"), a.output("dkv"));
    let d = Dims::of(a, dy.len());
    let (queries_wanted, keys_wanted) = wanted(a, &d, dkv.len());
    let [add_q, add_kv] = ["accumulate_q", "accumulate_kv"].map(|flag| a.n(flag) != 0);
    let q = if d.packed { kv } else { q };
    let given = Given { d, q, kv, dy, lse, delta, scale: a.f("scale"), add_q, add_kv };
    let (dq_len, dkv_len) = (d.queries * d.q_row(), d.keys * d.kv_row());
    match (queries_wanted && !d.packed, keys_wanted) {
        (true, true) => (dq.par_chunks_mut(dq_len).zip(dkv.par_chunks_mut(dkv_len)).enumerate())
            .for_each(|(b, (dq, dkv))| example_gradient(given, b, Some(dq), Some(dkv))),
        (true, false) => {
            let examples = dq.par_chunks_mut(dq_len).enumerate();
            examples.for_each(|(b, dq)| example_gradient(given, b, Some(dq), None));
        }
        (false, _) => {
            let examples = dkv.par_chunks_mut(dkv_len).enumerate();
            examples.for_each(|(b, dkv)| example_gradient(given, b, None, Some(dkv)));
        }
    }
}

/// Gradients of example b by queries, and by keys and values; `dkv` takes all where they are packed.
fn example_gradient(x: Given<'_>, b: usize, mut dq: Option<&mut [f32]>, mut dkv: Option<&mut [f32]>) {
    let d = x.d;
    let (n, m, pad) = (d.queries, d.keys, Padded::of(&d));
    let len = 2 * n * pad.keys + d.head * pad.keys + (2 * n + m + n.max(m)) * pad.head;
    with_scratch(len, |mut scratch| {
        let p = cut(&mut scratch, n * pad.keys);
        let ds = cut(&mut scratch, n * pad.keys);
        let turned = cut(&mut scratch, d.head * pad.keys);
        let q = cut(&mut scratch, n * pad.head);
        let g = cut(&mut scratch, n * pad.head);
        let k = cut(&mut scratch, m * pad.head);
        let out = cut(&mut scratch, n.max(m) * pad.head);
        for h in 0..d.heads {
            copy_rows(&x.q[d.q(b, h, 0)..], d.q_row(), d.head, q, pad.head);
            copy_rows(&x.dy[d.y(b, h, 0)..], d.width(), d.head, g, pad.head);
            copy_rows(&x.kv[d.k(b, h, 0)..], d.kv_row(), d.head, k, pad.head);
            let scores = (n, d.head, pad.keys);
            transpose(m, d.head, k, pad.head, turned, pad.keys);
            product(scores, rows(q, pad.head), turned, pad.keys, p, pad.keys, false);
            transpose(m, d.head, &x.kv[d.v(b, h, 0)..], d.kv_row(), turned, pad.keys);
            product(scores, rows(g, pad.head), turned, pad.keys, ds, pad.keys, false);
            let of_head = d.statistic(b, h, 0)..d.statistic(b, h, 0) + n;
            score_gradient(p, ds, pad.keys, x.scale, &x.lse[of_head.clone()], &x.delta[of_head], d);
            let mut write = |size, left: Left<'_>, right: &[f32], to: &mut [f32], row: usize, add: bool| {
                if d.head == pad.head {
                    product(size, left, right, pad.head, to, row, add);
                } else {
                    product(size, left, right, pad.head, out, pad.head, false);
                    store_rows(&out[..size.0 * pad.head], pad.head, d.head, to, row, add);
                }
            };
            if let Some(dq) = if d.packed { dkv.as_deref_mut() } else { dq.as_deref_mut() } {
                let to = &mut dq[d.q(0, h, 0)..];
                write((n, m, pad.head), rows(ds, pad.keys), k, to, d.q_row(), x.add_q);
            }
            if let Some(dkv) = dkv.as_deref_mut() {
                let (size, row) = ((m, n, pad.head), d.kv_row());
                write(size, columns(ds, pad.keys), q, &mut dkv[d.k(0, h, 0)..], row, x.add_kv);
                write(size, columns(p, pad.keys), g, &mut dkv[d.v(0, h, 0)..], row, x.add_kv);
            }
        }
    });
}
