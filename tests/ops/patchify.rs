use veilgrad::ops::Op;
use veilgrad::ops::patchify::{Order, Patchify};

use crate::harness::{Case, Init, outcomes};
use crate::lab::assert_close;

pub fn cases() -> Vec<Case> {
    let options =
        [(Order::RowColumnChannel, false), (Order::ChannelRowColumn, true), (Order::RowColumnChannel, true)];
    options
        .into_iter()
        .flat_map(|(order, standardize)| {
            [(1, 3, 3, 1), (2, 8, 12, 4), (3, 6, 4, 2), (1, 10, 5, 5)].map(|(b, h, w, patch)| {
                let standardize = standardize && patch > 1;
                Case::new(
                    Patchify { patch, order, standardize },
                    format!("{b}x{h}x{w} {order:?} {standardize}"),
                )
                .example([b, 3, h, w], Init::Normal)
                .reduction(75)
            })
        })
        .collect()
}

#[test]
fn golden_orders() {
    // Channels of one 2 x 4 image: 0..8, 8..16, 16..24; two patches side by side.
    let image = (0..24).map(|i| i as f32).collect::<Vec<f32>>();
    let first = [0.0, 8.0, 16.0, 1.0, 9.0, 17.0, 4.0, 12.0, 20.0, 5.0, 13.0, 21.0];
    let second = [0.0, 1.0, 4.0, 5.0, 8.0, 9.0, 12.0, 13.0, 16.0, 17.0, 20.0, 21.0];
    for (order, want) in [(Order::RowColumnChannel, first), (Order::ChannelRowColumn, second)] {
        let case = Case::new(Patchify { patch: 2, order, standardize: false }, "golden")
            .example([1, 3, 2, 4], Init::Floats(image.clone()));
        for (engine, out) in outcomes(&case, &[0.0; 24]) {
            assert_eq!(out.y()[..12], want, "{engine}");
            assert_eq!(out.y()[12..], want.map(|x| x + 2.0), "{engine}");
        }
    }
}

#[test]
fn standard_patches_have_mean_0_and_unbiased_variance_1() {
    // The last patch is of one colour: zeros, not amplified rounding.
    let mut image: Vec<f32> = (0..3 * 4 * 8).map(|i| 0.7 + 0.01 * (i * i % 37) as f32).collect();
    for row in image.chunks_mut(8) {
        row[4..].fill(0.7);
    }
    let op = Patchify { patch: 4, order: Order::RowColumnChannel, standardize: true };
    let case = Case::new(op, "standard").example([1, 3, 4, 8], Init::Floats(image));
    for (engine, out) in outcomes(&case, &[0.0; 96]) {
        let mean = out.y()[..48].iter().sum::<f64>() / 48.0;
        let variance = out.y()[..48].iter().map(|y| (y - mean) * (y - mean)).sum::<f64>() / 47.0;
        // eps = 1e-6 against a variance of about 0.01
        assert_close(&engine, &[mean, variance], &[0.0, 1.0], |i| [1e-6, 3e-4][i]);
        assert!(out.y()[48..].iter().all(|y| y.abs() <= 1e-4), "{engine}: {:?}", &out.y()[48..52]);
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let op = |patch| Patchify { patch, order: Order::RowColumnChannel, standardize: false };
    for (patch, shape) in [(4, [2, 3, 8, 6]), (4, [2, 3, 6, 8]), (4, [2, 1, 8, 8]), (0, [2, 3, 8, 8])] {
        assert!(op(patch).outputs(&[shape.into()]).is_err(), "{patch} {shape:?}");
    }
}
