//! The files that a job may write. None is lost, and none does harm: events come from a file that no daemon
//! rotates, and no link that it plants is followed.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Disk, Folder, Needs, Suite, Tmpfs};
use crate::stand_ins::daemon::Daemon;
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.each_engine("job_folder::links_are_not_followed", links);
    suite.any_engine("job_folder::events_from_file_or_stdout", either_way);
    suite.any_engine("job_folder::a_gap_is_filled_or_reported", gap);
    suite.test("job_folder::a_daemon_that_rotates_logs::docker", Needs::OwnDaemon, rotated);
    suite.test("job_folder::events_after_the_pipe_was_killed::process", Needs::Nothing, after_the_pipe);
    suite.test("job_folder::a_full_disk::process", Needs::Root, full_disk);
    suite.test("job_folder::a_power_cut::process", Needs::Ext4, power_cut);
    suite.test("job_folder::a_hole_in_the_output::process", Needs::Nothing, holes);
    suite.test("job_folder::a_cache_that_allows_no_programs::process", Needs::Root, noexec);
    suite.test("job_folder::settings_changed_by_hand::process", Needs::Nothing, settings_changed);
}

/// The steps of the only run, in the order in which they were recorded.
fn steps(folder: &Folder) -> Vec<u64> {
    let events = folder.read_run("events.jsonl");
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["type"] == "step").map(|event| event["step"].as_u64().unwrap()).collect()
}

fn either_way(engine: &str) {
    for quiet in ["stdout", "file"] {
        let folder = job::folder("fit 64", &format!("  env: {{JOB: fit 64, QUIET: {quiet}}}\n"));
        let text = folder.read("job.yaml").replacen("  env: {JOB: fit 64}\n", "", 1);
        folder.write("job.yaml", text);
        folder.pipe(&["run", "job.yaml", "--engine", engine]).exits(0).says_not("lost");
        assert_eq!(steps(&folder), [1, 2, 3], "without {quiet}");
    }
}

fn gap(engine: &str) {
    let filled = job::folder("gap 1", "");
    let answer = filled.pipe(&["run", "job.yaml", "--engine", engine]).exits(0);
    answer.says_not("warning: lost ");
    assert_eq!(steps(&filled), [1, 2, 3, 4, 5]);

    let lost = job::folder("gap 0", "");
    let answer = lost.pipe(&["run", "job.yaml", "--engine", engine]).exits(0);
    answer.says("lost 1 event before event 5 of this attempt");
    assert_eq!(steps(&lost), [1, 2, 4, 5]);
    assert!(lost.read_run("report.html").contains("step 3 is missing"));
}

/// A container does not see the runner's files. Without a container a job has the user's rights, and still no link that it
/// makes is followed.
fn links(engine: &str) {
    let folder = job::folder("hostile", "");
    folder.write("key", "the-secret-key");
    let key = folder.path().join("key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = folder.read("job.yaml").replacen("JOB: hostile", &format!("JOB: hostile, VICTIM: {}", key.display()), 1);
    folder.write("job.yaml", text);
    folder.pipe(&["run", "job.yaml", "--engine", engine]).exits(6).says_not("the-secret-key");
    assert_eq!(folder.read("key"), "the-secret-key");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let run = folder.run_folder();
    let written = ["run.json", "lock.json", "pipe.log", "report.html", "attempts/01/outcome.json"];
    for name in written.iter().copied().chain((engine == "docker").then_some("events.jsonl")) {
        let path = run.join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(!text.contains("the-secret-key"), "{name} holds the key");
        assert!(engine == "process" || (path.is_file() && !path.is_symlink()), "{name} is not pipe's own");
    }
    if engine == "docker" {
        let log = folder.read_run("attempts/01/log.txt");
        assert!(log.contains("run.json changed false") && !log.contains("changed true"), "{log}");
    }
    // Nothing of it is read later either.
    for command in [&["show"][..], &["report"], &["ls"], &["diff", "latest", "latest"]] {
        let answer = folder.pipe(command);
        assert!(!answer.stdout.contains("the-secret-key"), "{answer}");
    }
    assert!(!folder.read_run("report.html").contains("the-secret-key"));
}

/// A daemon that keeps the last few kilobytes of a log, while no `pipe` reads it.
fn rotated() {
    const STEPS: u64 = 4000;
    let folder = job::folder(&format!("long {STEPS} 1 64"), "");
    let settings = r#"{"log-opts": {"max-size": "16k", "max-file": "2"}}"#;
    let daemon = Daemon::start_with(folder.path(), settings);
    let folder = folder.env("DOCKER_HOST", daemon.address());
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_until("the first steps", || {
        folder.state().is_some_and(|state| state["attempts"][0]["last_step"].as_u64() > Some(10))
    });
    running.kill_alive();
    folder.wait_until("the end of the job", || {
        let path = folder.run_folder().join("attempts/01/job/events.jsonl");
        std::fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("\"step\":{STEPS},")))
    });
    folder.pipe(&["resume", "latest"]).exits(0).says_not("warning: ");
    assert_eq!(steps(&folder), (1..=STEPS).collect::<Vec<_>>());
    let logged = folder.read_run("attempts/01/log.txt").matches("\"type\":\"step\"").count();
    assert_eq!(logged as u64, STEPS);
}

/// A trainer whose `pipe` was killed finishes its step and saves: what it then did is not lost.
fn after_the_pipe() {
    let folder = job::folder("walk 8 300 64", "train: {batch: 8}\n");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "step 3");
    running.kill_alive();
    folder.pipe(&["resume", "latest"]).exits(0).says_not("warning: lost ");
    assert_eq!(steps(&folder), (1..=8).collect::<Vec<_>>());
}

fn settings_changed() {
    let folder = job::folder("exit 1", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(6);
    let path = folder.run_folder().join("resolved.yaml");
    let before = std::fs::read_to_string(&path).unwrap();
    let line = before.lines().find(|line| line.trim().starts_with("lr:")).expect("a learning rate").to_owned();
    std::fs::write(&path, before.replace(&line, &line.replace("lr: ", "lr: 1"))).unwrap();
    folder.pipe(&["resume", "latest"]).exits(3).says("resolved.yaml was changed after pipe wrote it").says("hint: ");
    // A setting on the command line is no change by hand, nor is the unchanged file.
    std::fs::write(&path, &before).unwrap();
    folder.pipe(&["resume", "latest", "--set", "on_oom.retries=2"]).exits(6);
    folder.pipe(&["resume", "latest"]).exits(6);
}

/// Holes in the files that `pipe` reads along, each larger than any disk: they take neither time nor memory nor room in the log.
/// The job's output is given back to the disk as the log gets it: no line may be missing from both.
fn power_cut() {
    let folder = Folder::new();
    let script = "test -f restarted && exit\ni=1\nwhile :\ndo seq $i $((i + 999))\ni=$((i + 1000))\nsleep 0.01\ndone\n";
    let yaml = "version: 1\nname: job\nengine: process\ncommand: [sh, script.sh]\ncontainer: {gpus: 0}\n";
    folder.write("script.sh", script).write("job.yaml", yaml);
    let disk = Disk::mount(folder.path().join("runs"), 256 << 20);
    let running = folder.start(&["run", "job.yaml"]);
    let kept = || folder.state().and_then(|state| state["attempts"][0]["log"]["bytes"].as_u64()).unwrap_or(0);
    // The second time, so that much was written between the two.
    for _ in 0..2 {
        let before = kept();
        folder.wait_until("the position in the log is kept", || kept() > before);
    }
    let before = kept();
    disk.cut_power();
    running.kill_alive();
    end_job(&folder);
    let disk = disk.restart();
    let log = folder.read_run("attempts/01/log.txt");
    assert!(log.len() as u64 >= before, "the log has {} of {before} bytes", log.len());
    folder.write("restarted", "");
    folder.start(&["resume", "latest"]).end().exits(0);
    let log = folder.read_run("attempts/01/log.txt");
    let wrong = log.lines().zip(1..).find(|(line, number)| *line != number.to_string());
    assert_eq!(wrong, None::<(&str, u64)>, "a line is missing or damaged");
    drop(disk);
}

/// Kills every process of the folder's runs.
fn end_job(folder: &Folder) {
    let runs = folder.path().join("runs").display().to_string();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(&runs) {
            Command::new("kill").arg("-9").arg(process.file_name()).status().unwrap();
        }
    }
}

fn holes() {
    let folder = Folder::new();
    let script = "job=\"$PIPE_RUN/../attempts/01/job\"\necho one\ntruncate -s 4T \"$job/output\"\n\
                  truncate -s 4T \"$job/events.jsonl\"\necho two\ntruncate -s 8T \"$job/output\"\necho three\n";
    let yaml = "version: 1\nname: job\nengine: process\ncommand: [sh, script.sh]\ncontainer: {gpus: 0}\n";
    folder.write("script.sh", script).write("job.yaml", yaml);
    let answer = folder.start(&["run", "job.yaml"]).end().exits(0);
    // How many there are depends on when the program that keeps the output writes the lines between.
    let answer = answer.says("warning: skipped ").says(" TiB of zero bytes, which the job put into its output file");
    assert_eq!(answer.stderr.matches("zero bytes").count(), 1, "{answer}");
    assert_eq!(folder.read_run("attempts/01/log.txt"), "one\ntwo\nthree\n");
}

/// The program that watches a job lies in the cache, or else beside the run.
fn noexec() {
    let folder = Folder::new();
    folder.write("job.yaml", "version: 1\nname: job\nengine: process\ncommand: 'true'\ncontainer: {gpus: 0}\n");
    let _disk = Tmpfs::mount(folder.path().join("noexec"), "16m,noexec");
    let path = |name: &str| folder.path().join("noexec").join(name).display().to_string();
    let (cache, runs) = (path("cache"), path("runs"));
    let folder = folder.env("PIPE_CACHE", cache);
    folder.pipe(&["run", "job.yaml"]).exits(0);
    let folder = folder.env("PIPE_RUNS", runs);
    let answer = folder.pipe(&["run", "job.yaml"]).exits(4);
    answer.says("cannot start programs from ").says("mounted with noexec").says("hint: set PIPE_CACHE to a folder");
}

/// The disk is full in the middle: `run.json` says so, and a resume continues the training.
fn full_disk() {
    let folder = job::folder("flood 8000", "");
    let disk = Tmpfs::mount(folder.path().join("runs"), "3m");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(1).says("No space left on device");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["exit_code"].as_u64()), (Some("failed"), Some(1)));
    assert!(run["error"].as_str().unwrap().contains("No space left"), "{run:#}");
    disk.resize("64m");
    folder.pipe(&["resume", "latest"]).exits(0);
    assert_eq!(folder.show()["status"], "finished");
}
