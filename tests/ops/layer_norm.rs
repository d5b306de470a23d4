use veilgrad::ops::layer_norm::LayerNorm;

use crate::harness::{Case, Init, SIZES};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, t, d)| {
            let name = format!("{b}x{t}x{d}");
            Case::new(LayerNorm { eps: 1e-6 }, name)
                .example([b, t, d], Init::Scaled(2.0, 0.7))
                .shared([d], Init::Normal)
                .shared([d], Init::Normal)
                .reduction(d * t)
                .slack(if d == 1 { 100.0 } else { 4.0 })
        })
        .collect()
}
