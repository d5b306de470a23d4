use veilgrad::ops::Op;
use veilgrad::ops::masked_mse::MaskedMse;

use crate::harness::{Case, Init, SIZES, outcomes};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(MaskedMse { skip: 1 }, name)
                .example([b, t + 1, d], Init::Normal)
                .example([b, t, d], Init::Normal)
                .example([b, t], Init::Floats((0..b * t).map(|i| (i % 3 != 1) as u8 as f32).collect()))
                .reduction(t * d)
        })
        .collect()
}

#[test]
fn hand_computed() {
    // Patches of two values after one skipped row; patches 0 and 2 are removed. Kept ones are never read.
    let lost = f32::NAN;
    let prediction = [9.0, 9.0, 1.0, 2.0, lost, lost, 0.0, 3.0, 9.0, 9.0, lost, lost, lost, lost, lost, lost];
    let wanted = [0.0, 4.0, lost, lost, 1.0, 1.0, lost, lost, lost, lost, lost, lost];
    let case = Case::new(MaskedMse { skip: 1 }, "hand")
        .example([2, 4, 2], Init::Floats(prediction.to_vec()))
        .example([2, 3, 2], Init::Floats(wanted.to_vec()))
        .example([2, 3], Init::Floats(vec![1.0, 0.0, 1.0, 0.0, 0.0, 0.0]));
    for (engine, out) in outcomes(&case, &[3.0, 1.0]) {
        // ((1 + 4) / 2 + (1 + 4) / 2) / 2, and nothing for the example that is wholly kept.
        assert_eq!(out.y(), [2.5, 0.0], "{engine}");
        let mut want = [0.0; 16];
        // 2 (prediction - wanted) / 2 values / 2 patches * 3
        want[2..4].copy_from_slice(&[1.5, -3.0]);
        want[6..8].copy_from_slice(&[-1.5, 3.0]);
        assert_eq!(out.dx[0].as_deref(), Some(&want[..]), "{engine}");
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let op = MaskedMse { skip: 1 };
    for (prediction, wanted, mask) in [
        ([2, 4, 5], [2, 4, 5], [2, 4]),
        ([2, 4, 5], [2, 3, 6], [2, 3]),
        ([2, 4, 5], [3, 3, 5], [3, 3]),
        ([2, 4, 5], [2, 3, 5], [2, 4]),
    ] {
        assert!(op.outputs(&[prediction.into(), wanted.into(), mask.into()]).is_err(), "{prediction:?}");
    }
}
