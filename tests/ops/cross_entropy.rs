use veilgrad::ops::Op;
use veilgrad::ops::cross_entropy::CrossEntropy;

use crate::harness::{Case, Init, outcomes};
use crate::lab::assert_close;

const PLAIN: CrossEntropy = CrossEntropy { ignore: None, smoothing: 0.0 };
const PADDED: CrossEntropy = CrossEntropy { ignore: Some(0), smoothing: 0.0 };
const SMOOTHED: CrossEntropy = CrossEntropy { ignore: Some(3), smoothing: 0.1 };

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in [PLAIN, PADDED, SMOOTHED] {
        for (b, t, v) in
            [(1, 1, 1), (3, 1, 2), (2, 2, 4), (1, 5, 48), (3, 17, 63), (2, 65, 65), (2, 3, 257), (3, 2, 1003)]
        {
            // One id past the end: it does not count.
            cases.push(
                Case::new(op, format!("{op:?} {b}x{t}x{v}"))
                    .example([b, t, v], Init::Normal)
                    .example([b, t], Init::Ids(v as u32 + 1))
                    .reduction(v.max(t)),
            );
        }
    }
    cases.push(
        Case::new(PADDED, "BERT's vocabulary")
            .example([2, 3, 30_522], Init::Normal)
            .example([2, 3], Init::Ids(30_522))
            .reduction(30_522),
    );
    cases.push(
        Case::new(SMOOTHED, "no tokens axis")
            .example([5, 33], Init::Scaled(3.0, 1.0))
            .example([5], Init::Ids(33))
            .reduction(33),
    );
    // Inputs near 1000 carry rounding of 1000 eps.
    cases.push(
        Case::new(PLAIN, "offset")
            .example([3, 4, 40], Init::Scaled(5.0, 1000.0))
            .example([3, 4], Init::Ids(40))
            .reduction(40),
    );
    cases
}

#[test]
fn uniform_logits_cost_the_logarithm_of_the_vocabulary() {
    for op in [PLAIN, CrossEntropy { smoothing: 0.3, ..PLAIN }] {
        for (v, level) in [(1, 0.0), (2, -5.0), (65, 1e4), (1003, -3e38)] {
            let case = Case::new(op, "uniform")
                .example([2, 3, v], Init::Floats(vec![level; 6 * v]))
                .example([2, 3], Init::Uints((0..6).map(|i| i * 7 % v as u32).collect()));
            let want = (v as f64).ln();
            for (engine, out) in outcomes(&case, &[3.0, 6.0]) {
                assert_close(&engine, out.y(), &[want, want], |_| 2e-6);
                // The gradient of the first row: (1 / V - q) / T, times the weight.
                let dx = out.dx[0].as_ref().expect("a gradient");
                let at_target = -(1.0 - op.smoothing as f64) * (1.0 - 1.0 / v as f64);
                assert_close(&engine, &dx[..1], &[at_target], |_| 1e-6);
            }
        }
    }
}

#[test]
fn hand_computed() {
    // Softmax of ln 1, ln 2, ln 5 is 1/8, 1/4, 5/8. The second row's target is padding.
    let logits = [0.0, 2f32.ln(), 5f32.ln(), f32::NAN, f32::NAN, f32::NAN];
    let case = Case::new(PADDED, "hand")
        .example([1, 2, 3], Init::Floats(logits.to_vec()))
        .example([1, 2], Init::Uints(vec![1, 0]));
    for (engine, out) in outcomes(&case, &[2.0]) {
        assert_close(&engine, out.y(), &[4f64.ln()], |_| 1e-6);
        let dx = out.dx[0].as_ref().expect("a gradient");
        assert_close(&engine, dx, &[0.25, -1.5, 1.25, 0.0, 0.0, 0.0], |_| 1e-6);
    }
}

#[test]
fn examples_without_targets_cost_nothing() {
    let case = Case::new(PADDED, "empty")
        .example([3, 2, 4], Init::Normal)
        .example([3, 2], Init::Uints(vec![0, 0, 4, u32::MAX, 0, 2]));
    for (engine, out) in outcomes(&case, &[1.0, 1.0, 1.0]) {
        assert_eq!(out.y()[..2], [0.0, 0.0], "{engine}");
        assert!(out.y()[2] > 0.0, "{engine}");
        let dx = out.dx[0].as_ref().expect("a gradient");
        assert!(dx[..20].iter().all(|&g| g == 0.0), "{engine}");
        assert!(dx[20..].iter().all(|&g| g != 0.0), "{engine}");
    }
}

#[test]
fn huge_logits_stay_finite_and_lost_ones_are_seen() {
    let rows = [[3e38, -3e38, 0.0], [1e4, 1e4 - 1.0, -1e4], [1.0, f32::NAN, 0.0], [f32::NAN, 1.0, 0.0]];
    let case = Case::new(PLAIN, "huge")
        .example([4, 3], Init::Floats(rows.concat()))
        .example([4], Init::Uints(vec![0, 1, 2, 2]));
    for (engine, out) in outcomes(&case, &[1.0; 4]) {
        let dx = out.dx[0].as_ref().expect("a gradient");
        assert_close(&engine, &out.y()[..2], &[0.0, 1.0 + (1.0 + (-1f64).exp()).ln()], |_| 1e-6);
        assert_close(&engine, &dx[..3], &[0.0; 3], |_| 1e-6);
        assert!(out.y()[2..].iter().all(|y| !y.is_finite()), "{engine}: {:?}", out.y());
        for row in dx[6..].chunks(3) {
            assert!(row.iter().any(|g| !g.is_finite()), "{engine}: {row:?}");
        }
    }
}

#[test]
fn refuses_what_does_not_fit() {
    for shapes in [
        vec![[2, 3].into()],
        vec![[2, 3].into(), [3].into()],
        vec![[2, 4, 3].into(), [2, 3].into()],
        vec![[2, 4, 0].into(), [2, 4].into()],
        vec![[3].into(), [].into()],
    ] {
        assert!(PLAIN.outputs(&shapes).is_err(), "{shapes:?}");
    }
}
