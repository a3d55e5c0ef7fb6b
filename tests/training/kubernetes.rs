//! A real Kubernetes on this machine, one for all tests. Each test has a namespace, and a user with exactly the rights that
//! docs/kubernetes.md gives him.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};

/// GPUs of each of the two nodes. They only count in the scheduler.
pub const CARDS: u32 = 4;

/// The namespace and the names of the docs.
const DOCUMENTED: &str = "train";

/// Names a cluster that runs already, for single tests; it stays.
const RUNNING: &str = "PIPE_TEST_KUBERNETES";

pub struct Kubernetes {
    folder: PathBuf,
    is_own: bool,
}

/// The cluster, once a test has asked for it.
static SHARED: Mutex<Option<Kubernetes>> = Mutex::new(None);

/// The cluster, which no other test has at the same time.
pub struct Shared(MutexGuard<'static, Option<Kubernetes>>);

impl Shared {
    /// Waits for the test that has it.
    fn lock() -> Self {
        Self(SHARED.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Stops the cluster, after the last test.
pub fn stop() {
    Shared::lock().0.take();
}

/// Adds a test that has the cluster for itself and leaves its nodes and servers as they were.
pub fn on_kubernetes(suite: &mut Suite, name: &str, test: fn(&Namespace)) {
    suite.test_after(name, Needs::Kubernetes, Shared::lock, move |mut shared| {
        let cluster = shared.0.get_or_insert_with(Kubernetes::start);
        test(&cluster.namespace());
    });
}

impl Kubernetes {
    fn start() -> Self {
        if let Some(folder) = std::env::var_os(RUNNING) {
            return Self { folder: folder.into(), is_own: false };
        }
        let folder = std::env::temp_dir().join(format!("pipe-kubernetes-{}", std::process::id()));
        let cluster = Self { folder, is_own: true };
        cluster.ask("start", &["2", &CARDS.to_string()]);
        cluster
    }

    /// A command of the script, with what follows the folder; what it prints.
    pub fn ask(&self, what: &str, more: &[&str]) -> String {
        let mut script = script();
        let output = script.arg(what).arg(&self.folder).args(more).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "tests/kubernetes/cluster {what}: {}", output.status);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn namespace(&self) -> Namespace<'_> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pipe-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace = Namespace { cluster: self, name };
        namespace.admin(&["create", "namespace", &namespace.name]);
        namespace.apply(&documented_rights(&namespace.name, &namespace.user()));
        // Beside that of the docs: without it the cluster refuses every pod.
        namespace.wait_until("a service account", || namespace.list("serviceaccounts").len() == 2);
        namespace
    }

    /// Kills the kubelet of a node, which comes back when this is dropped.
    pub fn lose<'a>(&'a self, node: &'a str) -> LostNode<'a> {
        self.ask("kill-node", &[node]);
        LostNode { cluster: self, node }
    }

    fn kubeconfig(&self, user: &str) -> PathBuf {
        self.folder.join(format!("{user}.kubeconfig"))
    }

    /// The requests that a user has made, oldest first.
    pub fn requests(&self, user: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.folder.join("audit.log")).unwrap();
        log.lines()
            .filter(|line| line.contains(user))
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|request| request["user"]["username"] == user)
            .collect()
    }
}

/// A node whose containers run on.
pub struct LostNode<'a> {
    cluster: &'a Kubernetes,
    node: &'a str,
}

impl Drop for LostNode<'_> {
    fn drop(&mut self) {
        self.cluster.ask("start-node", &[self.node]);
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        script().arg("stop").arg(&self.folder).stdout(Stdio::null()).status().ok();
        if std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.folder.display());
        } else {
            std::fs::remove_dir_all(&self.folder).ok();
        }
    }
}

/// A watch of pods.
pub struct Reasons(Child);

impl Reasons {
    pub fn end(mut self) -> String {
        let mut text = String::new();
        self.0.kill().unwrap();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Reasons {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A claim that pods of all nodes can write to. Its files lie on this machine, and go with it.
pub struct Claim {
    folder: PathBuf,
}

impl Claim {
    /// How much an attempt of the only run has written, whoever reads it.
    pub fn size_of_events(&self, attempt: u32) -> u64 {
        let mut runs = std::fs::read_dir(self.folder.join("pipe")).unwrap();
        let run = runs.next().unwrap().unwrap().path();
        std::fs::metadata(run.join(format!("attempts/{attempt:02}/job/events.jsonl"))).map_or(0, |found| found.len())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// A namespace of one test, which goes with it.
pub struct Namespace<'a> {
    pub cluster: &'a Kubernetes,
    pub name: String,
}

impl Namespace<'_> {
    /// Who trains here.
    pub fn user(&self) -> String {
        format!("user-of-{}", self.name)
    }

    /// A folder whose `pipe` uses this namespace with the rights of the docs.
    pub fn with(&self, folder: Folder) -> Folder {
        self.with_user(folder, &self.user())
    }

    /// A folder of another user, who has no right until a test gives him one.
    pub fn with_user(&self, folder: Folder, user: &str) -> Folder {
        folder.env("KUBECONFIG", self.cluster.ask("user", &[user, &self.name]))
    }

    /// kubectl as the administrator, in this namespace; what it prints.
    pub fn admin(&self, args: &[&str]) -> String {
        let (printed, errors) = self.kubectl("admin", args, None);
        printed.unwrap_or_else(|| panic!("kubectl {args:?}: {errors}"))
    }

    /// kubectl as another user. None where it fails, beside what it says.
    pub fn kubectl(&self, user: &str, args: &[&str], stdin: Option<&str>) -> (Option<String>, String) {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig(user)).args(["--namespace", &self.name]).args(args);
        let stdio = if stdin.is_some() { Stdio::piped() } else { Stdio::null() };
        let mut child = command.stdin(stdio).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if let Some(text) = stdin {
            child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        (output.status.success().then_some(printed), String::from_utf8(output.stderr).unwrap())
    }

    /// Makes objects of YAML, as the administrator.
    pub fn apply(&self, yaml: &str) {
        // What begins with a brace would be read as JSON.
        let (made, errors) = self.kubectl("admin", &["apply", "--filename=-"], Some(&format!("---\n{yaml}")));
        assert!(made.is_some(), "{errors}\n{yaml}");
    }

    /// The objects of a kind in this namespace.
    pub fn list(&self, kind: &str) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.admin(&["get", kind, "--output=json"])).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// The pods that `pipe` made.
    pub fn pods(&self) -> Vec<Value> {
        self.list("pods").into_iter().filter(|pod| pod["metadata"]["labels"]["pipe.run"].is_string()).collect()
    }

    /// Writes down why containers end, until it is asked for.
    pub fn watch_reasons(&self) -> Reasons {
        let reasons = "--output=jsonpath={.status.containerStatuses[*].state.terminated.reason} ";
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig("admin")).args(["--namespace", &self.name]);
        command.args(["get", "pods", "--watch", reasons]).stdin(Stdio::null()).stdout(Stdio::piped());
        Reasons(command.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Waits until there is a pod such as this.
    pub fn wait_for_pod(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let pods = self.pods();
            if let Some(pod) = pods.iter().find(|pod| is_it(pod)) {
                return pod.clone();
            }
            assert!(began.elapsed() < Duration::from_secs(120), "no pod {what}: {pods:#?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Makes the claim `training`.
    pub fn claim(&self) -> Claim {
        let folder = std::env::temp_dir().join(format!("pipe-claim-{}", self.name));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let size = "{requests: {storage: 1Gi}}";
        self.apply(&format!(
            "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: '{0}'}}, spec: {{capacity: {{storage: 1Gi}}, accessModes: \
             [ReadWriteMany], storageClassName: '{0}', hostPath: {{path: '{1}'}}}}}}\n---\n\
             {{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: training}}, spec: {{accessModes: [ReadWriteMany], \
             storageClassName: '{0}', resources: {size}}}}}",
            self.name,
            folder.display()
        ));
        Claim { folder }
    }

    /// Waits until nothing that `pipe` made is left.
    pub fn is_empty(&self) {
        let began = Instant::now();
        loop {
            let left =
                self.admin(&["get", "jobs,pods,secrets,configmaps,services", "--selector=pipe.run", "--output=name"]);
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "left in {}: {left}", self.name);
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(120), "{what} did not happen within 120 s");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Namespace<'_> {
    /// The user has asked for nothing that the docs do not give him.
    pub fn nothing_was_forbidden(&self) {
        let requests = self.cluster.requests(&self.user());
        let forbidden: Vec<&Value> = requests.iter().filter(|it| it["responseStatus"]["code"] == 403).collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
    }

    /// Each right of the docs was used.
    pub fn every_right_was_used(&self) {
        let used: BTreeSet<(String, String)> = self.cluster.requests(&self.user()).iter().map(right).collect();
        let roles = ["roles", "clusterroles"].into_iter().flat_map(|kind| self.list(kind));
        let own = roles.filter(|role| role["metadata"]["name"].as_str().unwrap().starts_with("pipe"));
        let rules = own.flat_map(|role| each_of(&role["rules"], Value::clone));
        let given: BTreeSet<(String, String)> = rules
            .flat_map(|rule| {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let verbs = each_of(&rule["verbs"], text);
                let resources = each_of(&rule["resources"], text);
                resources
                    .into_iter()
                    .flat_map(move |resource| verbs.clone().into_iter().map(move |verb| (resource.clone(), verb)))
            })
            .collect();
        let mut unused: Vec<_> = given.difference(&used).collect();
        // Servers of this version ask for `get` alone; and only a `pipe` that takes over a pod asks for it by name (`stopped_and_killed`).
        let elsewhere = [("pods/exec", "create"), ("pods", "get")];
        unused.retain(|(resource, verb)| !elsewhere.contains(&(resource.as_str(), verb.as_str())));
        assert!(unused.is_empty(), "the docs give rights that nothing uses: {unused:?}; used: {used:?}");
    }
}

fn each_of<T>(list: &Value, of: impl Fn(&Value) -> T) -> Vec<T> {
    list.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(of).collect()
}

/// The resource and the verb of a request.
fn right(request: &Value) -> (String, String) {
    let object = &request["objectRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (resource, below) = (text(&object["resource"]), text(&object["subresource"]));
    (if below.is_empty() { resource } else { format!("{resource}/{below}") }, text(&request["verb"]))
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (shown, _) = self.kubectl("admin", &["get", "jobs,pods,events", "--output=wide"], None);
            eprintln!("left in the namespace {}:\n{}", self.name, shown.unwrap_or_default());
        }
        self.kubectl("admin", &["delete", "namespace", &self.name, "--wait=false"], None);
    }
}

/// The objects of docs/kubernetes.md that give the rights, for another namespace and user.
pub fn documented_rights(namespace: &str, user: &str) -> String {
    let page = std::fs::read_to_string(repository().join("docs/kubernetes.md")).unwrap();
    let blocks = page.split("```yaml\n").skip(1).filter_map(|block| block.split_once("```")).map(|(block, _)| block);
    let rights: Vec<&str> = blocks.filter(|block| block.contains("kind: Role\n")).collect();
    assert!(!rights.is_empty(), "docs/kubernetes.md has no block with a Role");
    let text = rights.join("---\n");
    assert!(text.contains(&format!("namespace: {DOCUMENTED}")) && text.contains("name: you"), "{text}");
    let binding = "kind: ClusterRoleBinding\nmetadata: {name: pipe-nodes";
    text.replace(&format!("namespace: {DOCUMENTED}"), &format!("namespace: {namespace}"))
        .replace(binding, &format!("{binding}-{namespace}"))
        .replace("name: you", &format!("name: {user}"))
}

fn script() -> Command {
    Command::new(repository().join("tests/kubernetes/cluster"))
}
