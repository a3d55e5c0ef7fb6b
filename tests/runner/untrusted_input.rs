//! Endless files, secrets in detailed output, signals while files are read, runs that are removed, engine sockets.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use crate::harness::{Answer, Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("untrusted_input::{name}"), Needs::Nothing, test);
    test("a_pipeline_that_never_ends", endless);
    test("ctrl_c_while_data_is_hashed", hashing);
    test("a_run_whose_engine_does_not_answer_is_kept", removing);
    test("rm_takes_the_run_before_it_removes_it", owned);
    test("details_show_no_secrets", secrets_in_process);
    test("a_mount_of_the_engines_socket_is_refused", socket);
    test("an_engine_at_an_unusual_path_is_refused", unnamed_socket);
    test("a_pipe_in_a_run_folder_is_not_waited_for", planted_pipes);
    suite.test("untrusted_input::containerd_at_an_unusual_path_is_refused", Needs::OwnDaemon, containerd);
    suite.test("untrusted_input::details_show_no_secrets_in_docker", Needs::Docker, secrets_in_docker);
    suite.test("untrusted_input::ctrl_c_while_a_context_is_hashed", Needs::Docker, context);
}

/// A folder with a socket is a mount like others, unless the socket answers as an engine.
fn unnamed_socket() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("data/deep")).unwrap();
    let listener = UnixListener::bind(folder.path().join("data/deep/x")).unwrap();
    let write = |more: &str| {
        let mounts = format!("mounts: [{{host: data, container: /data}}]{more}");
        folder.write(
            "job.yaml",
            format!("{{version: 1, name: c, command: [\"true\"], container: {{image: \"none:1\", {mounts}}}}}"),
        );
    };
    write("");
    folder.pipe(&["check", "job.yaml"]).exits(0);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap_or_default();
            stream.write_all(b"HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\nContent-Length: 2\r\n\r\nOK").ok();
        }
    });
    let refused = folder.pipe(&["check", "job.yaml"]).exits(3).says("data/deep/x");
    refused.says("container.mounts.0.host").says("set container.engine_socket: true");
    write(", engine_socket: true");
    folder.pipe(&["check", "job.yaml"]).exits(0);
}

/// A real one, which Docker brings: as an engine, and by the interface that CRI-O has as well.
fn containerd() {
    let folder = Folder::new();
    let data = folder.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let at = |name: &str| data.join(name).display().to_string();
    let (root, state, socket, other) = (at("root"), at("state"), at("x"), at("y"));
    let settings = format!(
        "version = 2\nroot = {root:?}\nstate = {state:?}\n[grpc]\naddress = {socket:?}\n[ttrpc]\naddress = {other:?}\n"
    );
    folder.write("containerd.toml", settings);
    folder.write(
        "job.yaml",
        "{version: 1, name: c, command: [\"true\"], container: {image: \"none:1\", mounts: [{host: data, container: /data}]}}",
    );
    folder.pipe(&["check", "job.yaml"]).exits(0);
    let log = File::create(folder.path().join("log")).unwrap();
    let mut daemon = Command::new("containerd")
        .arg("--config")
        .arg(folder.path().join("containerd.toml"))
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    folder.wait_until("containerd serves", || folder.read("log").contains("successfully booted"));
    let refused = folder.pipe(&["check", "job.yaml"]);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    refused.exits(3).says("data/x").says("container.mounts.0.host");
}

/// In a folder of runs that several people write to, none of them can make the commands of the others wait.
fn planted_pipes() {
    let folder = Folder::new();
    folder.write("job.yaml", "{version: 1, name: c, engine: process, command: [echo, hi], container: {gpus: 0}}");
    folder.pipe(&["run", "job.yaml"]).exits(0);
    let run = folder.run_folder();
    for name in
        ["run.json", ".owner", "events.jsonl", "resolved.yaml", "pipeline.yaml", "lock.json", "attempts/01/log.txt"]
    {
        let file = run.join(name);
        let content = std::fs::read(&file).unwrap_or_default();
        std::fs::remove_file(&file).ok();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        let id = run.file_name().unwrap().to_str().unwrap();
        for args in [
            &["ls"][..],
            &["show", id],
            &["logs", id],
            &["report", id, "--out", "report.html"],
            &["diff", id, id],
            &["resume", id],
            &["prune", "--dry-run"],
        ] {
            // It ends within two minutes, whatever it says.
            folder.start(args).end();
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, content).unwrap();
    }
    // Nor is an empty variable of a script the name of a run.
    folder.pipe(&["rm", "--force", ""]).exits(2).says("no run \"\"");
    assert!(run.exists());
}

fn endless() {
    let folder = Folder::new();
    Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap();
    File::create(folder.path().join("large.yaml")).unwrap().set_len(3 << 30).unwrap();
    for (file, says) in [
        ("/dev/zero", "/dev/zero is a device, not a file"),
        ("pipe", "pipe is a pipe, not a file"),
        (".", ". is a folder, not a file"),
        ("large.yaml", "large.yaml is 3221225472 bytes; the limit for such a file is 1048576 bytes"),
    ] {
        for command in ["check", "run", "plan"] {
            folder.start(&[command, file]).end().exits(3).says(says);
        }
    }
    // Data whose name is as it should be.
    Command::new("mkfifo").arg(folder.path().join("pipe.jsonl")).status().unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("zero.jsonl")).unwrap();
    for (file, says) in [("pipe.jsonl", "is a pipe"), ("zero.jsonl", "is a device")] {
        let yaml = format!("version: 1\nname: x\nmodel: {{arch: t5, config: {{}}}}\ndata: {{train: {file}}}\n");
        folder.write("data.yaml", yaml);
        let says = format!("data.train: {file} {says}; allowed: a file or a folder");
        for command in ["check", "run"] {
            folder.start(&[command, "data.yaml"]).end().exits(3).says(&says);
        }
    }
    // Beside a pipeline.
    Command::new("mkfifo").arg(folder.path().join(".env")).status().unwrap();
    folder.pipe(&["check", "nowhere.yaml"]).exits(1);
    folder.write("x.yaml", "version: 1\n");
    folder.pipe(&["check", "x.yaml"]).exits(3);
}

/// A file that has only a size: reading it takes many times longer than a test waits for the end of a program.
fn sparse(folder: &Folder, name: &str) {
    File::create(folder.path().join(name)).unwrap().set_len(4 << 40).unwrap();
}

/// Interrupts `pipe` once it reads the file.
fn interrupted(folder: &Folder, args: &[&str], file: &str) {
    let mut running = folder.start(args);
    let (id, path) = (running.id(), folder.path().join(file));
    folder.wait_until("the hashing", || running.has_ended() || reads(id, &path));
    running.signal("INT");
    running.end().exits(130);
}

/// Whether a process has the file open or mapped.
fn reads(id: u32, path: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let maps = std::fs::read_to_string(format!("/proc/{id}/maps")).unwrap_or_default();
    maps.contains(path.to_str().unwrap()) || open.filter_map(|entry| entry.path().read_link().ok()).any(|at| at == path)
}

fn hashing() {
    let folder = job::folder("exit 0", "");
    sparse(&folder, "eval.jsonl");
    let text = folder.read("job.yaml").replace("{train: train.jsonl}", "{train: train.jsonl, eval: eval.jsonl}");
    folder.write("job.yaml", text);
    let mut running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    let log = || std::fs::read_to_string(folder.run_folder().join("pipe.log")).unwrap_or_default();
    let is_hashed = || folder.state().is_some() && log().contains("hashing 4.0 TiB");
    folder.wait_until("the hashing", || running.has_ended() || is_hashed());
    running.signal("INT");
    running.end().exits(130);
    assert_eq!(folder.show()["status"], "stopped");
    assert!(is_hashed());
}

fn context() {
    let folder = job::folder("exit 0", "");
    sparse(&folder, "image/large");
    for args in [
        &["run", "job.yaml", "--engine", "docker"][..],
        &["image", "build", "image/job.Dockerfile"],
        &["run", "job.yaml", "--engine", "docker", "--dry-run"],
    ] {
        interrupted(&folder, args, "image/large");
    }
}

/// A run of the process engine that failed, made to look like one of Docker.
fn failed(engine: &str) -> Folder {
    let folder = job::folder("exit 1", "").env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(6);
    let path = folder.run_folder().join("run.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"engine\": \"process\"", &format!("\"engine\": \"{engine}\""))).unwrap();
    folder
}

fn removing() {
    let folder = failed("docker");
    let answer = folder.pipe(&["rm", "latest"]).exits(4).says("was not removed: its engine");
    answer.says("hint: start the engine and try again; if it is gone for good: `pipe rm --force job-");
    assert!(folder.run_folder().join("run.json").is_file());
    folder.pipe(&["rm", "--force", "latest"]).exits(0).says("warning: if job-").prints("removed job-");
    assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 0);
    // A run without containers needs no engine.
    failed("process").pipe(&["rm", "latest"]).exits(0).prints("removed job-");
}

fn owned() {
    let folder = failed("process");
    let owner =
        File::options().write(true).create(true).truncate(false).open(folder.run_folder().join(".owner")).unwrap();
    // Reading the state does not take the run; removing it does.
    owner.lock_shared().unwrap();
    folder.pipe(&["rm", "latest"]).exits(1).says("is still running");
    assert!(folder.run_folder().join("run.json").is_file());
    drop(owner);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    folder.pipe(&["rm", "latest", &id]).exits(0);
}

const SECRETS: [&str; 3] = ["hunter2-in-env", "hunter2-in-hook", "hunter2-in-tracking"];

fn secretive() -> Folder {
    let more = "notify: [{webhook: \"${HOOK}\", on: [finished, failed]}]\ntrack: {mlflow: \"${TRACKING}\"}\n";
    let folder = job::folder("exit 0", more);
    let text = folder.read("job.yaml").replace("env: {JOB: exit 0}", "env: {JOB: exit 0, TOKEN: \"${TOKEN}\"}");
    folder.write("job.yaml", text);
    folder.write(
        ".env",
        "HOOK=http://user:hunter2-in-hook@127.0.0.1:1/hook\nTRACKING=http://user:hunter2-in-tracking@127.0.0.1:1\n",
    );
    folder.env("TOKEN", SECRETS[0])
}

fn shows_none(answer: &Answer) {
    for secret in SECRETS {
        assert!(!answer.stdout.contains(secret) && !answer.stderr.contains(secret), "{secret} in {answer}");
    }
}

fn secrets_of(engine: &str) {
    let folder = secretive();
    let args = ["run", "job.yaml", "--engine", engine, "-vv"];
    shows_none(&folder.pipe(&args).exits(0));
    shows_none(&folder.env("RUST_LOG", "trace").pipe(&args).exits(0));
}

fn secrets_in_process() {
    secrets_of("process");
}

fn secrets_in_docker() {
    secrets_of("docker");
}

/// A file, where its mounts are named in messages, and the commands that refuse it.
type Refused<'a> = (&'a str, String, &'a [&'a [&'a str]]);

fn socket() {
    let folder = job::folder("exit 0", "");
    let training = folder.read("job.yaml");
    let place = folder.path().join("engine");
    std::fs::create_dir(&place).unwrap();
    let _listener = UnixListener::bind(place.join("own.sock")).unwrap();
    symlink(&place, folder.path().join("innocent")).unwrap();
    std::fs::hard_link(place.join("own.sock"), folder.path().join("data.sock")).unwrap();
    let folder = folder.env("DOCKER_HOST", format!("unix://{}", place.join("own.sock").display()));
    let here = folder.path().display().to_string();
    let files = |host: &str, more: &str| -> [Refused<'static>; 4] {
        let mounts = format!("mounts: [{{host: {host}, container: /x}}]{more}");
        let command = format!("command: [\"true\"], container: {{image: \"none:1\", {mounts}}}");
        let of_training = mounts.replace(", engine_socket", "\n  engine_socket");
        [
            ("job.yaml", training.replace("  env:", &format!("  {of_training}\n  env:")), &[&["check"], &["run"]]),
            ("command.yaml", format!("{{version: 1, name: c, {command}}}"), &[&["check"], &["run"]]),
            ("steps.yaml", format!("{{version: 1, name: s, steps: {{a: {{{command}}}}}}}"), &[&["check"], &["run"]]),
            (
                "study.yaml",
                format!(
                    "{{version: 1, tune: t, pipeline: {{version: 1, name: c, {command}}}, budget: {{trials: 1}}, \
                     objective: {{metric: loss, direction: minimize}}, space: {{train.batch: [1, 2]}}}}"
                ),
                &[&["check"], &["tune", "run"]],
            ),
        ]
    };
    let places = ["", "", "steps.a.", "pipeline."];
    let hosts = [
        "/",
        "/run",
        "/var",
        "/var/run",
        "/var/run/docker.sock",
        "/run/containerd/containerd.sock",
        &here,
        "engine",
        "engine/own.sock",
        "innocent",
        "innocent/../engine",
        "data.sock",
    ];
    // Where /var/run is a link to /run, nothing of it lies below /var.
    let is_one = |host: &&str| match *host {
        "/var" => !Path::new("/var/run").is_symlink() && Path::new("/var/run/docker.sock").exists(),
        host => Path::new(host).exists() || !host.starts_with('/'),
    };
    for host in hosts.iter().copied().filter(is_one) {
        for ((name, text, commands), place) in files(host, "").into_iter().zip(places) {
            folder.write(name, text);
            let is_run = host == "engine/own.sock";
            for command in if is_run { commands } else { &commands[..1] } {
                let answer = folder.pipe(&[*command, &[name]].concat()).exits(3);
                answer
                    .says(&format!("{place}container.mounts.0.host"))
                    .says("which means root on this machine")
                    .says("set container.engine_socket: true");
            }
        }
        assert!(!folder.has_runs());
    }
    for (host, more) in [("/run", ", engine_socket: true"), ("image", "")] {
        for (name, text, _) in files(host, more) {
            folder.write(name, text);
            folder.pipe(&["check", name]).exits(0);
        }
    }
}
