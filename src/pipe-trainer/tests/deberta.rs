//! DeBERTa: that it learns, in every precision; what checkpointing, the batch and a stop must not change.

use std::fs;

use crate::support::{Bench, furthest, generate, losses};
use pipe_spec::event::EventKind;
use serde_json::{Value, json};

/// A small DeBERTa-v3 from scratch, with dropout, on generated texts.
pub fn texts() -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    generate(&["texts", "--rows", "600", "--eval-rows", "100", "--seed", "1"], &data);
    let config = json!({
        "vocab_size": 192, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "max_position_embeddings": 64, "relative_attention": true, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
        "share_att_key": true, "pos_att_type": "p2c|c2p", "position_biased_input": false, "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3, "pooler_dropout": 0.1, "cls_dropout": 0.4,
    });
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/model", json!({ "arch": "deberta-v3", "config": config }))
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl"), "max_length": 48 }))
        .set("/train/optimizer", json!({ "lr": 1e-3 }))
        .set("/train/steps", json!(6));
    bench
}

#[test]
fn a_small_model_learns() {
    let mut bench = texts();
    bench.set("/train/batch", json!(16)).set("/train/effective_batch", json!(16)).set("/train/steps", json!(150));
    bench.set("/train/dropout", json!(0.1)).set("/train/schedule", json!({ "kind": "linear", "warmup": 10 }));
    let ended = bench.train().expect(0);
    let scores = ended.events.iter().rev().find_map(|event| match event {
        EventKind::Eval(eval) => Some(&eval.scores),
        _ => None,
    });
    assert!(scores.unwrap()["accuracy"] >= 0.9, "{scores:?}");
}

#[test]
fn every_precision_learns_and_stays_near_fp32() {
    let few = crate::support::narrow_steps(30);
    let run = |precision: &str, steps: usize| {
        let mut bench = texts();
        let rows = fs::read_to_string(bench.path("data/train.jsonl")).unwrap();
        fs::write(bench.path("few.jsonl"), rows.lines().take(16).collect::<Vec<_>>().join("\n")).unwrap();
        let few = json!(bench.path("few.jsonl"));
        bench.set("/data/train", few).set("/train/dropout", json!(0.0)).set("/train/precision", json!(precision));
        bench.set("/train/batch", json!(16)).set("/train/effective_batch", json!(16));
        losses(&bench.set("/train/steps", json!(steps)).train().expect(0))
    };
    let reference = run("fp32", 30);
    assert!(reference[29] < 0.5 * reference[0], "{reference:?}");
    assert_eq!(run("tf32", few), reference[..few]);
    for (precision, near) in [("bf16-mixed", 0.03), ("fp16-mixed", 0.02), ("bf16", 0.06)] {
        let losses = run(precision, few);
        let apart = furthest(&losses, &reference[..few]);
        assert!(apart > 0.0, "{precision} computes in fp32");
        assert!(apart < near * reference[0], "{precision} is {apart} from fp32: {losses:?} {reference:?}");
    }
}

#[test]
fn checkpointing_gives_the_same_training() {
    expect_checkpointing_to_change_nothing([("fp32", 3, 1e-6), ("bf16-mixed", 0, 1e-6)]);
}

#[test]
#[ignore = "test-all"]
fn checkpointing_gives_the_same_training_in_other_precisions() {
    // In bf16 the gradients of distances, which all layers share, are rounded at other sums.
    expect_checkpointing_to_change_nothing([("fp32", 0, 1e-6), ("bf16", 3, 1e-2)]);
}

#[track_caller]
fn expect_checkpointing_to_change_nothing<const N: usize>(cases: [(&str, u32, f64); N]) {
    for (precision, conv, near) in cases {
        let run = |checkpointing: bool| {
            let mut bench = texts();
            bench.set("/train/precision", json!(precision)).set("/model/config/conv_kernel_size", json!(conv));
            losses(&bench.set("/train/checkpointing", json!(checkpointing)).train().expect(0))
        };
        let (plain, again) = (run(false), run(true));
        assert!(furthest(&plain, &again) < near, "{precision} {conv}: {plain:?} {again:?}");
    }
}

#[test]
fn a_run_that_goes_on_ends_with_the_same_bits() {
    for precision in ["fp32", "bf16-mixed"] {
        let mut bench = texts();
        bench.set("/train/precision", json!(precision)).set("/save", json!({ "every": 2, "keep": 3 }));
        bench.expect_the_same_bits_from(2);
    }
}

#[test]
fn an_encoder_gets_a_new_head_and_the_data_decides_its_classes() {
    let encoder = crate::support::fixture().join("../deberta-encoder");
    let mut bench = texts();
    bench.set("/model", json!({ "arch": "deberta-v3", "from": encoder })).set("/tokenizer", json!(null));
    bench.set("/data", json!({ "train": encoder.join("batch.safetensors") }));
    let ended = bench.set("/train/batch", json!(4)).set("/train/effective_batch", json!(4)).train().expect(0);
    let names = "pooler.dense.weight, pooler.dense.bias, classifier.weight, classifier.bias";
    let is_reported =
        |event: &EventKind| matches!(event, EventKind::Warning(warning) if warning.message.contains(names));
    assert!(ended.events.iter().any(is_reported), "{:?}", ended.events);
    let config: Value =
        serde_json::from_slice(&fs::read(bench.run_folder().model().join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["model_type"], &config["id2label"]["1"]), (&json!("deberta-v2"), &json!("LABEL_1")));
}
