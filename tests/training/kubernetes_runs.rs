//! Runs on a real Kubernetes: what their pods may, what the cluster refuses, steps, trials, and many runs at once.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::harness::{Answer, Folder, Running, Suite};
use crate::kubernetes::{CARDS, Namespace, on_kubernetes};
use crate::kubernetes_ends::SMALL;
use crate::undisturbed::{STEPS, attempts, is_undisturbed, prepared, train};

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, often: bool, test: fn(&Namespace)| {
        on_kubernetes(suite, &format!("kubernetes_cluster::{name}"), test);
        if !often {
            suite.last_is_thorough();
        }
    };
    test("a_training", true, a_training);
    test("what_the_cluster_refuses_and_doctor", true, refused);
    test("steps_and_trials", true, steps_and_trials);
    test("two_nodes", true, two_nodes);
    test("a_pushed_image", true, pushed_image);
    test("an_image_that_nobody_has", false, unknown_image);
    test("detached", false, detached);
    test("many_runs_that_wait", false, many_runs);
}

/// Programs of a shell: the image is on the nodes, as every image of the machine's Docker is.
const SHELL: &str = "container: {gpus: 0, cpus: 0.1, memory: 50m, image: \"kubernetes-test-shell:1\", env: {TOKEN: \"a ${TOKEN_OF_TEST}\"}}";

/// It is in no file, and in no object but a Secret.
const SECRET: &str = "value-of-a-variable";

fn with_secret(namespace: &Namespace) -> Folder {
    namespace.with(Folder::new()).env("TOKEN_OF_TEST", SECRET)
}

/// A command in a shell.
fn write_job(folder: &Folder, command: &str, more: &str) {
    let command = serde_json::to_string(command).unwrap();
    folder.write(
        "job.yaml",
        format!("version: 1\nname: job\nengine: kubernetes\ncommand: [bash, -c, {command}]\n{SHELL}\n{more}"),
    );
}

fn a_training(namespace: &Namespace) {
    let folder = namespace.with(prepared(&format!("{}{SMALL}", train(STEPS)))).env("TOKEN_OF_TEST", SECRET);
    let secret = "container.env={TOKEN: \"a ${TOKEN_OF_TEST}\"}";
    let running = folder.start(&["run", "t5.yaml", "--set", secret]);
    folder.wait_for_log(1, "\"type\":\"step\"");
    let pods = namespace.pods();
    assert_eq!(pods.len(), 1);
    is_restricted(&pods[0]);
    for kind in ["pods", "jobs", "configmaps", "events"] {
        let text = namespace.admin(&["get", kind, "--output=yaml"]);
        assert!(!text.contains(SECRET), "a value of a variable in {kind}:\n{text}");
    }
    assert!(!namespace.list("secrets").is_empty());
    running.end().exits(0);
    is_undisturbed(&folder);
    assert!(folder.run_folder().join("model/config.json").is_file());
    let found = folder.other_command("grep").args(["--recursive", "--files-with-matches", SECRET, "runs"]).output();
    assert_eq!(String::from_utf8(found.unwrap().stdout).unwrap(), "");
    namespace.is_empty();
    namespace.nothing_was_forbidden();
}

/// A pod on each node, and one training.
fn two_nodes(namespace: &Namespace) {
    let folder = namespace.with(prepared(&format!("{}{SMALL}kubernetes: {{nodes: 2}}\n", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"type\":\"step\"");
    let pods = namespace.pods();
    pods.iter().for_each(is_restricted);
    let nodes: BTreeSet<&str> = pods.iter().map(|pod| pod["spec"]["nodeName"].as_str().unwrap()).collect();
    assert_eq!((pods.len(), nodes.len()), (2, 2), "{nodes:?}");
    running.end().exits(0);
    let attempts = attempts(&folder);
    assert_eq!((attempts.len(), attempts[0]["ranks"].as_u64()), (1, Some(2)), "{attempts:#?}");
    is_undisturbed(&folder);
    assert!(folder.run_folder().join("model/config.json").is_file());
    namespace.is_empty();
    namespace.nothing_was_forbidden();
}

/// The level `restricted` of the Pod Security Standards, and what is stricter still.
#[track_caller]
fn is_restricted(pod: &Value) {
    let spec = &pod["spec"];
    for shared in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_ne!(spec[shared], true, "{shared}: {spec:#}");
    }
    assert_eq!(spec["automountServiceAccountToken"], false, "{spec:#}");
    assert_eq!(spec["securityContext"]["sysctls"], Value::Null);
    let allowed =
        ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];
    for volume in items(&spec["volumes"]) {
        let kinds: Vec<&String> = volume.as_object().unwrap().keys().filter(|key| *key != "name").collect();
        assert!(kinds.iter().all(|kind| allowed.contains(&kind.as_str())), "{volume}");
    }
    let containers: Vec<&Value> = items(&spec["containers"]).chain(items(&spec["initContainers"])).collect();
    assert!(!containers.is_empty());
    for container in containers {
        let own = &container["securityContext"];
        let either = |key: &str| if own[key].is_null() { &spec["securityContext"][key] } else { &own[key] };
        assert_ne!(own["privileged"], true, "{container:#}");
        assert_eq!(own["allowPrivilegeEscalation"], false, "{container:#}");
        assert_eq!(own["readOnlyRootFilesystem"], true, "{container:#}");
        assert_eq!(own["capabilities"]["drop"], serde_json::json!(["ALL"]), "{container:#}");
        assert_eq!(own["capabilities"]["add"], Value::Null, "{container:#}");
        assert_eq!(*either("runAsNonRoot"), true, "{container:#}");
        assert_ne!(*either("runAsUser"), 0, "{container:#}");
        assert_eq!(either("seccompProfile")["type"], "RuntimeDefault", "{container:#}");
        assert!(items(&container["ports"]).all(|port| port["hostPort"].is_null()), "{container:#}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{container:#}");
    }
}

fn items(list: &Value) -> std::slice::Iter<'_, Value> {
    list.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

fn refused(namespace: &Namespace) {
    forbidden(namespace);
    namespace
        .apply("{apiVersion: v1, kind: ResourceQuota, metadata: {name: small}, spec: {hard: {limits.memory: 1Gi}}}");
    for (setting, says) in [
        ("container.memory=2g", "exceeded quota: small"),
        ("kubernetes.namespace=nowhere", "nowhere"),
        ("kubernetes.context=nowhere", "nowhere"),
        ("kubernetes.priority_class=nowhere", "nowhere"),
        ("kubernetes.service_account=nowhere", "nowhere"),
    ] {
        let folder = with_secret(namespace);
        write_job(&folder, "sleep 100", "");
        folder.pipe(&["run", "job.yaml", "--set", setting]).exits(4).says(says).says("hint: ");
        assert_eq!(namespace.pods().len(), 0, "{setting}");
    }
    namespace.admin(&["delete", "resourcequota", "small"]);
    no_card_left(namespace);
}

/// A registry that does not answer may come back: after a minute the run ends.
fn unknown_image(namespace: &Namespace) {
    let folder = with_secret(namespace);
    write_job(&folder, "sleep 100", "");
    let answer = folder.pipe(&["run", "job.yaml", "--set", "container.image=nobody/nothing:1"]).exits(4);
    answer.says("the pod cannot start: ").says("nobody/nothing:1").says("hint: ");
    namespace.is_empty();
    namespace.nothing_was_forbidden();
}

/// A user without a right gets the words of the server, and `pipe doctor` names each right that is missing.
fn forbidden(namespace: &Namespace) {
    let stranger = format!("stranger-of-{}", namespace.name);
    let folder = namespace.with_user(Folder::new(), &stranger).env("TOKEN_OF_TEST", SECRET);
    write_job(&folder, "sleep 100", "");
    folder.pipe(&["run", "job.yaml"]).exits(4).says("forbidden").says(&stranger).says("hint: ");
    folder.pipe(&["doctor", "--engine", "kubernetes"]).exits(4).prints("this user may not: create pods");
    let folder = with_secret(namespace);
    let answer = folder.pipe(&["doctor", "--engine", "kubernetes"]).exits(0);
    answer.prints(&format!("namespace {}", namespace.name)).prints(&format!("{} nvidia.com/gpu", 2 * CARDS));
    // What belongs to a run: not his to read or to stop.
    write_job(&folder, "echo begun; sleep 100", "");
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "begun");
    for args in [
        &["get", "pods"][..],
        &["get", "secrets", "--output=yaml"],
        &["logs", "--selector=pipe.run"],
        &["delete", "pods", "--all"],
    ] {
        let (printed, says) = namespace.kubectl(&stranger, args, None);
        assert!(printed.is_none() && says.contains("Forbidden"), "{args:?}: {printed:?} {says}");
    }
    stop(&folder, running);
}

fn stop(folder: &Folder, running: Running) -> Answer {
    folder.pipe(&["stop", "job"]).exits(0).prints("stopped");
    running.end().exits(130)
}

/// Pods that have all GPUs of both nodes.
fn take_all_cards(namespace: &Namespace) {
    for node in ["n1", "n2"] {
        namespace.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: busy-{node}}}, spec: {{nodeSelector: {{kubernetes.io/hostname: {node}}}, \
             terminationGracePeriodSeconds: 0, containers: [{{name: it, image: 'kubernetes-test-shell:1', command: [sleep, '300'], \
             resources: {{limits: {{nvidia.com/gpu: {CARDS}}}}}}}]}}}}"
        ));
    }
    let is_running = |pod: &Value| pod["status"]["phase"] == "Running";
    namespace
        .wait_until("pods with all cards", || namespace.list("pods").iter().filter(|pod| is_running(pod)).count() == 2);
}

/// The sentence of the scheduler is said while the pod waits.
fn no_card_left(namespace: &Namespace) {
    take_all_cards(namespace);
    let folder = with_secret(namespace);
    write_job(&folder, "sleep 100", "");
    let more = format!("container.gpus={}", CARDS + 1);
    folder.pipe(&["run", "job.yaml", "--set", &more]).exits(4).says(&format!("has {CARDS}")).says("hint: ");
    let mut running = folder.start(&["run", "job.yaml", "--set", "container.gpus=1"]);
    running.wait_until_it_says("Insufficient nvidia.com/gpu");
    stop(&folder, running);
    namespace.is_empty();
}

fn steps_and_trials(namespace: &Namespace) {
    let folder = with_secret(namespace);
    folder.write(
        "steps.yaml",
        format!(
            "version: 1\nname: graph\nengine: kubernetes\nsteps:\n  \
             one:\n    command: [bash, -c, 'echo done > {{run}}/a']\n    outputs: {{a: a}}\n    {SHELL}\n  \
             two:\n    needs: [one]\n    command: [bash, -c, 'cat {{steps.one.a}} > {{run}}/b; echo \"$TOKEN\" | wc -c >> {{run}}/b']\n    \
             outputs: {{b: b}}\n    {SHELL}\n  \
             three:\n    needs: [two]\n    command: [bash, -c, 'cat {{steps.two.b}}']\n    {SHELL}\n"
        ),
    );
    let answer = folder.pipe(&["run", "steps.yaml"]).exits(0);
    answer.says("[three] done").says(&format!("[three] {}", SECRET.len() + 3));
    namespace.is_empty();
    trials(namespace);
    namespace.nothing_was_forbidden();
}

/// Two trials at a time, and never more.
fn trials(namespace: &Namespace) {
    let folder = with_secret(namespace);
    // Braces by their numbers: those of the line are placeholders.
    let line = r#"sleep 2; printf '\173"step": 1, "loss": %s\175\n' {vars.x}"#;
    let line = serde_json::to_string(line).unwrap();
    folder.write(
        "study.yaml",
        format!(
            "version: 1\ntune: study\npipeline:\n  version: 1\n  name: study\n  engine: kubernetes\n  command: [bash, -c, {line}]\n  \
             vars: {{x: 1.0}}\n  {SHELL}\nobjective: {{metric: loss, direction: minimize}}\nspace: {{vars.x: {{low: 0.0, high: 1.0}}}}\n\
             budget: {{trials: 5, parallel: 2}}\nprune: {{kind: none}}\n"
        ),
    );
    let mut running = folder.start(&["tune", "run", "study.yaml"]);
    let mut most = 0;
    while !running.has_ended() {
        let pods = namespace.pods();
        let active = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        most = most.max(
            active.filter(|pod| ["Pending", "Running"].map(Value::from).contains(&pod["status"]["phase"])).count(),
        );
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    running.end().exits(0).prints("trials: 5 complete");
    assert_eq!(most, 2, "trials at once");
    namespace.is_empty();
}

/// A registry on this machine: daemons want no TLS of one on loopback.
struct Registry(Child);

impl Registry {
    /// `more` is added to its settings. What was pushed before is still there.
    fn serve(folder: &Folder, port: u16, more: &str) -> Self {
        let files = folder.path().join("registry");
        folder.write(
            "registry.yaml",
            format!(
                "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
                 http: {{addr: \"127.0.0.1:{port}\"}}\n{more}",
                files.display()
            ),
        );
        let mut command = Command::new("docker-registry");
        let child = command.arg("serve").arg(folder.path().join("registry.yaml")).stdout(Stdio::null());
        let child = child.stderr(Stdio::null()).spawn().unwrap();
        folder.wait_until("a registry", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self(child)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The password is `sesame`.
const ACCOUNT: &str = "you:$2y$05$abcdefghijklmnopqrstuuKcS.CYWVYVaLiiCKrrc0A5s3mGesJ9O\n";
const RIGHT_LOGIN: &str = "eW91OnNlc2FtZQ==";
const WRONG_LOGIN: &str = "eW91Ondyb25n";

/// An image goes to a registry once, and nodes pull it by its digest.
fn pushed_image(namespace: &Namespace) {
    let folder = with_secret(namespace);
    let logins = folder.path().join("logins");
    let folder = folder.env("DOCKER_CONFIG", logins.to_str().unwrap());
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let host = format!("127.0.0.1:{port}");
    let repository = format!("{host}/team/pipe");
    folder
        .write("image/Dockerfile", "FROM kubernetes-test-shell:1\nCOPY mark /mark\n")
        .write("image/mark", &*repository);
    write_job(&folder, "cat /mark", &format!("kubernetes: {{image: \"{repository}\"}}\n"));
    folder.write("job.yaml", folder.read("job.yaml").replace("kubernetes-test-shell:1", "image/Dockerfile"));
    let push = || folder.pipe(&["image", "push", "--pipeline", "job.yaml", "--json"]);
    push().exits(4).says(&format!("cannot push {repository}:")).says("connection refused").says("hint: ");
    folder.write("accounts", ACCOUNT);
    let accounts = folder.path().join("accounts");
    let account = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", accounts.display());
    let registry = Registry::serve(&folder, port, &account);
    let log_in = |login: &str| {
        folder.write("logins/config.json", format!("{{\"auths\": {{\"{host}\": {{\"auth\": \"{login}\"}}}}}}"));
    };
    push().exits(4).says(&format!("docker login {host}"));
    log_in(WRONG_LOGIN);
    push().exits(4).says(&format!("docker login {host}"));
    log_in(RIGHT_LOGIN);
    let first = push().exits(0).json();
    let image = first["image"].as_str().unwrap();
    assert!(image.starts_with(&format!("{repository}@sha256:")), "{image}");
    folder.pipe(&["image", "push", "--pipeline", "job.yaml"]).exits(0).prints(image).says("sent 0 layers; ");
    drop(registry);
    let registry = Registry::serve(&folder, port, "");
    folder.pipe(&["run", "job.yaml"]).exits(0).says(image);
    assert!(folder.read_run("lock.json").contains(image));
    // A machine that has not pushed it knows the digest from the pipeline, and its nodes do not have the image.
    let id = docker(&["image", "inspect", "--format", "{{.Id}}", image]);
    docker(&["image", "rm", "--force", id.trim()]);
    let digest = format!("kubernetes.image={image}");
    folder.pipe(&["run", "job.yaml", "--set", &digest]).exits(0).says(&repository);
    drop(registry);
    namespace.is_empty();
}

fn docker(args: &[&str]) -> String {
    let output = Command::new("docker").args(args).output().unwrap();
    assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn detached(namespace: &Namespace) {
    let folder = namespace.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    folder.pipe(&["run", "t5.yaml", "--detach"]).exits(0);
    folder.pipe(&["attach", "t5"]).exits(0);
    assert_eq!(attempts(&folder).len(), 1);
    is_undisturbed(&folder);
    namespace.is_empty();
    namespace.nothing_was_forbidden();
}

/// Runs that wait for a card are told about by one watch each, and ask for nothing meanwhile.
fn many_runs(namespace: &Namespace) {
    let folder = with_secret(namespace);
    write_job(&folder, "sleep 100", "");
    take_all_cards(namespace);
    let runs = 200;
    for _ in 0..runs {
        folder.pipe(&["run", "job.yaml", "--detach", "--set", "container.gpus=1"]).exits(0);
    }
    namespace.wait_until("all pods", || namespace.pods().len() == runs);
    std::thread::sleep(std::time::Duration::from_secs(5));
    let before = namespace.cluster.requests(&namespace.user()).len();
    std::thread::sleep(std::time::Duration::from_secs(30));
    let asked = namespace.cluster.requests(&namespace.user()).len() - before;
    assert!(asked <= runs, "{asked} requests in 30 s for {runs} runs that wait");
    let listed = folder.pipe(&["ls", "--json"]).exits(0).json();
    let ids: Vec<&str> = items(&listed).map(|run| run["id"].as_str().unwrap()).collect();
    folder.pipe(&[&["stop"], &ids[..]].concat()).exits(0);
    namespace.is_empty();
    namespace.nothing_was_forbidden();
}
