use veilgrad::ops::add_lookup::AddLookup;

use crate::harness::{Case, Init, SIZES, outcomes};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(AddLookup, name)
                .example([b, t, d], Init::Normal)
                .shared([7, d], Init::Normal)
                .example([b, t], Init::Ids(7))
        })
        .collect()
}

#[test]
fn ids_outside_the_table_add_nothing() {
    let case = Case::new(AddLookup, "outside")
        .example([1, 3, 2], Init::Floats(vec![1.0; 6]))
        .shared([2, 2], Init::Floats(vec![1.0, 2.0, 3.0, 4.0]))
        .example([1, 3], Init::Uints(vec![2, 1, u32::MAX]));
    for (engine, out) in outcomes(&case, &[0.0; 6]) {
        assert_eq!(out.y(), [1.0, 1.0, 4.0, 5.0, 1.0, 1.0], "{engine}");
    }
}
