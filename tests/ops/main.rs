//! Every op, from one list of cases: twins against central differences, engines against the f64 twin, poison,
//! permutation, determinism. An op's cases are in the file of its name.

mod accumulate;
mod add;
mod add_lookup;
mod add_table;
mod attention;
mod batch_norm;
mod cached_attention;
mod cross_entropy;
mod embedding;
mod engines;
mod gather_patches;
mod gelu;
mod harness;
mod head_loss;
mod lab;
mod layer_norm;
mod linear;
mod lookup_grad;
mod masked_mse;
mod matmul;
mod mean_tokens;
mod patchify;
mod prepend_token;
mod relu;
mod restore_tokens;
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

#[test]
fn add_cases() {
    run(add::cases());
}

#[test]
fn add_lookup_cases() {
    run(add_lookup::cases());
}

#[test]
fn add_table_cases() {
    run(add_table::cases());
}

#[test]
fn attention_cases() {
    run(attention::cases());
}

#[test]
fn batch_norm_cases() {
    run(batch_norm::cases());
}

#[test]
fn cached_attention_cases() {
    run(cached_attention::cases());
}

#[test]
fn cross_entropy_cases() {
    run(cross_entropy::cases());
}

#[test]
fn embedding_cases() {
    run(embedding::cases());
}

#[test]
fn head_loss_cases() {
    run(head_loss::cases());
}

#[test]
fn gather_patches_cases() {
    run(gather_patches::cases());
}

#[test]
fn gelu_cases() {
    run(gelu::cases());
}

#[test]
fn layer_norm_cases() {
    run(layer_norm::cases());
}

#[test]
fn masked_mse_cases() {
    run(masked_mse::cases());
}

#[test]
fn mean_tokens_cases() {
    run(mean_tokens::cases());
}

#[test]
fn patchify_cases() {
    run(patchify::cases());
}

#[test]
fn prepend_token_cases() {
    run(prepend_token::cases());
}

#[test]
fn restore_tokens_cases() {
    run(restore_tokens::cases());
}
