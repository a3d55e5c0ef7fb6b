//! Ctrl-C once and twice, and a `pipe` that is killed: nothing is left behind, and what is left can be found and removed.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::harness::folder::{pipe, repository};
use crate::harness::{Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.each_engine("stopping::ctrl_c_once", |engine| once(engine, "INT"));
    suite.each_engine("stopping::a_trainer_that_does_not_end", deadline);
    suite.any_engine("stopping::sigterm", |engine| once(engine, "TERM"));
    suite.any_engine("stopping::ctrl_c_twice", twice);
    suite.any_engine("stopping::pipe_stop_twice_is_graceful", stop_twice);
    suite.any_engine("stopping::pipe_stop_now", stop_now);
    suite.any_engine("stopping::pipe_killed_while_it_stops", killed_meanwhile);
    suite.test("stopping::a_container_that_has_just_started::docker", Needs::Docker, only_begun);
    suite.test("stopping::before_a_container_is_taken_over::docker", Needs::Docker, before_takeover);
    suite.thorough("stopping::a_job_that_cannot_be_killed::process", Needs::Freezer, unkillable);
    suite.test("stopping::killed_pipe_ends_its_child::process", Needs::Nothing, killed_pipe_process);
    suite.test("stopping::killed_pipe_leaves_a_container_that_rm_cleans::docker", Needs::Docker, killed_pipe_docker);
    suite.test("stopping::a_copy_of_a_run_is_not_the_run::docker", Needs::Docker, copied);
    suite.test("stopping::a_parent_that_ignores_its_children", Needs::Nothing, ignored_children);
    suite.test("stopping::a_limit_on_files", Needs::Nothing, file_limit);
    suite.test("stopping::rm_refuses_a_running_run::process", Needs::Nothing, rm_refuses);
    suite.test("stopping::a_run_of_another_host_is_asked_by_a_file", Needs::Nothing, other_host);
    suite.test("stopping::rm_removes::process", Needs::Nothing, rm_removes);
    suite.test("stopping::a_failed_test_leaves_no_pipe::process", Needs::Nothing, left_behind);
    suite.test("stopping::a_removed_run_folder_leaves_no_container::docker", Needs::Docker, removed_folder);
    suite.test("stopping::another_user_cannot_hold_or_stop_a_run", Needs::Root, other_user);
    suite.test("stopping::runs_of_another_user_are_neither_executed_nor_used", Needs::Root, other_users_runs);
    suite.test("stopping::a_command_that_has_ended_is_not_run_again", Needs::Nothing, ended_before);
}

fn once(engine: &str, signal: &str) {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", engine]);
    folder.wait_for_log(1, "sleeping");
    assert_eq!(folder.show()["status"], "running");
    running.signal(signal);
    running.end().exits(130).says("stopping: the trainer saves and ends");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["attempts"][0]["outcome"].as_str()), (Some("stopped"), Some("stopped")));
    assert!(std::fs::read_to_string(folder.run_folder().join("attempts/01/log.txt")).unwrap().contains("stopping"));
    if engine == "docker" {
        assert!(folder.containers().is_empty());
    }
}

/// A test that fails drops what it has started.
fn left_behind() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "sleeping");
    let id = running.id();
    drop(running);
    assert!(!Path::new(&format!("/proc/{id}")).exists());
    assert_eq!(folder.show()["status"], "stopped");
}

/// A person removes the folder of a run that is not over.
fn removed_folder() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
    folder.wait_for_log(1, "sleeping");
    assert_eq!(folder.containers().len(), 1);
    std::fs::remove_dir_all(folder.run_folder()).unwrap();
    running.signal("INT");
    running.end().exits(1).says("cannot write");
    assert!(folder.containers().is_empty());
}

/// Another user holds the lock of a run, from the time when anybody could open it, and tries to stop one that runs.
fn other_user() {
    let folder = job::folder("exit 1", "");
    let nobody = |words: &[&OsStr]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(words).current_dir(folder.path());
        command
    };
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(6);
    let owner = folder.run_folder().join(".owner");
    let mode = || owner.metadata().unwrap().permissions().mode() & 0o777;
    let lock = [OsStr::new("flock"), owner.as_ref(), "sleep".as_ref(), "100".as_ref()];
    assert!(mode() == 0o600 && !nobody(&lock).output().unwrap().status.success());
    std::fs::set_permissions(&owner, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut locked = nobody(&lock).spawn().unwrap();
    let busy = || !std::process::Command::new("flock").arg("-n").arg(&owner).arg("true").status().unwrap().success();
    folder.wait_until("the lock", busy);
    assert_eq!(folder.show()["status"], "failed");
    let refused = folder.pipe(&["resume"]).exits(1).says("of the user nobody has locked it");
    folder.pipe(&["rm", "latest"]).exits(1).says("of the user nobody has locked it");
    assert!(mode() == 0o600 && !refused.stderr.contains("still running"));
    // The program that flock started has the lock too.
    let ended = std::process::Command::new("pkill").args(["-P", &locked.id().to_string()]).status().unwrap();
    locked.kill().ok();
    locked.wait().unwrap();
    assert!(ended.success());
    folder.pipe(&["rm", "latest"]).exits(0);

    let sleeps = job::folder("sleep", "");
    let running = sleeps.start(&["run", "job.yaml", "--engine", "process"]);
    sleeps.wait_for_log(1, "sleeping");
    let pipe = sleeps.command(&["stop"]);
    let id = sleeps.show()["id"].as_str().unwrap().to_owned();
    let mut command = nobody(&[pipe.get_program(), "stop".as_ref(), id.as_ref()]);
    let answer = command.env("PIPE_RUNS", sleeps.path().join("runs")).output().unwrap();
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(answer.status.code() == Some(1) && said.contains("belongs to the user root"), "{said}");
    running.signal("TERM");
    running.end().exits(130);
}

/// In a folder of runs that users share: what another user has written is no run that is meant without its id.
fn other_users_runs() {
    let folder = job::folder("exit 1", "");
    let give_away = || {
        let runs = folder.path().join("runs");
        let status = std::process::Command::new("chown").args(["-R", "65534"]).arg(runs).status().unwrap();
        assert!(status.success());
    };
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(6);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    give_away();
    folder.pipe(&["resume"]).exits(2).says("there are no runs");
    folder
        .pipe(&["resume", &id])
        .exits(1)
        .says("belongs to the user nobody")
        .says("run this command as the user nobody");
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--resume"]).exits(6);
    assert_ne!(folder.show()["id"], id);

    let text = "version: 1\nname: shared\nengine: process\nsteps:\n  a: {command: [sh, -c, \"echo made > {run}/o\"], outputs: {o: o}}\n";
    folder.write("steps.yaml", text);
    let status = || folder.show()["graph"][0]["status"].as_str().unwrap().to_owned();
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    assert_eq!(status(), "unchanged");
    give_away();
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    assert_eq!(status(), "finished");
}

/// A stop that comes while a process which the command left behind is waited for: the work is done.
fn ended_before() {
    let folder = job::folder("", "");
    let command = "(setsid sleep 60 > /dev/null 2>&1 &); echo done";
    folder.write("left.yaml", format!("version: 1\nname: left\nengine: process\ncommand: [sh, -c, {command:?}]\n"));
    let running = folder.start(&["run", "left.yaml"]);
    folder.wait_for_log(1, "done");
    running.signal("INT");
    running.end().exits(0);
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["attempts"][0]["outcome"].as_str()), (Some("finished"), Some("finished")));
}

fn only_begun() {
    let folder = job::folder("late 2500", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
    folder.wait_for_log(1, "ignoring signals");
    running.signal("INT");
    running.end().exits(130);
    assert_eq!(folder.show()["attempts"][0]["exit_code"], 143);
}

/// The `pipe` that takes a run over still waits for its data, which are gone from the cache, when it is asked to stop.
fn before_takeover() {
    let folder = job::folder("sleep", "");
    let rows = std::fs::read(repository().join("tests/fixtures/data/snappy.parquet")).unwrap();
    let fields = "fields: {source: ingredients, target: directions}, tokenizer: tokenizer.json";
    let data = format!("{{train: rows.parquet, {fields}}}");
    folder
        .write("job.yaml", folder.read("job.yaml").replace("{train: train.jsonl}", &data))
        .write("rows.parquet", rows);
    let cache = folder.path().join("cache");
    let folder = folder.env("PIPE_CACHE", cache.display());
    let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
    folder.wait_for_log(1, "sleeping");
    running.kill_alive();
    let files = std::fs::read_dir(cache.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let lock = files.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "lock")).unwrap();
    std::fs::remove_dir_all(lock.with_extension("")).unwrap();
    let other = std::fs::File::options().write(true).open(&lock).unwrap();
    other.try_lock().unwrap();
    let mut resumed = folder.start(&["resume"]);
    resumed.wait_until_it_says("waiting for another pipe that prepares rows.parquet");
    assert_eq!(folder.containers().len(), 1);
    resumed.signal("TERM");
    resumed.end().exits(130).says("taking over attempt 1").says("stopping: the trainer saves and ends");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["attempts"][0]["exit_code"].as_u64()), (Some("stopped"), Some(143)));
    assert!(folder.containers().is_empty());
}

/// What is frozen ends only when it is thawed. There is no engine to start again.
fn unkillable() {
    let folder = job::folder("stubborn", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "sleeping");
    let first = folder.show()["attempts"][0]["container"].as_str().unwrap().to_owned();
    let group = Path::new("/sys/fs/cgroup/freezer").join(folder.path().file_name().unwrap());
    std::fs::create_dir(&group).unwrap();
    std::fs::write(group.join("cgroup.procs"), &first).unwrap();
    std::fs::write(group.join("freezer.state"), "FROZEN").unwrap();
    running.signal("QUIT");
    let answer = running.end();
    std::fs::write(group.join("freezer.state"), "THAWED").unwrap();
    folder.wait_until("the end of what was killed", || std::fs::remove_dir(&group).is_ok());
    let answer = answer.exits(4).says("error: the job did not end within 60 s of being killed");
    answer.says("hint: see what holds its processes").says_not("engine again");
}

fn twice(engine: &str) {
    let folder = job::folder("stubborn", "");
    let mut running = folder.start(&["run", "job.yaml", "--engine", engine]);
    folder.wait_for_log(1, "sleeping");
    running.signal("INT");
    running.wait_until_it_says("at once on a second Ctrl-C");
    running.signal("INT");
    running.end().exits(130).says("ending the trainer at once");
    assert_eq!(folder.show()["status"], "stopped");
    if engine == "docker" {
        assert!(folder.containers().is_empty());
    }
}

/// A step takes a while. A second `pipe stop` in the meantime does not prevent the save.
fn stop_twice(engine: &str) {
    let folder = job::folder("walk 8 4000 64", "train: {batch: 8}\n");
    let running = folder.start(&["run", "job.yaml", "--engine", engine]);
    folder.wait_for_log(1, "step 1");
    let mut first = folder.start(&["stop", "latest"]);
    first.wait_until_it_says("saves and ends");
    let second = folder.start(&["stop", "latest"]);
    first.end().exits(0).says("saves and ends").prints("stopped");
    second.end().exits(0).says("saves and ends").prints("stopped");
    running.end().exits(130).says_not("ending the trainer");
    assert_eq!(folder.show()["attempts"][0]["exit_code"], 143);
    assert!(folder.read_run("attempts/01/log.txt").contains("saved\n"));
}

fn deadline(engine: &str) {
    let folder = job::folder("stubborn", "");
    let args = ["run", "job.yaml", "--engine", engine, "--set", "container.stop_timeout=1"];
    let running = folder.start(&args);
    folder.wait_for_log(1, "sleeping");
    folder.pipe(&["stop", "latest"]).exits(0).says("within 1 s at most").prints("stopped");
    running.end().exits(130).says("the trainer did not end within 1 s (container.stop_timeout): ending it");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["attempts"][0]["exit_code"].as_u64()), (Some("stopped"), Some(137)));
}

fn stop_now(engine: &str) {
    let folder = job::folder("stubborn", "");
    let running = folder.start(&["run", "job.yaml", "--engine", engine]);
    folder.wait_for_log(1, "sleeping");
    folder.pipe(&["stop", "latest", "--now"]).exits(0).says("the trainer is ended").prints("stopped");
    running.end().exits(130).says("ending the trainer at once");
}

/// A `pipe` that is frozen, asked to stop and then killed: `pipe stop` stops the job itself.
fn killed_meanwhile(engine: &str) {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", engine]);
    folder.wait_for_log(1, "sleeping");
    running.signal("STOP");
    let stop = folder.start(&["stop", "latest"]);
    std::thread::sleep(std::time::Duration::from_millis(700));
    running.kill_alive();
    stop.end().exits(0).prints(": stopped");
    assert_eq!(folder.show()["status"], "stopped");
    if engine == "docker" {
        assert!(folder.containers().is_empty());
    }
}

fn killed_pipe_process() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "sleeping");
    let child = folder.show()["attempts"][0]["container"].as_str().unwrap().to_owned();
    running.kill_alive();
    folder.wait_until("the end of the child", || {
        std::fs::read_to_string(format!("/proc/{child}/stat")).map_or(true, |stat| stat.contains(") Z "))
    });
    let run = folder.show();
    assert_eq!(
        (run["status"].as_str(), run["error"].as_str()),
        (Some("orphaned"), Some("the pipe process of the run was killed"))
    );
}

fn killed_pipe_docker() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
    folder.wait_for_log(1, "sleeping");
    running.kill_alive();
    let left = folder.containers();
    assert_eq!(left.len(), 1);
    let runs = folder.pipe(&["ls", "--json"]).exits(0).json();
    assert_eq!(runs[0]["status"], "orphaned");
    assert!(runs[0]["left_behind"][0].as_str().unwrap().starts_with(&left[0]));
    folder.pipe(&["ls"]).exits(0).prints("its container is still running; `pipe attach` continues the run");
    folder.pipe(&["rm", "--left-behind"]).exits(0).prints("removed container");
    assert!(folder.containers().is_empty());
    assert!(folder.run_folder().exists());
}

/// What is done to a backup of a run that goes on is not done to the run.
fn copied() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
    folder.wait_for_log(1, "sleeping");
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    let [runs, backup] = ["runs", "backup"].map(|name| folder.path().join(name));
    let copy = |from: &Path, to: &Path| {
        assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    copy(&runs, &backup);
    let in_runs = |runs: &Path, args: &[&str]| {
        let output = folder.command(args).env("PIPE_RUNS", runs).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let of_backup = |args: &[&str]| in_runs(&backup, args);
    for args in [["resume", &id], ["attach", &id], ["stop", &id]] {
        let (code, said) = of_backup(&args);
        assert!(code == Some(1) && said.contains("is a copy of the run in"), "{args:?}: {code:?} {said}");
    }
    assert_eq!(of_backup(&["rm", "--left-behind"]).0, Some(0));
    assert_eq!((of_backup(&["rm", &id]).0, backup.join(&id).exists()), (Some(0), false));
    // Beside the run, where six of them may come first in the folder.
    (0..6).for_each(|at| copy(&runs.join(&id), &runs.join(format!("older-{at}"))));
    folder.pipe(&["show", "older-3"]).exits(0).prints(&format!("it is a copy of the run {id}"));
    folder.pipe(&["resume", "older-3"]).exits(1).says("is a copy of the run in");
    folder.pipe(&["rm", "--left-behind"]).exits(0);
    (0..6).for_each(|at| drop(folder.pipe(&["rm", &format!("older-{at}")]).exits(0)));
    assert_eq!((folder.run_folder(), folder.containers().len()), (runs.join(&id), 1));
    folder.pipe(&["stop", &id]).exits(0).prints("stopped");
    running.end().exits(130);
    // The hint: once the run has stopped, its copy in another PIPE_RUNS is a run of its own.
    copy(&runs, &backup);
    let copied = backup.join("runs");
    assert_eq!(in_runs(&copied, &["resume", &id, "--detach"]).0, Some(0));
    folder.wait_until("its next attempt", || copied.join(&id).join("attempts/02/log.txt").exists());
    assert_eq!(in_runs(&copied, &["stop", &id]).0, Some(0));
    assert!(!runs.join(&id).join("attempts/02").exists());
}

/// A shell or supervisor that ignores SIGCHLD hands that on.
fn ignored_children() {
    let folder = job::folder("fit 5", "");
    let line = "trap '' CHLD; exec \"$0\" run job.yaml --engine process";
    let ended = folder.other_command("bash").args(["-c", line]).arg(pipe()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Beyond `ulimit -f` the system ends a program that has no handler, without a word.
fn file_limit() {
    let folder = job::folder("fit 5", "");
    let line = "ulimit -f 1; exec \"$0\" run job.yaml --engine process";
    let ended = folder.other_command("bash").args(["-c", line]).arg(pipe()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code().is_some() && said.contains("File too large"), "{:?} {said}", ended.status);
}

fn rm_refuses() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "sleeping");
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    folder.pipe(&["rm", &id]).exits(1).says("is still running");
    running.signal("INT");
    running.end().exits(130);
    folder.pipe(&["rm", &id]).exits(0);
    assert_eq!(folder.pipe(&["ls", "--json"]).exits(0).json(), serde_json::json!([]));
}

/// On a shared file system the owner may live on another machine, where its process id means another process.
fn other_host() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "sleeping");
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    let owner = folder.run_folder().join(".owner");
    let written = std::fs::read_to_string(&owner).unwrap();
    assert_eq!(written.split_whitespace().next(), Some(running.id().to_string().as_str()));
    std::fs::write(&owner, format!("{} another-host\n", running.id())).unwrap();
    folder.pipe(&["stop", &id]).exits(0).prints("stopped");
    running.end().exits(130);
    // One whose lock cannot be seen from here lives as long as it writes to its file.
    std::fs::write(&owner, "17 another-host\n").unwrap();
    assert_eq!(folder.show()["status"], "running");
    folder.pipe(&["resume", &id]).exits(1).says("as process 17 on the host another-host").says("within a minute");
    let file = std::fs::File::options().write(true).open(&owner).unwrap();
    file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(600)).unwrap();
    assert_eq!(folder.show()["status"], "stopped");
}

fn rm_removes() {
    let folder = job::folder("exit 0", "");
    for name in ["one", "two"] {
        folder.pipe(&["run", "job.yaml", "--engine", "process", "--name", name]).exits(0);
    }
    let newest = folder.pipe(&["ls", "--json"]).exits(0).json();
    assert_eq!((newest[0]["name"].as_str(), newest[1]["name"].as_str()), (Some("two"), Some("one")));
    folder.pipe(&["rm", "one", "nope"]).exits(2).says("no run \"nope\"");
    folder.pipe(&["rm", "one"]).exits(0).prints("removed one-");
    assert_eq!(folder.pipe(&["ls", "--json"]).exits(0).json().as_array().unwrap().len(), 1);
}
