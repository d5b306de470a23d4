use veilgrad::ops::attention::Attention;

use crate::harness::{Case, Init};

pub fn cases() -> Vec<Case> {
    [(2, 1, 1, 1), (2, 5, 2, 3), (3, 17, 4, 8), (2, 33, 3, 16), (1, 65, 1, 7)]
        .into_iter()
        .flat_map(|(b, t, heads, head)| {
            let name = format!("{b}x{t} {heads}x{head}");
            let w = heads * head;
            [
                Case::new(Attention::full(heads), format!("full {name}"))
                    .example([b, t, 3 * w], Init::Normal),
                Case::new(Attention::causal(heads), format!("causal {name}"))
                    .example([b, t, 3 * w], Init::Normal),
                Case::new(Attention::cross(heads), format!("cross {name}"))
                    .example([b, t, w], Init::Normal)
                    .example([b, t + 2, 2 * w], Init::Normal),
            ]
            .map(|case| case.reduction(t * head))
        })
        .collect()
}
