//! The GitHub job of docs/ci.md with the real trainer: the runner is lost in the middle, and a second job finishes the run.

use crate::harness::ci::{Runner, github};
use crate::harness::{Needs, Suite};
use crate::small_t5::{curve, folder};

pub fn tests(suite: &mut Suite) {
    suite.test("ci::lost_runner_and_a_second_job", Needs::Nothing, lost_runner);
}

const PIPELINE: &str = "train: {steps: 40, batch: 4, effective_batch: 8, optimizer: {lr: 2.0e-3}}\nsave: {every: 7}\n\
                        container: {gpus: 0, cpus: 1}\nengine: process\n";

fn lost_runner() {
    let runner = Runner::new(folder(PIPELINE), "t5.yaml");
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
