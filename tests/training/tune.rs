//! A study of real small models, in memory that holds only a part of the space.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::Suite;
use crate::small_t5::{curve, folder, same_curve};

pub fn tests(suite: &mut Suite) {
    suite.any_engine("tune::a_part_of_the_space_does_not_fit", partly_fits);
}

/// The large model fits with no batch, and is never started. The small one does not fit with 48 samples: that is found out once, and
/// the trial is the training that was asked for all the same.
fn partly_fits(engine: &str) {
    let limits = match engine {
        "process" => "memory: {limit: 230m}\ncontainer: {gpus: 0, cpus: 1}\n",
        // Here the kernel kills what does not fit.
        _ => "container: {gpus: 0, cpus: 1, memory: 230m}\n",
    };
    let train = "train: {steps: 3, batch: 48, effective_batch: 48, dropout: 0.1, optimizer: {lr: 2.0e-3}}\nsave: {export: false}\n";
    let folder = folder(&format!("{train}{limits}"));
    let config = "vocab_size: 128, d_kv: 16, num_decoder_layers: 2, num_heads: 8, pad_token_id: 0, eos_token_id: 1, decoder_start_token_id: 0";
    folder.write(
        "study.yaml",
        format!(
            "version: 1\ntune: partly\npipeline: t5.yaml\nobjective: {{metric: loss, direction: minimize}}\nspace:\n  model.config:\n    values:\n\
             \x20     small: {{d_model: 32, d_ff: 64, num_layers: 2, {config}}}\n      large: {{d_model: 1024, d_ff: 4096, num_layers: 6, {config}}}\n\
             \x20 train.batch: [8, 48]\n  train.optimizer.lr: {{low: 1.0e-3, high: 1.0e-2, log: true}}\nbudget: {{trials: 5}}\nsampler: random\nseed: 2\n"
        ),
    );
    folder.pipe(&["tune", "run", "study.yaml", "--engine", engine]).exits(0);
    let study = folder.pipe(&["tune", "status", "--json"]).exits(0).json();
    let trials = study["trials"].as_array().unwrap();
    let all = folder.pipe(&["ls", "--trials", "--json"]).exits(0).json();
    let runs: BTreeMap<String, Value> =
        all.as_array().unwrap().iter().map(|run| (run["id"].as_str().unwrap().to_owned(), run.clone())).collect();
    let run_of = |trial: &Value| runs.get(&format!("{}.{}", study["id"].as_str().unwrap(), trial["number"]));
    let mut out_of_memory = Vec::new();
    for trial in trials {
        let is_large = trial["params"]["model.config"] == "large";
        let launched = run_of(trial).is_some_and(|run| !run["attempts"].as_array().unwrap().is_empty());
        match trial["state"].as_str().unwrap() {
            "complete" => assert!(launched && !is_large, "{trial:#}"),
            "infeasible" => assert!(!launched && (is_large || trial["params"]["train.batch"] == 48), "{trial:#}"),
            other => panic!("{other}: {trial:#}"),
        }
        if is_large {
            assert!(trial["attributes"]["predicted_peak"].as_u64() > Some(230 << 20), "{trial:#}");
        }
        if trial["attributes"]["attempts"].as_u64() > Some(1) {
            out_of_memory.push(trial);
        }
    }
    assert_eq!(study["counts"]["complete"], 5, "{study:#}");
    assert!(trials.iter().any(|trial| trial["params"]["model.config"] == "large"), "{study:#}");
    assert_eq!(out_of_memory.len(), 1, "an out-of-memory is paid for once: {study:#}");
    let best = study["best"][0].as_u64().unwrap() as usize;
    assert_eq!(trials[best]["state"], "complete");
    // The trial that was retried has the curve of the same settings where they fit.
    let retried = out_of_memory[0];
    let number = retried["number"].to_string();
    folder.pipe(&["tune", "best", "--trial", &number, "--out", "again.yaml"]).exits(0);
    let roomy = ["--set", "train.batch=8", "--set", "container.memory=2g", "--set", "memory.limit=2g"];
    folder.pipe(&[&["run", "again.yaml", "--engine", engine, "--name", "again"][..], &roomy].concat()).exits(0);
    let again = folder.path().join("runs").join(folder.show()["id"].as_str().unwrap());
    let first = folder.path().join("runs").join(run_of(retried).unwrap()["id"].as_str().unwrap());
    same_curve(&curve(&first), &curve(&again), 48, 1e-5);
}
