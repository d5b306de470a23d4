use veilgrad::ops::add::Add;

use crate::harness::{Case, Init, SIZES};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(Add, name).example([b, t, d], Init::Normal).example([b, t, d], Init::Normal)
        })
        .collect()
}
