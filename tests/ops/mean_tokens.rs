use veilgrad::ops::mean_tokens::MeanTokens;

use crate::harness::{Case, Init, SIZES};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(MeanTokens { skip: 1 }, name).example([b, t + 1, d], Init::Normal).reduction(t)
        })
        .collect()
}
