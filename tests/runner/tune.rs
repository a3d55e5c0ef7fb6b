//! Studies: trials until the budget is spent, whatever does not fit, fails or is killed.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::folder::{binaries, repository};
use crate::harness::{Answer, Folder, Needs, Suite, Tmpfs, suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.each_engine("tune::out_of_memory_ends_a_trial_where_that_is_wanted", oom_prunes);
    suite.any_engine("tune::a_study_finds_what_is_best", finds_best);
    suite.any_engine("tune::out_of_memory_is_paid_for_once", memory);
    suite.test("tune::pipe_is_killed_three_times", Needs::Nothing, || killed(3, 40));
    suite.thorough("tune::pipe_is_killed_thirty_times", Needs::Nothing, || killed(30, 500));
    suite.test("tune::trials_are_killed_with_it", Needs::Nothing, all_killed);
    suite.test("tune::what_cannot_fit_is_never_begun", Needs::Nothing, foreseen);
    suite.test("tune::nothing_fits", Needs::Nothing, nothing_fits);
    suite.test("tune::what_ran_out_of_memory_is_not_asked_for_again", Needs::Nothing, refused);
    suite.test("tune::a_file_that_is_no_journal_is_left_alone", Needs::Nothing, foreign_file);
    suite.test("tune::what_a_trial_reads_is_gone", Needs::Nothing, inputs_gone);
    suite.test("tune::stopped_while_nothing_fits", Needs::Nothing, interrupted);
    suite.test("tune::bad_trials_end_early", Needs::Nothing, pruned);
    suite.test("tune::stopped_and_resumed_with_more_trials", Needs::Nothing, stopped);
    suite.test("tune::one_training_is_run_once", Needs::Nothing, repeated);
    suite.test("tune::a_grid_has_every_combination_once", Needs::Nothing, grid);
    suite.test("tune::trials_that_fail_end_nothing_but_a_row_of_them_does", Needs::Nothing, failing);
    suite.test("tune::a_job_that_is_killed_goes_on_once", Needs::Nothing, job_killed);
    suite.test("tune::a_full_disk_fails_no_trial", Needs::Root, full_disk);
    suite.test("tune::a_full_disk_that_a_job_does_not_name_fails_no_trial", Needs::Root, unnamed_full_disk);
    suite.test("tune::a_study_that_was_moved", Needs::Nothing, moved);
    suite.test("tune::several_at_a_time", Needs::Nothing, parallel);
    suite.test("tune::in_the_background_listed_shown_and_removed", Needs::Nothing, listed);
    suite.test("tune::as_json", Needs::Nothing, json);
    suite.test("tune::several_objectives", Needs::Nothing, objectives);
    suite.test("tune::optuna_5_reads_writes_and_begins_it", Needs::Optuna, || optuna_reads(5));
    suite.test("tune::optuna_5_and_the_journal", Needs::Optuna, || optuna_journal(5));
    suite.thorough("tune::optuna_4_reads_writes_and_begins_it", Needs::Optuna4, || optuna_reads(4));
    suite.thorough("tune::optuna_4_and_the_journal", Needs::Optuna4, || optuna_journal(4));
    suite.test("tune::bad_input_is_explained", Needs::Nothing, bad_input);
    suite.test("tune::a_pipeline_is_no_study_and_a_study_no_pipeline", Needs::Nothing, mistaken);
}

/// A folder with a study `study.yaml` of the command `score`: what is best is `x` at one half. `space` and `more` are added to it.
fn folder(engine: &str, words: &str, space: &str, more: &str) -> Folder {
    let folder = job::folder("", "");
    let program = match engine {
        "docker" => "/job".to_owned(),
        _ => folder.path().join("image/job").display().to_string(),
    };
    let pipeline = format!(
        "version: 1\nname: score\nengine: {engine}\ncommand: {program} command score {words} --x {{vars.x}} --batch {{batch}}\n\
         vars: {{x: 0}}\ntrain: {{batch: 1, accum: 8}}\non_oom: {{reduce: halve}}\nmetrics: json\n\
         container: {{gpus: 0, memory: 64m, image: image/job.Dockerfile, stop_timeout: 2}}\n"
    );
    let study = format!(
        "version: 1\ntune: search\npipeline: score.yaml\nobjective: {{metric: score, direction: minimize}}\n\
         space:\n  vars.x: {{low: -2.0, high: 1.8}}\n{space}{more}"
    );
    folder.write("score.yaml", pipeline).write("study.yaml", study);
    folder
}

fn study(folder: &Folder) -> Value {
    folder.pipe(&["tune", "status", "--json"]).exits(0).json()
}

fn trials(study: &Value) -> Vec<Value> {
    study["trials"].as_array().unwrap_or_else(|| panic!("no trials: {study:#}")).clone()
}

fn states(study: &Value) -> Vec<String> {
    trials(study).iter().map(|trial| trial["state"].as_str().unwrap().to_owned()).collect()
}

/// What a study has tried, and what came of it.
fn outcome(study: &Value) -> Vec<(Value, Value, Value)> {
    trials(study)
        .iter()
        .map(|trial| (trial["params"].clone(), trial["state"].clone(), trial["values"].clone()))
        .collect()
}

/// The runs that the trials of a study have had.
fn runs(folder: &Folder) -> Vec<Value> {
    let all = folder.pipe(&["ls", "--trials", "--json"]).exits(0).json();
    all.as_array().unwrap().iter().filter(|run| run["part_of"].is_string()).cloned().collect()
}

fn finds_best(engine: &str) {
    let folder = folder(engine, "3", "", "budget: {trials: 14}\nseed: 3\n");
    folder
        .pipe(&["tune", "run", "study.yaml"])
        .exits(0)
        .says("trial 0: x ")
        .says("the best so far")
        .prints("trials: 14 complete")
        .prints("best: trial ")
        .prints("report: runs/");
    let study = study(&folder);
    assert_eq!((study["status"].as_str(), states(&study).len()), (Some("finished"), 14));
    let page = folder.read(&format!("runs/{}/report.html", study["id"].as_str().unwrap()));
    assert!(page.contains(&format!("pipe run runs/{}/best.yaml", study["id"].as_str().unwrap())), "{page}");
    let best = study["best"][0].as_u64().unwrap() as usize;
    let values: Vec<f64> = trials(&study).iter().map(|trial| trial["values"][0].as_f64().unwrap()).collect();
    assert!(values.iter().all(|value| *value >= values[best]) && values[best] < 0.5, "{values:?}");
    let x = trials(&study)[best]["params"]["vars.x"].as_f64().unwrap();
    assert!(((x - 0.5).powi(2) - values[best]).abs() < 1e-9);
    // The best trial is an ordinary pipeline.
    folder.pipe(&["tune", "best", "--out", "best.yaml"]).exits(0).says(&format!("trial {best}"));
    folder.pipe(&["check", "best.yaml"]).exits(0);
    assert!(folder.read("best.yaml").contains(&format!("x: \"{x}\"")), "{}", folder.read("best.yaml"));
    folder.pipe(&["run", "best.yaml", "--json"]).exits(0).prints(&format!("\"score\":{}", values[best]));
    assert!(folder.containers().is_empty());
}

/// Batches above 8 run out of memory: once for each effective batch, and that trial comes to its end with a smaller one.
fn memory(engine: &str) {
    let space = "  train.batch: [2, 4, 8, 16]\n  train.accum: [1, 2]\n  train.optimizer.lr: {low: 1.0e-5, high: 1.0e-2, log: true}\n";
    let folder = training("fit 8", space, "budget: {trials: 12}\nseed: 5\n");
    // What the stand-in says that it has.
    let text = folder.read("job.yaml").replace("memory: 512m", "memory: 64m");
    folder.write("job.yaml", text);
    folder.pipe(&["tune", "run", "study.yaml", "--engine", engine]).exits(0);
    let study = study(&folder);
    let counts = &study["counts"];
    assert_eq!((counts["complete"].as_u64(), counts["failed"].as_u64()), (Some(12), Some(0)), "{counts}");
    let launched = |run: &Value| run["attempts"][0]["batch"].as_u64().is_some_and(|batch| batch > 8);
    let too_large: Vec<Value> = runs(&folder).into_iter().filter(launched).collect();
    let cuts: BTreeSet<u64> = too_large.iter().map(|run| run["effective_batch"].as_u64().unwrap()).collect();
    assert_eq!(too_large.len(), cuts.len(), "one out-of-memory is enough for each: {too_large:#?}");
    for run in &too_large {
        assert_eq!((run["status"].as_str(), run["attempts"].as_array().map(Vec::len)), (Some("finished"), Some(2)));
    }
    for trial in trials(&study).iter().filter(|trial| trial["state"] == "infeasible") {
        assert_eq!(trial["params"]["train.batch"], 16, "{trial:#}");
        assert!(trial["constraints"][0].as_f64().unwrap() > 0.0);
    }
    let best = study["best"][0].as_u64().unwrap() as usize;
    assert_eq!(trials(&study)[best]["state"], "complete");
}

fn oom_prunes(engine: &str) {
    let folder =
        folder(engine, "2 --most 8", "  train.batch: [8, 16]\n", "budget: {trials: 6}\noom: prune\nsampler: random\n");
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0).says("out of memory");
    let study = study(&folder);
    for trial in trials(&study) {
        let fits = trial["params"]["train.batch"] == 8;
        assert_eq!(trial["state"], if fits { "complete" } else { "out_of_memory" }, "{trial:#}");
        assert_eq!(trial["attributes"]["oom"].is_object(), !fits);
        assert_eq!(trial["attributes"]["attempts"], 1);
    }
    assert!(states(&study).contains(&"out_of_memory".to_owned()));
}

/// Each of the steps takes `millis`, so that the study lasts longer than all kills.
fn killed(times: u32, millis: u32) {
    let words = format!("3 --millis {millis}");
    let folder = folder("process", &words, "  train.batch: [1, 2]\n", "budget: {trials: 8}\nseed: 11\n");
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0);
    let undisturbed = outcome(&study(&folder));
    folder.pipe(&["tune", "run", "study.yaml", "--detach"]).exits(0);
    let mut kills = 0;
    for pause in (0..).map(|turn: u64| (turn * 37) % 150) {
        std::thread::sleep(Duration::from_millis(pause));
        let now = study(&folder);
        assert!(now["status"] != "finished", "killed {kills} times only");
        if kill_owner(&folder, now["id"].as_str().unwrap()) {
            kills += 1;
        }
        folder.pipe(&["tune", "resume", "--detach"]).exits(0);
        if kills == times {
            break;
        }
    }
    folder.wait_until("the end", || study(&folder)["status"] == "finished");
    let disturbed = study(&folder);
    assert_eq!(outcome(&disturbed), undisturbed);
    // None ran twice: every run has one attempt that came to its end.
    let own: Vec<Value> = runs(&folder).into_iter().filter(|run| run["part_of"] == disturbed["id"]).collect();
    assert_eq!(own.len(), 8, "{own:#?}");
    for run in own {
        let ended =
            run["attempts"].as_array().unwrap().iter().filter(|attempt| attempt["outcome"] == "finished").count();
        assert_eq!(ended, 1, "{run:#}");
    }
}

/// Kills the `pipe` that runs a run; whether there was one.
fn kill_owner(folder: &Folder, id: &str) -> bool {
    let text = std::fs::read_to_string(folder.path().join("runs").join(id).join(".owner")).unwrap_or_default();
    let pid = text.split_whitespace().next().and_then(|word| word.parse::<i32>().ok());
    // The file keeps the number of a process that has ended.
    let is_pipe =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "pipe");
    let pid = pid.filter(is_pipe);
    // SAFETY: kill takes two integers and has no memory effects.
    pid.is_some_and(|pid| pid > 1 && unsafe { libc::kill(pid, libc::SIGKILL) } == 0)
}

/// By a person or by a machine that goes down, which says nothing of the settings. Who kills it again means it.
fn job_killed() {
    let folder = folder("process", "20 --millis 50", "", "budget: {trials: 2}\nseed: 2\n");
    folder.pipe(&["tune", "run", "study.yaml", "--detach"]).exits(0);
    let id = study(&folder)["id"].as_str().unwrap().to_owned();
    let attempts = |number: u32| {
        let shown = folder.pipe(&["show", &format!("{id}.{number}"), "--json"]).stdout;
        serde_json::from_str::<Value>(&shown).map_or(0, |run| run["attempts"].as_array().map_or(0, Vec::len))
    };
    let kill = || {
        let program = folder.path().join("image/job").display().to_string();
        let killed = folder.other_command("pkill").args(["-KILL", "--full", &format!("^{program} command")]).status();
        killed.unwrap().success()
    };
    folder.wait_until("the first job", kill);
    folder.wait_until("its second attempt", || attempts(0) == 2);
    folder.wait_until("the first trial's end", || states(&study(&folder))[0] == "complete");
    folder.wait_until("the second job", || attempts(1) == 1 && kill());
    folder.wait_until("its second attempt", || attempts(1) == 2 && kill());
    folder.wait_until("the end", || study(&folder)["status"] == "finished");
    assert_eq!(states(&study(&folder)), ["complete", "failed"]);
}

/// The study and all of its trials: they are taken up where they were.
fn all_killed() {
    let folder = folder("process", "40 --millis 25", "", "budget: {trials: 2}\nseed: 2\n");
    folder.pipe(&["tune", "run", "study.yaml", "--detach"]).exits(0);
    folder.wait_until("a step", || {
        trials(&study(&folder)).iter().any(|trial| !trial["intermediate"].as_object().unwrap().is_empty())
    });
    let id = study(&folder)["id"].as_str().unwrap().to_owned();
    assert!(kill_owner(&folder, &id));
    kill_owner(&folder, &format!("{id}.0"));
    folder.wait_until("that it is noticed", || study(&folder)["status"] == "orphaned");
    folder.pipe(&["ls"]).exits(0).prints("orphaned");
    folder.pipe(&["tune", "resume"]).exits(0);
    assert_eq!(states(&study(&folder)), ["complete", "complete"]);
}

/// A model of 40 million parameters does not fit into 512 MB with its optimizer, whatever the batch.
fn foreseen() {
    let folder = training(
        "fit 64",
        "  model.config: {values: {small: {d_model: 64, num_layers: 1}, large: {d_model: 1024, num_layers: 8, d_ff: 4096}}}\n\
         \x20 train.optimizer.lr: {low: 1.0e-5, high: 1.0e-2, log: true}\n",
        "budget: {trials: 6}\n",
    );
    folder
        .pipe(&["tune", "run", "study.yaml", "--engine", "process"])
        .exits(0)
        .says("not begun: it needs ")
        .prints("never begun because they do not fit");
    let study = study(&folder);
    let refused: Vec<Value> = trials(&study).into_iter().filter(|trial| trial["state"] == "infeasible").collect();
    assert!(!refused.is_empty());
    for trial in &refused {
        assert_eq!(trial["params"]["model.config"], "large");
        assert!(trial["attributes"]["predicted_peak"].as_u64() > trial["attributes"]["capacity"].as_u64());
    }
    assert_eq!((study["counts"]["complete"].as_u64(), runs(&folder).len()), (Some(6), 6), "{study:#}");
    folder.pipe(&["tune", "export"]).exits(0).prints("does not fit").prints("predicted_peak");
}

fn nothing_fits() {
    let folder = training(
        "fit 64",
        "  model.config: {values: {a: {d_model: 2048, num_layers: 8}, b: {d_model: 2048, num_layers: 9}}}\n",
        "budget: {trials: 3}\n",
    );
    folder
        .pipe(&["tune", "run", "study.yaml", "--engine", "process"])
        .exits(7)
        .says("nothing in the space fits")
        .says("allow smaller batches");
    assert!(runs(&folder).is_empty());
}

/// One batch, which does not fit: the first trial shows it, and none is started after it.
fn refused() {
    let space = "  train.optimizer.lr: {low: 1.0e-5, high: 1.0e-2, log: true}\n";
    let folder = training("fit 8", space, "budget: {trials: 3}\noom: prune\n");
    let text = folder.read("job.yaml") + "train: {batch: 16, effective_batch: 16}\n";
    folder.write("job.yaml", text);
    folder
        .pipe(&["tune", "run", "study.yaml", "--engine", "process"])
        .exits(6)
        .says("proposals do not fit: the study ends");
    assert_eq!(states(&study(&folder))[..2], ["out_of_memory", "infeasible"]);
    assert_eq!(runs(&folder).len(), 1);
}

fn foreign_file() {
    let folder = folder("process", "1", "", "");
    folder.write("precious.txt", "precious");
    folder
        .pipe(&["tune", "run", "study.yaml", "--set", "storage=precious.txt"])
        .exits(1)
        .says("not a journal of Optuna");
    assert_eq!(folder.read("precious.txt"), "precious");
    assert!(!folder.has_runs());
}

fn inputs_gone() {
    let folder = training(
        "long 400 20 64",
        "  train.optimizer.lr: {low: 1.0e-5, high: 1.0e-2, log: true}\n",
        "budget: {trials: 9}\n",
    );
    folder.pipe(&["tune", "run", "study.yaml", "--engine", "process", "--detach"]).exits(0);
    folder.wait_until("a step", || runs(&folder).iter().any(|run| run["steps"].is_u64()));
    folder.pipe(&["tune", "stop"]).exits(0);
    std::fs::remove_file(folder.path().join("train.jsonl")).unwrap();
    folder.pipe(&["tune", "resume"]).exits(6).says("5 trials in a row have failed");
}

/// Ctrl-C is heard between proposals too.
fn interrupted() {
    let more = "budget: {trials: 3}\nsampler: random\n";
    let folder = training(
        "fit 64",
        "  model.config: {values: {a: {d_model: 2048, num_layers: 8}}}\n  train.optimizer.lr: {low: 1.0e-5, high: 1.0e-2}\n",
        more,
    );
    let running = folder.start(&["tune", "run", "study.yaml", "--engine", "process"]);
    folder.wait_until("a proposal", || {
        folder.has_runs() && folder.pipe(&["tune", "status", "--json"]).stdout.contains("infeasible")
    });
    running.signal("INT");
    running.end().exits(130).prints("pipe tune resume");
}

/// A study of the training stand-in.
fn training(job: &str, space: &str, more: &str) -> Folder {
    let folder = job::folder(job, "");
    let text = folder.read("job.yaml").replace("memory: 64m", "memory: 512m");
    folder.write("job.yaml", text);
    let study = format!(
        "version: 1\ntune: search\npipeline: job.yaml\nobjective: {{metric: loss, direction: minimize}}\nspace:\n{space}{more}"
    );
    folder.write("study.yaml", study);
    folder
}

fn pruned() {
    let more =
        "budget: {trials: 12}\nseed: 1\nprune: {kind: median, startup_trials: 3, warmup_steps: 2}\nsampler: random\n";
    let folder = folder("process", "20 --millis 20", "", more);
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0).says("ended early at step").prints("ended early");
    let study = study(&folder);
    let ended: Vec<Value> = trials(&study).into_iter().filter(|trial| trial["state"] == "pruned").collect();
    assert!(!ended.is_empty() && ended.len() <= 9, "{study:#}");
    for trial in &ended {
        let at = trial["attributes"]["pruned_at"].as_u64().unwrap();
        assert!((2..20).contains(&at) && trial["values"].as_array().unwrap().is_empty());
        assert_eq!(
            trial["intermediate"].as_object().unwrap().len() as u64,
            at,
            "nothing is noted beyond its end: {trial:#}"
        );
    }
}

fn stopped() {
    let folder = folder("process", "10 --millis 60", "", "budget: {trials: 3}\n");
    folder.pipe(&["tune", "run", "study.yaml", "--detach"]).exits(0);
    folder.wait_until("a trial", || !trials(&study(&folder)).is_empty());
    folder.pipe(&["tune", "stop"]).exits(0).prints("stopped");
    let before = study(&folder);
    assert_eq!(before["status"], "stopped");
    folder.pipe(&["tune", "resume", "--set", "train.batch=2"]).exits(2).says("budget");
    folder.pipe(&["tune", "run", "study.yaml", "--resume"]).exits(0);
    assert_eq!(states(&study(&folder)), ["complete"; 3]);
    folder.pipe(&["tune", "resume"]).exits(0).prints("has finished");
    folder.pipe(&["tune", "resume", "--set", "budget.trials=5"]).exits(0);
    assert_eq!(states(&study(&folder)), ["complete"; 5]);
}

/// Whatever the batch, an effective batch of 8 is one training.
fn repeated() {
    let folder = training("fit 64", "  train.batch: [1, 2, 4, 8]\n", "budget: {trials: 4}\n");
    let text = folder.read("job.yaml") + "train: {effective_batch: 8}\n";
    folder.write("job.yaml", text);
    folder.pipe(&["check", "study.yaml"]).exits(0).prints("trials with the same effective batch are one training");
    folder
        .pipe(&["tune", "run", "study.yaml", "--engine", "process"])
        .exits(0)
        .says("not begun: the same training as trial 0");
    let study = study(&folder);
    assert_eq!(states(&study)[..2], ["complete", "repeated"]);
    assert!(trials(&study).iter().all(|trial| trial["values"] == trials(&study)[0]["values"]));
    assert_eq!(runs(&folder).len(), 1);
}

fn grid() {
    let folder = folder(
        "process",
        "1",
        "  train.batch: {values: [1, 2], when: {vars.x: {above: 0}}}\n",
        "budget: {trials: 50}\nsampler: grid\n",
    );
    let text = folder.read("study.yaml").replace("high: 1.8", "high: 1.0, step: 1.0");
    folder.write("study.yaml", text);
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0);
    let study = study(&folder);
    let points: BTreeSet<String> = trials(&study).iter().map(|trial| trial["params"].to_string()).collect();
    // -2, -1 and 0 alone, 1 with both batches.
    assert_eq!((points.len(), trials(&study).len()), (5, 5), "{points:?}");
}

fn failing() {
    let folder = folder("process", "1", "", "budget: {trials: 40}\nsampler: random\n");
    let text = folder.read("study.yaml").replace("high: 1.8", "high: 4.0");
    folder.write("study.yaml", text);
    folder.pipe(&["tune", "run", "study.yaml"]);
    let study = study(&folder);
    assert!(
        states(&study).contains(&"failed".to_owned()) && states(&study).contains(&"complete".to_owned()),
        "{study:#}"
    );
    // All of them: what is wrong is wrong with all.
    let text = folder.read("study.yaml").replace("low: -2.0", "low: 2.0").replace("tune: search", "tune: other");
    folder.write("study.yaml", text);
    folder
        .pipe(&["tune", "run", "study.yaml"])
        .exits(6)
        .says("5 trials in a row have failed")
        .says("exit code 3")
        .says("pipe logs");
    let id = self::study(&folder)["id"].as_str().unwrap().to_owned();
    folder.pipe(&["logs", &format!("{id}.4")]).exits(0).prints("x is too large");
}

/// Wherever the disk is full, no trial has failed for it: the study stops, and goes on with the same trials.
fn full_disk() {
    let mut full_times = 0;
    for size in ["200k", "300k", "400k", "500k"] {
        let folder = folder("process", "3", "", "budget: {trials: 3}\nseed: 3\n");
        let disk = Tmpfs::mount(folder.path().join("runs"), size);
        let full = folder.pipe(&["tune", "run", "study.yaml"]);
        // It was full when all trials had ended, or not at all.
        if full.code == Some(0) {
            continue;
        }
        if !folder.pipe(&["ls"]).exits(0).stdout.contains("search") {
            continue;
        }
        full_times += 1;
        match full.code {
            // It was the state of the study itself that could not be written.
            Some(1) => full.says("No space left on device").says("hint: free some space"),
            _ => full.exits(6).says("this machine could not run trial").says("`pipe tune resume"),
        };
        assert!(!states(&study(&folder)).contains(&"failed".to_owned()), "{:#}", study(&folder));
        disk.resize("64m");
        folder.pipe(&["tune", "resume"]).exits(0);
        assert_eq!(states(&study(&folder)), ["complete"; 3], "{size}");
    }
    assert!(full_times > 0, "each disk was large enough");
}

/// A program that finds the disk full, says nothing, and leaves enough room for `pipe` to write down how it ended.
fn unnamed_full_disk() {
    let folder = folder("process", "1", "", "budget: {trials: 2}\nseed: 3\n");
    let script = "cd \"$PIPE_RUN\"\nhead -c 500k /dev/zero > spare\n\
                  head -c 16M /dev/zero > large 2> /dev/null || { rm spare; exit 1; }\necho '{\"step\": 1, \"score\": 0.5}'\n";
    let pipeline = "version: 1\nname: score\nengine: process\ncommand: sh score.sh {vars.x}\nvars: {x: 0}\nmetrics: json\n\
                    container: {gpus: 0}\n";
    folder.write("score.sh", script).write("score.yaml", pipeline);
    let disk = Tmpfs::mount(folder.path().join("runs"), "12m");
    let full = folder.pipe(&["tune", "run", "study.yaml"]);
    full.exits(6).says("this machine could not run trial 0: the disk of ").says("`pipe tune resume");
    assert_eq!(states(&study(&folder)), ["running"], "{:#}", study(&folder));
    disk.resize("128m");
    folder.pipe(&["tune", "resume"]).exits(0);
    assert_eq!(states(&study(&folder)), ["complete"; 2]);
}

/// Its journal is the one beside it, wherever it lies.
fn moved() {
    let folder = folder("process", "1", "", "budget: {trials: 1}\nseed: 3\n");
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0);
    let copied = Command::new("cp").args(["-a", "runs", "copy"]).current_dir(folder.path()).status().unwrap();
    assert!(copied.success());
    let copy = Folder::new().env("PIPE_RUNS", folder.path().join("copy").display());
    copy.pipe(&["tune", "resume", "--set", "budget.trials=2"]).exits(0);
    assert_eq!((states(&study(&copy)).len(), states(&study(&folder)).len()), (2, 1));
}

fn parallel() {
    let folder = folder("process", "8 --millis 60", "", "budget: {trials: 6, parallel: 3}\n");
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0);
    let study = study(&folder);
    assert_eq!(states(&study), ["complete"; 6]);
    let spans: Vec<(f64, f64)> = trials(&study)
        .iter()
        .map(|trial| (trial["began"].as_f64().unwrap(), trial["ended"].as_f64().unwrap()))
        .collect();
    let at_once = |at: f64| spans.iter().filter(|(began, ended)| *began <= at && at < *ended).count();
    let most = spans.iter().map(|(began, _)| at_once(*began)).max();
    assert_eq!(most, Some(3), "{spans:?}");
    let points: BTreeSet<String> = trials(&study).iter().map(|trial| trial["params"].to_string()).collect();
    assert_eq!(points.len(), 6, "trials that run at the same time are not the same");
}

fn listed() {
    let folder = folder("process", "2", "", "budget: {trials: 2}\n");
    let id = folder.pipe(&["tune", "run", "study.yaml", "--detach"]).exits(0).stdout.trim().to_owned();
    folder.pipe(&["attach", &id]).exits(0).prints("best: trial");
    let list = folder.pipe(&["ls"]).exits(0).prints("2 of 2 trials, best").stdout.clone();
    assert!(!list.contains(&format!("{id}.0")), "{list}");
    folder.pipe(&["ls", "--trials"]).exits(0).prints(&format!("{id}.0"));
    folder.pipe(&["show", &id]).exits(0).prints("complete");
    folder.pipe(&["show", &format!("{id}.1")]).exits(0).prints("finished");
    folder.pipe(&["logs", &id]).exits(2).says("name one of them");
    folder.pipe(&["report", &id, "--out", "-"]).exits(0).prints("<svg").prints("vars.x");
    assert!(folder.read(&format!("runs/{id}/report.html")).contains("<svg"));
    folder.pipe(&["tune", "best", "--trial", "7"]).exits(2).says("it has 2");
    folder.pipe(&["rm", &id]).exits(0);
    assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 0);
}

fn json() {
    let folder = folder("process", "2", "", "budget: {trials: 2}\n");
    let answer = folder.pipe(&["tune", "run", "study.yaml", "--json"]).exits(0);
    let lines: Vec<Value> = answer.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).cloned().collect::<Vec<_>>();
    let trials = of("trial");
    let ends: Vec<&str> = trials.iter().map(|trial| trial["state"].as_str().unwrap()).collect();
    assert_eq!(ends, ["running", "complete", "running", "complete"]);
    assert!(of("metrics").iter().any(|metrics| metrics["in"] == "1"), "{lines:#?}");
    assert_eq!(of("study")[0]["study"]["trials"]["complete"], 2);
}

fn objectives() {
    let folder = folder("process", "2", "  train.batch: [1, 2, 4, 8]\n", "budget: {trials: 10}\n");
    let text = folder.read("study.yaml").replace(
        "objective: {metric: score, direction: minimize}",
        "objective: [{metric: score, direction: minimize}, {metric: peak_memory, direction: minimize}]",
    );
    folder.write("study.yaml", text);
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0);
    let study = study(&folder);
    let best: Vec<usize> =
        study["best"].as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect();
    let values = |index: usize| -> Vec<f64> {
        trials(&study)[index]["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    for one in &best {
        for other in 0..10 {
            let (one, other) = (values(*one), values(other));
            assert!(!(other[0] <= one[0] && other[1] <= one[1] && other != one), "{other:?} is better than {one:?}");
        }
    }
    folder.pipe(&["report", "--out", "-"]).exits(0).prints("peak_memory");
}

/// Where Optuna's packages are: those of the fourth but for Optuna itself are with the fifth.
fn packages(version: u32) -> String {
    let of = |version: u32| suite::optuna(version).display().to_string();
    if version == 5 { of(5) } else { format!("{}:{}", of(version), of(5)) }
}

fn optuna_reads(version: u32) {
    let folder = folder("process", "3 --millis 30", "", "budget: {trials: 8}\n");
    let mut python = folder.other_command("python3");
    python
        .arg(repository().join("tests/optuna_tune.py"))
        .arg(folder.command(&[]).get_program())
        .arg("study.yaml")
        .env("PYTHONPATH", packages(version));
    let answer = Answer::new("optuna_tune.py".to_owned(), python.output().unwrap()).exits(0).json();
    assert!(answer["optuna"].as_str().unwrap().starts_with(&format!("{version}.")), "{answer}");
    assert_eq!((answer["began_by_pipe"].as_u64(), answer["began_by_optuna"].as_u64()), (Some(8), Some(17)), "{answer}");
}

/// Optuna and our own reader and writer of its journal, without `pipe tune`.
fn optuna_journal(version: u32) {
    let example = binaries().join("examples/journal");
    assert!(example.is_file(), "{} is not there", example.display());
    let mut python = Command::new("python3");
    python.arg(repository().join("tests/optuna_study.py")).arg("--journal").arg(example);
    let output = python.env("PYTHONPATH", packages(version)).output().unwrap();
    Answer::new("optuna_study.py".to_owned(), output).exits(0);
}

fn bad_input() {
    let folder = folder("process", "1", "", "");
    let base = folder.read("study.yaml");
    for (from, to, said) in [
        ("high: 1.8", "high: -3", "low (-2.0) must be below high (-3)"),
        ("high: 1.8", "high: 1.8, log: true", "with `log` low must be above 0"),
        ("  vars.x: {low: -2.0, high: 1.8}", "  train.precison: [bf16]", "did you mean"),
        ("  vars.x: {low: -2.0, high: 1.8}", "  train.batch: [1, 2, 2]", "2 is given twice"),
        ("  vars.x: {low: -2.0, high: 1.8}", "  train.batch: [0]", "space.train.batch"),
        (
            "  vars.x: {low: -2.0, high: 1.8}",
            "  vars.x: {low: 1, high: 2, when: {vars.y: {above: 1}}}",
            "is not another setting of the space",
        ),
        (
            "  vars.x: {low: -2.0, high: 1.8}",
            "  vars.x: {low: 1, high: 2, when: {train.batch: {above: 1}}}\n  train.batch: {values: [1, 2], when: {vars.x: {above: 1}}}",
            "in a circle",
        ),
        ("  vars.x: {low: -2.0, high: 1.8}", "  vars.x: {low: 1}", "give `low` and `high`, or `values`"),
        ("direction: minimize", "direction: down", "allowed"),
        ("objective:", "objectve:", "did you mean `objective`?"),
        ("pipeline: score.yaml", "pipeline: other.yaml", "cannot read"),
        ("direction: minimize}", "direction: minimize}\nsampler: grid", "has no finite number of values"),
        (
            "{metric: score, direction: minimize}",
            "[{metric: score, direction: minimize}, {metric: seconds, direction: minimize}]\nprune: {kind: asha}",
            "with several objectives",
        ),
    ] {
        assert!(base.contains(from), "{from}");
        folder.write("study.yaml", base.replacen(from, to, 1));
        for command in [&["tune", "run", "study.yaml"][..], &["check", "study.yaml"]] {
            folder.pipe(command).exits(3).says(said);
        }
    }
    assert!(!folder.has_runs());
    folder.write("study.yaml", base.replacen("metric: score", "metric: scores", 1) + "budget: {trials: 9}\n");
    folder.pipe(&["tune", "run", "study.yaml"]).exits(6).says("it has no scores; it reported");
}

fn mistaken() {
    let folder = folder("process", "1", "", "");
    folder.pipe(&["run", "study.yaml"]).exits(2).says("is a study").says("pipe tune run study.yaml");
    folder.pipe(&["tune", "run", "score.yaml"]).exits(2).says("is not a study");
    folder.pipe(&["tune", "status"]).exits(2);
    folder.pipe(&["run", "score.yaml"]).exits(0);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    folder.pipe(&["tune", "status", &id]).exits(2).says("is not a study");
}
