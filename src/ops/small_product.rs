//! Products of matrices of a few dozen rows, of which attention has thousands: a general product copies its
//! operands first, which at 17 rows costs several times the arithmetic.

use super::lanes::{Lanes, in_lanes};

/// The left operand: element (i, k) is `data[i * row + k * col]`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub col: usize,
}

in_lanes! {
    /// `C = A B (+ C)`: A (m, k), B (k, n) with rows `row_b` apart, C (m, n) with rows `row_c` apart; n is a multiple
    /// of 16.
    ///
    /// # Panics
    /// If an operand is too short for its extents, or n is no multiple of 16.
    pub(crate) fn product<L>(
        size: (usize, usize, usize), a: Left<'_>, b: &[f32], row_b: usize, c: &mut [f32], row_c: usize, add: bool,
    ) {
        let (m, k, n) = size;
        if m == 0 || n == 0 {
            return;
        }
        assert!(k > 0 && n % 16 == 0 && row_c >= n, "a {m}x{k}x{n} product");
        assert!((m - 1) * a.row + (k - 1) * a.col < a.data.len(), "left operand of a {m}x{k}x{n} product");
        assert!((k - 1) * row_b + n <= b.len(), "right operand of a {m}x{k}x{n} product");
        assert!((m - 1) * row_c + n <= c.len(), "result of a {m}x{k}x{n} product");
        let p = Operands { k, a: a.data.as_ptr(), row_a: a.row, col_a: a.col, b: b.as_ptr(), row_b, c: c.as_mut_ptr(), row_c, add };
        let mut column = 0;
        while column < n {
            // SAFETY: the extents were compared with the slices; a panel ends at n.
            unsafe {
                let p = Operands { b: p.b.add(column), c: p.c.add(column), ..p };
                let blocks = (n - column) / 16;
                column += 16 * match blocks {
                    1 => p.panel::<L, 1>(m),
                    2 => p.panel::<L, 2>(m),
                    3 => p.panel::<L, 3>(m),
                    _ => p.panel::<L, 4>(m),
                };
            }
        }
    }

    /// The transpose of a matrix (rows, cols) with rows `row` apart, its rows filled up with zeros to `width`.
    pub(crate) fn transpose<L>(rows: usize, cols: usize, from: &[f32], row: usize, to: &mut [f32], width: usize) {
        for (c, to) in to[..cols * width].chunks_exact_mut(width).enumerate() {
            let (values, rest) = to.split_at_mut(rows);
            for (i, value) in values.iter_mut().enumerate() {
                *value = from[i * row + c];
            }
            rest.fill(0.0);
        }
    }
}

/// Pointers and strides of a product.
#[derive(Clone, Copy)]
struct Operands {
    k: usize,
    a: *const f32,
    row_a: usize,
    col_a: usize,
    b: *const f32,
    row_b: usize,
    c: *mut f32,
    row_c: usize,
    add: bool,
}

impl Operands {
    /// Columns of `BLOCKS` blocks of 16, all rows; returns `BLOCKS`.
    ///
    /// # Safety
    /// All elements of the panel lie inside the operands; the processor has the vectors.
    #[inline(always)]
    unsafe fn panel<L: Lanes, const BLOCKS: usize>(self, m: usize) -> usize {
        let mut i = 0;
        // SAFETY: the caller's.
        unsafe {
            while i + 4 <= m {
                self.tile::<L, 4, BLOCKS>(i);
                i += 4;
            }
            match m - i {
                1 => self.tile::<L, 1, BLOCKS>(i),
                2 => self.tile::<L, 2, BLOCKS>(i),
                3 => self.tile::<L, 3, BLOCKS>(i),
                _ => {}
            }
        }
        BLOCKS
    }

    /// # Safety
    /// As [`Operands::panel`].
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "unrolled over arrays of registers")]
    unsafe fn tile<L: Lanes, const ROWS: usize, const BLOCKS: usize>(self, first: usize) {
        // Plain loops: calls through closures may stay calls, and then every vector goes through memory.
        let mut sums = [[L::splat(0.0); BLOCKS]; ROWS];
        // SAFETY: indices stay below the extents.
        unsafe {
            let a = self.a.add(first * self.row_a);
            let c = self.c.add(first * self.row_c);
            for k in 0..self.k {
                let mut b = [L::splat(0.0); BLOCKS];
                for j in 0..BLOCKS {
                    b[j] = L::load(&*self.b.add(k * self.row_b + 16 * j).cast());
                }
                for r in 0..ROWS {
                    let x = L::splat(*a.add(r * self.row_a + k * self.col_a));
                    for j in 0..BLOCKS {
                        sums[r][j] = x.mul_add(b[j], sums[r][j]);
                    }
                }
            }
            for r in 0..ROWS {
                for j in 0..BLOCKS {
                    let to = c.add(r * self.row_c + 16 * j);
                    let held = if self.add { L::load(&*to.cast()) } else { L::splat(0.0) };
                    sums[r][j].add(held).store(&mut *to.cast());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_definition() {
        for (m, k, n) in [(1, 1, 16), (4, 3, 32), (17, 32, 48), (6, 5, 64), (7, 9, 80), (3, 2, 144)] {
            let a: Vec<f32> = (0..2 * m * k).map(|i| (i % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..k * (n + 5)).map(|i| (i % 7) as f32 - 3.0).collect();
            for (add, (row, col)) in [(false, (2 * k, 2)), (true, (2, 2 * m))] {
                let left = Left { data: &a, row, col };
                let mut c = vec![if add { 2.0 } else { f32::NAN }; m * (n + 3)];
                product((m, k, n), left, &b, n + 5, &mut c, n + 3, add);
                for i in 0..m {
                    for j in 0..n {
                        let want: f32 = (0..k).map(|s| a[i * row + s * col] * b[s * (n + 5) + j]).sum();
                        let want = if add { want + 2.0 } else { want };
                        assert_eq!(c[i * (n + 3) + j], want, "{m}x{k}x{n}: ({i}, {j})");
                    }
                }
            }
        }
    }

    #[test]
    fn transposes_fill_up_with_zeros() {
        let from: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let mut to = vec![f32::NAN; 4 * 16];
        transpose(5, 4, &from, 6, &mut to, 16);
        for (c, row) in to.chunks(16).enumerate() {
            for (i, x) in row.iter().enumerate() {
                assert_eq!(*x, if i < 5 { from[i * 6 + c] } else { 0.0 });
            }
        }
    }
}
