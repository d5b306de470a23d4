use veilgrad::ops::gelu::Gelu;

use crate::harness::{Case, Init, SIZES};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(Gelu, name).example([b, t, d], Init::Normal)
        })
        .collect()
}
