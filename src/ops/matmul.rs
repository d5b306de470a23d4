//! Matrix products `C = op(A) op(B)`, batched, all four transpositions, with an optional bias, row factor and
//! accumulation fused in. Not an op of its own: ops record it.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::gemm::{self, Matrix, Start};
use crate::record::{Recording, Slice};

static TILE: Kernel = crate::kernel!("ops/matmul", "tile", plain, plain_f32);
static TILE_BIAS: Kernel = crate::kernel!("ops/matmul", "tile_bias", with_bias, with_bias_f32);
static TILE_FACTOR: Kernel = crate::kernel!("ops/matmul", "tile_factor", with_factor, with_factor_f32);
static SPLIT: Kernel = crate::kernel!("ops/matmul", "split", plain, plain_f32);
static SPLIT_FACTOR: Kernel = crate::kernel!("ops/matmul", "split_factor", with_factor, with_factor_f32);
static ANY: Kernel = crate::kernel!("ops/matmul_any", "tile", plain, plain_f32);
static ANY_BIAS: Kernel = crate::kernel!("ops/matmul_any", "tile_bias", with_bias, with_bias_f32);
static ANY_FACTOR: Kernel = crate::kernel!("ops/matmul_any", "tile_factor", with_factor, with_factor_f32);

/// How one operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Elements from one stored row to the next.
    pub row_stride: usize,
    /// Elements from one product's operand to the next one's; 0 shares it.
    pub batch_stride: usize,
}

/// Shape of a batch of products `C (m, n) = op(A) (m, k) op(B) (k, n)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// A is stored (k, m).
    pub trans_a: bool,
    /// B is stored (n, k).
    pub trans_b: bool,
    /// Number of products.
    pub batch: usize,
    /// Where A lies.
    pub a: Operand,
    /// Where B lies.
    pub b: Operand,
    /// Where C lies.
    pub c: Operand,
}

impl Spec {
    /// One product of operands without gaps.
    pub fn new(m: usize, n: usize, k: usize, trans_a: bool, trans_b: bool) -> Self {
        let dense = |rows: usize, width: usize| Operand { row_stride: width, batch_stride: rows * width };
        Spec {
            m,
            n,
            k,
            trans_a,
            trans_b,
            batch: 1,
            a: if trans_a { dense(k, m) } else { dense(m, k) },
            b: if trans_b { dense(n, k) } else { dense(k, n) },
            c: dense(m, n),
        }
    }

    /// The same product for each of `batch` consecutive operands.
    pub fn batched(self, batch: usize) -> Self {
        Spec { batch, ..self }
    }

    /// Floating-point operations (a multiply-add counts two).
    pub fn flops(&self) -> u64 {
        2 * (self.batch * self.m * self.n * self.k) as u64
    }

    /// Strides of (row, column) of `op(A)`.
    fn strides_a(&self) -> (usize, usize) {
        if self.trans_a { (1, self.a.row_stride) } else { (self.a.row_stride, 1) }
    }

    /// Strides of (row, column) of `op(B)`.
    fn strides_b(&self) -> (usize, usize) {
        if self.trans_b { (1, self.b.row_stride) } else { (self.b.row_stride, 1) }
    }
}

/// What is fused into a product.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    /// (n), added to every row of C.
    pub bias: Option<Slice>,
    /// Factors, and the number of consecutive rows that share one: row r of A and of B, both stored with the sum
    /// as their rows (`trans_a`, not `trans_b`), counts `factors[r / rows]` times. A factor of 0 makes both rows
    /// exact zeros, also where they hold NaN or infinity.
    pub factors: Option<(Slice, usize)>,
    /// Add to what C holds.
    pub accumulate: bool,
}

/// A family of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Register tiles of quads, without workgroup memory.
    Tile,
    /// The same, with the sum shared by the slices of a workgroup.
    Split,
    /// Register tiles of single elements, for any extents.
    Any,
}

/// A kernel family with the constants of its tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The family.
    pub variant: Variant,
    /// Rows of C per invocation; a multiple of 4 for quads.
    pub rows: u32,
    /// Quads (or elements, in [`Variant::Any`]) of columns of C per invocation.
    pub columns: u32,
    /// Invocations side by side along the columns.
    pub lanes: u32,
    /// Parts of the sum in a workgroup; 1 but for [`Variant::Split`].
    pub slices: u32,
}

/// The choice of kernel by shape. The one place to tune.
///
/// | shape | kernel | why |
/// |---|---|---|
/// | a contiguous extent or stride not a multiple of 4 | `Any`, 8 rows by up to 4 columns | quads would be misaligned |
/// | fewer than [`FEW_GROUPS`] tiles of C and k >= 512 | `Split` | too few workgroups to share out otherwise |
/// | other | `Tile`, 8 rows by up to 4 quads | best of 4 to 16 rows by 1 to 4 quads on lavapipe |
///
/// Columns: as many as waste least at the right edge. Lanes: 8, the width of lavapipe's vectors; 32 take two to four
/// times as long there. A GPU wants 32 or 64: a choice per adapter would go here.
pub fn pick(spec: &Spec, extras: &Extras) -> Choice {
    const LANES: u32 = 8;
    let rows = if spec.m <= 4 { 4 } else { 8 };
    let columns = |elements: u32| {
        let computed = |columns: &u32| {
            let block = columns * elements * LANES;
            (spec.n.div_ceil(block as usize) as u32 * block, u32::MAX - columns)
        };
        [1, 2, 3, 4].into_iter().min_by_key(computed).unwrap_or(4)
    };
    if !quads(spec) {
        return Choice { variant: Variant::Any, rows, columns: columns(1), lanes: LANES, slices: 1 };
    }
    let columns = columns(4);
    let groups =
        spec.batch * spec.m.div_ceil(rows as usize) * spec.n.div_ceil((4 * columns * LANES) as usize);
    if groups < FEW_GROUPS && spec.k >= 512 && extras.bias.is_none() {
        return Choice { variant: Variant::Split, rows: 4, columns: 1, lanes: LANES, slices: 8 };
    }
    Choice { variant: Variant::Tile, rows, columns, lanes: LANES, slices: 1 }
}

/// Workgroups under which a long sum is split.
pub const FEW_GROUPS: usize = 4;

/// Whether every address of the product is that of four consecutive elements.
fn quads(s: &Spec) -> bool {
    let inner = [if s.trans_a { s.m } else { s.k }, if s.trans_b { s.k } else { s.n }, s.n];
    let strides = [s.a, s.b, s.c].into_iter().flat_map(|o| [o.row_stride, o.batch_stride]);
    // A batch of one never uses its batch strides.
    inner.into_iter().chain(strides).enumerate().all(|(i, x)| {
        let batch_stride = i >= 3 && (i - 3) % 2 == 1;
        x % 4 == 0 || (batch_stride && s.batch == 1)
    })
}

/// Records the product with the kernel that [`pick`] chooses.
///
/// # Errors
/// [`Error::Kernel`] if a slice does not hold its operand, or factors come with other transpositions or a bias.
pub fn record(rec: &mut Recording, spec: &Spec, a: Slice, b: Slice, c: Slice, extras: &Extras) -> Result<()> {
    record_as(rec, pick(spec, extras), spec, a, b, c, extras)
}

/// Records the product with a given kernel.
///
/// # Errors
/// As [`record`]; also if the choice does not fit the shape.
pub fn record_as(
    rec: &mut Recording,
    choice: Choice,
    spec: &Spec,
    a: Slice,
    b: Slice,
    c: Slice,
    extras: &Extras,
) -> Result<()> {
    let s = spec;
    if s.batch == 0 || s.m == 0 || s.n == 0 {
        return Ok(());
    }
    check(choice, s, [a, b, c], extras)?;
    let kernel = match (choice.variant, extras.bias, extras.factors) {
        (Variant::Tile, None, None) => &TILE,
        (Variant::Tile, Some(_), _) => &TILE_BIAS,
        (Variant::Tile, None, Some(_)) => &TILE_FACTOR,
        (Variant::Split, _, None) => &SPLIT,
        (Variant::Split, _, Some(_)) => &SPLIT_FACTOR,
        (Variant::Any, None, None) => &ANY,
        (Variant::Any, Some(_), _) => &ANY_BIAS,
        (Variant::Any, None, Some(_)) => &ANY_FACTOR,
    };
    let ((row_a, col_a), (row_b, col_b)) = (s.strides_a(), s.strides_b());
    let mut d = rec
        .dispatch(kernel)
        .spec("TM", choice.rows)
        .spec("TN", choice.columns)
        .spec("LANES", choice.lanes)
        .bind("a", a)
        .bind("b", b)
        .bind("c", c)
        .n("m", s.m)
        .n("n", s.n)
        .n("k", s.k)
        .n("batch", s.batch)
        .n("stride_a", s.a.batch_stride)
        .n("row_a", row_a)
        .n("col_a", col_a)
        .n("stride_b", s.b.batch_stride)
        .n("row_b", row_b)
        .n("col_b", col_b)
        .n("stride_c", s.c.batch_stride)
        .n("row_c", s.c.row_stride)
        .param("accumulate", extras.accumulate as u32)
        .n("rows_per_factor", extras.factors.map_or(1, |(_, rows)| rows));
    let mut width = choice.lanes * choice.columns;
    if choice.variant != Variant::Any {
        d = d
            .spec("TRANS_A", s.trans_a as u32)
            .spec("TRANS_B", s.trans_b as u32)
            .spec("SLICES", choice.slices);
        width *= 4;
    }
    if let Some(bias) = extras.bias {
        d = d.bind("bias", bias);
    }
    if let Some((factors, _)) = extras.factors {
        d = d.bind("factors", factors);
    }
    d.groups(s.batch * s.m.div_ceil(choice.rows as usize) * s.n.div_ceil(width as usize))
}

fn check(choice: Choice, s: &Spec, [a, b, c]: [Slice; 3], extras: &Extras) -> Result<()> {
    let fail = |what: String| Err(Error::kernel("matmul", what));
    let (rows_a, width_a) = if s.trans_a { (s.k, s.m) } else { (s.m, s.k) };
    let (rows_b, width_b) = if s.trans_b { (s.n, s.k) } else { (s.k, s.n) };
    for (name, slice, o, rows, width) in
        [("A", a, s.a, rows_a, width_a), ("B", b, s.b, rows_b, width_b), ("C", c, s.c, s.m, s.n)]
    {
        let needed = (s.batch - 1) * o.batch_stride + rows.saturating_sub(1) * o.row_stride + width;
        if o.row_stride < width || slice.len < needed {
            return fail(format!("{name} ({rows}, {width}), {o:?}, batch {}, in {slice:?}", s.batch));
        }
    }
    if s.batch > 1 && s.c.batch_stride < (s.m - 1) * s.c.row_stride + s.n {
        return fail(format!("the products of {s:?} overlap in C"));
    }
    if extras.bias.is_some_and(|bias| bias.len != s.n) {
        return fail(format!("bias {:?} for {} columns", extras.bias, s.n));
    }
    if let Some((factors, rows)) = extras.factors {
        if !s.trans_a || s.trans_b || extras.bias.is_some() {
            return fail("factors need A transposed, B not, and no bias".into());
        }
        if rows == 0 || factors.len < s.k.div_ceil(rows) {
            return fail(format!("{factors:?} for {} rows, {rows} a factor", s.k));
        }
    }
    let c = choice;
    let fits = match c.variant {
        Variant::Any => c.slices == 1,
        Variant::Tile => quads(s) && c.rows.is_multiple_of(4) && c.slices == 1,
        Variant::Split => quads(s) && c.rows.is_multiple_of(4) && extras.bias.is_none(),
    };
    if !fits || [c.rows, c.columns, c.lanes, c.slices].contains(&0) {
        return fail(format!("{choice:?} does not fit {spec:?}", spec = s));
    }
    Ok(())
}

/// The arguments that all twins share.
struct Product {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    a: [usize; 3],
    b: [usize; 3],
    c: [usize; 2],
    accumulate: bool,
}

impl Product {
    fn of<F: Real>(x: &Args<'_, F>) -> Self {
        Product {
            m: x.n("m"),
            n: x.n("n"),
            k: x.n("k"),
            batch: x.n("batch"),
            a: [x.n("stride_a"), x.n("row_a"), x.n("col_a")],
            b: [x.n("stride_b"), x.n("row_b"), x.n("col_b")],
            c: [x.n("stride_c"), x.n("row_c")],
            accumulate: x.n("accumulate") != 0,
        }
    }

    /// The formula, with what is added to column j and the factor of step k of the sum.
    fn run<F: Real>(
        &self,
        a: &[F],
        b: &[F],
        c: &mut [F],
        bias: impl Fn(usize) -> F,
        factor: impl Fn(usize) -> F,
    ) {
        let ([stride_a, row_a, col_a], [stride_b, row_b, col_b]) = (self.a, self.b);
        for p in 0..self.batch {
            let (a, b) = (&a[p * stride_a..], &b[p * stride_b..]);
            for i in 0..self.m {
                let mut sums: Vec<F> = (0..self.n).map(&bias).collect();
                for k in 0..self.k {
                    let factor = factor(k);
                    if factor != F::zero() {
                        let x = factor * a[i * row_a + k * col_a];
                        for (j, sum) in sums.iter_mut().enumerate() {
                            *sum += x * b[k * row_b + j * col_b];
                        }
                    }
                }
                let row = &mut c[p * self.c[0] + i * self.c[1]..][..self.n];
                for (c, sum) in row.iter_mut().zip(sums) {
                    *c = if self.accumulate { *c + sum } else { sum };
                }
            }
        }
    }

    /// The same at f32, by `matrixmultiply`: products side by side when there are many, else split.
    fn run_f32(&self, a: &[f32], b: &[f32], c: &mut [f32], start: Start<'_>) {
        let threads = rayon::current_num_threads();
        let one = |p: usize, c: &mut [f32], threads: usize| {
            let a = Matrix { data: &a[p * self.a[0]..], row: self.a[1], col: self.a[2] };
            let b = Matrix { data: &b[p * self.b[0]..], row: self.b[1], col: self.b[2] };
            gemm::product((self.m, self.k, self.n), a, b, start, c, self.c[1], threads);
        };
        if self.batch == 1 {
            one(0, c, threads);
        } else if self.batch >= threads {
            let tasks = (16 * threads).min(self.batch);
            let run = self.batch.div_ceil(tasks);
            c.par_chunks_mut(run * self.c[0]).enumerate().for_each(|(task, c)| {
                for (i, c) in c.chunks_mut(self.c[0]).enumerate() {
                    if task * run + i < self.batch {
                        one(task * run + i, c, 1);
                    }
                }
            });
        } else {
            c.chunks_mut(self.c[0]).take(self.batch).enumerate().for_each(|(p, c)| one(p, c, threads));
        }
    }

    fn start(&self) -> Start<'static> {
        if self.accumulate { Start::Held } else { Start::Zero }
    }
}

fn plain<F: Real>(x: &mut Args<'_, F>) {
    let p = Product::of(x);
    let (a, b, c) = (x.input("a"), x.input("b"), x.output("c"));
    p.run(a, b, c, |_| F::zero(), |_| F::one());
}

fn plain_f32(x: &mut Args<'_, f32>) {
    let p = Product::of(x);
    let (a, b, c) = (x.input("a"), x.input("b"), x.output("c"));
    p.run_f32(a, b, c, p.start());
}

fn with_bias<F: Real>(x: &mut Args<'_, F>) {
    let p = Product::of(x);
    let (a, b, c, bias) = (x.input("a"), x.input("b"), x.output("c"), x.input("bias"));
    p.run(a, b, c, |j| bias[j], |_| F::one());
}

fn with_bias_f32(x: &mut Args<'_, f32>) {
    let p = Product::of(x);
    let (a, b, c, bias) = (x.input("a"), x.input("b"), x.output("c"), x.input("bias"));
    if p.accumulate {
        for q in 0..p.batch {
            for i in 0..p.m {
                let row = &mut c[q * p.c[0] + i * p.c[1]..][..p.n];
                row.iter_mut().zip(bias).for_each(|(c, bias)| *c += bias);
            }
        }
        p.run_f32(a, b, c, Start::Held);
    } else {
        p.run_f32(a, b, c, Start::Bias(bias));
    }
}

fn with_factor<F: Real>(x: &mut Args<'_, F>) {
    let p = Product::of(x);
    let rows = x.n("rows_per_factor");
    let (a, b, c, factors) = (x.input("a"), x.input("b"), x.output("c"), x.input("factors"));
    p.run(a, b, c, |_| F::zero(), |k| factors[k / rows]);
}

/// Runs of consecutive rows whose factors are not 0, one product each; the narrower operand is scaled on the
/// way, unless all factors of the run are 1.
fn with_factor_f32(x: &mut Args<'_, f32>) {
    let p = Product::of(x);
    let rows = x.n("rows_per_factor");
    let (a, b, c, factors) = (x.input("a"), x.input("b"), x.output("c"), x.input("factors"));
    let threads = rayon::current_num_threads();
    for q in 0..p.batch {
        let (a, b) = (&a[q * p.a[0]..], &b[q * p.b[0]..]);
        let c = &mut c[q * p.c[0]..];
        if !p.accumulate {
            c.chunks_mut(p.c[1]).take(p.m).for_each(|row| row[..p.n].fill(0.0));
        }
        let count = p.k.div_ceil(rows);
        let mut first = 0;
        while first < count {
            if factors[first] == 0.0 {
                first += 1;
                continue;
            }
            let last = (first..count).find(|&i| factors[i] == 0.0).unwrap_or(count);
            let (from, to) = (first * rows, (last * rows).min(p.k));
            let length = to - from;
            let (a, b) = (&a[from * p.a[2]..], &b[from * p.b[1]..]);
            let a = Matrix { data: a, row: p.a[1], col: p.a[2] };
            let b = Matrix { data: b, row: p.b[1], col: p.b[2] };
            let run = &factors[first..last];
            if run.iter().all(|&f| f == 1.0) {
                gemm::product((p.m, length, p.n), a, b, Start::Held, c, p.c[1], threads);
            } else if p.m <= p.n {
                gemm::with_scratch(length * p.m, |scaled| {
                    scale(scaled, p.m, a.data, p.a[2], run, rows);
                    let a = Matrix { data: scaled, row: 1, col: p.m };
                    gemm::product((p.m, length, p.n), a, b, Start::Held, c, p.c[1], threads);
                });
            } else {
                gemm::with_scratch(length * p.n, |scaled| {
                    scale(scaled, p.n, b.data, p.b[1], run, rows);
                    let b = Matrix { data: scaled, row: p.n, col: 1 };
                    gemm::product((p.m, length, p.n), a, b, Start::Held, c, p.c[1], threads);
                });
            }
            first = last;
        }
    }
}

/// Rows of `from`, `stride` apart, times the factor of their example.
fn scale(to: &mut [f32], width: usize, from: &[f32], stride: usize, factors: &[f32], rows: usize) {
    to.par_chunks_mut(rows * width).zip(factors).enumerate().for_each(|(i, (to, &factor))| {
        for (r, to) in to.chunks_mut(width).enumerate() {
            let from = &from[(i * rows + r) * stride..][..width];
            to.iter_mut().zip(from).for_each(|(t, f)| *t = factor * f);
        }
    });
}
