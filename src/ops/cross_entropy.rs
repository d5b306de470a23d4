//! Softmax cross-entropy per example: the mean over an example's targets of `-log softmax(logits)[target]`, with
//! label smoothing (Szegedy et al. 2016, arXiv 1512.00567, section 7) if asked for.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, Real};
use crate::ops::lanes::in_lanes;
use crate::ops::{Backward, Forward, Op, ParamGrad, Reads, Tensor, fast};
use crate::record::{Builder, DType, Recording};
use crate::shape::Shape;

static ROWS: Kernel = crate::kernel!("ops/cross_entropy", "rows", rows, rows_fast);
static MEAN: Kernel = crate::kernel!("ops/cross_entropy", "mean", mean);
static BACKWARD: Kernel = crate::kernel!("ops/cross_entropy", "backward", backward, backward_fast);

/// Logits (B, T, V) and targets (B, T), or (B, V) and (B), to losses (B). Saves per row the largest logit and the
/// logarithm of `sum_v exp(logit_v - largest)`, and per example the number of targets that count.
///
/// A target that is `ignore`, or V or more, does not count: its row has loss 0 and gradient 0, whatever its logits
/// are. An example of which no target counts has loss 0 and gradient 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy {
    /// The target that stands for no token (DP-Cap: 0, the padding).
    pub ignore: Option<u32>,
    /// Label smoothing e: the wanted distribution is `(1 - e) onehot + e / V`. 0 for none.
    pub smoothing: f32,
}

impl CrossEntropy {
    /// The params that all kernels share.
    fn common<'a>(&self, builder: Builder<'a>, logits: &Shape, targets: &Shape) -> Builder<'a> {
        builder
            .n("rows", targets.len())
            .n("tokens", targets.len() / targets.dims()[0].max(1))
            .n("vocabulary", logits.width())
            // The largest id is outside of any vocabulary and is ignored anyway.
            .param("ignore", self.ignore.unwrap_or(u32::MAX))
            .param("smoothing", self.smoothing)
    }
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn outputs(&self, inputs: &[Shape]) -> Result<Vec<Tensor>> {
        match inputs {
            [logits, targets]
                if (2..=3).contains(&logits.rank())
                    && logits.dims()[..logits.rank() - 1] == *targets.dims()
                    && logits.width() > 0 =>
            {
                let (rows, losses) = (Tensor::float(targets.clone()), Tensor::float([targets.dims()[0]]));
                Ok(vec![losses.clone(), rows.clone(), rows, losses])
            }
            _ => {
                let what = format!("needs logits (B, T, V) and targets (B, T), or without T, got {inputs:?}");
                Err(Error::shape("cross_entropy", what))
            }
        }
    }

    fn mixes(&self) -> Option<&'static str> {
        None
    }

    fn input_dtype(&self, input: usize) -> DType {
        if input == 1 { DType::U32 } else { DType::F32 }
    }

    fn param_grad(&self, _input: usize) -> ParamGrad {
        ParamGrad::None
    }

    fn differentiable(&self, input: usize) -> bool {
        input == 0
    }

    fn reads(&self) -> Reads {
        Reads { inputs: vec![0, 1], outputs: vec![1, 2, 3] }
    }

    fn scratch(&self, inputs: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::float(inputs[1].clone())]
    }

    fn forward(&self, rec: &mut Recording, io: &Forward<'_>) -> Result<()> {
        let [logits, targets] = [&io.shapes[0], &io.shapes[1]];
        self.common(rec.dispatch(&ROWS), logits, targets)
            .bind("logits", io.inputs[0])
            .bind("targets", io.inputs[1])
            .bind("peak", io.outputs[1])
            .bind("log_sum", io.outputs[2])
            .bind("row_loss", io.scratch[0])
            .groups(targets.len())?;
        rec.dispatch(&MEAN)
            .bind("targets", io.inputs[1])
            .bind("row_loss", io.scratch[0])
            .bind("loss", io.outputs[0])
            .bind("count", io.outputs[3])
            .n("batch", io.outputs[0].len)
            .n("tokens", targets.len() / targets.dims()[0].max(1))
            .n("vocabulary", logits.width())
            .param("ignore", self.ignore.unwrap_or(u32::MAX))
            .threads(io.outputs[0].len)
    }

    fn backward(&self, rec: &mut Recording, io: &Backward<'_>) -> Result<()> {
        let Some(dx) = io.dx[0] else { return Ok(()) };
        self.common(rec.dispatch(&BACKWARD), &io.shapes[0], &io.shapes[1])
            .bind("logits", io.inputs[0])
            .bind("targets", io.inputs[1])
            .bind("peak", io.outputs[1])
            .bind("log_sum", io.outputs[2])
            .bind("count", io.outputs[3])
            .bind("dloss", io.dy)
            .bind("dlogits", dx.slice)
            .param("accumulate", dx.flag())
            .threads(dx.slice.len)
    }
}

/// Which targets count.
#[derive(Clone, Copy)]
struct Counts {
    vocabulary: usize,
    ignore: usize,
}

impl Counts {
    fn of<F: Real>(a: &Args<'_, F>) -> Self {
        Counts { vocabulary: a.n("vocabulary"), ignore: a.n("ignore") }
    }

    /// The target as an index, if it counts.
    fn target(self, id: u32) -> Option<usize> {
        let id = id as usize;
        (id < self.vocabulary && id != self.ignore).then_some(id)
    }
}

/// The loss of a row from the logits less the largest, at the target and on average.
fn row_loss<F: Real>(log_sum: F, at_target: F, average: F, smoothing: F) -> F {
    if smoothing == F::zero() {
        log_sum - at_target
    } else {
        log_sum - (F::one() - smoothing) * at_target - smoothing * average
    }
}

/// Runs `row` on every row of logits with a target that counts; the others save and lose nothing.
fn each_row<F: Real>(a: &mut Args<'_, F>, row: impl Fn(&[F], usize) -> [F; 3] + Sync) {
    let counts = Counts::of(a);
    let (logits, targets) = (a.input("logits"), a.input_u32("targets"));
    let (peak, log_sum, loss) = (a.output("peak"), a.output("log_sum"), a.output("row_loss"));
    (logits.par_chunks(counts.vocabulary), targets, peak, log_sum, loss).into_par_iter().for_each(
        |(logits, &id, peak, log_sum, loss)| {
            let nothing = [F::zero(); 3];
            [*peak, *log_sum, *loss] = counts.target(id).map_or(nothing, |target| row(logits, target));
        },
    );
}

fn rows<F: Real>(a: &mut Args<'_, F>) {
    let smoothing = a.f("smoothing");
    each_row(a, |logits, target| {
        // A NaN that is no maximum still makes the sum NaN.
        let peak = logits.iter().fold(logits[0], |m, &x| if x > m { x } else { m });
        let log_sum = logits.iter().map(|&x| (x - peak).exp()).sum::<F>().ln();
        let average = logits.iter().map(|&x| x - peak).sum::<F>() / F::of(logits.len() as f64);
        [peak, log_sum, row_loss(log_sum, logits[target] - peak, average, smoothing)]
    });
}

fn mean<F: Real>(a: &mut Args<'_, F>) {
    let (tokens, counts) = (a.n("tokens"), Counts::of(a));
    let (targets, row_loss) = (a.input_u32("targets"), a.input("row_loss"));
    let (loss, count) = (a.output("loss"), a.output("count"));
    for (b, (loss, count)) in loss.iter_mut().zip(count).enumerate() {
        let of_example = b * tokens..(b + 1) * tokens;
        let counted = targets[of_example.clone()].iter().filter(|&&id| counts.target(id).is_some()).count();
        *count = F::of(counted as f64);
        *loss =
            if counted == 0 { F::zero() } else { row_loss[of_example].iter().copied().sum::<F>() / *count };
    }
}

/// What a row of the gradient is made of.
struct Row<'a, F> {
    logits: &'a [F],
    target: usize,
    peak: F,
    log_sum: F,
    /// The weight of the example's loss over the number of its targets.
    scale: F,
    /// `e / V`
    floor: F,
    /// `1 - e`
    rest: F,
    accumulate: bool,
}

/// Runs `row` on every row of the gradient whose target counts; the others get zeros.
fn each_gradient<F: Real>(a: &mut Args<'_, F>, row: impl Fn(Row<'_, F>, &mut [F]) + Sync) {
    let (tokens, accumulate, smoothing) = (a.n("tokens"), a.n("accumulate") != 0, a.f("smoothing"));
    let counts = Counts::of(a);
    let (logits, targets) = (a.input("logits"), a.input_u32("targets"));
    let (peak, log_sum, count) = (a.input("peak"), a.input("log_sum"), a.input("count"));
    let (dloss, dlogits) = (a.input("dloss"), a.output("dlogits"));
    let floor = smoothing / F::of(counts.vocabulary as f64);
    dlogits.par_chunks_mut(counts.vocabulary).enumerate().for_each(|(r, dx)| {
        let Some(target) = counts.target(targets[r]) else {
            if !accumulate {
                dx.fill(F::zero());
            }
            return;
        };
        let logits = &logits[r * counts.vocabulary..][..counts.vocabulary];
        let scale = dloss[r / tokens] / count[r / tokens];
        let (peak, log_sum, rest) = (peak[r], log_sum[r], F::one() - smoothing);
        row(Row { logits, target, peak, log_sum, scale, floor, rest, accumulate }, dx);
    });
}

fn backward<F: Real>(a: &mut Args<'_, F>) {
    each_gradient(a, |row, dx| {
        for (v, (d, &x)) in dx.iter_mut().zip(row.logits).enumerate() {
            let wanted = row.floor + if v == row.target { row.rest } else { F::zero() };
            let g = (((x - row.peak) - row.log_sum).exp() - wanted) * row.scale;
            *d = if row.accumulate { *d + g } else { g };
        }
    });
}

in_lanes! {
    /// The largest logit, `sum exp(logit - largest)` and `sum (logit - largest)`.
    fn statistics<L>(logits: &[f32]) -> [f32; 3] {
        let mut top = L::splat(logits[0]);
        for block in logits.chunks(16) {
            let x = L::load_some(block, logits[0]);
            top = top.if_less(x, x, top);
        }
        let mut tops = [0.0; 16];
        top.store(&mut tops);
        let peak = tops.iter().fold(logits[0], |m, &x| if x > m { x } else { m });
        let (mut exps, mut sum) = (L::splat(0.0), L::splat(0.0));
        let mut blocks = logits.chunks_exact(16);
        for block in &mut blocks {
            let x = L::load_some(block, peak).sub(L::splat(peak));
            (exps, sum) = (exps.add(fast::exp(x)), sum.add(x));
        }
        let (mut tail_exps, mut tail_sum) = (0.0, 0.0);
        for &x in blocks.remainder() {
            tail_exps += (x - peak).exp();
            tail_sum += x - peak;
        }
        [peak, exps.total() + tail_exps, sum.total() + tail_sum]
    }

    /// `softmax * scale`, less `floor * scale`.
    fn softmax<L>(
        logits: &[f32], dx: &mut [f32], peak: f32, log_sum: f32, floor: f32, scale: f32, accumulate: bool,
    ) {
        let (peak, log_sum) = (L::splat(peak), L::splat(log_sum));
        let (floor, scale) = (L::splat(floor), L::splat(scale));
        for (x, dx) in logits.chunks(16).zip(dx.chunks_mut(16)) {
            let p = fast::exp(L::load_some(x, 0.0).sub(peak).sub(log_sum));
            let held = if accumulate { L::load_some(dx, 0.0) } else { L::splat(0.0) };
            p.sub(floor).mul_add(scale, held).store_some(dx);
        }
    }
}

fn rows_fast(a: &mut Args<'_, f32>) {
    let smoothing = a.f("smoothing");
    each_row(a, |logits, target| {
        let [peak, exps, sum] = statistics(logits);
        let log_sum = exps.ln();
        [peak, log_sum, row_loss(log_sum, logits[target] - peak, sum / logits.len() as f32, smoothing)]
    });
}

fn backward_fast(a: &mut Args<'_, f32>) {
    each_gradient(a, |row, dx| {
        // The target's own term anew: what softmax and wanted share must cancel before it is rounded away.
        let held = if row.accumulate { dx[row.target] } else { 0.0 };
        softmax(row.logits, dx, row.peak, row.log_sum, row.floor, row.scale, row.accumulate);
        let p = ((row.logits[row.target] - row.peak) - row.log_sum).exp();
        dx[row.target] = held + (p - (row.floor + row.rest)) * row.scale;
    });
}
