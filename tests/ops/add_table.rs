use veilgrad::ops::add_table::AddTable;

use crate::harness::{Case, Init, SIZES};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(AddTable, name).example([b, t, d], Init::Normal).shared([t, d], Init::Normal)
        })
        .collect()
}
