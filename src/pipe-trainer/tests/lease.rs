//! A trainer that was started as a child ends with the program that started it, whatever it is doing.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::support::{Bench, trainer, wait_for};
use serde_json::json;

/// Its stdin is the lease.
fn start(bench: &Bench) -> Child {
    let spec = bench.path("spec.json");
    fs::write(&spec, bench.spec.to_string()).unwrap();
    let mut command = trainer();
    command.args(["train", "--spec"]).arg(spec).env("PIPE_LEASE", "stdin");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[track_caller]
fn end_of(child: &mut Child) -> ExitStatus {
    wait_for("the end", || child.try_wait().unwrap())
}

#[test]
fn while_it_loads_it_ends_at_once() {
    let mut bench = Bench::golden();
    // Nothing is ever written into it: a reader waits.
    let data = bench.path("endless.jsonl");
    assert!(Command::new("mkfifo").arg(&data).status().unwrap().success());
    let mut child = start(bench.set("/data/train", json!(data)));
    // Can be opened once the trainer reads.
    let open = || fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&data).ok();
    let writer = wait_for("the reading of its data", open);
    drop(child.stdin.take());
    assert!(!end_of(&mut child).success());
    drop(writer);
}

#[test]
fn while_it_trains_it_saves_and_ends() {
    let mut bench = Bench::golden();
    let mut child = start(bench.set("/train/steps", json!(1_000_000)));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().contains("\"type\":\"step\"")).unwrap().unwrap();
    drop(child.stdin.take());
    let rest = std::thread::spawn(move || lines.count());
    assert_eq!(end_of(&mut child).code(), Some(143));
    rest.join().unwrap();
    assert_eq!(fs::read_dir(bench.run_folder().checkpoints()).unwrap().count(), 1);
}

/// The process that measures batches for a training: none may be left.
fn measurers(bench: &Bench) -> usize {
    let spec = bench.path("spec.json").display().to_string();
    let measures = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<String> = String::from_utf8_lossy(&line).split('\0').map(str::to_owned).collect();
        words.contains(&"measure".to_owned()) && words.contains(&spec)
    };
    fs::read_dir("/proc").unwrap().flatten().filter(measures).count()
}

#[test]
fn what_it_started_ends_with_it() {
    let mut bench = Bench::golden();
    // Large enough that a batch takes a while.
    bench.set("/train/batch", json!("auto")).set("/train/effective_batch", json!(100_000));
    let mut child = start(&bench);
    wait_for("a measurement", || (measurers(&bench) > 0).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of what measures", || (measurers(&bench) == 0).then_some(()));
}
