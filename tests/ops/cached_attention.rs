use veilgrad::ops::Op;
use veilgrad::ops::attention::Attention;
use veilgrad::ops::cached_attention::CachedAttention;

use crate::harness::{Case, Init, outcomes};
use crate::lab::assert_close;

pub fn cases() -> Vec<Case> {
    let sizes = [(1, 1, 1, 1), (3, 2, 2, 3), (2, 17, 4, 16), (4, 40, 3, 5), (2, 128, 2, 64)];
    sizes
        .into_iter()
        .map(|(b, t, heads, head)| {
            let w = heads * head;
            Case::new(CachedAttention { heads }, format!("{b}x{t} {heads}x{head}"))
                .example([b, 1, 3 * w], Init::Normal)
                .example([b, t, 2 * w], Init::Normal)
                // One more than there is: it stands for all.
                .example([b], Init::Ids(t as u32 + 2))
                .reduction(t * head)
        })
        .collect()
}

#[test]
fn token_by_token_equals_causal_attention() {
    let (t, heads, w) = (6, 2, 8);
    let rows: Vec<f32> = (0..t * 3 * w).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
    let whole =
        Case::new(Attention::causal(heads), "whole").example([1, t, 3 * w], Init::Floats(rows.clone()));
    let want = outcomes(&whole, &vec![0.0; t * w]);
    // The cache of an example holds all rows, of which the first i count.
    let cache: Vec<f32> = rows.chunks(3 * w).flat_map(|r| r[w..].to_vec()).collect();
    let steps = Case::new(CachedAttention { heads }, "steps")
        .example([t, 1, 3 * w], Init::Floats(rows))
        .example([t, t, 2 * w], Init::Floats(cache.repeat(t)))
        .example([t], Init::Uints((0..t as u32).collect()));
    for ((engine, got), (_, want)) in outcomes(&steps, &vec![0.0; t * w]).iter().zip(&want) {
        assert_close(engine, got.y(), want.y(), |_| 1e-5);
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let op = CachedAttention { heads: 2 };
    for shapes in [
        vec![[2, 1, 12].into(), [2, 5, 8].into()],
        vec![[2, 2, 12].into(), [2, 5, 8].into(), [2].into()],
        vec![[2, 1, 12].into(), [2, 5, 7].into(), [2].into()],
        vec![[2, 1, 9].into(), [2, 5, 6].into(), [2].into()],
        vec![[2, 1, 12].into(), [2, 5, 8].into(), [3].into()],
    ] {
        assert!(op.outputs(&shapes).is_err(), "{shapes:?}");
    }
}
