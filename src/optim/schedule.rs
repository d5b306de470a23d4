//! Learning-rate schedules.

use serde::{Deserialize, Serialize};

/// Shape of a schedule; in recipes `vip`, `warmup-cosine`, `dp-cap` or `constant`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// `min((s + 1) / warmup, (1 + cos(pi s / total)) / 2)`: ViP, the smaller of a ramp and a cosine from step 0.
    #[default]
    Vip,
    /// Linear from 0 over the warm-up, then half a cosine to 0 at `total`: MAE's training and the linear probe (whose
    /// fractions of an epoch are steps here), and DP-Cap without its delay. A run may stop before `total`.
    WarmupCosine,
    /// As [`Schedule::WarmupCosine`], one step late, as DP-Cap was trained: its rate was set before the step was counted,
    /// so the first two steps have rate 0.
    DpCap,
    /// Linear warm-up, then constant.
    Constant,
}

impl Schedule {
    /// Multiple of the peak at step `s` (from 0) of `total`, with `warmup` steps of warm-up.
    pub fn at(self, s: u64, total: u64, warmup: u64) -> f64 {
        self.rate(s, total, warmup, 1.0, 0.0)
    }

    /// Learning rate at step `s`: up to `peak`, the cosine down to `least`.
    pub fn rate(self, s: u64, total: u64, warmup: u64, peak: f64, least: f64) -> f64 {
        let s = if self == Schedule::DpCap { s.saturating_sub(1) } else { s };
        let (s, total, warmup) = (s as f64, total.max(1) as f64, warmup as f64);
        let ramp = if warmup > 0.0 { ((s + 1.0) / warmup).min(1.0) } else { 1.0 };
        let cosine =
            |x: f64| least + (peak - least) * 0.5 * (1.0 + (std::f64::consts::PI * x.clamp(0.0, 1.0)).cos());
        match self {
            Schedule::Vip => (peak * ramp).min(cosine(s / total)),
            Schedule::WarmupCosine | Schedule::DpCap if s < warmup => peak * s / warmup,
            Schedule::WarmupCosine | Schedule::DpCap => cosine((s - warmup) / (total - warmup).max(1.0)),
            Schedule::Constant => peak * ramp,
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
        assert_eq!(Schedule::Vip.rate(0, 10_000, 1000, 4.8e-3, 0.0), 4.8e-6);
    }

    #[test]
    fn golden_ends_of_dp_cap() {
        for schedule in [Schedule::WarmupCosine, Schedule::DpCap] {
            assert!((schedule.at(5708, 10_000, 2000) - 0.557).abs() <= 1e-3);
            assert!((schedule.at(2854, 6000, 600) - 0.628).abs() <= 1e-3);
        }
        let first: Vec<f64> = (0..4).map(|s| Schedule::DpCap.at(s, 10_000, 2000)).collect();
        assert_eq!(first, [0.0, 0.0, 1.0 / 2000.0, 2.0 / 2000.0]);
        assert_eq!(Schedule::DpCap.at(2001, 10_000, 2000), 1.0);
    }

    #[test]
    fn ends_and_edges() {
        assert_eq!(Schedule::WarmupCosine.at(0, 100, 10), 0.0);
        assert_eq!(Schedule::WarmupCosine.at(10, 100, 10), 1.0);
        assert!(Schedule::WarmupCosine.at(100, 100, 10) <= 1e-12);
        assert_eq!(Schedule::WarmupCosine.rate(100, 100, 10, 1e-3, 1e-6), 1e-6);
        assert_eq!(Schedule::WarmupCosine.rate(5, 100, 10, 1e-3, 1e-6), 5e-4);
        assert_eq!(Schedule::Constant.at(0, 100, 0), 1.0);
        for s in 0..5 {
            for schedule in [Schedule::Vip, Schedule::WarmupCosine, Schedule::DpCap, Schedule::Constant] {
                let x = schedule.at(s, 0, 0);
                assert!((0.0..=1.0).contains(&x), "{x}");
            }
        }
    }
}
