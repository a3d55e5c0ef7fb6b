//! The bag of words: that it learns, resumes with the same bits, loads its export, and that `fit` works without an estimate.

use std::fs;

use crate::support::{Bench, losses};
use pipe_model::read_config;
use pipe_spec::event::EventKind;
use pipe_spec::pipeline::Arch;
use serde_json::{Value, json};

/// Generated descriptions of dishes; the data decides the labels.
pub fn dishes() -> Bench {
    let mut bench = Bench::dishes(100);
    let data = bench.path("data");
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/model", json!({ "arch": "bag-of-words", "config": { "vocab_size": 192, "hidden_size": 32 } }))
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl"), "workers": 1 }))
        .set("/train/optimizer", json!({ "lr": 1e-2 }))
        .set("/train/steps", json!(10));
    bench
}

#[test]
fn it_learns_and_its_export_is_loaded() {
    let mut bench = dishes();
    bench.set("/train/batch", json!(16)).set("/train/effective_batch", json!(16)).set("/train/steps", json!(200));
    let ended = bench.train().expect(0);
    let eval = ended.events.iter().rev().find_map(|event| match event {
        EventKind::Eval(eval) => Some(eval),
        _ => None,
    });
    let scores = &eval.expect("it was evaluated").scores;
    assert!(scores["accuracy"] >= 0.9, "{scores:?}");
    let model = bench.run_folder().model();
    let config: Value = serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["model_type"], &config["id2label"]["1"]), (&json!("bag_of_words"), &json!("salad")));

    let trained = losses(&ended)[199];
    let mut again = dishes();
    again.set("/model", json!({ "arch": "bag-of-words", "from": model })).set("/train/steps", json!(1));
    let first = losses(&again.train().expect(0))[0];
    assert!(first < 2.0 * trained.max(0.2), "the export begins at a loss of {first}, the training ended at {trained}");
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    for precision in ["fp32", "bf16"] {
        let mut bench = dishes();
        bench.set("/train/precision", json!(precision)).set("/save", json!({ "every": 4, "keep": 3 }));
        bench.expect_the_same_bits_from(4);
    }
}

#[test]
fn it_has_no_estimate_and_fit_works_without_one() {
    let mut bench = dishes();
    let config = bench.spec["model"]["config"].as_object().unwrap().clone();
    assert!(read_config(Arch::BagOfWords, &config).unwrap().step_memory().is_none());
    bench.set("/train/batch", json!("auto")).set("/train/effective_batch", json!(16));
    let ended = bench.run("fit").expect(0);
    let fitted = ended.events.iter().find_map(|event| match event {
        EventKind::Fitted(fitted) => Some(fitted),
        _ => None,
    });
    assert_eq!(fitted.expect("a batch is found").batch, 16);
}
