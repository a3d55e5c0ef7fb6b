//! `pipe` is killed, and another one resumes the run. Every test shows where its kill struck: the process was alive, and
//! `run.json`, which only that process writes, names the stage. A kill that struck elsewhere is repeated.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::harness::{Folder, Needs, Running, Suite};
use crate::stand_ins::daemon::Daemon;
use crate::stand_ins::job;
use crate::stand_ins::receiver::{HANG, Receiver};
use crate::walk::{STEPS, attempts, expect_undisturbed, expect_walked, expect_weights, walk};

/// How often a kill is repeated that did not strike where it was meant to.
const TRIES: usize = 10;

pub fn tests(suite: &mut Suite) {
    for stage in ["building the image", "starting", "training", "reporting"] {
        let name = format!("killed::while_{}::docker", stage.replace(' ', "_"));
        suite.test(&name, Needs::Docker, move || at_stage(stage));
    }
    suite.test("killed::between_attempts::docker", Needs::Docker, between_attempts);
    suite.test("killed::at_some_time::process", Needs::Nothing, || at_any_time("process", 2));
    suite.thorough("killed::at_any_time::process", Needs::Nothing, || at_any_time("process", 6));
    suite.thorough("killed::at_any_time::docker", Needs::Docker, || at_any_time("docker", 10));
    suite.test("killed::attach_continues_the_run::docker", Needs::Docker, attach_continues);
    suite.test("killed::daemon_restarted::docker", Needs::OwnDaemon, daemon_restarted);
    suite.test("killed::the_lease_is_closed", Needs::Nothing, lease);
}

/// The stage that `run.json` names; none where the run has ended or has no folder yet.
fn stage(folder: &Folder) -> Option<String> {
    folder.state().and_then(|state| Some(state["doing"].as_str()?.to_owned()))
}

/// Waits until the run is as `is_so` says, and kills `pipe` there. Whether it struck: `pipe` was alive, and the run is still so.
fn strike(folder: &Folder, mut running: Running, what: &str, is_so: impl Fn() -> bool) -> bool {
    let mut has_ended = false;
    folder.wait_until(what, || {
        has_ended = running.has_ended();
        has_ended || is_so()
    });
    running.kill() && !has_ended && is_so()
}

fn at_stage(stage: &str) {
    let strikes = (0..TRIES).any(|_| {
        let folder = walk(50).env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        let dockerfile = "FROM scratch\nCOPY job /job\nENV JOB=\"pause 3000\"\nRUN [\"/job\"]\nENTRYPOINT [\"/job\"]\n";
        if stage == "building the image" {
            // Not in the cache: the name of the folder is in it.
            folder.write("image/job.Dockerfile", format!("{dockerfile}LABEL at={:?}\n", folder.path()));
        }
        // A server that never answers: the end of a run waits for it, for a bounded time.
        let receiver = Receiver::start(&[HANG]);
        if stage == "reporting" {
            let notify = format!("notify: [{{webhook: {:?}}}]\n", receiver.address());
            folder.write("job.yaml", folder.read("job.yaml") + &notify);
        }
        let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
        let struck = strike(&folder, running, stage, || self::stage(&folder).as_deref() == Some(stage));
        assert!(!struck || folder.show()["status"] == "orphaned");
        folder.pipe(&["resume"]).exits(0);
        expect_undisturbed(&folder);
        struck
    });
    assert!(strikes, "none of {TRIES} kills struck while pipe was {stage}");
}

/// After the outcome of the first attempt is written, before there is a second.
fn between_attempts() {
    let strikes = (0..TRIES).any(|_| {
        let folder = walk(20);
        let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
        let is_between = || {
            let state = folder.state();
            let attempts = state.as_ref().and_then(|state| state["attempts"].as_array());
            attempts.is_some_and(|attempts| attempts.len() == 1 && attempts[0]["outcome"] == "oom")
        };
        let struck = strike(&folder, running, "the end of the first attempt", is_between);
        folder.pipe(&["resume"]).exits(0);
        expect_undisturbed(&folder);
        struck
    });
    assert!(strikes, "none of {TRIES} kills struck between the attempts");
}

/// At `count` moments spread over an undisturbed run; the second kill is of the `pipe` that resumed the run.
fn at_any_time(engine: &str, count: u32) {
    let began = Instant::now();
    walk(40).pipe(&["run", "job.yaml", "--engine", engine]).exits(0);
    let whole = began.elapsed();
    let mut stages = Vec::new();
    for index in 1..=count {
        let mut share = f64::from(index) / f64::from(count + 1);
        let strikes = (0..TRIES).any(|_| {
            let struck = killed_twice(engine, whole.mul_f64(share));
            stages.extend(struck.clone().into_iter().flatten());
            // The run was over before the kill: an earlier one strikes.
            share *= 0.7;
            struck.is_some()
        });
        assert!(strikes, "moment {index}: the run was over before each of {TRIES} kills; struck before: {stages:?}");
    }
    eprintln!("kills struck at: {stages:?}");
    assert!(stages.iter().any(|stage| stage == "training"), "no kill struck a training: {stages:?}");
}

/// Kills `pipe` after `delay`, and the next one after half of it. The stages where the kills struck; none where one of them came
/// after the end of the run.
fn killed_twice(engine: &str, delay: Duration) -> Option<[String; 2]> {
    let folder = walk(40);
    let go_on = || match folder.has_runs() {
        true => folder.start(&["resume"]),
        false => folder.start(&["run", "job.yaml", "--engine", engine]),
    };
    let written = || {
        let run = std::fs::read_dir(folder.path().join("runs")).ok()?.next()?.ok()?;
        run.path().join("run.json").metadata().ok()?.modified().ok()
    };
    let strike = |delay: Duration| {
        let before = written();
        let running = go_on();
        std::thread::sleep(delay);
        let is_over = !running.kill() || folder.state().is_some_and(|state| state["status"] != "running");
        let stage = stage(&folder).filter(|_| written() != before);
        (!is_over).then(|| stage.unwrap_or_else(|| "before it wrote run.json".to_owned()))
    };
    let struck = strike(delay).and_then(|first| Some([first, strike(delay / 2)?]));
    go_on().end().exits(0);
    if engine == "docker" {
        expect_undisturbed(&folder);
    } else {
        // Without a container the trainer saves and ends with its `pipe`; another attempt goes on from there.
        expect_weights(&folder.run_folder());
        assert_eq!(folder.show()["status"], "finished");
    }
    struck
}

fn attach_continues() {
    let folder = walk(100);
    let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
    folder.wait_for_log(1, "step 3");
    running.kill_alive();
    folder.pipe(&["attach"]).exits(0).says("no pipe process is running this run").prints("finished");
    expect_undisturbed(&folder);
    assert!(folder.read_run("pipe.log").contains("taking over attempt 1"));
}

fn daemon_restarted() {
    let folder = job::folder(&format!("walk {STEPS} 300 8"), "train: {batch: 8}\n");
    let mut daemon = Daemon::start(folder.path());
    let folder = folder.env("DOCKER_HOST", daemon.address());
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "step 3");
    daemon.restart();
    running.end().exits(0).says("the daemon does not answer: waiting for it").says("the daemon answers again");
    expect_walked(&folder.run_folder());
    let run = folder.show();
    assert_eq!(attempts(&run), [(8, "stopped"), (8, "finished")]);
    assert_eq!(run["attempts"][0]["cause"], "interrupted");
}

/// A trainer that does not hear signals has its stdin closed when its `pipe` is killed.
fn lease() {
    let folder = job::folder("exit 0", "");
    let script = folder.path().join("trainer.sh");
    folder.write(
        "trainer.sh",
        "#!/bin/sh\ntrap '' TERM\necho \"lease on $PIPE_LEASE\" >&2\ncat > /dev/null\necho closed > \"${0%/*}/closed\"\n",
    );
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let folder = folder.env("PIPE_TRAINER", script.display());
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "lease on stdin");
    std::thread::sleep(Duration::from_millis(300));
    let closed = folder.path().join("closed");
    assert!(!closed.exists(), "it is open while pipe lives");
    running.kill_alive();
    folder.wait_until("the trainer sees that pipe is gone", || closed.exists());
}
