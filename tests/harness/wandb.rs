//! Reading a W&B run back with the real `wandb sync`, which uploads it to a server of the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::folder::repository;
use super::{Answer, suite};

/// The offline run in the folder of a run; the only one.
pub fn offline_run(run: &Path) -> PathBuf {
    let found = std::fs::read_dir(run.join("wandb")).unwrap().map(|entry| entry.unwrap().path());
    let is_run = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("offline-run-");
    let found: Vec<PathBuf> = found.filter(is_run).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// What `wandb sync` uploads of an offline run, as tests/wandb_sync.py prints it; none where there is nothing to upload.
pub fn sync(offline: &Path) -> Option<Value> {
    let mut python = Command::new("python3");
    // It writes files of its own; they go into the test's folder.
    let home = offline.ancestors().nth(4).unwrap();
    python.arg(repository().join("tests/wandb_sync.py")).arg(offline).current_dir(home);
    let output = python.env("PYTHONPATH", suite::wandb()).env("HOME", home).output().unwrap();
    let answer = Answer::new("wandb sync".to_owned(), output).exits(0);
    let uploads = answer.json();
    let uploads = uploads.as_object().unwrap();
    assert!(uploads.len() <= 1, "{answer}");
    uploads.values().next().cloned()
}
