use veilgrad::ops::relu::Relu;

use crate::harness::{Case, Init};

pub fn cases() -> Vec<Case> {
    [1, 3, 64, 65, 257]
        .into_iter()
        .map(|d| Case::new(Relu, format!("2x{d}")).example([2, d], Init::AwayFromZero))
        .collect()
}
