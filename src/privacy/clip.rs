//! Per-example clipping (Abadi et al. 2016, arXiv 1607.00133).
//!
//! **Guarantee**: adding or removing one example changes the clipped sum by at most the sensitivity, in 2-norm.
//!
//! | example's gradient | factor |
//! | --- | --- |
//! | norm up to C, zero included | 1 |
//! | norm over C | `C / norm`, with the norm rounded up |
//! | NaN or infinity anywhere, or a squared norm that overflows | 0, counted |
//! | padding (weight 0) | 0 |

use crate::error::{Error, Result};
use crate::graph::{Chunk, Plan};
use crate::kernel::{Args, Kernel, Real};
use crate::record::{DType, Recording, Session, Slice};

static FACTORS: Kernel = crate::kernel!("privacy/clip", "factors_flat", factors_flat);

/// How an example's gradient is bounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClipRule {
    /// `c = min(1, C / ||g||)` over all trainable parameters together.
    Flat {
        /// Clipping norm C.
        norm: f64,
    },
    /// `c = C / (||g|| + gamma)`: every example is brought near C (Bu et al. 2022, arXiv 2206.07136).
    Automatic {
        /// Bound C.
        norm: f64,
        /// Stabiliser.
        gamma: f64,
    },
}

impl ClipRule {
    /// The largest 2-norm of a clipped gradient.
    pub fn bound(&self) -> f64 {
        match self {
            ClipRule::Flat { norm } | ClipRule::Automatic { norm, .. } => *norm,
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bound or stabiliser that is not positive and finite.
    pub fn validate(&self) -> Result<()> {
        let positive = |field: &str, x: f64| {
            let fits = x.is_finite() && x > 0.0 && (x as f32).is_normal();
            if fits { Ok(()) } else { Err(Error::invalid(field, x, "must be positive and finite")) }
        };
        positive("clipping_norm", self.bound())?;
        match self {
            ClipRule::Automatic { gamma, .. } => positive("gamma", *gamma),
            ClipRule::Flat { .. } => Ok(()),
        }
    }
}

/// The sum of clipped per-example gradients in a plan's arena, with its sensitivity.
#[derive(Clone, Debug)]
pub struct ClippedSum {
    chunks: Vec<Chunk>,
    rule: ClipRule,
}

impl ClippedSum {
    /// Largest change of the sum, in 2-norm, when one example is added or removed.
    pub fn sensitivity(&self) -> f64 {
        self.rule.bound()
    }

    /// The rule that bounds it.
    pub fn rule(&self) -> ClipRule {
        self.rule
    }

    pub(super) fn into_chunks(self) -> Vec<Chunk> {
        self.chunks
    }
}

/// Counters of a logical batch. They are statistics of private data: not covered by the guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClipCounts {
    /// Examples that were not padding.
    pub examples: u64,
    /// Clipped ones.
    pub clipped: u64,
    /// Dropped for a norm that is not finite.
    pub not_finite: u64,
}

/// The recorded work of one physical batch: forward, backward, norms, factors, sums.
pub struct Clipped {
    /// Adds a physical batch to the clipped sum.
    pub physical: Recording,
    /// The sum, for the noise.
    pub sum: ClippedSum,
    counts: Slice,
    batch: usize,
}

impl Clipped {
    /// Records clipping into a per-example plan. The only maker of a [`ClippedSum`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a plan without norms or a bad rule.
    pub fn new(plan: &mut Plan, rule: ClipRule) -> Result<Self> {
        rule.validate()?;
        let (Some(norms), Some(factors), Some(weights)) = (plan.norms, plan.factors, plan.weights) else {
            return Err(Error::invalid(
                "plan",
                "plain",
                "clipping needs a plan lowered with Mode::PerExample",
            ));
        };
        let counts = plan.layout.add("clip counts", DType::U32, 3 * plan.batch);
        let mut physical = Recording::new();
        physical.append(&plan.forward);
        physical.append(&plan.backward);
        physical.scope("clip");
        let (automatic, gamma) = match rule {
            ClipRule::Flat { .. } => (0, 0.0),
            ClipRule::Automatic { gamma, .. } => (1, gamma),
        };
        physical
            .dispatch(&FACTORS)
            .bind("norms", norms)
            .bind("weights", weights)
            .bind("factors", factors)
            .bind("counts", counts)
            .n("batch", plan.batch)
            .n("count", plan.norm_names.len())
            .n("stride", plan.stride)
            .n("automatic", automatic)
            .param("bound", rule.bound() as f32)
            .param("gamma", gamma as f32)
            .threads(plan.batch)?;
        physical.append(&plan.sums);
        plan.zero.clear(counts);
        let sum = ClippedSum { chunks: plan.chunks.clone(), rule };
        Ok(Clipped { physical, sum, counts, batch: plan.batch })
    }

    /// Counters since the arena was set to zero.
    ///
    /// # Errors
    /// The session's.
    pub fn read_counts(&self, session: &mut dyn Session) -> Result<ClipCounts> {
        let words = session.read_u32(self.counts)?;
        let sum = |i: usize| words[i * self.batch..][..self.batch].iter().map(|&x| x as u64).sum();
        Ok(ClipCounts { examples: sum(0), clipped: sum(1), not_finite: sum(2) })
    }
}

fn factors_flat<F: Real>(a: &mut Args<'_, F>) {
    let (batch, count, stride) = (a.n("batch"), a.n("count"), a.n("stride"));
    let (automatic, bound, gamma) = (a.n("automatic") != 0, a.f("bound"), a.f("gamma"));
    let (norms, weights) = (a.input("norms"), a.input("weights"));
    let (factors, counts) = (a.output("factors"), a.output_u32("counts"));
    for b in 0..batch {
        let square: F = (0..count).map(|p| norms[p * stride + b]).sum();
        let finite = square.is_finite();
        let norm = square.sqrt() * F::of(1.000_000_3);
        let over = norm > bound;
        let c = match (automatic, over) {
            (true, _) => bound / (norm + gamma),
            (false, true) => bound / norm,
            (false, false) => F::one(),
        };
        let live = weights[b] != F::zero();
        factors[b] = if live && finite { c } else { F::zero() };
        counts[b] += live as u32;
        counts[batch + b] += (live && finite && over) as u32;
        counts[2 * batch + b] += (live && !finite) as u32;
    }
}
