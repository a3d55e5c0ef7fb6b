//! Runs on a real Kubernetes that a pod supervises: nothing of the machine that started them is needed.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Folder, Suite};
use crate::kubernetes::{Namespace, on_kubernetes};
use crate::kubernetes_ends::{LIMITED, SMALL, WIDE_EFFECTIVE, wide};
use crate::small_t5::{curve, same_curve};
use crate::undisturbed::{EFFECTIVE, STEPS, attempts, curve_once, ends_by, is_undisturbed, prepared, train};

pub fn tests(suite: &mut Suite) {
    on_kubernetes(suite, "kubernetes_cluster::supervised", supervised);
    suite.last_is_thorough();
    on_kubernetes(suite, "kubernetes_cluster::supervised_and_stopped", stopped);
    suite.last_is_thorough();
    on_kubernetes(suite, "kubernetes_cluster::supervised_on_a_volume", on_volume);
    suite.last_is_thorough();
}

/// The account of docs/kubernetes.md.
const SUPERVISOR: &str = "kubernetes: {supervisor: supervisor}\n";

/// Ends the process of this machine that follows a run, as a machine that is shut down does.
fn end_follower(folder: &Folder, signal: &str) {
    let owner = folder.read_run(".owner");
    let pid = owner.split_whitespace().next().unwrap();
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
    folder.wait_until("the end of the follower", || folder.show()["status"] == "orphaned");
}

fn is_of_attempt(pod: &Value, attempt: u32) -> bool {
    pod["metadata"]["labels"]["pipe.attempt"].as_str().and_then(|text| text.parse().ok()) == Some(attempt)
}

fn runs(pod: &Value) -> bool {
    let statuses = pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let job = statuses.iter().find(|status| status["name"] == "job");
    job.is_some_and(|job| job["state"]["running"].is_object()) && pod["metadata"]["deletionTimestamp"].is_null()
}

fn wait_for_attempt(namespace: &Namespace, attempt: u32) -> Value {
    namespace.wait_for_pod("that runs", |pod| is_of_attempt(pod, attempt) && runs(pod))
}

/// Whatever either of the two users asked for was given to them by the docs.
fn nothing_was_forbidden(namespace: &Namespace) {
    namespace.nothing_was_forbidden();
    let account = format!("system:serviceaccount:{}:supervisor", namespace.name);
    let requests = namespace.cluster.requests(&account);
    assert!(!requests.is_empty(), "{account} has asked for nothing");
    let forbidden: Vec<&Value> = requests.iter().filter(|it| it["responseStatus"]["code"] == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}

/// Out of memory is retried in the cluster, also after another supervising pod has taken over.
fn supervised(namespace: &Namespace) {
    let alone = wide("container: {gpus: 0, cpus: 1}\n");
    alone.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    let folder = namespace.with(wide(&format!("{LIMITED}{SUPERVISOR}")));
    folder.pipe(&["run", "t5.yaml", "--detach", "--set", "memory.worst_first=false"]).exits(0);
    end_follower(&folder, "-KILL");
    let supervisor = wait_for_attempt(namespace, 0);
    assert_eq!(supervisor["spec"]["automountServiceAccountToken"], true);
    let trains = wait_for_attempt(namespace, 2);
    assert_eq!(trains["spec"]["automountServiceAccountToken"], false);
    let listed = folder.pipe(&["ls"]).exits(0);
    listed.prints("running").prints("pipe attach");
    // SIGTERM ends it, and not what it supervises.
    namespace.admin(&["delete", "pod", supervisor["metadata"]["name"].as_str().unwrap()]);
    assert!(namespace.pods().iter().any(
        |pod| pod["metadata"]["uid"] == trains["metadata"]["uid"] && pod["metadata"]["deletionTimestamp"].is_null()
    ));
    folder.pipe(&["attach", "t5"]).exits(0);
    let attempts = attempts(&folder);
    ends_by(&attempts, "host_memory");
    same_curve(&curve_once(&folder), &curve(&alone.run_folder()), WIDE_EFFECTIVE, 1e-4);
    assert!(folder.run_folder().join("model/config.json").is_file());
    namespace.is_empty();
    nothing_was_forbidden(namespace);
}

/// A run that nobody follows is stopped from here, and resumed. It trains long enough to be found training each time.
fn stopped(namespace: &Namespace) {
    let long = train(4 * STEPS);
    let alone = prepared(&format!("{long}container: {{gpus: 0, cpus: 1}}\n"));
    alone.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    let folder = namespace.with(prepared(&format!("{long}{SMALL}{SUPERVISOR}")));
    folder.pipe(&["run", "t5.yaml", "--detach"]).exits(0);
    end_follower(&folder, "-TERM");
    wait_for_attempt(namespace, 1);
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    assert_eq!(folder.show()["status"], "stopped");
    namespace.is_empty();
    folder.pipe(&["resume", "--detach"]).exits(0);
    wait_for_attempt(namespace, 2);
    folder.pipe(&["stop", "--now", "t5"]).exits(0).prints("stopped");
    namespace.is_empty();
    let running = folder.start(&["resume"]);
    wait_for_attempt(namespace, 3);
    running.end().exits(0);
    same_curve(&curve_once(&folder), &curve(&alone.run_folder()), EFFECTIVE, 1e-5);
    namespace.is_empty();
    nothing_was_forbidden(namespace);
}

/// The record of a run is on the volume: another supervising pod continues where the lost one was, and another machine can follow it.
fn on_volume(namespace: &Namespace) {
    let claim = namespace.claim();
    let more = "kubernetes: {supervisor: supervisor, volume: claim/training}\n";
    let folder = namespace.with(prepared(&format!("{}{SMALL}{more}", train(STEPS))));
    folder.pipe(&["run", "t5.yaml", "--detach"]).exits(0);
    end_follower(&folder, "-KILL");
    wait_for_attempt(namespace, 1);
    namespace.wait_until("a step", || claim.size_of_events(1) > 5000);
    let supervisor = wait_for_attempt(namespace, 0);
    let name = supervisor["metadata"]["name"].as_str().unwrap();
    namespace.admin(&["delete", "pod", name, "--grace-period=0", "--force"]);
    folder.pipe(&["attach", "t5"]).exits(0);
    let attempts = attempts(&folder);
    assert_eq!(attempts.len(), 1, "{attempts:#?}");
    is_undisturbed(&folder);
    namespace.is_empty();
    elsewhere(namespace);
    nothing_was_forbidden(namespace);
}

/// A machine that has nothing of the run.
fn elsewhere(namespace: &Namespace) {
    let folder = namespace.with(prepared(&format!("{}{SMALL}{SUPERVISOR}", train(STEPS))));
    folder.pipe(&["run", "t5.yaml", "--detach"]).exits(0);
    end_follower(&folder, "-KILL");
    std::fs::remove_dir_all(folder.path().join("runs")).unwrap();
    let other = namespace.with(Folder::new());
    other.pipe(&["attach", "kubernetes://t5"]).exits(0);
    is_undisturbed(&other);
    assert!(other.run_folder().join("model/config.json").is_file());
    namespace.is_empty();
}
