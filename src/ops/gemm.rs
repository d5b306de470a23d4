//! Matrix products of the f32 twins: `matrixmultiply` for the arithmetic, rayon for the threads.
//!
//! How a product is split depends on its shape and the number of threads alone, and never along the sum, so
//! the bytes of a result do not depend on timing.

use std::cell::RefCell;

use rayon::prelude::*;

use super::fast::dot;
use super::lanes::in_lanes;

/// Floating-point operations under which another thread costs more than it brings.
const FLOPS_PER_PART: usize = 2_000_000;

/// A matrix to read: element (i, j) is `data[i * row + j * col]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub col: usize,
}

impl Matrix<'_> {
    fn holds(&self, rows: usize, cols: usize) -> bool {
        rows == 0 || cols == 0 || (rows - 1) * self.row + (cols - 1) * self.col < self.data.len()
    }
}

/// What is added to a product.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    /// Nothing.
    Zero,
    /// What C holds.
    Held,
    /// A row vector (n), to every row.
    Bias(&'a [f32]),
}

/// A pointer that parts of one product share; each writes rows and columns of its own.
#[derive(Clone, Copy)]
struct Shared(*mut f32);
// SAFETY: the parts of `product` write disjoint elements.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The pointer `offset` elements on.
    ///
    /// # Safety
    /// As `pointer::add`.
    unsafe fn at(self, offset: usize) -> *mut f32 {
        // SAFETY: the caller's.
        unsafe { self.0.add(offset) }
    }
}

/// `C = A B + start`, C (m, n) with rows `row_c` apart, on up to `threads` threads.
///
/// # Panics
/// If an operand is too short for its extents, or the rows of C overlap.
pub(crate) fn product(
    (m, k, n): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    start: Start<'_>,
    c: &mut [f32],
    row_c: usize,
    threads: usize,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(a.holds(m, k) && b.holds(k, n), "operands of a {m}x{k}x{n} product");
    assert!(row_c >= n && (m - 1) * row_c + n <= c.len(), "result of a {m}x{k}x{n} product");
    if m <= FEW_ROWS && a.col == 1 && b.row == 1 && k > 0 {
        return few_rows((m, k, n), a, b, start, c, row_c);
    }
    let parts = (2 * m * k * n / FLOPS_PER_PART).clamp(1, threads.max(1));
    let (down, across) = grid(m, n, parts);
    let rows = m.div_ceil(down).next_multiple_of(16);
    let cols = n.div_ceil(across).next_multiple_of(16);
    let shared = Shared(c.as_mut_ptr());
    let part = |index: usize| {
        let (i0, j0) = (index % down * rows, index / down * cols);
        if i0 >= m || j0 >= n {
            return;
        }
        let (rows, cols) = (rows.min(m - i0), cols.min(n - j0));
        // SAFETY: the part covers rows i0.. and columns j0.. of C, which no other part touches and which lie
        // inside `c` as asserted; the operands hold every element read, as asserted.
        unsafe {
            let c = shared.at(i0 * row_c + j0);
            let beta = match start {
                Start::Zero => 0.0,
                Start::Held => 1.0,
                Start::Bias(bias) => {
                    for i in 0..rows {
                        std::slice::from_raw_parts_mut(c.add(i * row_c), cols)
                            .copy_from_slice(&bias[j0..j0 + cols]);
                    }
                    1.0
                }
            };
            matrixmultiply::sgemm(
                rows,
                k,
                cols,
                1.0,
                a.data.as_ptr().add(if k == 0 { 0 } else { i0 * a.row }),
                a.row as isize,
                a.col as isize,
                b.data.as_ptr().add(if k == 0 { 0 } else { j0 * b.col }),
                b.row as isize,
                b.col as isize,
                beta,
                c,
                row_c as isize,
                1,
            );
        }
    };
    if parts == 1 {
        part(0);
    } else {
        (0..down * across).into_par_iter().for_each(part);
    }
}

/// Rows of a product that is bound by reading B once: a text written token by token. Packing B would read and write it again.
const FEW_ROWS: usize = 4;

/// Columns of B that one task takes.
const FEW_COLUMNS: usize = 64;

/// A product of at most [`FEW_ROWS`] rows, where rows of A and columns of B are contiguous.
fn few_rows(
    (m, k, n): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    start: Start<'_>,
    c: &mut [f32],
    row_c: usize,
) {
    let sums: Vec<[[f32; FEW_COLUMNS]; FEW_ROWS]> = (0..n.div_ceil(FEW_COLUMNS))
        .into_par_iter()
        .with_min_len((FLOPS_PER_PART / (2 * m * k * FEW_COLUMNS)).max(1))
        .map(|task| {
            let first = task * FEW_COLUMNS;
            let mut out = [[0.0; FEW_COLUMNS]; FEW_ROWS];
            dots(&mut out, m, k, FEW_COLUMNS.min(n - first), a.data, a.row, &b.data[first * b.col..], b.col);
            out
        })
        .collect();
    for i in 0..m {
        let row = &mut c[i * row_c..][..n];
        for (j, c) in row.iter_mut().enumerate() {
            let before = match start {
                Start::Zero => 0.0,
                Start::Held => *c,
                Start::Bias(bias) => bias[j],
            };
            *c = before + sums[j / FEW_COLUMNS][i][j % FEW_COLUMNS];
        }
    }
}

in_lanes! {
    /// Products of `rows` rows of A with `columns` columns of B.
    fn dots<L>(
        out: &mut [[f32; FEW_COLUMNS]; FEW_ROWS], rows: usize, k: usize, columns: usize,
        a: &[f32], row_a: usize, b: &[f32], col_b: usize,
    ) {
        for j in 0..columns {
            let b = &b[j * col_b..][..k];
            for i in 0..rows {
                out[i][j] = dot::<L>(&a[i * row_a..][..k], b);
            }
        }
    }
}

/// `parts` as rows by columns of parts, such that the operands are read least often.
fn grid(m: usize, n: usize, parts: usize) -> (usize, usize) {
    (1..=parts)
        .filter(|down| parts.is_multiple_of(*down))
        .map(|down| (down, parts / down))
        .min_by_key(|(down, across)| m.div_ceil(*down) + n.div_ceil(*across))
        .unwrap_or((1, 1))
}

/// Calls `f` with `len` floats of this thread's scratch, whose values are arbitrary.
pub(crate) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    // Taken out while in use: rayon may run another task of this kind on this thread meanwhile.
    let mut scratch = SCRATCH.take();
    if scratch.len() < len {
        scratch.resize(len, 0.0);
    }
    let result = f(&mut scratch[..len]);
    SCRATCH.set(scratch);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_the_same_product() {
        for (m, k, n) in [(1, 1, 1), (1, 33, 130), (2, 64, 64), (4, 17, 3), (3, 100, 257)] {
            let a: Vec<f32> = (0..m * k).map(|i| (i % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| (i % 7) as f32 - 3.0).collect();
            let bias: Vec<f32> = (0..n).map(|j| j as f32).collect();
            let (a, b) = (Matrix { data: &a, row: k, col: 1 }, Matrix { data: &b, row: 1, col: k });
            for start in [Start::Zero, Start::Held, Start::Bias(&bias)] {
                let mut c = vec![2.0; m * n];
                product((m, k, n), a, b, start, &mut c, n, 2);
                for (at, &c) in c.iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    let sum: f32 = (0..k).map(|s| a.data[i * k + s] * b.data[j * k + s]).sum();
                    let before = match start {
                        Start::Zero => 0.0,
                        Start::Held => 2.0,
                        Start::Bias(bias) => bias[j],
                    };
                    assert_eq!(c, sum + before, "{m}x{k}x{n}: ({i}, {j})");
                }
            }
        }
    }

    #[test]
    fn parts_cover_the_product() {
        for (m, k, n) in [(1, 1, 1), (17, 3, 33), (300, 64, 17), (33, 300, 400), (257, 129, 65)] {
            let a: Vec<f32> = (0..m * k).map(|i| (i % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| (i % 7) as f32 - 3.0).collect();
            let bias: Vec<f32> = (0..n).map(|j| j as f32).collect();
            for threads in [1, 2, 3, 4, 16] {
                let mut c = vec![f32::NAN; m * n];
                let (a, b) = (Matrix { data: &a, row: k, col: 1 }, Matrix { data: &b, row: n, col: 1 });
                product((m, k, n), a, b, Start::Bias(&bias), &mut c, n, threads);
                for i in 0..m {
                    for j in 0..n {
                        let want: f32 = (0..k).map(|s| a.data[i * k + s] * b.data[s * n + j]).sum();
                        assert_eq!(c[i * n + j], want + j as f32, "{m}x{k}x{n} on {threads}: ({i}, {j})");
                    }
                }
            }
        }
    }
}
