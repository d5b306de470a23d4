use veilgrad::ops::mean_tokens::MeanTokens;

use crate::harness::{Case, Init, SIZES, outcomes};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(MeanTokens { skip: 1 }, name).example([b, t + 1, d], Init::Normal).reduction(t)
        })
        .collect()
}

#[test]
fn skipped_tokens_are_left_out() {
    // The skipped token is NaN: it must not be read.
    let x = vec![f32::NAN, f32::NAN, 1.0, 2.0, 3.0, 6.0];
    let case = Case::new(MeanTokens { skip: 1 }, "skip").example([1, 3, 2], Init::Floats(x));
    for (engine, out) in outcomes(&case, &[4.0, 8.0]) {
        assert_eq!(out.y(), [2.0, 4.0], "{engine}");
        assert_eq!(out.dx[0].as_deref(), Some(&[0.0, 0.0, 2.0, 4.0, 2.0, 4.0][..]), "{engine}");
    }
}
