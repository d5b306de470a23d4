use veilgrad::ops::prepend_token::PrependToken;

use crate::harness::{Case, Init, SIZES};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(PrependToken, name).shared([d], Init::Normal).example([b, t, d], Init::Normal)
        })
        .collect()
}
