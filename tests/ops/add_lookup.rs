use veilgrad::ops::add_lookup::AddLookup;

use crate::harness::{Case, Init, SIZES};

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
