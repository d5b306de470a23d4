//! Rules for `dE_i[v] = sum_(t: ids_t = v) g_t`, the gradient of a lookup table (V, D) by one example: its squared
//! norm, in which tokens of the same id interact, and the weighted sum over examples.

use std::collections::HashMap;

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::{Tensor, shares};
use crate::record::{Recording, Slice};

static SQ_NORM: Kernel = crate::kernel!("ops/lookup_grad", "sq_norm", sq_norm, sq_norm_f32);
static SUM: Kernel = crate::kernel!("ops/lookup_grad", "sum", sum);

/// Extents of a table's use: ids (batch, tokens), g (batch, tokens, width), table (vocabulary, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Examples.
    pub batch: usize,
    /// Tokens of one example.
    pub tokens: usize,
    /// Width of a table row.
    pub width: usize,
    /// Rows of the table. Larger ids count for nothing.
    pub vocabulary: usize,
}

impl Dims {
    fn check(&self, ids: Slice, g: Slice) -> Result<()> {
        let rows = self.batch * self.tokens;
        if ids.len != rows || g.len != rows * self.width {
            return Err(Error::kernel("lookup_grad", format!("ids {ids:?} and g {g:?} do not fit {self:?}")));
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.batch * self.tokens * self.width == 0
    }
}

/// Scratch of [`record_sq_norm`].
pub fn scratch(dims: Dims) -> Vec<Tensor> {
    vec![Tensor::float([dims.batch, dims.tokens])]
}

/// Records `out_i = ||dE_i||^2`, out (B). A non-finite gradient gives a non-finite norm.
///
/// # Errors
/// [`Error::Kernel`] if a slice does not fit.
pub fn record_sq_norm(
    rec: &mut Recording,
    dims: Dims,
    ids: Slice,
    g: Slice,
    out: Slice,
    scratch: &[Slice],
) -> Result<()> {
    dims.check(ids, g)?;
    if dims.is_empty() {
        rec.clear(out);
        return Ok(());
    }
    rec.dispatch(&SQ_NORM)
        .bind("ids", ids)
        .bind("g", g)
        .bind("partials", scratch[0])
        .n("batch", dims.batch)
        .n("tokens", dims.tokens)
        .n("width", dims.width)
        .n("vocabulary", dims.vocabulary)
        .groups(dims.batch * dims.tokens)?;
    shares::record(rec, dims.batch, dims.tokens, scratch[0], out)
}

/// Records `de += sum_i factors_i dE_i`, de (V, D), factors (B). An example of factor 0 adds exactly nothing,
/// whatever its g holds.
///
/// # Errors
/// [`Error::Kernel`] if a slice does not fit.
pub fn record_sum(
    rec: &mut Recording,
    dims: Dims,
    ids: Slice,
    g: Slice,
    factors: Slice,
    de: Slice,
) -> Result<()> {
    dims.check(ids, g)?;
    if factors.len < dims.batch || de.len != dims.vocabulary * dims.width {
        return Err(Error::kernel(
            "lookup_grad",
            format!("factors {factors:?} or table {de:?} for {dims:?}"),
        ));
    }
    if dims.is_empty() {
        return Ok(());
    }
    rec.dispatch(&SUM)
        .bind("ids", ids)
        .bind("g", g)
        .bind("factors", factors)
        .bind("de", de)
        .n("batch", dims.batch)
        .n("tokens", dims.tokens)
        .n("width", dims.width)
        .n("vocabulary", dims.vocabulary)
        .groups(dims.batch * dims.tokens)
}

/// An example's shares of its squared norm: the first token of each id takes the sum of its id.
fn example<F: Real>(ids: &[u32], g: &[F], width: usize, vocabulary: usize, shares: &mut [F]) {
    let mut sums: HashMap<u32, (usize, Vec<F>)> = HashMap::new();
    for (t, (&id, g)) in ids.iter().zip(g.chunks(width)).enumerate() {
        let (_, sum) = sums.entry(id).or_insert_with(|| (t, vec![F::zero(); width]));
        sum.iter_mut().zip(g).for_each(|(s, &g)| *s += g);
    }
    shares.fill(F::zero());
    for (id, (first, sum)) in sums {
        if (id as usize) < vocabulary {
            shares[first] = sum.iter().map(|&x| x * x).sum();
        }
    }
}

fn sq_norm<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width, vocabulary) = (a.n("tokens"), a.n("width"), a.n("vocabulary"));
    let (ids, g, partials) = (a.input_u32("ids"), a.input("g"), a.output("partials"));
    for ((ids, g), shares) in
        ids.chunks(tokens).zip(g.chunks(tokens * width)).zip(partials.chunks_mut(tokens))
    {
        example(ids, g, width, vocabulary, shares);
    }
}

fn sq_norm_f32(a: &mut Args<'_, f32>) {
    let (tokens, width, vocabulary) = (a.n("tokens"), a.n("width"), a.n("vocabulary"));
    let (ids, g, partials) = (a.input_u32("ids"), a.input("g"), a.output("partials"));
    (ids.par_chunks(tokens), g.par_chunks(tokens * width), partials.par_chunks_mut(tokens))
        .into_par_iter()
        .for_each(|(ids, g, shares)| example(ids, g, width, vocabulary, shares));
}

fn sum<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, width, vocabulary) = (a.n("tokens"), a.n("width"), a.n("vocabulary"));
    let (ids, g) = (a.input_u32("ids"), a.input("g"));
    let (factors, de) = (a.input("factors"), a.output("de"));
    for (row, (&id, g)) in ids.iter().zip(g.chunks(width)).enumerate() {
        let factor = factors[row / tokens];
        if factor != F::zero() && (id as usize) < vocabulary {
            let de = &mut de[id as usize * width..][..width];
            de.iter_mut().zip(g).for_each(|(d, &g)| *d += factor * g);
        }
    }
}
