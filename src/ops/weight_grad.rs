//! Rules for `dW_i = sum_t g_t x_t^T`, the gradient of a weight (out, in) by one example: its squared norm
//! without storing it, and the weighted sum over examples as one product.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::gemm::{self, Matrix, Start};
use crate::ops::matmul::{self, Extras};
use crate::ops::{Tensor, gram, shares};
use crate::record::{Recording, Slice};

static GHOST: Kernel = crate::kernel!("ops/weight_grad", "ghost", ghost, ghost_f32);
static DIRECT: Kernel = crate::kernel!("ops/weight_grad", "direct", direct, direct_f32);
static GHOST_ANY: Kernel = crate::kernel!("ops/weight_grad_any", "ghost", ghost, ghost_f32);
static DIRECT_ANY: Kernel = crate::kernel!("ops/weight_grad_any", "direct", direct, direct_f32);

/// Extents of a weight's use: x (batch, tokens, width_in), g (batch, tokens, width_out).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Examples.
    pub batch: usize,
    /// Rows of one example.
    pub tokens: usize,
    /// Width of x.
    pub width_in: usize,
    /// Width of g.
    pub width_out: usize,
}

/// How the squared norm is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `sum_(t, s) (x_t . x_s)(g_t . g_s)`: Goodfellow 2015, <https://arxiv.org/abs/1510.01799>, for sequences
    /// Li et al. 2022, <https://arxiv.org/abs/2110.05679>, section 4. In f32 each term is raised by 2^-21 of its size,
    /// so that a sum whose terms all but cancel does not come out too small.
    Ghost,
    /// Tiles of dW_i, squared and summed, never stored.
    Direct,
}

/// Rows (tokens or outputs) of one share of the norm.
const ROWS: usize = 8;

impl Dims {
    /// The cheaper rule by multiply-adds: ghost `T (T + 1) / 2 (in + out)`, direct `T in out`.
    pub fn rule(&self) -> Rule {
        let ghost = (self.tokens + 1) * (self.width_in + self.width_out);
        if ghost <= 2 * self.width_in * self.width_out { Rule::Ghost } else { Rule::Direct }
    }

    fn shares(&self, rule: Rule) -> usize {
        match rule {
            Rule::Ghost => self.tokens.div_ceil(ROWS),
            Rule::Direct => self.width_out.div_ceil(ROWS),
        }
    }

    fn is_empty(&self) -> bool {
        self.batch == 0 || self.tokens == 0
    }

    fn check(&self, x: Slice, g: Slice) -> Result<()> {
        let rows = self.batch * self.tokens;
        if x.len != rows * self.width_in
            || g.len != rows * self.width_out
            || self.width_in * self.width_out == 0
        {
            return Err(Error::kernel("weight_grad", format!("x {x:?} and g {g:?} do not fit {self:?}")));
        }
        Ok(())
    }
}

/// Scratch of [`record_sq_norm`].
pub fn scratch(dims: Dims) -> Vec<Tensor> {
    scratch_as(dims, dims.rule())
}

/// Scratch of [`record_sq_norm_as`].
pub fn scratch_as(dims: Dims, rule: Rule) -> Vec<Tensor> {
    vec![Tensor::float([dims.batch, dims.shares(rule)])]
}

/// Records `out_i = ||dW_i||^2`, out (B), by the cheaper rule. A non-finite gradient gives a non-finite norm.
///
/// # Errors
/// [`Error::Kernel`] if a slice does not fit.
pub fn record_sq_norm(
    rec: &mut Recording,
    dims: Dims,
    x: Slice,
    g: Slice,
    out: Slice,
    scratch: &[Slice],
) -> Result<()> {
    record_sq_norm_as(rec, dims.rule(), dims, x, g, out, scratch)
}

/// As [`record_sq_norm`], by the given rule.
///
/// # Errors
/// As [`record_sq_norm`].
pub fn record_sq_norm_as(
    rec: &mut Recording,
    rule: Rule,
    dims: Dims,
    x: Slice,
    g: Slice,
    out: Slice,
    scratch: &[Slice],
) -> Result<()> {
    if dims.is_empty() {
        rec.clear(out);
        return Ok(());
    }
    dims.check(x, g)?;
    let count = dims.shares(rule);
    let quads = dims.width_in.is_multiple_of(4) && dims.width_out.is_multiple_of(4);
    // Columns per invocation and invocations per workgroup: few for few tokens, so that few idle.
    let (kernel, columns, lanes) = match (rule, quads) {
        (Rule::Ghost, true) => (&GHOST, if dims.tokens <= 32 { 1 } else { 4 }, 8),
        (Rule::Ghost, false) => (&GHOST_ANY, if dims.tokens <= 32 { 1 } else { 4 }, 8),
        (Rule::Direct, true) => (&DIRECT, 2, if dims.width_in <= 64 { 8 } else { 16 }),
        (Rule::Direct, false) => (&DIRECT_ANY, 4, if dims.width_in <= 32 { 8 } else { 32 }),
    };
    rec.dispatch(kernel)
        .spec("TM", ROWS as u32)
        .spec("TN", columns)
        .spec("LANES", lanes)
        .bind("x", x)
        .bind("g", g)
        .bind("partials", scratch[0])
        .n("batch", dims.batch)
        .n("tokens", dims.tokens)
        .n("width_in", dims.width_in)
        .n("width_out", dims.width_out)
        .n("rows", ROWS)
        .n("partials", count)
        .groups(dims.batch * count)?;
    shares::record(rec, dims.batch, count, scratch[0], out)
}

/// Records `dw += sum_i factors_i dW_i`, dw (out, in), factors (B), as one product over all rows. An example of
/// factor 0 adds exactly nothing, whatever its x and g hold.
///
/// # Errors
/// [`Error::Kernel`] if a slice does not fit.
pub fn record_sum(
    rec: &mut Recording,
    dims: Dims,
    x: Slice,
    g: Slice,
    factors: Slice,
    dw: Slice,
) -> Result<()> {
    if dims.is_empty() {
        return Ok(());
    }
    dims.check(x, g)?;
    let spec = matmul::Spec::new(dims.width_out, dims.width_in, dims.batch * dims.tokens, true, false);
    let extras = Extras { factors: Some((factors, dims.tokens)), accumulate: true, bias: None };
    matmul::record(rec, &spec, g, x, dw, &extras)
}

/// The arguments of the norm kernels.
fn dims<F: Real>(a: &Args<'_, F>) -> (Dims, usize, usize) {
    let dims = Dims {
        batch: a.n("batch"),
        tokens: a.n("tokens"),
        width_in: a.n("width_in"),
        width_out: a.n("width_out"),
    };
    (dims, a.n("rows"), a.n("partials"))
}

fn ghost<F: Real>(a: &mut Args<'_, F>) {
    let (d, rows, count) = dims(a);
    let (x, g, partials) = (a.input("x"), a.input("g"), a.output("partials"));
    let dot = |v: &[F], width: usize, t: usize, s: usize| -> F {
        (0..width).map(|k| v[t * width + k] * v[s * width + k]).sum()
    };
    for i in 0..d.batch {
        let x = &x[i * d.tokens * d.width_in..][..d.tokens * d.width_in];
        let g = &g[i * d.tokens * d.width_out..][..d.tokens * d.width_out];
        for p in 0..count {
            let mut share = F::zero();
            for t in p * rows..((p + 1) * rows).min(d.tokens) {
                for s in 0..=t {
                    let weight = F::of(if s == t { 1.0 } else { 2.0 });
                    share += weight * dot(x, d.width_in, t, s) * dot(g, d.width_out, t, s);
                }
            }
            partials[i * count + p] = share;
        }
    }
}

fn ghost_f32(a: &mut Args<'_, f32>) {
    let (d, rows, count) = dims(a);
    let (x, g, partials) = (a.input("x"), a.input("g"), a.output("partials"));
    partials.par_chunks_mut(count).take(d.batch).enumerate().for_each(|(i, shares)| {
        let x = &x[i * d.tokens * d.width_in..][..d.tokens * d.width_in];
        let g = &g[i * d.tokens * d.width_out..][..d.tokens * d.width_out];
        gram::pair_sums(x, d.width_in, g, d.width_out, rows, shares);
    });
}

fn direct<F: Real>(a: &mut Args<'_, F>) {
    let (d, rows, count) = dims(a);
    let (x, g, partials) = (a.input("x"), a.input("g"), a.output("partials"));
    for i in 0..d.batch {
        let (x, g) = (&x[i * d.tokens * d.width_in..], &g[i * d.tokens * d.width_out..]);
        for p in 0..count {
            let mut share = F::zero();
            for o in p * rows..((p + 1) * rows).min(d.width_out) {
                for k in 0..d.width_in {
                    let dw: F = (0..d.tokens).map(|t| g[t * d.width_out + o] * x[t * d.width_in + k]).sum();
                    share += dw * dw;
                }
            }
            partials[i * count + p] = share;
        }
    }
}

/// Shares whose rows of dW_i are computed by one product on the CPU.
const SHARES_PER_PRODUCT: usize = 16;

fn direct_f32(a: &mut Args<'_, f32>) {
    let (d, rows, count) = dims(a);
    let (x, g, partials) = (a.input("x"), a.input("g"), a.output("partials"));
    partials.par_chunks_mut(count).take(d.batch).enumerate().for_each(|(i, shares)| {
        let x = &x[i * d.tokens * d.width_in..][..d.tokens * d.width_in];
        let g = &g[i * d.tokens * d.width_out..][..d.tokens * d.width_out];
        shares.par_chunks_mut(SHARES_PER_PRODUCT).enumerate().for_each(|(block, shares)| {
            let o0 = block * SHARES_PER_PRODUCT * rows;
            let outputs = (shares.len() * rows).min(d.width_out - o0);
            gemm::with_scratch(outputs * d.width_in, |dw| {
                let g = Matrix { data: &g[o0..], row: 1, col: d.width_out };
                let x = Matrix { data: x, row: d.width_in, col: 1 };
                gemm::product((outputs, d.tokens, d.width_in), g, x, Start::Zero, dw, d.width_in, 1);
                for (share, dw) in shares.iter_mut().zip(dw.chunks(rows * d.width_in)) {
                    *share = gram::sum_of_squares(dw);
                }
            });
        });
    });
}
