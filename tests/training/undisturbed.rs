//! Trainings that a cluster disturbs, beside the same one that nothing happened to.

use std::sync::OnceLock;

use serde_json::Value;

use crate::harness::Folder;
use crate::small_t5::{curve, folder, make_rows_longer, same_curve};

pub const STEPS: usize = 60;
pub const EFFECTIVE: u64 = 16;

pub type Curve = Vec<(u64, u64, f64)>;

pub fn train(steps: usize) -> String {
    train_with(steps, EFFECTIVE, 1e-6)
}

pub fn train_with(steps: usize, effective: u64, eps: f64) -> String {
    let batch = effective / 2;
    format!(
        "  shuffle: false\ntrain: {{steps: {steps}, batch: {batch}, effective_batch: {effective}, split: fixed, dropout: 0.1, \
         optimizer: {{lr: 2.0e-3, eps: {eps:e}}}}}\nsave: {{every: 5}}\n"
    )
}

pub fn prepared(more: &str) -> Folder {
    let folder = folder(more);
    make_rows_longer(&folder, "d_ff: 512");
    folder
}

/// The same training without a cluster.
pub fn undisturbed() -> &'static Curve {
    static CURVE: OnceLock<Curve> = OnceLock::new();
    CURVE.get_or_init(|| {
        let folder = prepared(&format!("{}container: {{gpus: 0, cpus: 1}}\n", train(STEPS)));
        folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
        curve(&folder.run_folder())
    })
}

/// Steps that a job did and could not save come again.
pub fn curve_once(folder: &Folder) -> Curve {
    let mut curve = curve(&folder.run_folder());
    curve.sort_by_key(|(step, ..)| *step);
    curve.dedup_by_key(|(step, ..)| *step);
    curve
}

#[track_caller]
pub fn is_undisturbed(folder: &Folder) {
    same_curve(&curve_once(folder), undisturbed(), EFFECTIVE, 1e-5);
}

pub fn attempts(folder: &Folder) -> Vec<Value> {
    folder.show()["attempts"].as_array().unwrap().clone()
}

#[track_caller]
pub fn ends_by(attempts: &[Value], cause: &str) {
    let (last, before) = attempts.split_last().unwrap();
    assert_eq!(last["outcome"], "finished", "{attempts:#?}");
    assert!(before.iter().any(|attempt| attempt["cause"] == cause), "no {cause}: {attempts:#?}");
}
