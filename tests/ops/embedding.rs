use veilgrad::ops::Op;
use veilgrad::ops::embedding::Embedding;

use crate::harness::{Case, Init, SIZES, outcomes};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(Embedding, name).shared([7, d], Init::Normal).example([b, t], Init::Ids(7))
        })
        .collect()
}

#[test]
fn ids_outside_the_table_give_zeros() {
    let case = Case::new(Embedding, "outside")
        .shared([2, 3], Init::Floats(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        .example([2, 2], Init::Uints(vec![1, 2, u32::MAX, 0]));
    for (engine, out) in outcomes(&case, &[0.0; 12]) {
        assert_eq!(out.y(), [4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0], "{engine}");
    }
}

#[test]
fn refuses_what_does_not_fit() {
    for shapes in [vec![[2, 3].into()], vec![[2, 3].into(), [4].into()], vec![[0, 3].into(), [2, 2].into()]] {
        assert!(Embedding.outputs(&shapes).is_err(), "{shapes:?}");
    }
}
