//! Several ranks through `pipe`: a real out-of-memory of one of them, `pipe` killed, and another number of ranks, each with the curve of one
//! rank that nothing happened to.

use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, folder, make_rows_longer, same_curve};

/// Steps of a training; seven of them have long rows in `make test`.
fn steps() -> usize {
    if std::env::var("PIPE_TEST_ALL").is_ok_and(|value| value == "1") { 30 } else { 18 }
}

const EFFECTIVE: u64 = 48;

pub fn tests(suite: &mut Suite) {
    suite.any_engine("ranks::one_out_of_memory_is_one_of_the_attempt", out_of_memory);
    suite.thorough("ranks::killed_pipe::process", Needs::Nothing, || killed("process"));
    suite.thorough("ranks::killed_pipe::docker", Needs::Docker, || killed("docker"));
    suite.test("ranks::a_frozen_launcher_is_reported_and_can_be_stopped", Needs::Nothing, frozen_launcher);
    suite.thorough("ranks::stopped_with_three_and_resumed_with_two", Needs::Nothing, another_number);
}

fn train(ranks: u32) -> String {
    let steps = steps();
    format!(
        "  shuffle: false\ntrain: {{steps: {steps}, batch: 24, effective_batch: {EFFECTIVE}, ranks: {ranks}, split: fixed, \
         dropout: 0.1, optimizer: {{lr: 2.0e-3, eps: 1.0e-6}}}}\nsave: {{every: 5}}\n"
    )
}

/// Short recipes, then long ones from the twelfth step on.
fn prepared(more: &str) -> Folder {
    let folder = folder(more);
    make_rows_longer(&folder, "d_ff: 2048");
    folder
}

type Curve = Vec<(u64, u64, f64)>;

/// Of one rank that nothing happens to.
fn undisturbed() -> &'static Curve {
    static CURVE: OnceLock<Curve> = OnceLock::new();
    CURVE.get_or_init(|| {
        let folder = prepared(&format!("{}container: {{gpus: 0, cpus: 1}}\n", train(1)));
        folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
        curve(&folder.run_folder())
    })
}

fn out_of_memory(engine: &str) {
    let limits = match engine {
        "process" => "container: {gpus: 0, cpus: 2}\nmemory: {limit: 270m}\n",
        // Each of them has half of it.
        _ => "container: {gpus: 0, cpus: 2, memory: 540m}\n",
    };
    let folder = prepared(&format!("{}{limits}", train(2)));
    folder.pipe(&["run", "t5.yaml", "--engine", engine, "--set", "memory.worst_first=false"]).exits(0);
    let run = folder.show();
    let attempts = run["attempts"].as_array().unwrap();
    let (last, failed) = attempts.split_last().unwrap();
    assert!(!failed.is_empty(), "the first batch was to be too large: {run:#}");
    assert_eq!((last["outcome"].as_str(), last["ranks"].as_u64()), (Some("finished"), Some(2)), "{run:#}");
    for attempt in failed {
        assert_eq!(
            (attempt["outcome"].as_str(), attempt["cause"].as_str()),
            (Some("oom"), Some("host_memory")),
            "{run:#}"
        );
        assert!(attempt["reason"].as_str().unwrap().contains("rank "), "{run:#}");
    }
    let record: Value =
        serde_json::from_slice(&std::fs::read(folder.run_folder().join("attempts/01/job/oom.json")).unwrap()).unwrap();
    assert!(record["rank"].as_u64().unwrap_or(0) < 2 && record["step"].as_u64().unwrap() >= 12, "{record:#}");
    // Nothing was lost: the next attempt went on after the last step of the first.
    assert_eq!(
        last["first_step"].as_u64(),
        failed.last().unwrap()["last_step"].as_u64().map(|step| step + 1),
        "{run:#}"
    );
    same_curve(&curve(&folder.run_folder()), undisturbed(), EFFECTIVE, 1e-5);
}

fn killed(engine: &str) {
    let folder = prepared(&format!("{}container: {{gpus: 0, cpus: 2}}\n", train(2)));
    let running = folder.start(&["run", "t5.yaml", "--engine", engine]);
    folder.wait_for_log(1, "\"step\":6,");
    running.kill_alive();
    folder.pipe(&["attach"]).exits(0).says("no pipe process is running this run");
    let mut losses = curve(&folder.run_folder());
    // Without a container the trainer ends with pipe: steps that were not saved come twice.
    losses.sort_by_key(|(step, ..)| *step);
    losses.dedup_by_key(|(step, ..)| *step);
    same_curve(&losses, undisturbed(), EFFECTIVE, 1e-5);
    assert!(folder.containers().is_empty());
}

/// Its ranks go on without it; the process that started it says what has happened, and a stop reaches it.
fn frozen_launcher() {
    let folder = prepared(&format!("{}container: {{gpus: 0, cpus: 2}}\n", train(2)));
    let mut running = folder.start(&["run", "t5.yaml", "--engine", "process", "--set", "train.steps=9000"]);
    folder.wait_for_log(1, "\"step\":3,");
    let first = folder.show()["attempts"][0]["container"].as_str().unwrap().to_owned();
    let launcher = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    let stopped = Command::new("kill").args(["-STOP", launcher.trim()]).status().unwrap();
    assert!(stopped.success(), "{launcher}");
    running.wait_until_it_says("warning: a signal stopped the program of this job; it continues after SIGCONT");
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    running.end().exits(130).says_not("ending the trainer");
    assert_eq!(folder.show()["attempts"][0]["exit_code"], 143);
}

fn another_number() {
    let folder = prepared(&format!("{}container: {{gpus: 0, cpus: 2}}\n", train(3)));
    folder.pipe(&["run", "t5.yaml", "--engine", "process", "--detach"]).exits(0);
    folder.wait_for_log(1, "\"step\":6,");
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    folder.pipe(&["resume", "--set", "train.ranks=2", "--set", "train.shard=optimizer"]).exits(0);
    same_curve(&curve(&folder.run_folder()), undisturbed(), EFFECTIVE, 1e-5);
}
