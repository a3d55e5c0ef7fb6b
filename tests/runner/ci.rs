//! The jobs of docs/ci and `pipe run --resume`, around a stand-in for the trainer.

use crate::harness::ci::{Runner, github, gitlab};
use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("ci::{name}"), Needs::Nothing, test);
    test("both_files_have_the_steps", both_files);
    test("github_time_limit_saves_and_the_next_job_continues", github_time_limit);
    test("github_invalid_pipeline_fails_with_3", invalid);
    test("github_out_of_memory_fails_with_7", out_of_memory);
    test("gitlab_lost_runner", gitlab_lost_runner);
    test("resume_starts_a_new_run_where_settings_or_data_differ", differing);
    test("resume_allows_settings_that_do_not_change_the_result", changeable);
    test("resume_continues_in_another_checkout", other_checkout);
}

/// Steps that are saved one by one, 40 of them in two seconds at least.
fn walking() -> Folder {
    job::folder("walk 40 50 64", "train: {batch: 8}\nengine: process\n")
}

fn both_files() {
    let steps = github();
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["Build", "Check", "Train", "Collect", "Continue"]);
    assert!(gitlab("script").contains("pipe run --resume \"$PIPELINE\"") && gitlab("after_script").contains("report"));
}

fn github_time_limit() {
    let mut runner = Runner::new(walking(), "job.yaml").with_time_limit("1s");
    let (failed, answer) = runner.github_job();
    assert_eq!(failed, None, "{answer}");
    assert_eq!(runner.folder.show()["status"], "stopped");
    assert_eq!(runner.read("stubs/calls"), "make build\ngh workflow run train --ref main\n");
    std::fs::remove_file(runner.folder.path().join("output")).unwrap();

    runner.set_time_limit("1h");
    let (failed, answer) = runner.github_job();
    assert_eq!(failed, None, "{answer}");
    let run = runner.folder.show();
    assert_eq!((&run["status"], run["attempts"].as_array().unwrap().len()), (&"finished".into(), 2), "{run:#}");
    let summary = runner.read("summary.md");
    assert!(summary.contains("stopped") && summary.contains("| 2 | 8 x 1 | finished |"), "{summary}");
    assert!(runner.read("artifacts/report.html").contains("</html>") && runner.has("artifacts/run/run.json"));
    assert!(!runner.has("artifacts/run/checkpoints"));
    assert_eq!(runner.read("stubs/calls").matches("gh workflow").count(), 1, "what is finished is not started again");
}

fn invalid() {
    let folder = walking();
    folder.write("bad.yaml", folder.read("job.yaml").replace("batch: 8", "batch: none"));
    let runner = Runner::new(folder, "bad.yaml");
    let (failed, answer) = runner.github_job();
    assert_eq!(failed.as_deref(), Some("Check"), "{answer}");
    answer.exits(3).says("bad.yaml").says("train.batch: found the text \"none\"");
    assert!(!runner.folder.has_runs());
    // The training step gives the same error in a job without a check step.
    let train = github().into_iter().find(|step| step.name == "Train").unwrap();
    runner.run("Train", &train.script).exits(3).prints("::error file=bad.yaml::the pipeline").says("train.batch");
}

fn out_of_memory() {
    let folder = job::folder("fit 1", "train: {batch: 8}\non_oom: {retries: 1}\nengine: process\n");
    let runner = Runner::new(folder, "job.yaml");
    let (failed, answer) = runner.github_job();
    assert_eq!(failed.as_deref(), Some("Train"), "{answer}");
    answer.exits(7).prints("::error::out of memory, and no retry is left");
    assert!(runner.read("summary.md").contains("| 2 | 4 x 2 | oom |"), "{}", runner.read("summary.md"));
    assert!(runner.has("artifacts/report.html"), "a job that failed has a report too");
}

fn gitlab_lost_runner() {
    let runner = Runner::new(walking(), "job.yaml");
    let step = runner.start("script", &gitlab("script"));
    runner.folder.wait_for_log(1, "\"step\":10,");
    runner.lose(step);
    runner.run("script", &gitlab("script")).exits(0).says("resuming run job-").says("(orphaned)");
    runner.run("after_script", &gitlab("after_script")).exits(0);
    let run = runner.folder.show();
    assert_eq!((&run["status"], run["attempts"].as_array().unwrap().len()), (&"finished".into(), 2), "{run:#}");
    assert!(runner.has("artifacts/report.html") && runner.has("artifacts/run/events.jsonl"));
    // The next job has another pipeline.
    runner.run("script", &gitlab("script")).exits(0).says_not("resuming");
    assert_eq!(std::fs::read_dir(runner.folder.path().join("runs")).unwrap().count(), 2);
}

/// A run that was stopped at its tenth step.
fn stopped() -> Folder {
    let folder = walking();
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "\"step\":10,");
    running.signal("TERM");
    running.end().exits(130);
    folder
}

fn differing() {
    let folder = stopped();
    let new = "starting a new run: job-";
    folder
        .pipe(&["run", "job.yaml", "--resume", "--set", "train.seed=7"])
        .exits(0)
        .says(new)
        .says("train.seed has changed");
    let folder = stopped();
    folder.write("train.jsonl", "{\"source\": \"other\", \"target\": \"b\"}\n");
    folder.pipe(&["run", "job.yaml", "--resume"]).exits(0).says(new).says("data.train has changed");
    let listed = folder.pipe(&["ls", "--json"]).exits(0).json();
    let statuses: Vec<&str> = listed.as_array().unwrap().iter().filter_map(|run| run["status"].as_str()).collect();
    assert_eq!(statuses, ["finished", "stopped"], "the older one stays as it was");
    // The newest counts, and it has finished.
    folder.pipe(&["run", "job.yaml", "--resume"]).exits(0).says_not("resuming").says_not(new);
}

fn changeable() {
    let folder = stopped();
    let more = ["run", "job.yaml", "--resume", "--detach", "--set", "container.memory=96m"];
    folder.pipe(&more).exits(0).says("resuming run job-");
    folder.pipe(&["attach"]).exits(0);
    assert!(folder.read_run("resolved.yaml").contains("memory: 96m"));
    assert_eq!(folder.show()["attempts"].as_array().unwrap().len(), 2);
}

fn other_checkout() {
    let (first, second) = (stopped(), walking());
    let id = first.show()["id"].clone();
    let mut command = second.command(&["run", "job.yaml", "--resume"]);
    let output = command.env("PIPE_RUNS", first.path().join("runs")).output().unwrap();
    crate::harness::Answer::new("pipe run --resume".to_owned(), output).exits(0).says("resuming run job-");
    let run = first.show();
    assert_eq!((&run["id"], &run["status"]), (&id, &"finished".into()));
    assert_eq!(run["cwd"].as_str().unwrap(), second.path().to_str().unwrap());
}
