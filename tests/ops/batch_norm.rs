use veilgrad::ops::Op;
use veilgrad::ops::batch_norm::BatchNorm;

use crate::harness::{Case, Init, outcomes};
use crate::lab::assert_close;

const OP: BatchNorm = BatchNorm { eps: 1e-6 };

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [(1, 1), (1, 5), (3, 1), (3, 4), (17, 65), (5, 48), (65, 3), (257, 129)]
        .into_iter()
        .map(|(n, f)| Case::new(OP, format!("{n}x{f}")).example([n, f], Init::Normal).reduction(n))
        .collect();
    // Two rows normalise to +-1 whatever they are, but for eps: only a large one leaves a gradient.
    cases.push(Case::new(BatchNorm { eps: 1.0 }, "two rows").example([2, 7], Init::Normal));
    // Inputs near 1000 carry rounding of 1000 eps against a spread of 1.
    cases
        .push(Case::new(OP, "offset").example([40, 6], Init::Scaled(1.0, 1000.0)).reduction(40).slack(100.0));
    cases
}

#[test]
fn columns_are_standardised_and_statistics_are_theirs() {
    let x: Vec<f32> = (0..8).flat_map(|i| [i as f32, 1234.567, 100.0 - 2.0 * i as f32]).collect();
    let case = Case::new(OP, "golden").example([8, 3], Init::Floats(x));
    for (engine, out) in outcomes(&case, &[1.0; 24]) {
        for k in [0, 2] {
            let column: Vec<f64> = out.y().iter().skip(k).step_by(3).copied().collect();
            let moment = |p: i32| column.iter().map(|y| y.powi(p)).sum::<f64>() / 8.0;
            assert_close(&engine, &[moment(1), moment(2)], &[0.0, 1.0], |_| 1e-6);
            assert!((column[0] + 7.0 / 21f64.sqrt()).abs() <= 1e-6 || k == 2, "{engine}: {}", column[0]);
        }
        assert!(out.y().iter().skip(1).step_by(3).all(|y| y.abs() <= 1e-6), "{engine}: a constant column");
        assert_close(&engine, out.outputs[1].float(), &[3.5, 1234.567, 93.0], |_| 1e-4);
        assert_close(&engine, out.outputs[2].float(), &[5.25, 0.0, 21.0], |_| 1e-5);
        // What is the same for all rows moves no normalised value.
        let dx = out.dx[0].as_ref().expect("a gradient");
        assert!(dx.iter().all(|g| g.abs() <= 1e-6), "{engine}: {dx:?}");
    }
}

#[test]
fn refuses_what_does_not_fit_and_says_what_is_private() {
    for shapes in [vec![[3].into()], vec![[2, 3, 4].into()], vec![[0, 3].into()], vec![]] {
        assert!(OP.outputs(&shapes).is_err(), "{shapes:?}");
    }
    assert!(OP.mixes().is_some_and(|why| why.contains("layer_norm")));
}
