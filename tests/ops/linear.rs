use veilgrad::ops::Op;
use veilgrad::ops::linear::Linear;
use veilgrad::shape::Shape;

use crate::harness::{Case, Init};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (x, width, out) in [
        (vec![3], 5, 7),
        (vec![1], 1, 1),
        (vec![2, 3], 8, 12),
        (vec![3, 17], 16, 24),
        (vec![2, 5], 31, 33),
        (vec![2, 2, 3], 64, 65),
        (vec![2, 65], 12, 10),
        (vec![4, 1], 128, 3),
    ] {
        for bias in [false, true] {
            let mut dims = x.clone();
            dims.push(width);
            let mut case = Case::new(Linear { bias }, format!("{dims:?} -> {out}, bias {bias}"))
                .example(Shape::new(dims), Init::Normal)
                .shared([out, width], Init::Normal)
                .reduction(width.max(out).max(x.iter().product()));
            if bias {
                case = case.shared([out], Init::Normal);
            }
            cases.push(case);
        }
    }
    cases
}

#[test]
fn wrong_shapes_are_named() {
    let shape = |dims: &[usize]| Shape::new(dims.to_vec());
    for (bias, inputs) in [
        (false, vec![shape(&[2, 3])]),
        (false, vec![shape(&[2, 3]), shape(&[4, 2])]),
        (false, vec![shape(&[3]), shape(&[4, 3])]),
        (true, vec![shape(&[2, 3]), shape(&[4, 3])]),
        (true, vec![shape(&[2, 3]), shape(&[4, 3]), shape(&[3])]),
    ] {
        let error = Linear { bias }.outputs(&inputs).expect_err("shapes do not fit").to_string();
        assert!(inputs.iter().all(|s| error.contains(&s.to_string())), "{error}");
    }
}
