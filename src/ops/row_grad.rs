//! Rules for parameters whose per-example gradients are written out, as rows of (B, n): biases, LayerNorm, class
//! and mask tokens, position tables.
//!
//! All of them sit in one "rows" buffer, parameter by parameter, and take one dispatch together.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::gram;
use crate::record::{Recording, Slice};

static SQ_NORM: Kernel = crate::kernel!("ops/row_grad", "sq_norm", sq_norm, sq_norm_f32);
static SQ_NORM_SINGLE: Kernel =
    crate::kernel!("ops/row_grad", "sq_norm_single", sq_norm_single, sq_norm_single_f32);
static SUM: Kernel = crate::kernel!("ops/row_grad", "sum", sum);
static SUM_SINGLE: Kernel = crate::kernel!("ops/row_grad", "sum_single", sum_single);

/// One parameter's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First element of its (B, n) in the rows buffer; a multiple of 64, so that backward can bind it.
    pub start: usize,
    /// Elements of the parameter.
    pub n: usize,
    /// First element of the parameter in the gradient.
    pub dst: usize,
}

/// The segments as the kernels read them: (P, 3) `u32`, to be uploaded once.
///
/// # Errors
/// [`Error::Limit`] if an offset does not fit a `u32`.
pub fn table(segments: &[Segment]) -> Result<Vec<u32>> {
    segments
        .iter()
        .flat_map(|s| [s.start, s.n, s.dst])
        .map(|x| {
            u32::try_from(x).map_err(|_| Error::Limit {
                what: "elements of per-example rows or of the gradient".into(),
                needed: x as u64,
                allowed: u32::MAX as u64,
            })
        })
        .collect()
}

/// Records `out[p * stride + b] = ||row b of segment p||^2` for all segments; `table` holds [`table`] of them.
///
/// # Errors
/// [`Error::Kernel`] if a slice does not fit.
pub fn record_sq_norm(
    rec: &mut Recording,
    rows: Slice,
    table: Slice,
    segments: &[Segment],
    batch: usize,
    out: Slice,
    stride: usize,
) -> Result<()> {
    check(rows, table, segments, batch)?;
    if stride < batch || out.len < segments.len().saturating_sub(1) * stride + batch.min(out.len + 1) {
        return Err(Error::kernel("row_grad", format!("norms {out:?}, stride {stride}, batch {batch}")));
    }
    rec.dispatch(&SQ_NORM)
        .bind("rows", rows)
        .bind("table", table)
        .bind("out", out)
        .n("batch", batch)
        .n("segments", segments.len())
        .n("blocks", 0)
        .n("stride", stride)
        .n("n", 0)
        .groups(segments.len() * batch)
}

/// Records `grads[dst_p + col] += sum_b factors_b rows_p(b, col)` for all segments; rows of factor 0 are not read.
/// Segment p's factors start at `p * stride`; stride 0: all share them.
///
/// # Errors
/// [`Error::Kernel`] if a slice does not fit.
#[allow(clippy::too_many_arguments, reason = "one slice or extent each")]
pub fn record_sum(
    rec: &mut Recording,
    rows: Slice,
    table: Slice,
    segments: &[Segment],
    batch: usize,
    factors: Slice,
    stride: usize,
    grads: Slice,
) -> Result<()> {
    check(rows, table, segments, batch)?;
    if factors.len < segments.len().saturating_sub(1) * stride + batch
        || segments.iter().any(|s| s.dst + s.n > grads.len)
    {
        return Err(Error::kernel("row_grad", format!("factors {factors:?} or gradient {grads:?}")));
    }
    let blocks = segments.iter().map(|s| s.n.div_ceil(64)).max().unwrap_or(0);
    rec.dispatch(&SUM)
        .bind("rows", rows)
        .bind("table", table)
        .bind("factors", factors)
        .bind("grads", grads)
        .n("batch", batch)
        .n("segments", segments.len())
        .n("blocks", blocks)
        .n("stride", stride)
        .n("n", 0)
        .groups(segments.len() * blocks)
}

/// Records `out_b = ||row b||^2` of one tensor, rows (B, n), out (B).
///
/// # Errors
/// [`Error::Kernel`] if a slice does not fit.
pub fn record_sq_norm_single(
    rec: &mut Recording,
    rows: Slice,
    batch: usize,
    n: usize,
    out: Slice,
) -> Result<()> {
    if rows.len != batch * n || out.len < batch {
        return Err(Error::kernel("row_grad", format!("rows {rows:?} or norms {out:?} for ({batch}, {n})")));
    }
    rec.dispatch(&SQ_NORM_SINGLE)
        .bind("rows", rows)
        .bind("out", out)
        .n("batch", batch)
        .n("segments", 1)
        .n("blocks", 0)
        .n("stride", batch)
        .n("n", n)
        .groups(batch)
}

/// Records `grad += sum_b factors_b row b` of one tensor, rows (B, n), grad (n); rows of factor 0 are not read.
///
/// # Errors
/// [`Error::Kernel`] if a slice does not fit.
pub fn record_sum_single(
    rec: &mut Recording,
    rows: Slice,
    batch: usize,
    n: usize,
    factors: Slice,
    grad: Slice,
) -> Result<()> {
    if rows.len != batch * n || factors.len < batch || grad.len != n {
        return Err(Error::kernel(
            "row_grad",
            format!("rows {rows:?}, factors {factors:?}, gradient {grad:?}"),
        ));
    }
    if batch == 0 {
        return Ok(());
    }
    rec.dispatch(&SUM_SINGLE)
        .bind("rows", rows)
        .bind("factors", factors)
        .bind("grads", grad)
        .n("batch", batch)
        .n("segments", 1)
        .n("blocks", 0)
        .n("stride", 0)
        .n("n", n)
        .threads(n)
}

fn check(rows: Slice, table: Slice, segments: &[Segment], batch: usize) -> Result<()> {
    if table.len != 3 * segments.len() {
        return Err(Error::kernel("row_grad", format!("table {table:?} for {} segments", segments.len())));
    }
    match segments.iter().find(|s| s.start + batch * s.n > rows.len) {
        Some(s) => Err(Error::kernel("row_grad", format!("{s:?}, batch {batch}, leaves {rows:?}"))),
        None => Ok(()),
    }
}

/// The table's entries.
fn segments(table: &[u32]) -> impl Iterator<Item = Segment> {
    table.chunks(3).map(|s| Segment { start: s[0] as usize, n: s[1] as usize, dst: s[2] as usize })
}

fn squares<F: Real>(row: &[F]) -> F {
    row.iter().map(|&x| x * x).sum()
}

fn sq_norm<F: Real>(a: &mut Args<'_, F>) {
    let (batch, stride) = (a.n("batch"), a.n("stride"));
    let (rows, table, out) = (a.input("rows"), a.input_u32("table"), a.output("out"));
    for (p, s) in segments(table).enumerate() {
        for b in 0..batch {
            out[p * stride + b] = squares(&rows[s.start + b * s.n..][..s.n]);
        }
    }
}

fn sq_norm_f32(a: &mut Args<'_, f32>) {
    let (batch, stride) = (a.n("batch"), a.n("stride"));
    let (rows, table, out) = (a.input("rows"), a.input_u32("table"), a.output("out"));
    out.par_chunks_mut(stride).zip(table.par_chunks(3)).for_each(|(out, table)| {
        for s in segments(table) {
            for (b, out) in out.iter_mut().take(batch).enumerate() {
                *out = gram::sum_of_squares(&rows[s.start + b * s.n..][..s.n]);
            }
        }
    });
}

fn sq_norm_single<F: Real>(a: &mut Args<'_, F>) {
    let (batch, n) = (a.n("batch"), a.n("n"));
    let (rows, out) = (a.input("rows"), a.output("out"));
    for (b, out) in out.iter_mut().take(batch).enumerate() {
        *out = squares(&rows[b * n..][..n]);
    }
}

fn sq_norm_single_f32(a: &mut Args<'_, f32>) {
    let (batch, n) = (a.n("batch"), a.n("n"));
    let (rows, out) = (a.input("rows"), a.output("out"));
    out.par_iter_mut().take(batch).enumerate().for_each(|(b, out)| {
        *out = gram::sum_of_squares(&rows[b * n..][..n]);
    });
}

/// `grad += sum_b factors_b row b`: the sum first, in the order of the examples, then the addition.
fn add_rows<F: Real>(grad: &mut [F], rows: &[F], factors: &[F]) {
    let n = grad.len();
    let mut sums = vec![F::zero(); n];
    for (b, &factor) in factors.iter().enumerate() {
        if factor != F::zero() {
            sums.iter_mut().zip(&rows[b * n..][..n]).for_each(|(s, &x)| *s += factor * x);
        }
    }
    grad.iter_mut().zip(sums).for_each(|(g, s)| *g += s);
}

fn sum<F: Real>(a: &mut Args<'_, F>) {
    let (batch, stride) = (a.n("batch"), a.n("stride"));
    let (rows, table) = (a.input("rows"), a.input_u32("table"));
    let (factors, grads) = (a.input("factors"), a.output("grads"));
    for (p, s) in segments(table).enumerate() {
        add_rows(&mut grads[s.dst..][..s.n], &rows[s.start..], &factors[p * stride..][..batch]);
    }
}

fn sum_single<F: Real>(a: &mut Args<'_, F>) {
    let batch = a.n("batch");
    let (rows, factors, grads) = (a.input("rows"), a.input("factors"), a.output("grads"));
    add_rows(grads, rows, &factors[..batch]);
}
