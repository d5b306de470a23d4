use veilgrad::ops::gelu::Gelu;

use crate::harness::{Case, Init};

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [1, 3, 63, 64, 65, 257, 70_001]
        .into_iter()
        .map(|d| Case::new(Gelu, format!("2x{d}")).example([2, d], Init::Normal))
        .collect();
    cases.push(Case::new(Gelu, "wide").example([3, 5, 400], Init::Scaled(4.0, 0.0)));
    cases
}
