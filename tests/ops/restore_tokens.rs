use veilgrad::ops::restore_tokens::RestoreTokens;

use crate::harness::{Case, Init, SIZES, outcomes};

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

/// Restores two examples of a class token and three kept ones of five; returns the case.
fn shuffled(source: Vec<u32>, target: Vec<u32>) -> Case {
    let x = (0..16).map(|i| i as f32).collect();
    Case::new(RestoreTokens, "shuffled")
        .example([2, 4, 2], Init::Floats(x))
        .shared([2], Init::Floats(vec![-1.0, -2.0]))
        .example([2, 6], Init::Uints(source))
        .example([2, 4], Init::Uints(target))
}

#[test]
fn undoes_the_shuffle() {
    // Kept patches in shuffled order: 4, 0, 2 and 1, 3, 0; their places come one later, after the class token.
    let kept = [[4, 0, 2], [1, 3, 0]];
    let mut source = vec![4; 12];
    let mut target = vec![0; 8];
    for (b, kept) in kept.iter().enumerate() {
        source[6 * b] = 0;
        for (j, patch) in kept.iter().enumerate() {
            source[6 * b + 1 + patch] = 1 + j as u32;
            target[4 * b + 1 + j] = 1 + *patch as u32;
        }
    }
    let case = shuffled(source, target);
    let dy: Vec<f64> = (0..24).map(|i| 100.0 + i as f64).collect();
    for (engine, out) in outcomes(&case, &dy) {
        let rows: Vec<&[f64]> = out.y().chunks(2).collect();
        let dx: Vec<&[f64]> = out.dx[0].as_ref().expect("dx").chunks(2).collect();
        for (b, kept) in kept.iter().enumerate() {
            let mut masked = [0.0; 2];
            for place in 0..6 {
                let row = if place == 0 {
                    Some(0)
                } else {
                    kept.iter().position(|k| k + 1 == place).map(|j| j + 1)
                };
                let g = &dy[(6 * b + place) * 2..][..2];
                match row {
                    Some(row) => {
                        let first = (8 * b + 2 * row) as f64;
                        assert_eq!(rows[6 * b + place], [first, first + 1.0], "{engine}");
                        assert_eq!(dx[4 * b + row], g, "{engine}");
                    }
                    None => {
                        assert_eq!(rows[6 * b + place], [-1.0, -2.0], "{engine}");
                        masked.iter_mut().zip(g).for_each(|(m, g)| *m += g);
                    }
                }
            }
            assert_eq!(out.dx[1].as_ref().expect("rows")[2 * b..2 * b + 2], masked, "{engine}");
        }
    }
}

#[test]
fn indices_past_the_end_are_the_mask_token_and_have_no_gradient() {
    let case = shuffled(vec![u32::MAX; 12], vec![6, u32::MAX, 7, 1000, 6, 6, 6, 6]);
    for (engine, out) in outcomes(&case, &[1.0; 24]) {
        assert!(out.y().chunks(2).all(|row| row == [-1.0, -2.0]), "{engine}");
        assert_eq!(out.dx[0].as_deref(), Some(&[0.0; 16][..]), "{engine}");
        assert_eq!(out.dx[1].as_deref(), Some(&[6.0; 4][..]), "{engine}");
    }
}
