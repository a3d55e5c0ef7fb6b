//! Images: named by their content, built once, and a failing build that says where. The container's rights: as the daemon describes
//! them, and as seen from inside.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{Needs, Suite, daemons};
use crate::stand_ins::job;
use crate::walk::{expect_undisturbed, walk};

pub fn tests(suite: &mut Suite) {
    suite.each_daemon("images::unchanged_is_not_sent_again", false, unchanged);
    suite.each_daemon("images::failing_step_is_named", false, failing_step);
    suite.test("images::dockerfile_syntax", Needs::Docker, dockerfile_syntax);
    suite.test("images::missing_dockerfile", Needs::Nothing, missing_dockerfile);
    suite.test("images::old_ones_are_pruned", Needs::Nothing, pruned);
    suite.test("images::pinned_and_not_there", Needs::Docker, pinned);
    suite.test("images::replaced_between_two_attempts", Needs::Docker, replaced);
    suite.test("containers::inspected", Needs::Docker, inspected);
    suite.each_daemon("containers::tried_from_inside", false, tried_from_inside);
    suite.each_daemon("containers::vanishing_while_it_runs", false, vanishing);
    suite.each_daemon("containers::killed_from_outside_is_not_oom", false, killed_from_outside);
}

fn unchanged() {
    let folder = job::folder("exit 0", "");
    folder.write("image/mark", format!("{:?}", std::time::SystemTime::now()));
    let build = || folder.pipe(&["image", "build", "image/job.Dockerfile", "--json"]).exits(0).json();
    let (first, second) = (build(), build());
    assert_eq!((first["built"].as_bool(), second["built"].as_bool()), (Some(true), Some(false)));
    assert_eq!(first["hash"], second["hash"]);
    assert_eq!(first["id"], second["id"]);
    folder.pipe(&["run", "job.yaml"]).exits(0).says("(unchanged)").says_not("building the image");
    let name = first["image"].as_str().unwrap();
    folder.pipe(&["image", "ls"]).exits(0).prints(name);
    folder.write("image/mark", "another");
    assert_ne!(build()["hash"], first["hash"]);
}

fn failing_step() {
    let folder = job::folder("exit 0", "");
    folder.write("image/job.Dockerfile", "FROM scratch\nCOPY job /job\nRUN [\"/job\", \"nonsense\"]\n");
    let answer = folder
        .pipe(&["run", "job.yaml"])
        .exits(5)
        .says("the image could not be built at step 3/")
        .says("(RUN [\"/job\", \"nonsense\"])");
    assert!(answer.stderr.to_lowercase().contains("step 2/"), "{answer}");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["exit_code"].as_u64()), (Some("failed"), Some(5)));
    assert_eq!(run["attempts"], json!([]));
}

fn dockerfile_syntax() {
    let folder = job::folder("exit 0", "");
    folder.write("image/job.Dockerfile", "FROM scratch\nCOPPY job /job\n");
    folder
        .pipe(&["image", "build", "image/job.Dockerfile"])
        .exits(5)
        .says("the image could not be built")
        .says("COPPY");
}

fn missing_dockerfile() {
    let folder = job::folder("exit 0", "");
    std::fs::remove_file(folder.path().join("image/job.Dockerfile")).unwrap();
    folder.pipe(&["run", "job.yaml"]).exits(3).says("container.image: no such file: image/job.Dockerfile");
}

fn pinned() {
    let folder = job::folder("exit 0", "");
    let image = format!("container.image=nowhere@sha256:{}", "0".repeat(64));
    folder
        .pipe(&["run", "job.yaml", "--set", &image])
        .exits(5)
        .says("the engine does not have the image nowhere@sha256:");
}

/// A run has the image that it began with, whatever its name means by the time of the retry.
fn replaced() {
    let folder = walk(50);
    let build = || {
        let built = folder.pipe(&["image", "build", "image/job.Dockerfile", "--json"]).exits(0).json();
        built["image"].as_str().unwrap().to_owned()
    };
    let first = build();
    folder.write("image/job.Dockerfile", "FROM scratch\nCOPY job /job\nENTRYPOINT [\"/nowhere\"]\n");
    let other = build();
    let name = format!("pipe-test-replaced:{}", std::process::id());
    docker(&["tag", &first, &name]);
    let running = folder.start(&["run", "job.yaml", "--set", &format!("container.image={name}")]);
    folder.wait_until("a container", || !folder.containers().is_empty());
    docker(&["tag", &other, &name]);
    running.end().exits(0);
    expect_undisturbed(&folder);
    docker(&["image", "rm", &name]);
}

fn docker(args: &[&str]) -> String {
    let output = daemons::docker().args(args).output().unwrap();
    assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn inspected() {
    let folder = job::folder("sleep", "");
    let settings = ["--set", "container.shm=32m", "--set", "container.cpus=0.5"];
    let running = folder.start(&[&["run", "job.yaml"][..], &settings].concat());
    folder.wait_for_log(1, "sleeping");
    let id = folder.containers()[0].clone();
    let inspected: Value = serde_json::from_str(&docker(&["inspect", &id])).unwrap();
    running.signal("INT");
    running.end().exits(130);
    let (config, host) = (&inspected[0]["Config"], &inspected[0]["HostConfig"]);
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    assert_eq!((host["ReadonlyRootfs"].as_bool(), host["Privileged"].as_bool()), (Some(true), Some(false)));
    assert_eq!((host["NetworkMode"].as_str(), config["NetworkDisabled"].as_bool()), (Some("none"), Some(true)));
    assert_eq!((host["Memory"].as_u64(), host["MemorySwap"].as_u64()), (Some(64 << 20), Some(64 << 20)));
    assert_eq!((host["ShmSize"].as_u64(), host["NanoCpus"].as_u64()), (Some(32 << 20), Some(500_000_000)));
    let uid = String::from_utf8(Command::new("id").arg("-u").output().unwrap().stdout).unwrap();
    assert!(config["User"].as_str().unwrap().starts_with(&format!("{}:", uid.trim())));
    assert_eq!(config["Labels"]["pipe.attempt"], "1");
    let mut writable: Vec<&str> = inspected[0]["Mounts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|mount| mount["RW"] == true)
        .map(|mount| mount["Destination"].as_str().unwrap())
        .collect();
    writable.sort_unstable();
    assert_eq!(writable, ["/run/pipe/attempts/01/job", "/run/pipe/checkpoints", "/run/pipe/model"]);
    assert_eq!(host["PidsLimit"], 8192);
}

fn tried_from_inside() {
    let folder = job::folder("probe", "");
    folder.pipe(&["run", "job.yaml"]).exits(0);
    let log = folder.pipe(&["logs"]).exits(0);
    // No file of the runner is visible. Podman has a file system in memory at /run, in which the folder lies.
    let seen = match daemons::address().is_some_and(|address| address.contains("podman")) {
        true => ["run_writable true", "seen attempts,checkpoints,model,probe"],
        false => ["run_writable false", "seen attempts,checkpoints,model"],
    };
    let same = [
        "capabilities 0000000000000000",
        "bounding 0000000000000000",
        "no_new_privileges 1",
        "root_writable false",
        "data_writable false",
        "spec_writable false",
        "own_writable true",
        "seen_of_attempts job,spec.json",
        "interfaces lo",
        "connected false",
        "loopback true",
    ];
    for line in same.into_iter().chain(seen) {
        assert!(log.stdout.lines().any(|said| said == line), "{line:?} is not in\n{log}");
    }
    assert!(!folder.run_folder().join("probe").exists());
}

fn vanishing() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "sleeping");
    docker(&["rm", "--force", &folder.containers()[0]]);
    running.end().exits(6).says("training failed: ");
    let run = folder.show();
    assert_eq!(run["status"], "failed");
    let cause = run["attempts"][0]["cause"].as_str().unwrap();
    assert!(["vanished", "killed"].contains(&cause), "{run:#}");
}

fn killed_from_outside() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "sleeping");
    docker(&["kill", "--signal", "KILL", &folder.containers()[0]]);
    running.end().exits(6).says("killed by SIGKILL (exit code 137), not because of memory");
    let run = folder.show();
    assert_eq!((run["attempts"].as_array().unwrap().len(), run["attempts"][0]["cause"].as_str()), (1, Some("killed")));
    assert!(folder.containers().is_empty());
}

/// With a daemon that has four images, one of them old and in use, one old and without a name: no image of this machine is at risk.
fn pruned() {
    let folder = job::folder("exit 0", "");
    let cache = folder.path().join("cache");
    let folder = folder.env("PIPE_CACHE", cache.display());
    let socket = folder.path().join("daemon.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let requests = asked.clone();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|client| answer(client, &requests)));
    let folder = folder.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    folder.pipe(&["prune", "--dry-run"]).exits(0).prints("pipe-old:1").prints("pipe-used:1").prints("3 entries");
    folder.pipe(&["prune", "--yes"]).exits(0).says("kept image pipe-used:1: it is in use").prints("removed 2 entries");
    let removed: Vec<String> =
        asked.lock().unwrap().iter().filter(|line: &&String| line.starts_with("DELETE")).cloned().collect();
    assert_eq!(removed.len(), 3, "{removed:?}");
    assert!(removed.iter().any(|line| line.contains("1234")), "{removed:?}");
    assert!(removed.iter().all(|line| !line.contains("pipe-new") && !line.contains("force=true")), "{removed:?}");
}

/// What a daemon answers to one client.
fn answer(client: UnixStream, requests: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut client = client;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut header = String::new();
        while reader.read_line(&mut header).unwrap_or(0) > 2 {
            header.clear();
        }
        requests.lock().unwrap().push(line.trim().to_owned());
        let image = |id: &str, name: &str, created: u64| {
            json!({"Id": format!("sha256:{id}"), "ParentId": "", "RepoTags": [name], "RepoDigests": [], "Created": created,
                   "Size": 1000, "SharedSize": -1, "Labels": {}, "Containers": -1})
        };
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let (status, body) = match line.as_str() {
            line if line.starts_with("DELETE") && line.contains("pipe-used") => {
                ("409 Conflict", json!({"message": "a container uses it"}))
            }
            line if line.starts_with("DELETE") => ("200 OK", json!([{"Deleted": "sha256:old"}])),
            line if line.contains("/images/json") => {
                let old =
                    [image("1", "pipe-old:1", 1), image("2", "pipe-used:1", 1), image("1234", "<none>:<none>", 1)];
                let new = [image("4", "pipe-new:1", now), image("5", "<none>:<none>", now)];
                ("200 OK", json!([&old[..], &new[..]].concat()))
            }
            line if line.contains("/containers/json") => ("200 OK", json!([])),
            _ => ("200 OK", json!({"ApiVersion": "1.41", "Version": "20.10", "ServerVersion": "20.10"})),
        };
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        if client.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}
