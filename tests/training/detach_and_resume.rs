//! A training that is detached, stopped or killed, and resumed, ends with the bits of an undisturbed one; also in the GitHub job of
//! docs/ci, whose runner is lost in the middle.

use std::path::Path;

use crate::harness::ci::{Runner, github};
use crate::harness::{Needs, Suite};
use crate::small_t5::{curve, folder};

pub fn tests(suite: &mut Suite) {
    suite.each_engine("detach_and_resume::killed_pipe_to_the_bit", killed);
    suite.any_engine("detach_and_resume::stopped_and_resumed_to_the_bit", stopped);
    suite.test("ci::lost_runner_and_a_second_job", Needs::Nothing, lost_runner);
}

const PIPELINE: &str = "train: {steps: 40, batch: 4, effective_batch: 8, dropout: 0.1, optimizer: {lr: 2.0e-3}}\n\
                        save: {every: 7}\ncontainer: {gpus: 0, cpus: 1}\n";

fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/model.safetensors")).unwrap()
}

/// Weights and curve of an undisturbed run.
fn undisturbed(engine: &str) -> (Vec<u8>, Vec<(u64, u64, f64)>) {
    let folder = folder(PIPELINE);
    folder.pipe(&["run", "t5.yaml", "--engine", engine]).exits(0);
    (weights(&folder.run_folder()), curve(&folder.run_folder()))
}

fn stopped(engine: &str) {
    let folder = folder(PIPELINE);
    folder.pipe(&["run", "t5.yaml", "--engine", engine, "--detach"]).exits(0);
    folder.wait_for_log(1, "\"step\":10,");
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    folder.pipe(&["resume"]).exits(0);
    let (want, steps) = undisturbed(engine);
    assert_eq!(folder.show()["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(curve(&folder.run_folder()), steps);
    assert!(weights(&folder.run_folder()) == want, "other weights");
}

fn killed(engine: &str) {
    let folder = folder(PIPELINE);
    let running = folder.start(&["run", "t5.yaml", "--engine", engine]);
    folder.wait_for_log(1, "\"step\":10,");
    running.kill_alive();
    folder.pipe(&["attach"]).exits(0).says("no pipe process is running this run");
    let (want, steps) = undisturbed(engine);
    assert!(weights(&folder.run_folder()) == want, "other weights");
    if engine == "docker" {
        assert_eq!(folder.show()["attempts"].as_array().unwrap().len(), 1);
        assert_eq!(curve(&folder.run_folder()), steps);
        assert!(folder.containers().is_empty());
    }
}

fn lost_runner() {
    let runner = Runner::new(folder(&format!("{PIPELINE}engine: process\n")), "t5.yaml");
    let train = github().into_iter().find(|step| step.name == "Train").unwrap();
    let step = runner.start("Train", &train.script);
    runner.folder.wait_for_log(1, "\"step\":10,");
    runner.lose(step);
    assert_eq!(runner.folder.show()["status"], "orphaned");

    let (failed, answer) = runner.github_job();
    assert_eq!(failed, None, "{answer}");
    let run = runner.folder.show();
    assert_eq!((&run["status"], run["attempts"].as_array().unwrap().len()), (&"finished".into(), 2), "{run:#}");
    let steps: Vec<u64> = curve(&runner.folder.run_folder()).iter().map(|(step, _, _)| *step).collect();
    assert_eq!(steps, (1..=40).collect::<Vec<u64>>());
    let summary = runner.read("summary.md");
    assert!(summary.contains("| 1 | 4 x 2 | stopped |") && summary.contains("| 2 | 4 x 2 | finished |"), "{summary}");
    assert!(runner.read("artifacts/report.html").contains("</html>") && runner.has("artifacts/run/lock.json"));
}
