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

static FLAT: Kernel = crate::kernel!("privacy/clip", "factors_flat", factors_flat);
static LAYER: Kernel = crate::kernel!("privacy/clip", "factors_layer", factors_layer);

/// How an example's gradient is bounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClipRule {
    /// `c = min(1, C / ||g||)` over all trainable parameters together.
    Flat {
        /// Clipping norm C.
        norm: f64,
    },
    /// `c_p = min(1, C / (sqrt(P) ||g_p||))` for each of P parameter tensors on its own (McMahan et al. 2018,
    /// arXiv 1710.06963), so that all together stay within C. Needs a plan lowered with `per_layer`.
    PerLayer {
        /// Clipping norm C of all parameters together.
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
            ClipRule::Flat { norm } | ClipRule::PerLayer { norm } | ClipRule::Automatic { norm, .. } => *norm,
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bound or stabiliser outside `[1e-10, 1e10]`: smaller ones would meet squares that
    /// underflow, and an example whose norm reads 0 is not clipped.
    pub fn validate(&self) -> Result<()> {
        let within = |field: &str, x: f64| {
            let why = "must be between 1e-10 and 1e10";
            if (1e-10..=1e10).contains(&x) { Ok(()) } else { Err(Error::invalid(field, x, why)) }
        };
        within("clipping_norm", self.bound())?;
        match self {
            ClipRule::Automatic { gamma, .. } => within("gamma", *gamma),
            ClipRule::Flat { .. } | ClipRule::PerLayer { .. } => Ok(()),
        }
    }

    /// Whether each parameter has factors of its own.
    pub fn per_layer(&self) -> bool {
        matches!(self, ClipRule::PerLayer { .. })
    }
}

/// Slices and extents of the factors' kernel.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// B.
    pub batch: usize,
    /// P.
    pub params: usize,
    /// Distance between parameters in `norms`, and in the factors of per-layer clipping.
    pub stride: usize,
    /// (P, stride) squared norms.
    pub norms: Slice,
    /// (B): 1, or 0 for padding.
    pub weights: Slice,
    /// Result: (B), or (P, stride) for per-layer clipping.
    pub factors: Slice,
    /// (3, B) `u32`, added to: examples seen, clipped, not finite.
    pub counts: Slice,
}

impl Factors {
    /// Records the factors of one physical batch.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad rule; [`Error::Kernel`] if a slice does not fit.
    pub fn record(&self, rec: &mut Recording, rule: ClipRule) -> Result<()> {
        rule.validate()?;
        let Factors { batch, params, stride, norms, weights, factors, counts } = *self;
        let rows = |last: usize| params.saturating_sub(1) * stride + last;
        let factors_len = if rule.per_layer() { rows(batch) } else { batch };
        if stride < batch
            || norms.len < rows(batch)
            || factors.len < factors_len
            || weights.len < batch
            || counts.len < 3 * batch
        {
            return Err(Error::kernel("privacy/clip", format!("slices do not fit: {self:?}")));
        }
        let (kernel, bound) = match rule {
            ClipRule::PerLayer { norm } => (&LAYER, norm / (params as f64).sqrt()),
            _ => (&FLAT, rule.bound()),
        };
        let (automatic, gamma) = match rule {
            ClipRule::Automatic { gamma, .. } => (1, gamma),
            _ => (0, 0.0),
        };
        rec.dispatch(kernel)
            .bind("norms", norms)
            .bind("weights", weights)
            .bind("factors", factors)
            .bind("counts", counts)
            .n("batch", batch)
            .n("count", params)
            .n("stride", stride)
            .n("automatic", automatic)
            .param("bound", bound as f32)
            .param("gamma", gamma as f32)
            .threads(batch)
    }
}

/// The sum of clipped per-example gradients in a plan's arena, with its sensitivity. Only [`Clipped::new`] makes one,
/// and it cannot be copied: it is noised once.
///
/// ```compile_fail
/// use veilgrad::privacy::{clip::ClippedSum, noise::Gradient};
/// fn without_noise(sum: ClippedSum) -> Gradient {
///     sum.into() // only a `NoisyGrad` made of it is a gradient
/// }
/// ```
///
/// ```compile_fail
/// use veilgrad::privacy::clip::ClippedSum;
/// fn twice(sum: &ClippedSum) -> ClippedSum {
///     sum.clone()
/// }
/// ```
#[derive(Debug)]
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

/// Where the counters lie.
#[derive(Clone, Copy, Debug)]
pub struct ClipCounter {
    counts: Slice,
    batch: usize,
}

impl ClipCounter {
    /// Counters since the arena was set to zero.
    ///
    /// # Errors
    /// The session's.
    pub fn read(&self, session: &mut dyn Session) -> Result<ClipCounts> {
        let words = session.read_u32(self.counts)?;
        let sum = |i: usize| words[i * self.batch..][..self.batch].iter().map(|&x| x as u64).sum();
        Ok(ClipCounts { examples: sum(0), clipped: sum(1), not_finite: sum(2) })
    }
}

/// The recorded work of one physical batch: forward, backward, norms, factors, sums.
pub struct Clipped {
    /// Adds a physical batch to the clipped sum.
    pub physical: Recording,
    /// The sum, for the noise.
    pub sum: ClippedSum,
    /// What was clipped and dropped.
    pub counter: ClipCounter,
}

impl Clipped {
    /// Records clipping into a per-example plan. The only maker of a [`ClippedSum`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad rule, or a plan without norms or with other factors than the rule's.
    pub fn new(plan: &mut Plan, rule: ClipRule) -> Result<Self> {
        let (Some(norms), Some(factors), Some(weights)) = (plan.norms, plan.factors, plan.weights) else {
            let why = "clipping needs a plan lowered with Mode::PerExample";
            return Err(Error::invalid("plan", "plain", why));
        };
        if rule.per_layer() != (plan.factor_stride != 0) {
            let why =
                "lower the plan with per_layer for per-layer clipping, and without it for any other rule";
            return Err(Error::invalid("per_layer", plan.factor_stride != 0, why));
        }
        let counts = plan.layout.add("clip counts", DType::U32, 3 * plan.batch);
        let mut physical = Recording::new();
        physical.append(&plan.forward);
        physical.append(&plan.backward);
        physical.scope("clip");
        let (batch, params, stride) = (plan.batch, plan.norm_names.len(), plan.stride);
        Factors { batch, params, stride, norms, weights, factors, counts }.record(&mut physical, rule)?;
        physical.append(&plan.sums);
        plan.zero.clear(counts);
        let sum = ClippedSum { chunks: plan.chunks.clone(), rule };
        Ok(Clipped { physical, sum, counter: ClipCounter { counts, batch } })
    }
}

fn square<F: Real>(norms: &[F], stride: usize, count: usize, b: usize) -> F {
    (0..count).map(|p| norms[p * stride + b].abs()).sum()
}

/// The root, rounded up as in the shader.
fn rounded_up<F: Real>(square: F) -> F {
    square.sqrt() * F::of(1.000_000_3)
}

fn factor<F: Real>(norm: F, bound: F) -> F {
    if norm > bound { bound / norm } else { F::one() }
}

fn count(counts: &mut [u32], batch: usize, b: usize, live: bool, finite: bool, over: bool) {
    counts[b] += live as u32;
    counts[batch + b] += (live && finite && over) as u32;
    counts[2 * batch + b] += (live && !finite) as u32;
}

fn factors_flat<F: Real>(a: &mut Args<'_, F>) {
    let (batch, params, stride) = (a.n("batch"), a.n("count"), a.n("stride"));
    let (automatic, bound, gamma) = (a.n("automatic") != 0, a.f("bound"), a.f("gamma"));
    let (norms, weights) = (a.input("norms"), a.input("weights"));
    let (factors, counts) = (a.output("factors"), a.output_u32("counts"));
    for b in 0..batch {
        let square = square(norms, stride, params, b);
        let (finite, live) = (square.is_finite(), weights[b] != F::zero());
        let norm = rounded_up(square);
        let c = if automatic { bound / (norm + gamma) } else { factor(norm, bound) };
        factors[b] = if live && finite { c } else { F::zero() };
        count(counts, batch, b, live, finite, norm > bound);
    }
}

fn factors_layer<F: Real>(a: &mut Args<'_, F>) {
    let (batch, params, stride, bound) = (a.n("batch"), a.n("count"), a.n("stride"), a.f("bound"));
    let (norms, weights) = (a.input("norms"), a.input("weights"));
    let (factors, counts) = (a.output("factors"), a.output_u32("counts"));
    for b in 0..batch {
        let (finite, live) = (square(norms, stride, params, b).is_finite(), weights[b] != F::zero());
        let mut over = false;
        for p in 0..params {
            let norm = rounded_up(norms[p * stride + b].abs());
            over |= norm > bound;
            factors[p * stride + b] = if live && finite { factor(norm, bound) } else { F::zero() };
        }
        count(counts, batch, b, live, finite, over);
    }
}
