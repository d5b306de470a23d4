//! Every op, from one list of cases: twins against central differences, engines against the f64 twin, poison,
//! permutation, determinism. An op's cases are in the file of its name.

mod harness;
mod lab;
mod linear;
mod lookup_grad;
mod matmul;
mod relu;
mod row_grad;
mod weight_grad;

use harness::{Case, check};

fn run(cases: Vec<Case>) {
    assert!(!cases.is_empty());
    let faults: Vec<String> = cases.iter().filter_map(|case| check(case).err()).collect();
    assert!(faults.is_empty(), "{} of {} cases fail:\n{}", faults.len(), cases.len(), faults.join("\n"));
}

#[test]
fn linear_cases() {
    run(linear::cases());
}

#[test]
fn relu_cases() {
    run(relu::cases());
}
