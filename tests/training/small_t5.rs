//! Folders with generated recipes and a small T5 to train on them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::generated;
use crate::harness::{Answer, Folder};

/// The real trainer.
pub fn trainer() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_pipe-trainer"))
}

pub fn run_trainer(args: &[&str]) -> Answer {
    let output = Command::new(trainer()).args(args).env("OMP_WAIT_POLICY", "PASSIVE").output().unwrap();
    Answer::new(format!("pipe-trainer {}", args.join(" ")), output)
}

/// One batch of a fixture through a model: what `pipe-trainer-bench parity` prints.
pub fn run_parity(model: &str, batch: &str, out: &str) -> Answer {
    run_parity_with(model, batch, out, &[])
}

/// The same with more arguments.
pub fn run_parity_with(model: &str, batch: &str, out: &str, more: &[&str]) -> Answer {
    let mut args = [&["parity", "--model", model, "--batch", batch, "--out", out], more].concat();
    let adapter = format!("{model}/adapter");
    if Path::new(&adapter).is_dir() {
        args.extend(["--adapter", &adapter]);
    }
    if model.ends_with("-nf4") {
        args.extend(["--quantize", "nf4"]);
    }
    let program = env!("CARGO_BIN_EXE_pipe-trainer-bench");
    let output = Command::new(program).args(&args).env("OMP_WAIT_POLICY", "PASSIVE").output().unwrap();
    Answer::new(format!("pipe-trainer-bench {}", args.join(" ")), output)
}

/// Writes the files of `pipe-trainer data` with these arguments into `data` of the folder.
pub fn generate(args: &[&str], folder: &Folder) {
    generated::generate(Command::new(trainer()), args, &folder.path().join("data"));
}

/// A folder with recipes and `t5.yaml`; `more` is added to the pipeline. Every sample is padded to the same length, so
/// memory depends on the batch alone.
pub fn folder(more: &str) -> Folder {
    let folder = Folder::new();
    generate(&["recipes", "--rows", "400", "--seed", "3"], &folder);
    folder.write(
        "t5.yaml",
        format!(
            "version: 1\nname: t5\nmodel:\n  arch: t5\n  config: {{vocab_size: 128, d_model: 32, d_kv: 16, d_ff: 64, \
             num_layers: 2, num_decoder_layers: 2, num_heads: 8, dropout_rate: 0.0, pad_token_id: 0, eos_token_id: 1, \
             decoder_start_token_id: 0}}\ndata:\n  train: data/train.jsonl\n  fields: {{source: ingredients, target: directions}}\n  \
             max_source: 64\n  max_target: 128\n  pad: max\n{more}"
        ),
    );
    folder
}

/// Short recipes, then long ones from the twelfth step of 48 samples on, in a wide model that pads rows to the longest.
pub fn make_rows_longer(folder: &Folder, width: &str) {
    let yaml = folder.read("t5.yaml").replace("pad: max", "pad: longest").replace("d_ff: 64", width);
    let rows = folder.read("data/train.jsonl");
    let mut rows: Vec<&str> = rows.lines().collect();
    rows.sort_by_key(|row| row.len());
    let mut mixed: Vec<&str> = rows.iter().take(48).cycle().take(48 * 11).copied().collect();
    mixed.extend(rows.iter().rev().take(48).cycle().take(48 * 19));
    folder.write("t5.yaml", yaml).write("data/train.jsonl", mixed.join("\n") + "\n");
}

/// The steps that a run recorded: step, samples so far, loss.
pub fn curve(run: &Path) -> Vec<(u64, u64, f64)> {
    events(run)
        .iter()
        .filter(|event| event["type"] == "step")
        .map(|event| {
            (event["step"].as_u64().unwrap(), event["samples"].as_u64().unwrap(), event["loss"].as_f64().unwrap())
        })
        .collect()
}

pub fn events(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every step once, every sample once, and the losses of two runs within `tolerance` of each other.
#[track_caller]
pub fn same_curve(got: &[(u64, u64, f64)], want: &[(u64, u64, f64)], effective_batch: u64, tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let number = index as u64 + 1;
        assert_eq!((got.0, got.1), (number, number * effective_batch), "step and samples");
        assert!(
            (got.2 - want.2).abs() <= tolerance * want.2.abs().max(1.0),
            "step {number}: loss {} and {}",
            got.2,
            want.2
        );
    }
}
