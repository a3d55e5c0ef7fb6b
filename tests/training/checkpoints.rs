//! Checkpoints: complete or absent, whatever happens while one is written.

use std::path::Path;

use crate::harness::{Folder, Needs, Suite, Tmpfs};
use crate::small_t5::{events, folder, run_trainer};

pub fn tests(suite: &mut Suite) {
    suite.test("checkpoints::full_disk", Needs::Root, full_disk);
    suite.test("checkpoints::a_damaged_checkpoint_is_skipped", Needs::Nothing, damaged);
    suite.any_engine("checkpoints::stop_saves", stop_saves);
    suite.test("checkpoints::old_ones_are_removed", Needs::Nothing, kept);
}

fn checkpoints(run: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// One checkpoint is about 700 KiB: the disk holds one, and not a second beside it.
fn full_disk() {
    let folder = folder("train: {steps: 12, batch: 8}\nsave: {every: 3, keep: 5}\ncontainer: {gpus: 0, cpus: 1}\n");
    let size = checkpoint_size();
    let _disk = Tmpfs::mount(folder.path().join("runs"), &format!("{}k", (size * 3 / 2) / 1024 + 100));
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(6).says("No space left on device").says("hint: ");
    let run = folder.run_folder();
    assert_eq!(checkpoints(&run), ["step-00000003"]);
    assert_eq!(folder.show()["status"], "failed");
}

/// Bytes of one checkpoint of the small model, as the filesystem counts them.
fn checkpoint_size() -> u64 {
    let folder = folder("train: {steps: 1, batch: 8}\ncontainer: {gpus: 0, cpus: 1}\n");
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    let events = events(&folder.run_folder());
    events.iter().find(|event| event["type"] == "checkpoint").unwrap()["bytes"].as_u64().unwrap()
}

fn damaged() {
    let folder = folder("train: {steps: 9, batch: 8}\nsave: {every: 3}\ncontainer: {gpus: 0, cpus: 1}\n");
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    let run = folder.run_folder();
    let weights = |run: &Path| std::fs::read(run.join("checkpoints/step-00000009/model.safetensors")).unwrap();
    let good = weights(&run);
    let newest = run.join("checkpoints/step-00000009/model.safetensors");
    let mut bytes = good.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    std::fs::remove_file(run.join("checkpoints/step-00000006/optimizer.safetensors")).unwrap();
    let again = run_trainer(&["train", "--spec", run.join("attempts/01/spec.json").to_str().unwrap()]).exits(0);
    let lines = again.json_lines();
    let warnings = lines.iter().filter(|event| event["type"] == "warning").count();
    assert_eq!(warnings, 2, "{again}");
    let started = lines.iter().find(|event| event["type"] == "started").unwrap();
    assert_eq!(started["resumed_from"], 3);
    assert!(weights(&run) == good, "the steps that were done again gave other weights");
}

fn stop_saves(engine: &str) {
    let folder = folder("train: {steps: 10000, batch: 8}\ncontainer: {gpus: 0, cpus: 1}\n");
    let running = folder.start(&["run", "t5.yaml", "--engine", engine]);
    folder.wait_for_log(1, "\"step\":3,");
    running.signal("INT");
    running.end().exits(130);
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["attempts"][0]["exit_code"].as_i64()), (Some("stopped"), Some(143)));
    let last = run["attempts"][0]["last_step"].as_u64().unwrap();
    assert_eq!(checkpoints(&folder.run_folder()), [format!("step-{last:08}")]);
}

fn kept() {
    let folder: Folder =
        folder("train: {steps: 8, batch: 8}\nsave: {every: 2, keep: 2}\ncontainer: {gpus: 0, cpus: 1}\n");
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    assert_eq!(checkpoints(&folder.run_folder()), ["step-00000006", "step-00000008"]);
    let run = folder.run_folder();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        assert!(run.join("model").join(file).is_file(), "{file} was not exported");
    }
}
