//! A trainer that was started as a child ends with the program that started it, whatever it is doing.

#[allow(dead_code)]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use support::{Bench, trainer};

/// Its stdin is the lease.
fn start(bench: &Bench) -> Child {
    let spec = bench.path("spec.json");
    fs::write(&spec, bench.spec.to_string()).unwrap();
    let mut command = trainer();
    command.args(["train", "--spec"]).arg(spec).env("PIPE_LEASE", "stdin");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn ends_within(child: &mut Child, time: Duration) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > time {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it still runs after {time:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn while_it_loads_it_ends_at_once() {
    let mut bench = Bench::golden();
    // No process writes into it: a reader waits for ever.
    let data = bench.path("endless.jsonl");
    assert!(Command::new("mkfifo").arg(&data).status().unwrap().success());
    let mut child = start(bench.set("/data/train", json!(data)));
    std::thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none(), "it waits for its data");
    drop(child.stdin.take());
    assert!(!ends_within(&mut child, Duration::from_secs(5)).success());
}

#[test]
fn while_it_trains_it_saves_and_ends() {
    let mut bench = Bench::golden();
    let mut child = start(bench.set("/train/steps", json!(1_000_000)));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().contains("\"type\":\"step\"")).unwrap().unwrap();
    drop(child.stdin.take());
    let rest = std::thread::spawn(move || lines.count());
    assert_eq!(ends_within(&mut child, Duration::from_secs(30)).code(), Some(143));
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
    let began = Instant::now();
    while measurers(&bench) == 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing is measured");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    while measurers(&bench) > 0 {
        assert!(killed.elapsed() < Duration::from_secs(5), "the process that measures is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}
