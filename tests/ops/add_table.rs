use veilgrad::ops::add_table::AddTable;

use crate::harness::{Case, Init, SIZES, outcomes};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(AddTable, name).example([b, t, d], Init::Normal).shared([t, d], Init::Normal)
        })
        .collect()
}

#[test]
fn every_example_gets_the_same_table() {
    let case = Case::new(AddTable, "golden")
        .example([2, 2, 1], Init::Floats(vec![1.0, 2.0, 3.0, 4.0]))
        .shared([2, 1], Init::Floats(vec![10.0, 20.0]));
    for (engine, out) in outcomes(&case, &[0.0; 4]) {
        assert_eq!(out.y(), [11.0, 22.0, 13.0, 24.0], "{engine}");
    }
}
