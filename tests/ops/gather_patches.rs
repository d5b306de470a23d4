use veilgrad::ops::gather_patches::GatherPatches;

use crate::harness::{Case, Init};

pub fn cases() -> Vec<Case> {
    [(1, 3, 3, 1, 9), (2, 8, 12, 4, 6), (3, 6, 4, 2, 6)]
        .into_iter()
        .map(|(b, h, w, patch, patches)| {
            // One id past the end: zeros.
            Case::new(GatherPatches { patch }, format!("{b}x{h}x{w}"))
                .example([b, 3, h, w], Init::Normal)
                .example([b, 4], Init::Ids(patches + 1))
        })
        .collect()
}
