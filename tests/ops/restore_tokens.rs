use veilgrad::ops::restore_tokens::RestoreTokens;

use crate::harness::{Case, Init, SIZES};

pub fn cases() -> Vec<Case> {
    SIZES
        .into_iter()
        .map(|(b, s, d)| {
            // Row j goes to place 2 j + 1; every other place holds the mask token.
            let target: Vec<u32> = (0..b).flat_map(|_| (0..s as u32).map(|j| 2 * j + 1)).collect();
            let place = |t: usize| if t % 2 == 1 { t as u32 / 2 } else { s as u32 };
            let source = (0..b).flat_map(|_| (0..2 * s).map(place)).collect();
            Case::new(RestoreTokens, format!("{b}x{s}x{d}"))
                .example([b, s, d], Init::Normal)
                .shared([d], Init::Normal)
                .example([b, 2 * s], Init::Uints(source))
                .example([b, s], Init::Uints(target))
                .reduction(s)
        })
        .collect()
}
