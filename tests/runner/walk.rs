//! A training by the stand-in of `tests/job` that can be interrupted anywhere: what its result must be.

use std::path::Path;

use serde_json::Value;

use crate::harness::Folder;
use crate::stand_ins::job;

pub const STEPS: u64 = 12;

/// Twelve steps, with a batch that fits only at the second try.
pub fn walk(pause: u64) -> Folder {
    job::folder(&format!("walk {STEPS} {pause} 4"), "train: {batch: 8}\n")
}

/// What an undisturbed walk ends with: its weights, its curve, its attempts.
pub fn expect_undisturbed(folder: &Folder) {
    expect_walked(&folder.run_folder());
    let run = folder.show();
    assert_eq!(run["status"], "finished", "{run:#}");
    let outcomes: Vec<(u64, &str)> = attempts(&run);
    assert_eq!(outcomes, [(8, "oom"), (4, "finished")], "{run:#}");
    assert!(folder.containers().is_empty(), "a container was left behind");
}

pub fn attempts(run: &Value) -> Vec<(u64, &str)> {
    let attempts = run["attempts"].as_array().unwrap();
    attempts.iter().map(|one| (one["batch"].as_u64().unwrap(), one["outcome"].as_str().unwrap_or("-"))).collect()
}

/// Every step once, in order, each with the loss that depends on all before it.
pub fn expect_walked(run: &Path) {
    expect_weights(run);
    let (mut state, mut curve) = (1u64, Vec::new());
    for step in 1..=STEPS {
        state = (state * 31 + step) % 1_000_003;
        curve.push((step, state));
    }
    assert_eq!(steps(run), curve);
    assert!(run.join("report.html").is_file());
}

pub fn expect_weights(run: &Path) {
    let state = (1..=STEPS).fold(1u64, |state, step| (state * 31 + step) % 1_000_003);
    assert_eq!(std::fs::read_to_string(run.join("model/weights")).unwrap(), state.to_string());
}

/// Step and loss of every step event.
fn steps(run: &Path) -> Vec<(u64, u64)> {
    let text = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps = events.filter(|event| event["type"] == "step");
    steps.map(|step| (step["step"].as_u64().unwrap(), step["loss"].as_f64().unwrap() as u64)).collect()
}
