use veilgrad::ops::patchify::{Order, Patchify};

use crate::harness::{Case, Init};

pub fn cases() -> Vec<Case> {
    let options =
        [(Order::RowColumnChannel, false), (Order::ChannelRowColumn, true), (Order::RowColumnChannel, true)];
    options
        .into_iter()
        .flat_map(|(order, standardize)| {
            [(1, 3, 3, 1), (2, 8, 12, 4), (3, 6, 4, 2)].map(|(b, h, w, patch)| {
                let standardize = standardize && patch > 1;
                Case::new(
                    Patchify { patch, order, standardize },
                    format!("{b}x{h}x{w} {order:?} {standardize}"),
                )
                .example([b, 3, h, w], Init::Normal)
                .reduction(48)
            })
        })
        .collect()
}
