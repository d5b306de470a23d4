use veilgrad::ops::prepend_token::PrependToken;

use crate::harness::{Case, Init, SIZES, outcomes};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(PrependToken, name).shared([d], Init::Normal).example([b, t, d], Init::Normal)
        })
        .collect()
}

#[test]
fn the_token_comes_first_and_gets_the_first_gradient() {
    let case = Case::new(PrependToken, "golden")
        .shared([1], Init::Floats(vec![9.0]))
        .example([2, 2, 1], Init::Floats(vec![1.0, 2.0, 3.0, 4.0]));
    for (engine, out) in outcomes(&case, &[10.0, 11.0, 12.0, 13.0, 14.0, 15.0]) {
        assert_eq!(out.y(), [9.0, 1.0, 2.0, 9.0, 3.0, 4.0], "{engine}");
        assert_eq!(out.dx[0].as_deref(), Some(&[10.0, 13.0][..]), "{engine}");
        assert_eq!(out.dx[1].as_deref(), Some(&[11.0, 12.0, 14.0, 15.0][..]), "{engine}");
    }
}
