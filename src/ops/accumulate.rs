//! `to += from`, elementwise: joins two gradients of one tensor. Not an op of the graph but a step of its
//! reverse pass.

use crate::error::Result;
use crate::kernel::{Args, Kernel, Real};
use crate::record::{Recording, Slice};

static ADD: Kernel = crate::kernel!("ops/accumulate", "add", add);

/// Records `to += from` over slices of equal length.
///
/// # Errors
/// [`crate::Error::Kernel`] if the slices overlap.
pub fn record(rec: &mut Recording, from: Slice, to: Slice) -> Result<()> {
    rec.dispatch(&ADD).bind("source", from).bind("sum", to).n("n", from.len).threads(from.len)
}

fn add<F: Real>(a: &mut Args<'_, F>) {
    let (source, sum) = (a.input("source"), a.output("sum"));
    for (s, &x) in sum.iter_mut().zip(source) {
        *s += x;
    }
}
