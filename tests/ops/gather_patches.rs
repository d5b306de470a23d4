use veilgrad::ops::gather_patches::GatherPatches;
use veilgrad::ops::patchify::{Order, Patchify};

use crate::harness::{Case, Init, outcomes};

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

#[test]
fn gathers_the_patches_that_patchify_cuts() {
    let image: Vec<f32> = (0..2 * 3 * 6 * 8).map(|i| i as f32).collect();
    let ids = [11, 0, 5, 5, 7, 10, 3, u32::MAX];
    let (gather, cut) = (
        Case::new(GatherPatches { patch: 2 }, "gather")
            .example([2, 3, 6, 8], Init::Floats(image.clone()))
            .example([2, 4], Init::Uints(ids.to_vec())),
        Case::new(Patchify { patch: 2, order: Order::ChannelRowColumn, standardize: false }, "cut")
            .example([2, 3, 6, 8], Init::Floats(image)),
    );
    let cut = outcomes(&cut, &[0.0; 288]);
    let cut: Vec<&[f64]> = cut[0].1.y().chunks(12).collect();
    for (engine, out) in outcomes(&gather, &[0.0; 96]) {
        for (j, (got, &id)) in out.y().chunks(12).zip(&ids).enumerate() {
            let want = if id < 12 { cut[j / 4 * 12 + id as usize] } else { &[0.0; 12] };
            assert_eq!(got, want, "{engine}: patch {j}");
        }
    }
}
