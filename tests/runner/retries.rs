//! Which failures are retried, and how.

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.each_engine("retries::halving_until_it_fits", halving);
    let mut test = |name: &str, test: fn(&str)| suite.any_engine(&format!("retries::{name}"), test);
    test("down_a_ladder", ladder);
    test("retries_run_out", retries_run_out);
    test("no_smaller_batch_left", no_smaller_batch);
    test("out_of_memory_before_the_first_event", before_it_began);
    test("exit_1_is_not_retried", exit_1);
    test("bad_data_is_not_retried", bad_data);
    test("segfault_is_not_retried", segfault);
    test("events_are_streamed", json_stream);
    suite.test("retries::bare_137_is_not_oom::process", Needs::Nothing, bare_137);
    suite.each_daemon("retries::killed_by_the_kernel", true, killed_by_the_kernel);
}

/// Batch, accum and outcome of each attempt.
fn attempts(run: &Value) -> Vec<(u64, u64, String)> {
    let list = run["attempts"].as_array().unwrap();
    list.iter()
        .map(|attempt| {
            let number = |key: &str| attempt[key].as_u64().unwrap();
            (number("batch"), number("accum"), attempt["outcome"].as_str().unwrap().to_owned())
        })
        .collect()
}

fn expect(run: &Value, want: &[(u64, u64, &str)]) {
    let want: Vec<(u64, u64, String)> = want.iter().map(|(b, a, o)| (*b, *a, (*o).to_owned())).collect();
    assert_eq!(attempts(run), want, "{run:#}");
}

fn run(engine: &str, job: &str, more: &str, code: i32) -> (Folder, Value) {
    let folder = job::folder(job, more);
    folder.pipe(&["run", "job.yaml", "--engine", engine]).exits(code);
    if engine == "docker" {
        assert!(folder.containers().is_empty(), "a container was left behind");
    }
    let run = folder.show();
    (folder, run)
}

fn halving(engine: &str) {
    let (_folder, run) = run(engine, "fit 5", "train: {batch: 40, effective_batch: 100}\n", 0);
    expect(&run, &[(40, 3, "oom"), (20, 5, "oom"), (10, 10, "oom"), (5, 20, "finished")]);
    assert_eq!(run["status"], "finished");
    let first = &run["attempts"][0];
    assert_eq!(first["cause"], "host_memory");
    assert_eq!(first["action"], "batch 20 instead of 40");
    let last = &run["attempts"][3];
    assert_eq!((last["first_step"].as_u64(), last["last_step"].as_u64()), (Some(1), Some(3)));
    assert_eq!((last["number"].as_u64(), last["peak_memory"].as_u64()), (Some(4), Some(1)));
    assert!(last["seconds"].as_f64().unwrap() > 0.0);
}

fn ladder(engine: &str) {
    let (_folder, run) = run(engine, "fit 10", "train: {batch: 64}\non_oom: {reduce: [48, 12, 10, 4]}\n", 0);
    expect(&run, &[(64, 1, "oom"), (48, 2, "oom"), (12, 6, "oom"), (10, 7, "finished")]);
}

fn retries_run_out(engine: &str) {
    let folder = job::folder("fit 1", "train: {batch: 64}\non_oom: {retries: 2}\n");
    folder
        .pipe(&["run", "job.yaml", "--engine", engine])
        .exits(7)
        .says("out of memory, and nothing left to try: no retry is left (on_oom.retries: 2)")
        .says("hint: raise on_oom.retries");
    let run = folder.show();
    expect(&run, &[(64, 1, "oom"), (32, 2, "oom"), (16, 4, "oom")]);
    assert_eq!(run["status"], "failed");
}

fn no_smaller_batch(engine: &str) {
    let folder = job::folder("fit 0", "train: {batch: 4}\non_oom: {min_batch: 3}\n");
    folder
        .pipe(&["run", "job.yaml", "--engine", engine])
        .exits(7)
        .says("a batch of 3 does not fit, and on_oom allows none smaller")
        .says("hint: lower on_oom.min_batch");
    expect(&folder.show(), &[(4, 1, "oom"), (3, 2, "oom")]);
}

fn before_it_began(engine: &str) {
    let folder = job::folder("early", "train: {batch: 8}\n");
    folder
        .pipe(&["run", "job.yaml", "--engine", engine])
        .exits(7)
        .says("the host's memory is too small for any batch (it ran out in load)")
        .says("raise container.memory (or memory.limit)");
    expect(&folder.show(), &[(8, 1, "oom")]);
}

fn exit_1(engine: &str) {
    let folder = job::folder("exit 1", "");
    folder.pipe(&["run", "job.yaml", "--engine", engine]).exits(6).says("training failed: the job was told to exit");
    let run = folder.show();
    expect(&run, &[(8, 1, "failed")]);
    assert_eq!(
        (run["attempts"][0]["cause"].as_str(), run["attempts"][0]["exit_code"].as_i64()),
        (Some("trainer"), Some(1))
    );
}

fn bad_data(engine: &str) {
    let (_folder, run) = run(engine, "exit 3", "", 3);
    expect(&run, &[(8, 1, "failed")]);
}

fn segfault(engine: &str) {
    let folder = job::folder("segfault", "");
    folder.pipe(&["run", "job.yaml", "--engine", engine]).exits(6).says("killed by SIGSEGV (exit code 139)");
    expect(&folder.show(), &[(8, 1, "failed")]);
}

fn bare_137() {
    let folder = job::folder("raise 9", "");
    folder
        .pipe(&["run", "job.yaml", "--engine", "process"])
        .exits(6)
        .says("killed by SIGKILL (exit code 137), not because of memory")
        .says("the last lines of its log:")
        .says("about to raise");
    let run = folder.show();
    expect(&run, &[(8, 1, "failed")]);
    assert_eq!(run["attempts"][0]["cause"], "killed");
}

fn killed_by_the_kernel() {
    let folder = job::folder("eat 10", "train: {batch: 32}\n");
    folder
        .pipe(&["run", "job.yaml"])
        .exits(0)
        .says("attempt 1: oom: the kernel killed it at its memory limit of 64.0 MiB")
        .says("retrying: batch 16 instead of 32");
    let run = folder.show();
    expect(&run, &[(32, 1, "oom"), (16, 2, "oom"), (8, 4, "finished")]);
    assert_eq!(run["attempts"][0]["exit_code"], 137);
    assert_eq!(run["attempts"][0]["peak_memory"], 64 << 20);
}

fn json_stream(engine: &str) {
    let folder = job::folder("fit 4", "train: {batch: 8}\n");
    let answer = folder.pipe(&["run", "job.yaml", "--engine", engine, "--json"]).exits(0);
    let types: Vec<String> = answer.json_lines().iter().map(|line| line["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(types, ["started", "attempt", "started", "step", "step", "step", "attempt", "run"]);
    let recorded = folder.pipe(&["logs", "--json"]).exits(0).json_lines();
    assert_eq!(recorded.len(), 5);
    assert_eq!((recorded[0]["attempt"].as_u64(), recorded[1]["attempt"].as_u64()), (Some(1), Some(2)));
}
