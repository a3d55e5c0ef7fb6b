//! Every way in which a real Kubernetes ends a pod, each with the curve of a run that nothing happened to.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Folder, Suite};
use crate::kubernetes::{Namespace, on_kubernetes};
use crate::small_t5::{curve, folder, make_rows_longer, same_curve};
use crate::undisturbed::{STEPS, attempts, curve_once, ends_by, is_undisturbed, prepared, train, train_with};

/// Of trainings that run out of memory.
pub const WIDE_EFFECTIVE: u64 = 48;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, often: bool, test: fn(&Namespace)| {
        on_kubernetes(suite, &format!("kubernetes_cluster::{name}"), test);
        if !often {
            suite.last_is_thorough();
        }
    };
    test("a_lost_node_that_comes_back", false, lost_node);
    test("out_of_memory", false, out_of_memory);
    test("drained_preempted_and_deleted", false, moved);
    test("the_time_is_over", false, deadline);
    test("a_restarted_api_server", false, restarted_server);
    test("an_api_server_that_is_away_at_the_end", false, away_at_the_end);
    test("stopped_and_killed", false, stopped_and_killed);
    test("two_nodes_stopped_and_killed", false, two_stopped_and_killed);
}

pub const SMALL: &str = "container: {gpus: 0, cpus: 1, memory: 700m}\nengine: kubernetes\n";

fn training(namespace: &Namespace, more: &str) -> Folder {
    namespace.with(prepared(&format!("{}{SMALL}{more}", train(STEPS))))
}

/// A training that does not fit into `LIMITED`.
pub fn wide(more: &str) -> Folder {
    let folder = folder(&format!("{}{more}", train_with(STEPS / 2, WIDE_EFFECTIVE, 1e-3)));
    make_rows_longer(&folder, "d_ff: 2048");
    folder
}

pub const LIMITED: &str = "container: {gpus: 0, cpus: 1, memory: 260m}\nengine: kubernetes\n";

/// The kernel kills at the limit of the container, and the cluster says OOMKilled.
fn out_of_memory(namespace: &Namespace) {
    let alone = wide("container: {gpus: 0, cpus: 1}\n");
    alone.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    let folder = namespace.with(wide(LIMITED));
    let reasons = namespace.watch_reasons();
    folder.pipe(&["run", "t5.yaml", "--set", "memory.worst_first=false"]).exits(0);
    let reasons = reasons.end();
    assert!(reasons.contains("OOMKilled"), "{reasons}");
    let attempts = attempts(&folder);
    ends_by(&attempts, "host_memory");
    assert_eq!(attempts[0]["outcome"], "oom", "{attempts:#?}");
    // Parts of other sizes are rounded otherwise, which a small eps of the optimizer would make larger.
    same_curve(&curve_once(&folder), &curve(&alone.run_folder()), WIDE_EFFECTIVE, 1e-4);
    namespace.is_empty();
    namespace.nothing_was_forbidden();
}

/// Whatever takes a pod from a node: the next one continues, also without a volume.
fn moved(namespace: &Namespace) {
    drained(namespace);
    drained_of_two(namespace);
    preempted(namespace);
    deleted(namespace);
    namespace.nothing_was_forbidden();
    namespace.every_right_was_used();
}

fn node_of(pod: &Value) -> String {
    pod["spec"]["nodeName"].as_str().unwrap().to_owned()
}

/// The node of the only pod of a run that trains.
fn trains_on(namespace: &Namespace, folder: &Folder) -> String {
    folder.wait_for_log(1, "\"step\":6,");
    node_of(&namespace.wait_for_pod("that runs", |pod| pod["status"]["phase"] == "Running"))
}

fn drained(namespace: &Namespace) {
    let folder = training(namespace, "");
    let running = folder.start(&["run", "t5.yaml"]);
    let node = trains_on(namespace, &folder);
    let selector = format!("--pod-selector=pipe.run={}", run_label(namespace));
    namespace.admin(&["drain", &node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", &selector]);
    let moved = namespace
        .wait_for_pod("on another node", |pod| pod["spec"]["nodeName"].as_str().is_some_and(|other| other != node));
    namespace.admin(&["uncordon", &node]);
    running.end().exits(0);
    assert_ne!(node_of(&moved), node);
    ends_by(&attempts(&folder), "node_lost");
    is_undisturbed(&folder);
}

/// One of two pods: both end by one cause, and both pods of the next attempt wait for a second node.
fn drained_of_two(namespace: &Namespace) {
    let folder = training(namespace, "kubernetes: {nodes: 2}\n");
    let mut running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":6,");
    let second = namespace.wait_for_pod("of the second node", |pod| pod["metadata"]["labels"]["pipe.node"] == "1");
    let node = node_of(&second);
    let selector = format!("--pod-selector=pipe.run={}", run_label(namespace));
    namespace.admin(&["drain", &node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", &selector]);
    running.wait_until_it_says("were unschedulable");
    let log = std::fs::read_to_string(folder.run_folder().join("attempts/02/log.txt")).unwrap_or_default();
    assert!(!log.contains("\"type\":"), "nobody trains yet: {log}");
    namespace.admin(&["uncordon", &node]);
    running.end().exits(0);
    let attempts = attempts(&folder);
    assert_eq!(attempts.len(), 2, "{attempts:#?}");
    ends_by(&attempts, "node_lost");
    is_undisturbed(&folder);
    namespace.is_empty();
}

fn run_label(namespace: &Namespace) -> String {
    namespace.pods()[0]["metadata"]["labels"]["pipe.run"].as_str().unwrap().to_owned()
}

/// A pod of a higher priority takes the whole node, while another one has the other node.
fn preempted(namespace: &Namespace) {
    for (name, value) in [("low", 10), ("high", 1000)] {
        namespace.apply(&format!(
            "{{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {{name: pipe-test-{name}}}, value: {value}}}"
        ));
    }
    let folder = training(namespace, "kubernetes: {priority_class: pipe-test-low}\n");
    let running = folder.start(&["run", "t5.yaml"]);
    trains_on(namespace, &folder);
    for node in ["n1", "n2"] {
        namespace.apply(&important_pod(namespace, node));
    }
    let waits = namespace.wait_for_pod("that waits for a node", |pod| {
        let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        conditions.iter().any(|condition| condition["reason"] == "Unschedulable")
    });
    assert_eq!(waits["spec"]["priorityClassName"], "pipe-test-low");
    namespace.admin(&["delete", "pods", "--selector=important", "--wait=false"]);
    running.end().exits(0).says("Insufficient memory");
    ends_by(&attempts(&folder), "preempted");
    is_undisturbed(&folder);
}

/// It asks for nearly all memory of a node.
fn important_pod(namespace: &Namespace, node: &str) -> String {
    let memory = namespace.admin(&["get", "node", node, "--output=jsonpath={.status.allocatable.memory}"]);
    let memory: u64 = memory.trim_end_matches("Ki").parse().unwrap();
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: important-{node}, labels: {{important: 'yes'}}}}, spec: {{nodeSelector: \
         {{kubernetes.io/hostname: {node}}}, priorityClassName: pipe-test-high, terminationGracePeriodSeconds: 0, containers: [{{name: \
         it, image: 'kubernetes-test-shell:1', command: [sleep, '300'], resources: {{limits: {{memory: {}Ki}}}}}}]}}}}",
        memory - 200 * 1024
    )
}

/// Somebody deletes the pod: he wants the run to stop.
fn deleted(namespace: &Namespace) {
    let folder = training(namespace, "");
    let running = folder.start(&["run", "t5.yaml"]);
    trains_on(namespace, &folder);
    namespace.admin(&["delete", "pods", "--selector=pipe.run", "--wait=false"]);
    running.end().exits(130).says("the job was cancelled, not by pipe");
    assert_eq!(attempts(&folder)[0]["cause"], "cancelled", "{:#?}", attempts(&folder));
    folder.pipe(&["resume"]).exits(0);
    is_undisturbed(&folder);
    namespace.is_empty();
}

fn deadline(namespace: &Namespace) {
    let folder = namespace.with(prepared(&format!("{}{SMALL}kubernetes: {{time: 1}}\n", train(100 * STEPS))));
    folder.pipe(&["run", "t5.yaml", "--detach"]).exits(0);
    folder.wait_for_log(2, "\"type\":\"step\"");
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    assert_eq!(attempts(&folder)[0]["cause"], "time_limit", "{:#?}", attempts(&folder));
    namespace.is_empty();
    namespace.nothing_was_forbidden();
}

/// The container of a lost node runs on, and nothing that it writes reaches the run.
fn lost_node(namespace: &Namespace) {
    let claim = namespace.claim();
    let folder = training(namespace, "kubernetes: {volume: claim/training}\n");
    // So slow that it still trains when the cluster gives up the node.
    let running = folder.start(&["run", "t5.yaml", "--set", "container.cpus=0.12"]);
    let node = trains_on(namespace, &folder);
    let lost = namespace.cluster.lose(&node);
    namespace.wait_for_pod("on another node", |pod| pod["spec"]["nodeName"].as_str().is_some_and(|it| it != node));
    let written = claim.size_of_events(1);
    namespace.wait_until("a step of the lost node", || claim.size_of_events(1) > written);
    assert!(runs_on(namespace, &node));
    folder.wait_for_log(2, "\"type\":\"step\"");
    drop(lost);
    running.end().exits(0);
    ends_by(&attempts(&folder), "node_lost");
    is_undisturbed(&folder);
    namespace.wait_until("the end of the old container", || !runs_on(namespace, &node));
    drop(claim);
    namespace.nothing_was_forbidden();
}

/// Whether a training runs in a container of this node, whatever the cluster believes.
fn runs_on(namespace: &Namespace, node: &str) -> bool {
    let label = format!("label=io.kubernetes.pod.namespace={}", namespace.name);
    let output = Command::new("docker")
        .args(["ps", "--filter", &label, "--filter", "label=io.kubernetes.container.name=job"])
        .args(["--format", "{{.Label \"kubernetes-test-node\"}}"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().any(|name| name.ends_with(&format!("-{node}")))
}

/// A server that has just started forbids everything for a moment: that is no answer.
fn restarted_server(namespace: &Namespace) {
    let folder = training(namespace, "");
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":4,");
    namespace.cluster.ask("stop-api", &[]);
    std::thread::sleep(Duration::from_secs(5));
    namespace.cluster.ask("start-api", &[]);
    running.end().exits(0);
    assert_eq!(attempts(&folder).len(), 1);
    is_undisturbed(&folder);
}

/// Nothing is finished whose result is not here, and a request to stop is not forgotten.
fn away_at_the_end(namespace: &Namespace) {
    const SIZE: u64 = 400 << 20;
    let folder = namespace.with(Folder::new());
    let job = |command: &str, folder: &Folder| {
        folder.write(
            "job.yaml",
            format!(
                "version: 1\nname: job\nengine: kubernetes\ncommand: [bash, -c, {command:?}]\n\
                 container: {{gpus: 0, cpus: 1, memory: 600m, image: \"kubernetes-test-shell:1\", stop_timeout: 20}}\n"
            ),
        );
    };
    job(&format!("dd if=/dev/zero of={{run}}/result bs=1M count={}", SIZE >> 20), &folder);
    let mut running = folder.start(&["run", "job.yaml"]);
    namespace.wait_for_pod("whose job has ended", |pod| {
        let containers = pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
        containers.iter().any(|it| it["name"] == "job" && it["state"]["terminated"]["exitCode"] == 0)
    });
    namespace.cluster.ask("stop-api", &[]);
    let result = folder.run_folder().join("output/result");
    let came = result.metadata().map_or(0, |meta| meta.len());
    std::thread::sleep(Duration::from_secs(40));
    assert!(!running.has_ended(), "finished without its result");
    namespace.cluster.ask("start-api", &[]);
    running.end().exits(0);
    assert!(came < SIZE, "the result came before the server went away: this test shows nothing");
    assert_eq!(result.metadata().unwrap().len(), SIZE);
    namespace.is_empty();
    stopped_while_away(namespace, &job);
    saved_late(namespace, &job);
}

/// What a job saves when it is stopped is here, though it takes longer than the job may.
fn saved_late(namespace: &Namespace, job: &dyn Fn(&str, &Folder)) {
    const SIZE: u64 = 800 << 20;
    let folder = namespace.with(Folder::new());
    let save = format!("dd if=/dev/zero of={{run}}/saved bs=1M count={}", SIZE >> 20);
    job(&format!("trap '{save}; exit 0' TERM; echo begun; while sleep 1; do :; done"), &folder);
    let running = folder.start(&["run", "job.yaml", "--set", "container.stop_timeout=3"]);
    folder.wait_for_log(1, "begun");
    folder.pipe(&["stop", "job"]).exits(0).prints("stopped");
    running.end().exits(130);
    assert_eq!(folder.run_folder().join("output/saved").metadata().unwrap().len(), SIZE);
    namespace.is_empty();
}

fn stopped_while_away(namespace: &Namespace, job: &dyn Fn(&str, &Folder)) {
    let folder = namespace.with(Folder::new());
    job("trap 'exit 0' TERM; echo begun; while sleep 1; do :; done", &folder);
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "begun");
    namespace.cluster.ask("stop-api", &[]);
    let stopping = folder.start(&["stop", "job"]);
    std::thread::sleep(Duration::from_secs(5));
    namespace.cluster.ask("start-api", &[]);
    stopping.end().exits(0).prints("stopped");
    running.end().exits(130);
    namespace.is_empty();
}

fn stopped_and_killed(namespace: &Namespace) {
    stop_and_kill(namespace, &training(namespace, ""), 1);
}

/// On a volume, where pods of both nodes read what the first one wrote.
fn two_stopped_and_killed(namespace: &Namespace) {
    let claim = namespace.claim();
    stop_and_kill(namespace, &training(namespace, "kubernetes: {nodes: 2, volume: claim/training}\n"), 2);
    drop(claim);
}

fn stop_and_kill(namespace: &Namespace, folder: &Folder, pods: usize) {
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":6,");
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    running.end().exits(130);
    namespace.is_empty();
    // Its pod runs on when `pipe` is killed, and the next one takes it over.
    let running = folder.start(&["resume"]);
    folder.wait_for_log(2, "\"type\":\"step\"");
    running.kill_alive();
    // Another namespace is the current one by now.
    namespace.cluster.ask("user", &[&namespace.user(), "default"]);
    let left = folder.pipe(&["ls", "--json"]).exits(0).json();
    assert_eq!(left[0]["left_behind"].as_array().map(Vec::len), Some(pods), "{left:#}");
    folder.pipe(&["resume"]).exits(0);
    namespace.cluster.ask("user", &[&namespace.user(), &namespace.name]);
    assert_eq!(attempts(folder).len(), 2, "the pod went on");
    same_curve(&curve(&folder.run_folder()), crate::undisturbed::undisturbed(), crate::undisturbed::EFFECTIVE, 1e-5);
    namespace.is_empty();
    namespace.nothing_was_forbidden();
}
