//! Before the first run: `pipe doctor`.

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite, job};

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("starting::{name}"), Needs::Nothing, test);
    test("doctor_without_docker", without_docker);
    test("doctor_without_anything", without_anything);
    test("doctor_where_nothing_can_be_written", unwritable);
    suite.test("starting::doctor_misses_the_way_of_a_card", Needs::DockerWithoutGpu, card_without_a_way);
    suite.test("starting::doctor_of_a_daemon", Needs::Docker, daemon);
}

/// What the doctor says of `name`: status, and all of it.
fn check(checks: &Value, name: &str) -> (String, String) {
    let found = checks.as_array().unwrap().iter().find(|check| check["name"] == name);
    let found = found.unwrap_or_else(|| panic!("no check {name} in {checks:#}"));
    (found["status"].as_str().unwrap().to_owned(), found.to_string())
}

const NOWHERE: &str = "unix:///nowhere/docker.sock";

fn without_docker() {
    let folder = job::folder("fit 1", "").env("DOCKER_HOST", NOWHERE);
    let checks = folder.pipe(&["doctor", "--json"]).exits(0).json();
    let (status, engine) = check(&checks, "engine");
    assert!(
        status == "note" && engine.contains("/nowhere/docker.sock") && engine.contains("--engine process"),
        "{engine}"
    );
    for name in ["trainer", "libtorch", "shm", "disk", "ledger", "cache"] {
        assert_eq!(check(&checks, name).0, "ok", "{checks:#}");
    }
    assert!(check(&checks, "shm").1.contains("container.shm"), "{checks:#}");
    assert!(check(&checks, "libtorch").1.contains("for the CPU alone"), "{checks:#}");
    for entry in checks.as_array().unwrap() {
        let mut keys: Vec<&String> = entry.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(keys, ["found", "hint", "name", "status"]);
    }
    folder.pipe(&["doctor"]).exits(0).prints("note     engine   no container engine answers").prints("hint: install");
}

fn without_anything() {
    let folder = Folder::new().env("DOCKER_HOST", NOWHERE).env("PIPE_TRAINER", "/nowhere/trainer");
    let answer = folder.pipe(&["doctor", "--json"]).exits(4).says("missing: engine, trainer");
    let checks = answer.json();
    assert_eq!((check(&checks, "engine").0.as_str(), check(&checks, "trainer").0.as_str()), ("missing", "missing"));
    folder.pipe(&["doctor"]).exits(4).prints("missing  trainer").prints("make build");
}

fn unwritable() {
    let folder = job::folder("fit 1", "").env("DOCKER_HOST", NOWHERE);
    folder.write("ledger", "this is no database");
    // Nothing can be made in what is no folder.
    let folder = folder.env("PIPE_RUNS", "job.yaml/runs").env("PIPE_CACHE", "job.yaml/cache");
    let checks = folder.pipe(&["doctor", "--json"]).exits(4).says("missing: disk").json();
    let (status, disk) = check(&checks, "disk");
    assert!(status == "missing" && disk.contains("PIPE_RUNS"), "{disk}");
    for (name, word) in [("ledger", "PIPE_LEDGER"), ("cache", "PIPE_CACHE")] {
        let (status, found) = check(&checks, name);
        assert!(status == "note" && found.contains(word), "{found}");
    }
}

fn card_without_a_way() {
    let folder = job::on_card("card free", "", "16384 16384\n");
    let checks = folder.pipe(&["doctor", "--json"]).exits(4).says("missing: gpu").json();
    let (_, gpu) = check(&checks, "gpu");
    assert!(gpu.contains("Test Card is here, and no way leads it into a container"), "{gpu}");
    for (name, word) in [("cdi", "CDI"), ("runtime", "nvidia-ctk runtime configure"), ("devices", "/dev/nvidiactl")] {
        let (status, found) = check(&checks, name);
        assert!(status == "note" && found.contains(word), "{found}");
    }
    let (status, libtorch) = check(&checks, "libtorch");
    assert!(status == "note" && libtorch.contains("cannot use Test Card"), "{libtorch}");
}

fn daemon() {
    let checks = job::folder("fit 1", "").pipe(&["doctor", "--json"]).json();
    let (_, engine) = check(&checks, "engine");
    assert!(engine.contains(", API 1."), "{engine}");
    let (_, images) = check(&checks, "images");
    assert!(images.contains(" free for images in /"), "{images}");
}
