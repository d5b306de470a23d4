use veilgrad::ops::masked_mse::MaskedMse;

use crate::harness::{Case, Init, SIZES};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(MaskedMse { skip: 1 }, name)
                .example([b, t + 1, d], Init::Normal)
                .example([b, t, d], Init::Normal)
                .example([b, t], Init::Floats((0..b * t).map(|i| (i % 3 != 1) as u8 as f32).collect()))
                .reduction(t * d)
        })
        .collect()
}
