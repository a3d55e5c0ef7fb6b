//! Images: named by their content, built once, and a failing build that says where. The container's rights: as the daemon describes
//! them, and as seen from inside.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.test("images::unchanged_is_not_sent_again", Needs::Docker, unchanged);
    suite.test("images::failing_step_is_named", Needs::Docker, failing_step);
    suite.test("images::dockerfile_syntax", Needs::Docker, dockerfile_syntax);
    suite.test("images::missing_dockerfile", Needs::Nothing, missing_dockerfile);
    suite.test("images::pinned_and_not_there", Needs::Docker, pinned);
    suite.test("containers::inspected", Needs::Docker, inspected);
    suite.test("containers::tried_from_inside", Needs::Docker, tried_from_inside);
    suite.test("containers::vanishing_while_it_runs", Needs::Docker, vanishing);
    suite.test("containers::killed_from_outside_is_not_oom", Needs::Docker, killed_from_outside);
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
    folder
        .pipe(&["run", "job.yaml"])
        .exits(5)
        .says("Step 2/")
        .says("the image could not be built at step 3/")
        .says("(RUN [\"/job\", \"nonsense\"])");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["exit_code"].as_u64()), (Some("failed"), Some(5)));
    assert_eq!(run["attempts"], serde_json::json!([]));
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

fn docker(args: &[&str]) -> String {
    let output = Command::new("docker").args(args).output().unwrap();
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
    assert_eq!(host["CapDrop"], serde_json::json!(["ALL"]));
    assert_eq!(host["SecurityOpt"], serde_json::json!(["no-new-privileges"]));
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
    for line in [
        "capabilities 0000000000000000",
        "bounding 0000000000000000",
        "no_new_privileges 1",
        "root_writable false",
        "data_writable false",
        "run_writable false",
        "spec_writable false",
        "own_writable true",
        // No file of the runner is visible.
        "seen attempts,checkpoints,model",
        "seen_of_attempts job,spec.json",
        "interfaces lo",
        "connected false",
        "loopback true",
    ] {
        assert!(log.stdout.lines().any(|said| said == line), "{line:?} is not in\n{log}");
    }
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
