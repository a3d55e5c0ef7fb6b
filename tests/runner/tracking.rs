//! Where else a run is tracked: TensorBoard.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Answer, Folder, Needs, Suite, job, suite};

pub fn tests(suite: &mut Suite) {
    suite.test("tracking::tensorboard_files_are_whole_records", Needs::Nothing, whole_records);
    suite.test("tracking::tensorboard_reads_them_back", Needs::Mlflow, read_back);
}

/// A run with a retry; its only event file.
fn run() -> (Folder, PathBuf) {
    let folder = job::folder("fit 5", "train: {batch: 10}\ntrack: {tensorboard: true}\n");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let files: Vec<PathBuf> = std::fs::read_dir(folder.run_folder().join("tensorboard"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let file = files[0].clone();
    (folder, file)
}

fn whole_records() {
    let (_folder, file) = run();
    let bytes = std::fs::read(file).unwrap();
    let (mut rest, mut records) = (bytes.as_slice(), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        records.push(&after[4..4 + length]);
        rest = &after[4 + length + 4..];
    }
    assert!(rest.is_empty(), "{} bytes are left", rest.len());
    assert_eq!(records.len(), 4, "a first one, and one for each step");
    let has = |record: &[u8], text: &str| record.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has(records[0], "brain.Event:2"));
    for record in &records[1..] {
        assert!(has(record, "train/loss") && has(record, "memory/peak_bytes"));
    }
}

fn read_back() {
    let (_folder, file) = run();
    let script = "import sys\n\
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n\
        board = EventAccumulator(sys.argv[1])\nboard.Reload()\n\
        print([(one.step, round(one.value, 3)) for one in board.Scalars('train/loss')])\n";
    let mut python = Command::new("python3");
    let output = python.env("PYTHONPATH", suite::mlflow()).args(["-c", script]).arg(file).output().unwrap();
    Answer::new("tensorboard".to_owned(), output).exits(0).prints("[(1, 10.0), (2, 5.0), (3, 3.333)]");
}
