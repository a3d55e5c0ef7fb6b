//! Which engine runs a job, and the errors where none can.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::harness::suite::{gpu, root};
use crate::harness::{Answer, Folder, Needs, Suite};
use crate::stand_ins::daemon::{Daemon, change_answers};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.test("engines::no_daemon", Needs::Nothing, no_daemon);
    suite.test("engines::no_daemon_falls_back", Needs::Nothing, no_daemon_falls_back);
    suite.test("engines::a_command_for_an_image_is_not_run_without_one", Needs::Nothing, no_daemon_for_an_image);
    suite.test("engines::socket_without_a_listener", Needs::Nothing, no_listener);
    suite.test("engines::no_permission", Needs::Nothing, no_permission);
    suite.test("engines::no_trainer", Needs::Nothing, no_trainer);
    suite.test("engines::gpu_asked_for_and_not_there", Needs::DockerWithoutGpu, no_gpu);
    if !gpu() {
        suite.other_daemons("engines::gpu_asked_for_and_not_there", false, no_gpu);
    }
    suite.test("engines::daemon_is_the_default", Needs::Docker, daemon_is_the_default);
    suite.test("engines::daemon_that_cannot_limit_memory", Needs::Docker, no_memory_limit);
    suite.test("engines::name_is_taken_for_a_while", Needs::Docker, name_is_taken);
    suite.test("engines::dry_run_starts_nothing", Needs::Docker, dry_run);
    suite.on_daemon("engines::a_user_without_rights", "podman-rootless", Needs::Podman, rootless);
    suite.test("engines::daemon_stopped_while_it_runs", Needs::OwnDaemon, daemon_stopped);
    suite.test("engines::stopped_while_the_daemon_is_away", Needs::OwnDaemon, stopped_while_away);
}

fn no_daemon() {
    let folder = job::folder("exit 0", "").env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    folder
        .pipe(&["run", "job.yaml", "--engine", "docker"])
        .exits(4)
        .says("no container engine answers: /nowhere/docker.sock does not exist")
        .says("hint: install and start Docker or Podman");
    assert!(!folder.has_runs());
}

fn no_daemon_falls_back() {
    let folder = job::folder("exit 0", "").env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    folder
        .pipe(&["run", "job.yaml"])
        .exits(0)
        .says("docker is not available (")
        .says("using the engine process")
        .says("engine: process");
    assert_eq!(folder.show()["engine"], "process");
}

/// A command that is written for an image has the rights of nobody there, and those of the user here.
fn no_daemon_for_an_image() {
    let folder = job::folder("exit 0", "").env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    folder.write(
        "command.yaml",
        "version: 1\nname: a\ncommand: [touch, here]\ncontainer: {gpus: 0, image: image/job.Dockerfile}\n",
    );
    folder.pipe(&["run", "command.yaml"]).exits(4).says("the command names an image").says("--engine process");
    assert!(!folder.has_runs() && !folder.path().join("here").exists());
    folder.pipe(&["run", "command.yaml", "--engine", "process"]).exits(0);
}

/// The trainer then limits itself, and is told to.
fn no_memory_limit() {
    const CAN: &str = r#""MemoryLimit":true,"SwapLimit":true"#;
    // A key of another name takes the letter that `false` has more than `true`.
    const CANNOT: &str = r#""MemoryLimit":false,"SwapLimi":true"#;
    let folder = job::folder("exit 0", "");
    let socket = folder.path().join("docker.sock");
    change_answers(&socket, usize::MAX, CAN, CANNOT);
    let folder = folder.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    let doctor = folder.pipe(&["doctor"]);
    assert!(doctor.stdout.contains("it cannot hold containers to container.memory"), "{}", doctor.stdout);
    let limit =
        "the engine docker does not limit memory: the trainer limits its own allocations to container.memory (64m)";
    folder.pipe(&["run", "job.yaml", "--engine", "docker"]).exits(0).says(limit);
    let spec: serde_json::Value = serde_json::from_str(&folder.read_run("attempts/01/spec.json")).unwrap();
    assert_eq!(spec["memory"]["limit"], "64m");
}

/// The daemon still works on what a killed `pipe` asked for, and gives the name away only when it is done.
fn name_is_taken() {
    let folder = job::folder("exit 0", "");
    let socket = folder.path().join("docker.sock");
    change_answers(&socket, 3, "HTTP/1.1 201 Created", "HTTP/1.1 409 Taken..");
    let folder = folder.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    folder.pipe(&["run", "job.yaml", "--engine", "docker"]).exits(0);
    assert!(folder.containers().is_empty());
}

fn no_listener() {
    let folder = job::folder("exit 0", "");
    let socket = folder.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let folder = folder.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    folder
        .pipe(&["run", "job.yaml", "--engine", "docker"])
        .exits(4)
        .says("dead.sock is there, but no daemon listens on it")
        .says("hint: start the daemon");
}

/// A copy of `pipe` that any user can reach.
fn copied_pipe(folder: &Folder) -> PathBuf {
    let copy = folder.path().join("pipe");
    // By a program of its own: what this one has open for writing, a child that another test starts has open as well.
    let program = crate::harness::folder::pipe();
    assert!(Command::new("cp").arg(program).arg(&copy).status().unwrap().success());
    copy
}

/// What the container writes is the user's, although it has another name for the user.
fn rootless() {
    let folder = job::folder("walk 12 1 4", "train: {batch: 8}\n");
    let own = Command::new("chown").args(["-R", "65534:65534"]).arg(folder.path()).status().unwrap();
    assert!(own.success());
    let run = |args: &[&str]| {
        let mut command = folder.other_command(copied_pipe(&folder));
        let (trainer, cache) = (folder.path().join("image/job"), folder.path().join("cache"));
        command.args(args).uid(65534).gid(65534).env("HOME", folder.path());
        command.env("PIPE_TRAINER", trainer).env("PIPE_CACHE", cache);
        Answer::new(format!("pipe {} as nobody", args.join(" ")), command.output().unwrap())
    };
    let doctor = run(&["doctor"]);
    assert!(doctor.stdout.contains("podman ") && doctor.stdout.contains("engine.sock, rootless"), "{doctor}");
    run(&["run", "job.yaml"]).exits(0).says("engine: docker (podman ");
    crate::walk::expect_undisturbed(&folder);
    let weights = folder.run_folder().join("model/weights");
    assert_eq!(std::fs::metadata(weights).unwrap().uid(), 65534);
}

fn no_permission() {
    let folder = job::folder("exit 0", "");
    let socket = folder.path().join("closed.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    Command::new("chmod").arg("000").arg(&socket).status().unwrap();
    let folder = folder.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    let mut command = folder.command(&["run", "job.yaml", "--engine", "docker"]);
    if root() {
        // Root may open anything, so another user tries, with a copy of the program that this user can reach.
        command = Command::new(copied_pipe(&folder));
        command.args(["run", "job.yaml", "--engine", "docker"]).current_dir(folder.path()).uid(65534).gid(65534);
        command.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    }
    Answer::new("pipe run as nobody".to_owned(), command.output().unwrap())
        .exits(4)
        .says("no permission on ")
        .says("hint: add yourself to its group");
}

fn no_trainer() {
    let folder = job::folder("exit 0", "").env("PIPE_TRAINER", "/nowhere/trainer");
    folder
        .pipe(&["run", "job.yaml", "--engine", "process"])
        .exits(4)
        .says("the trainer program was not found: /nowhere/trainer")
        .says("hint: build it with `make build`");
}

fn no_gpu() {
    let folder = job::folder("exit 0", "");
    for engine in ["docker", "process"] {
        folder
            .pipe(&["run", "job.yaml", "--set", "container.gpus=1", "--engine", engine])
            .exits(4)
            .says("a GPU was requested, but none is available")
            .says("is the NVIDIA driver loaded?")
            .says("hint: fix one of these, or set container.gpus to 0 or auto");
    }
    assert!(!folder.has_runs());
    folder.pipe(&["run", "job.yaml", "--set", "container.gpus=auto", "--engine", "process"]).exits(0);
}

fn daemon_is_the_default() {
    let folder = job::folder("exit 0", "");
    folder.pipe(&["run", "job.yaml"]).exits(0).says("engine: docker");
    assert_eq!(folder.show()["engine"], "docker");
    assert!(folder.containers().is_empty());
}

fn dry_run() {
    let folder = job::folder("exit 0", "train: {batch: 4, accum: 2}\n");
    let plan = folder.pipe(&["run", "job.yaml", "--dry-run"]).exits(0).json();
    assert_eq!(plan["spec"]["train"]["effective_batch"], 8);
    assert_eq!(plan["on"]["engine"], "docker");
    assert!(!folder.has_runs());
}

/// A container that outlives its daemon hears a stop when the daemon is back, whether `pipe` has waited for it or not.
fn stopped_while_away() {
    let folder = job::folder("sleep", "");
    let mut daemon = Daemon::start_with(folder.path(), "{\"live-restore\": true}");
    let folder = folder.env("DOCKER_HOST", daemon.address());
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "sleeping");
    daemon.restart_after(|| {
        running.signal("INT");
        std::thread::sleep(Duration::from_secs(1));
    });
    running.end().exits(130).says("the daemon answers again");
    assert_eq!((folder.show()["status"].as_str(), folder.containers().len()), (Some("stopped"), 0));

    let folder = folder.env("PIPE_ENGINE_WAIT", 1);
    let running = folder.start(&["resume"]);
    folder.wait_for_log(2, "sleeping");
    daemon.restart_after(|| drop(running.end().exits(4).says("hint: start the engine again")));
    folder.pipe(&["stop", "latest"]).exits(0).prints("stopped");
    assert_eq!((folder.show()["status"].as_str(), folder.containers().len()), (Some("stopped"), 0));
}

fn daemon_stopped() {
    let folder = job::folder("sleep", "");
    let mut daemon = Daemon::start(folder.path());
    let folder = folder.env("DOCKER_HOST", daemon.address()).env("PIPE_ENGINE_WAIT", 1);
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "sleeping");
    daemon.stop();
    running
        .end()
        .exits(4)
        .says("the daemon does not answer: waiting for it, at most 1s")
        .says("the connection to the engine was lost: ")
        .says("hint: start the engine again");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["attempts"][0]["outcome"].as_str()), (Some("failed"), None));
}
