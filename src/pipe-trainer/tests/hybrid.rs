//! HybridCNNLSTM: that it learns, in every precision; what checkpointing and a kill must not change, and what a batch does.

use std::fs;
use std::path::PathBuf;

use crate::support::{Bench, Ended, furthest, generate, losses};
use pipe_spec::event::{Eval, EventKind};
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// A small model with dropout on a generated series.
pub fn series() -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    generate(&["series", "--rows", "3000", "--seed", "5"], &data);
    bench.set("/tokenizer", json!(null));
    bench.set("/data", json!({ "train": data.join("train.csv"), "eval": data.join("eval.csv") }));
    bench.set(
        "/model",
        json!({ "arch": "hybrid-cnn-lstm", "config": {
            "input_features": 8, "sequence_length": 24, "conv_channels": [16, 24], "lstm_hidden": 16, "lstm_layers": 2,
            "attention_heads": 4, "num_classes": 3, "dropout": 0.1,
        }}),
    );
    bench.set("/train/batch", json!(16)).set("/train/effective_batch", json!(32)).set("/train/steps", json!(12));
    bench
}

fn fixture(name: &str) -> PathBuf {
    crate::support::fixture().parent().unwrap().join(name)
}

/// A fixture trained on its batch, as torch was.
fn golden(name: &str) -> Bench {
    let mut bench = Bench::golden();
    bench.set("/tokenizer", json!(null)).set("/model", json!({ "arch": "hybrid-cnn-lstm", "from": fixture(name) }));
    bench.set("/data/train", json!(fixture(name).join("batch.safetensors")));
    bench.set("/train/batch", json!(6)).set("/train/effective_batch", json!(6)).set("/train/steps", json!(5));
    bench.set("/train/optimizer/eps", json!(1e-4));
    bench
}

fn evals(ended: &Ended) -> Vec<&Eval> {
    ended.events.iter().filter_map(|event| if let EventKind::Eval(eval) = event { Some(eval) } else { None }).collect()
}

fn config(bench: &Bench) -> Value {
    serde_json::from_slice(&fs::read(bench.run_folder().model().join("config.json")).unwrap()).unwrap()
}

#[test]
fn it_learns_and_its_result_can_be_used() {
    let mut bench = series();
    bench.set("/train/steps", json!(100)).set("/train/batch", json!(32)).set("/train/optimizer/lr", json!(0.003));
    let ended = bench.train().expect(0);
    let eval = evals(&ended)[0];
    // Chance is a third, and ln 3 = 1.1. Behind a change of state a window still holds the state before.
    assert!(eval.scores["accuracy"] > 0.85 && eval.loss < 0.45, "{eval:?}");
    let config = config(&bench);
    assert_eq!(config["id2label"], json!({"0": "falling", "1": "flat", "2": "rising"}));
    assert_eq!(config["feature_names"], json!(["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7"]));
    assert!(config["feature_std"].as_array().unwrap().iter().all(|std| std.as_f64().unwrap() > 0.1), "{config}");

    // It trains on, on data that has fewer classes and another mean: its own classes and scale stay what they were.
    let (model, part) = (bench.path("exported"), bench.path("part.csv"));
    fs::rename(bench.run_folder().model(), &model).unwrap();
    fs::remove_dir_all(bench.run_folder().path()).unwrap();
    let rows = fs::read_to_string(bench.path("data/train.csv")).unwrap();
    let rows: Vec<&str> = rows.lines().filter(|row| !row.ends_with(",falling")).collect();
    fs::write(&part, rows.join("\n")).unwrap();
    bench.set("/model", json!({ "arch": "hybrid-cnn-lstm", "from": model })).set("/data/train", json!(part));
    let ended = bench.set("/train/steps", json!(1)).train().expect(0);
    assert!(ended.curve()[0].1 < 0.9, "{:?}", ended.curve());
}

#[test]
fn every_precision_learns_and_stays_near_fp32() {
    let train = |precision: &str| {
        let mut bench = series();
        bench.set("/train/precision", json!(precision)).set("/train/dropout", json!(0.0));
        bench.set("/train/optimizer/lr", json!(0.01)).set("/train/steps", json!(16));
        losses(&bench.train().expect(0))
    };
    let reference = train("fp32");
    assert!(reference[12..].iter().sum::<f64>() / 4.0 < 0.8 * reference[0], "{reference:?}");
    assert_eq!(train("tf32"), reference);
    for (precision, near) in [("bf16-mixed", 0.03), ("fp16-mixed", 0.01), ("bf16", 0.1)] {
        let losses = train(precision);
        let apart = furthest(&losses, &reference);
        assert!(apart > 0.0 && apart < near, "{precision} is {apart} from fp32: {losses:?} {reference:?}");
    }
}

#[test]
fn checkpointing_gives_the_same_training() {
    let train = |norm: &str, precision: &str, checkpointing: bool| {
        let mut bench = series();
        bench.set("/model/config/norm", json!(norm)).set("/train/precision", json!(precision));
        bench.set("/train/checkpointing", json!(checkpointing)).set("/train/steps", json!(5));
        let losses = losses(&bench.train().expect(0));
        (losses, bench)
    };
    for precision in ["fp32", "bf16"] {
        let ((plain, one), (again, two)) = (train("layer", precision, false), train("layer", precision, true));
        assert_eq!((plain, one.checkpoint_digests(5)), (again, two.checkpoint_digests(5)), "{precision}");
    }
    // Gradients of batch norm are added up in another order; what it remembers is seen once, in each of two parts of a step.
    let ((plain, _), (again, bench)) = (train("batch", "fp32", false), train("batch", "fp32", true));
    assert!(furthest(&plain, &again) < 1e-6, "{plain:?} {again:?}");
    let file = fs::read(bench.run_folder().model().join("model.safetensors")).unwrap();
    let counted =
        SafeTensors::deserialize(&file).unwrap().tensor("norm.1.num_batches_tracked").unwrap().data().to_vec();
    assert_eq!(counted, 10i64.to_le_bytes());
}

#[test]
fn a_run_that_was_stopped_ends_with_the_same_bits() {
    expect_the_same_bits_after_a_stop([("batch", "fp32"), ("layer", "fp16-mixed")]);
}

#[test]
#[ignore = "test-all"]
fn other_runs_that_were_stopped_end_with_the_same_bits() {
    expect_the_same_bits_after_a_stop([("layer", "fp32"), ("batch", "fp16-mixed"), ("layer", "bf16")]);
}

#[track_caller]
fn expect_the_same_bits_after_a_stop<const N: usize>(cases: [(&str, &str); N]) {
    for (norm, precision) in cases {
        let bench = || {
            let mut bench = series();
            bench.set("/model/config/norm", json!(norm)).set("/train/precision", json!(precision));
            bench.set("/train/steps", json!(7)).set("/save/every", json!(1));
            bench
        };
        let (whole, broken) = (bench(), bench());
        let curve = whole.train().expect(0).curve();
        broken.train().expect(0);
        broken.remove_checkpoints_after(4);
        let rest = broken.train().expect(0).curve();
        assert_eq!(rest, curve[curve.len() - rest.len()..], "{norm} {precision}");
        assert_eq!(whole.checkpoint_digests(7), broken.checkpoint_digests(7), "{norm} {precision}");
    }
}

/// Losses, weights and running statistics after a short training, as torch has them.
#[test]
fn training_ends_where_that_of_torch_ends() {
    for name in ["hybrid-batch-norm", "hybrid-deep"] {
        let bench = golden(name);
        let ended = bench.train().expect(0);
        let expected: Value = serde_json::from_slice(&fs::read(fixture(name).join("expect.json")).unwrap()).unwrap();
        let want: Vec<f64> = expected["curve"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
        assert!(furthest(&losses(&ended), &want) < 1e-5, "{name}: {:?} {want:?}", losses(&ended));
        let ours = fs::read(bench.run_folder().model().join("model.safetensors")).unwrap();
        let torchs = fs::read(fixture(name).join("trained.safetensors")).unwrap();
        let (ours, torchs) = (SafeTensors::deserialize(&ours).unwrap(), SafeTensors::deserialize(&torchs).unwrap());
        assert_eq!(ours.len(), torchs.len());
        for (tensor, want) in torchs.iter() {
            let got = ours.tensor(tensor).unwrap();
            assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{tensor}");
            if tensor.ends_with("num_batches_tracked") {
                assert_eq!(got.data(), want.data());
                continue;
            }
            let floats = |bytes: &[u8]| -> Vec<f64> {
                bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).into()).collect()
            };
            let apart = furthest(&floats(got.data()), &floats(want.data()));
            assert!(apart < 1e-4, "{name}: {tensor} is {apart} apart");
        }
    }
}

#[test]
fn batch_norm_says_that_the_batch_matters() {
    let warnings = |batch: u32| {
        let mut bench = golden("hybrid-batch-norm");
        let ended = bench.set("/train/batch", json!(batch)).train().expect(0);
        ended
            .events
            .iter()
            .filter(|event| matches!(event, EventKind::Warning(_)))
            .map(|event| format!("{event:?}"))
            .collect::<String>()
    };
    assert!(warnings(3).contains("batch norm takes the mean and variance of each batch by itself"));
    assert_eq!(warnings(6), "");
}

/// The kept end of the series is evaluated as a file of its own would be, on the scale of what is trained on.
#[test]
fn a_share_of_the_series_is_kept_for_evaluation() {
    let evaluated = |bench: &Bench| {
        let ended = bench.train().expect(0);
        let eval = evals(&ended)[0];
        (eval.samples, eval.loss)
    };
    let mut split = series();
    let all = fs::read_to_string(split.path("data/train.csv")).unwrap();
    let all: Vec<&str> = all.lines().collect();
    split.set("/data/eval", json!(null)).set("/data/eval_share", json!(0.2)).set("/train/steps", json!(3));
    let mut two = series();
    let (train, eval) = (two.path("begin.csv"), two.path("end.csv"));
    fs::write(&train, all[..2401].join("\n")).unwrap();
    fs::write(&eval, [&all[..1], &all[2401..]].concat().join("\n")).unwrap();
    two.set("/data/train", json!(train)).set("/data/eval", json!(eval)).set("/train/steps", json!(3));
    let kept = evaluated(&split);
    assert_eq!(kept, evaluated(&two));
    assert_eq!(config(&split)["feature_mean"], config(&two)["feature_mean"]);
    assert_eq!(kept.0, 600 - 24 + 1);
}

#[test]
fn what_does_not_fit_is_named() {
    let ready = fixture("hybrid-cnn-lstm").join("batch.safetensors");
    for (pointer, value, want) in [
        (
            "/model/config/input_features",
            json!(5),
            "train.csv line 1: 8 features (f0, f1, f2, f3, f4, f5, f6, f7), the model's input_features is 5",
        ),
        (
            "/model/config/num_classes",
            json!(2),
            "train.csv: 3 classes (falling, flat, rising), the model's num_classes is 2",
        ),
        ("/model/config/sequence_length", json!(5000), "train.csv: 3000 rows"),
        ("/model/config/norm", json!("none"), "norm: found \"none\"; allowed: layer, batch"),
        ("/data/fields", json!({"label": "state"}), "train.csv line 1: no column \"state\"; it has: time, f0"),
        ("/data/train", json!(ready), "data.eval: allowed: .safetensors"),
    ] {
        let mut bench = series();
        let ended = bench.set(pointer, value).train().expect(3);
        assert!(ended.stderr.contains(want), "{}", ended.stderr);
    }
}
