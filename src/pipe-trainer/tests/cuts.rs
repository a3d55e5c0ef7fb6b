//! However a step is cut, with dropout on: one training, in every architecture.

use crate::support::{Bench, expect_one_training_however_it_is_cut};
use crate::{bag_of_words, classification, deberta, hybrid, mu_sota, pairs};
use serde_json::json;

#[test]
fn t5() {
    expect_one_training_however_it_is_cut(Bench::recipes());
}

#[test]
fn bert() {
    expect_one_training_however_it_is_cut(classification::dishes());
}

#[test]
fn bert_with_weights_of_classes() {
    expect_one_training_however_it_is_cut(classification::balanced_dishes());
}

#[test]
fn roberta() {
    let mut bench = classification::dishes();
    bench.set("/model/arch", json!("roberta"));
    expect_one_training_however_it_is_cut(bench);
}

#[test]
fn deberta() {
    let mut bench = deberta::texts();
    bench.set("/model/config/conv_kernel_size", json!(3));
    expect_one_training_however_it_is_cut(bench);
}

#[test]
fn clip() {
    expect_one_training_however_it_is_cut(pairs::bench(60, 5));
}

#[test]
fn hybrid_cnn_lstm() {
    let mut bench = hybrid::series();
    bench.set("/model/config/norm", json!("layer"));
    expect_one_training_however_it_is_cut(bench);
}

#[test]
fn mu_sota() {
    expect_one_training_however_it_is_cut(mu_sota::bench(100));
}

#[test]
fn bag_of_words() {
    expect_one_training_however_it_is_cut(bag_of_words::dishes());
}
