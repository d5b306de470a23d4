//! Shapes: row-major extents, outermost first.

use std::fmt;

/// Row-major extents of a tensor, outermost first. Rank 0 is a scalar.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The shape with these extents.
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Shape(dims.into())
    }

    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements (1 for a scalar).
    pub fn len(&self) -> usize {
        self.0.iter().product()
    }

    /// Whether some extent is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last extent: the width of a row. 1 for a scalar.
    pub fn width(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// Number of rows of [`width`](Self::width) elements.
    pub fn rows(&self) -> usize {
        self.0.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// The same shape with another last extent.
    pub fn with_width(&self, width: usize) -> Self {
        let mut dims = self.0.clone();
        if let Some(last) = dims.last_mut() {
            *last = width;
        }
        Shape(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(dims.to_vec())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_times_width_is_len() {
        for dims in [vec![], vec![5], vec![2, 3], vec![0, 3], vec![4, 1, 6]] {
            let shape = Shape::new(dims);
            assert_eq!(shape.rows() * shape.width(), shape.len(), "{shape}");
        }
        assert_eq!(Shape::from([2, 3, 4]).with_width(7).to_string(), "(2, 3, 7)");
    }
}
