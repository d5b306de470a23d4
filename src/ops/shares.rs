//! The last sum of the squared-norm rules: `out_i = sum_p partials_(i, p)`, lifted to 0 where rounding left a
//! finite result below it. NaN and infinity stay what they are.

use crate::error::Result;
use crate::kernel::{Args, Kernel, Real};
use crate::record::{Recording, Slice};

static TOTAL: Kernel = crate::kernel!("ops/weight_grad_total", "total", total);

/// Records the sum; partials (B, count), out (B).
///
/// # Errors
/// [`crate::Error::Kernel`] on a fault of the caller.
pub(crate) fn record(
    rec: &mut Recording,
    batch: usize,
    count: usize,
    partials: Slice,
    out: Slice,
) -> Result<()> {
    rec.dispatch(&TOTAL)
        .bind("partials", partials)
        .bind("out", out)
        .n("batch", batch)
        .n("count", count)
        .groups(batch)
}

fn total<F: Real>(a: &mut Args<'_, F>) {
    let (batch, count) = (a.n("batch"), a.n("count"));
    let (partials, out) = (a.input("partials"), a.output("out"));
    for (shares, out) in partials.chunks(count).zip(out).take(batch) {
        let sum: F = shares.iter().copied().sum();
        *out = if sum < F::zero() && sum.is_finite() { F::zero() } else { sum };
    }
}
