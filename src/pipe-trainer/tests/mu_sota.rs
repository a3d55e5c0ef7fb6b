//! A language model: precisions, gradient checkpointing, going on after a stop, and that it learns.

use std::fs;

use crate::support::{Bench, Ended, furthest, generate, trainer};
use pipe_spec::event::{EventKind, Sample};
use serde_json::json;

/// A small model from scratch on generated stories.
pub fn bench(stories: u32) -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    generate(&["stories", "--rows", &stories.to_string(), "--seed", "1"], &data);
    bench.set("/tokenizer", json!(data.join("tokenizer.json")));
    bench.set(
        "/model",
        json!({ "arch": "mu-sota", "config": {
            "vocab_size": 160, "n_layers": 2, "n_blocks": 4, "block_dim": 6, "block_heads": 3, "cross_heads": 4,
            "ffn_dim": 96, "max_seq_len": 64, "dropout": 0.1,
        }}),
    );
    bench.set("/data", json!({ "train": data.join("train.txt"), "eval": data.join("eval.txt"), "max_length": 48 }));
    bench.set("/evaluate", json!({}));
    bench.set("/train/steps", json!(12));
    bench
}

fn losses(bench: &Bench) -> Vec<f64> {
    crate::support::losses(&bench.train().expect(0))
}

fn samples(ended: &Ended) -> Vec<&Sample> {
    let mut samples = Vec::new();
    for event in &ended.events {
        if let EventKind::Sample(sample) = event {
            samples.push(sample);
        }
    }
    samples
}

fn perplexity(ended: &Ended) -> f64 {
    let mut scores = ended.events.iter().filter_map(|event| match event {
        EventKind::Eval(eval) => Some(eval.scores["perplexity"]),
        _ => None,
    });
    scores.next_back().unwrap()
}

#[test]
fn every_precision_learns_and_stays_near_fp32() {
    let losses = |precision: &str| {
        let mut bench = bench(100);
        losses(bench.set("/train/precision", json!(precision)).set("/train/dropout", json!(0.0)))
    };
    let reference = losses("fp32");
    assert!(reference[11] < 0.95 * reference[0], "{reference:?}");
    for (precision, near) in [("bf16-mixed", 0.01), ("fp16-mixed", 0.01), ("bf16", 0.02)] {
        let losses = losses(precision);
        let apart = furthest(&losses, &reference);
        assert!(apart > 0.0, "{precision} computes in fp32");
        assert!(apart < near * reference[0], "{precision} is {apart} from fp32: {losses:?} {reference:?}");
    }
}

#[test]
fn checkpointing_gives_the_same_training_with_dropout_on() {
    for precision in ["fp32", "bf16-mixed"] {
        let losses = |checkpointing: bool| {
            let mut bench = bench(100);
            losses(bench.set("/train/precision", json!(precision)).set("/train/checkpointing", json!(checkpointing)))
        };
        let (plain, checkpointing) = (losses(false), losses(true));
        assert!(furthest(&plain, &checkpointing) < 1e-6, "{precision}: {plain:?} {checkpointing:?}");
    }
    let mut without = bench(100);
    assert!(furthest(&losses(&bench(100)), &losses(without.set("/train/dropout", json!(0.0)))) > 1e-3);
}

/// Steps after a checkpoint are done again, as after a kill, with the same bits; evaluations in between do not matter.
#[test]
fn a_run_that_goes_on_from_a_checkpoint_ends_with_the_same_bits() {
    for precision in ["fp32", "bf16", "fp16-mixed"] {
        let mut bench = bench(60);
        bench.set("/train/precision", json!(precision)).set("/save", json!({ "every": 5, "keep": 10 }));
        let whole = bench.train().expect(0).curve();
        let want = bench.checkpoint_digests(12);
        bench.remove_checkpoints_after(5);
        bench.set("/evaluate", json!({ "every": 2, "generate": 2 }));
        let rest = bench.train().expect(0).curve();
        assert_eq!(rest, whole[5..], "{precision}");
        assert_eq!(want, bench.checkpoint_digests(12), "{precision}");
    }
}

/// A fresh model is at 160, its vocabulary. Who knows the stories guesses most words: what is left are names, kinds, times
/// and places.
#[test]
fn it_learns_stories_and_writes_them() {
    let mut bench = bench(2000);
    bench.set("/model/config/n_blocks", json!(8));
    bench.set("/model/config/dropout", json!(0.0)).set("/model/config/ffn_dim", json!(192));
    bench.set("/train/steps", json!(280)).set("/train/optimizer/lr", json!(0.006));
    bench.set("/train/batch", json!(16)).set("/train/effective_batch", json!(16));
    bench.set("/train/schedule", json!({ "kind": "cosine", "warmup": 20 }));
    bench.set("/evaluate", json!({ "generate": 4, "max_tokens": 30, "temperature": 0.0 }));
    let ended = bench.train().expect(0);
    let perplexity = perplexity(&ended);
    assert!(perplexity < 2.2, "{perplexity} {:?}", samples(&ended));
    let written: String = samples(&ended).iter().map(|sample| format!("{} ", sample.generated)).collect();
    let known = fs::read_to_string(bench.path("data/train.txt")).unwrap();
    let pairs = written.split_whitespace().zip(written.split_whitespace().skip(1));
    let (mut all, mut good) = (0, 0);
    for (a, b) in pairs {
        all += 1;
        good += u32::from(known.contains(&format!("{a} {b}")));
    }
    assert!(all > 20 && good * 10 >= all * 9, "{good} of {all} pairs of words: {written}");
}

#[test]
fn texts_depend_on_the_seed_and_not_on_the_batch() {
    let texts = |batch: u32, seed: u32| {
        let mut bench = bench(100);
        bench.set("/train/steps", json!(1)).set("/train/optimizer/lr", json!(0.0)).set("/train/seed", json!(seed));
        bench.set("/model/config/dropout", json!(0.0));
        bench.set("/evaluate", json!({ "generate": 5, "batch": batch, "max_tokens": 10 }));
        let ended = bench.train().expect(0);
        samples(&ended).iter().map(|sample| sample.generated.clone()).collect::<Vec<_>>()
    };
    let want = texts(5, 1);
    assert_eq!(want.len(), 5);
    assert_eq!(want, texts(2, 1));
    assert_ne!(want, texts(5, 2));
}

#[test]
fn beams_of_the_pipeline_are_searched() {
    let answers = |beams: u32| {
        let mut bench = Bench::golden();
        bench.set("/data/eval", bench.spec["data"]["train"].clone());
        bench.set("/train/steps", json!(4)).set("/evaluate", json!({ "generate": 6, "beams": beams }));
        let ended = bench.train().expect(0);
        samples(&ended).iter().map(|sample| sample.generated.clone()).collect::<Vec<_>>()
    };
    let (greedy, four) = (answers(1), answers(4));
    assert_eq!((greedy.len(), four.len()), (6, 6));
    assert_ne!(greedy, four, "four beams find other answers than one");
}

#[test]
fn a_trained_model_answers_on_the_command_line() {
    let mut bench = Bench::golden();
    bench.set("/train/steps", json!(2)).train().expect(0);
    let model = bench.run_folder().model();
    let answer = |more: &[&str]| {
        let output = trainer()
            .args(["generate", "--prompt", "salt", "--tokens", "12", "--model"])
            .arg(&model)
            .args(more)
            .output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text, stderr) = answer(&[]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{text:?}");
    assert_eq!(answer(&["--beams", "4"]).0, Some(0));
    let cases = [("--top-p=0", "above 0, at most 1"), ("--temperature=-1", "at least 0"), ("--beams=0", "1..")];
    for (more, want) in cases {
        let (code, _, stderr) = answer(&[more]);
        assert!(code == Some(2) && stderr.contains(want), "{stderr}");
    }
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    let (code, _, stderr) = answer(&[]);
    assert!(code == Some(3) && stderr.contains("tokenizer.json"), "{stderr}");
}

#[test]
fn a_share_of_the_rows_is_kept_for_evaluation() {
    let mut bench = bench(60);
    bench.set("/data/eval", json!(null)).set("/data/eval_share", json!(0.25)).set("/evaluate/generate", json!(2));
    bench.set("/train/steps", json!(null)).set("/train/epochs", json!(1));
    let ended = bench.train().expect(0);
    let mut counts = (0, 0);
    for event in &ended.events {
        match event {
            EventKind::Started(started) => counts.0 = started.samples,
            EventKind::Eval(eval) => counts.1 = eval.samples,
            _ => {}
        }
    }
    assert_eq!(counts.1, ((counts.0 + counts.1) as f64 * 0.25).round() as u64, "{counts:?}");
    assert_eq!(samples(&ended).len(), 2);
}
