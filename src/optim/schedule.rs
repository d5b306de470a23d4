//! Learning-rate schedules, as multiples of the peak.

/// Shape of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// `min((s + 1) / warmup, (1 + cos(pi s / total)) / 2)`: ViP, the smaller of a ramp and a cosine from step 0.
    Vip,
    /// Linear from 0 over the warm-up, then half a cosine to 0 at the end: MAE's training and the linear probe.
    WarmupCosine,
    /// Linear warm-up, then constant.
    Constant,
}

impl Schedule {
    /// Multiplier at step `s` (from 0) of `total`, with `warmup` steps of warm-up.
    pub fn at(self, s: u64, total: u64, warmup: u64) -> f64 {
        let (s, total, warmup) = (s as f64, total.max(1) as f64, warmup as f64);
        let ramp = if warmup > 0.0 { ((s + 1.0) / warmup).min(1.0) } else { 1.0 };
        let cosine = |x: f64| 0.5 * (1.0 + (std::f64::consts::PI * x.clamp(0.0, 1.0)).cos());
        match self {
            Schedule::Vip => ramp.min(cosine(s / total)),
            Schedule::WarmupCosine if s < warmup => s / warmup,
            Schedule::WarmupCosine => cosine((s - warmup) / (total - warmup).max(1.0)),
            Schedule::Constant => ramp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_peaks_of_vip() {
        let peak = |total: u64| (0..total).map(|s| Schedule::Vip.at(s, total, 1000)).fold(0.0, f64::max);
        assert!((peak(10_000) - 0.977).abs() <= 1e-3, "{}", peak(10_000));
        assert!((peak(6_000) - 0.941).abs() <= 1e-2, "{}", peak(6_000));
    }

    #[test]
    fn ends_and_edges() {
        assert_eq!(Schedule::WarmupCosine.at(0, 100, 10), 0.0);
        assert_eq!(Schedule::WarmupCosine.at(10, 100, 10), 1.0);
        assert!(Schedule::WarmupCosine.at(100, 100, 10) <= 1e-12);
        assert_eq!(Schedule::Constant.at(0, 100, 0), 1.0);
        for s in 0..5 {
            for schedule in [Schedule::Vip, Schedule::WarmupCosine, Schedule::Constant] {
                let x = schedule.at(s, 0, 0);
                assert!((0.0..=1.0).contains(&x), "{x}");
            }
        }
    }
}
