//! `pipe reproduce` of a real training: the same bits on the CPU.

use serde_json::json;

use crate::harness::{Needs, Suite};
use crate::small_t5::folder;

pub fn tests(suite: &mut Suite) {
    suite.any_engine("reproducing::to_the_bit", to_the_bit);
    suite.test("reproducing::another_seed_is_reported", Needs::Nothing, another_seed);
}

const PIPELINE: &str = "train: {steps: 12, batch: 8, effective_batch: 16, dropout: 0.1, deterministic: true, optimizer: {lr: 2.0e-3}}\n\
                        save: {every: 5}\ncontainer: {gpus: 0, cpus: 2}\n";

fn to_the_bit(engine: &str) {
    let folder = folder(PIPELINE);
    folder.pipe(&["run", "t5.yaml", "--engine", engine]).exits(0);
    let report = folder.pipe(&["reproduce", "latest", "--json"]).exits(0).json();
    assert_eq!(report["verdict"], json!({ "standard": "bits", "reproduced": true, "reasons": [] }));
    assert_eq!((&report["curves"]["compared"], &report["curves"]["same_bits"]), (&json!(12), &json!(true)));
    assert!(report["model"]["count"].as_u64().unwrap() >= 3, "{report:#}");
    assert_eq!(report["model"]["differ"], json!([]));

    let rows = folder.read("data/train.jsonl");
    folder.write("data/train.jsonl", rows.replacen('a', "o", 1));
    folder.pipe(&["reproduce", "latest"]).exits(3).says("data.train: was");
}

/// The report on two trainings that differ.
fn another_seed() {
    let folder = folder(PIPELINE);
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    let first = folder.show()["id"].as_str().unwrap().to_owned();
    folder.pipe(&["run", "t5.yaml", "--engine", "process", "--set", "train.seed=43"]).exits(0);
    let report = folder.pipe(&["diff", &first, "latest", "--json"]).exits(0).json();
    assert_eq!(report["settings"], json!([{ "path": "train.seed", "first": "42", "second": "43" }]));
    assert_eq!(report["curves"]["first_difference"]["step"], 1);
    assert_eq!(report["curves"]["same_bits"], false);
}
