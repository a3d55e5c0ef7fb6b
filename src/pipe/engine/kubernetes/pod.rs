//! The objects of a job: its pod, which may do the least, and the secrets that it has. Pure.

use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use pipe_spec::run::JobFolder;
use pipe_spec::trainer::{ADDRESS_VARIABLE, FIRST_NODE_VARIABLE, NODE_VARIABLE};
use serde_json::{Map, Value, json};

use super::plan::{CONTROL, DATA, Plan, RunName, ready};
use super::section::{Pods, Volume};
use crate::engine::{JobProgram, Launch, Mounts, first_process};
use crate::error::Error;

/// The label by which the pods of a run are found, and the annotation that has its id.
pub const RUN: &str = "pipe.run";
pub const ATTEMPT: &str = "pipe.attempt";

/// The label with the number of the node, where a training has several.
const NODE: &str = "pipe.node";

/// The label that all pods of `pipe` have.
pub const MANAGED: &str = "app.kubernetes.io/managed-by=pipe";

/// The containers of a pod: the one that waits for its files, the job, and the one that gives its files back.
pub const UPLOAD: &str = "upload";
pub const JOB: &str = "job";
pub const FILES: &str = "files";

/// Bytes of a part of the first process: a secret holds at most 1 MiB.
const PART: usize = 900 << 10;

/// The program that joins them.
const JOIN: &str = "join";

/// Where the first container has the parts, all have the first process, and the job has its words.
const PARTS_FOLDER: &str = "/run/pipe-parts";
const PROGRAM_FOLDER: &str = "/run/pipe-program";
const WORDS_FOLDER: &str = "/run/pipe-words";

/// Seconds after those for saving in which the files of a job that was asked to end are fetched: checkpoints may be large.
const FETCH_SECONDS: u32 = 900;

/// Seconds that the files of a job which has ended wait for `pipe`: in a pod alone, and on a volume, where they are afterwards too.
pub const LINGER_IN_POD: u32 = 3600;
const LINGER_ON_VOLUME: u32 = 60;

/// The same of the job that supervises a run: until somebody looks for it, days.
const LINGER_OF_SUPERVISOR: u32 = 7 * 24 * 3600;

/// The share of a processor that is kept free for that job.
const CPU_OF_SUPERVISOR: &str = "100m";

/// The user of a pod where `pipe` runs as root.
const NOBODY: u32 = 65532;

/// The trainer in an image of `pipe`.
const TRAINER: &str = "/opt/pipe/bin/pipe-trainer";

/// Seconds that a pod may take to save and give its files back.
pub fn grace(launch: &Launch) -> u32 {
    first_process::stop_timeout(launch) + FETCH_SECONDS
}

pub fn program() -> String {
    format!("{PROGRAM_FOLDER}/{}", first_process::NAME)
}

/// The names of the secrets with the parts of the first process: the same for all runs of a version.
fn part_names() -> Vec<String> {
    let hash = &blake3::hash(first_process::PROGRAM).to_hex()[..16];
    (0..first_process::PROGRAM.chunks(PART).count()).map(|number| format!("pipe-job-{hash}-{number}")).collect()
}

/// The secrets with the first process, and the program that joins its parts.
pub fn program_secrets() -> Vec<Secret> {
    let parts = part_names().into_iter().zip(first_process::PROGRAM.chunks(PART)).enumerate();
    parts
        .map(|(number, (name, part))| {
            let joiner = (number == 0).then(|| (JOIN.to_owned(), ByteString(first_process::JOIN.to_vec())));
            let part = (format!("part-{number}"), ByteString(part.to_vec()));
            Secret {
                metadata: ObjectMeta {
                    name: Some(name),
                    labels: Some([("app.kubernetes.io/managed-by".to_owned(), "pipe".to_owned())].into()),
                    ..ObjectMeta::default()
                },
                immutable: Some(true),
                data: Some(joiner.into_iter().chain([part]).collect()),
                ..Secret::default()
            }
        })
        .collect()
}

/// The words and variables of a job, which nobody sees in its pod. It goes when the pod goes.
pub fn job_secret(launch: &Launch, pod: &Pod) -> Secret {
    let program = match &launch.program {
        JobProgram::Trainer => TRAINER,
        JobProgram::Command(program) => program,
    };
    let words = [program].into_iter().chain(launch.args.iter().map(String::as_str));
    let words: Vec<u8> = words.flat_map(|word| word.bytes().chain([0])).collect();
    let mut env = launch.env.clone();
    if let JobProgram::Command(_) = launch.program {
        // As every engine with images has it: Python asks for the name of the user, whom no file of the image knows.
        for (name, value) in [("HOME", "/tmp"), ("USER", "user"), ("LOGNAME", "user")] {
            env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    let env: Vec<u8> = env.iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect();
    Secret {
        metadata: owned_by(pod),
        data: Some([(WORDS.to_owned(), ByteString(words)), (ENV.to_owned(), ByteString(env))].into()),
        ..Secret::default()
    }
}

/// An object with the name of a pod, which goes with it.
fn owned_by(pod: &Pod) -> ObjectMeta {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    ObjectMeta {
        name: pod.metadata.name.clone(),
        labels: pod.metadata.labels.clone(),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}

/// The port of the first pod by which those of other nodes find it. The one after it is used too.
const FIRST_PORT: u16 = 29400;

/// Gives the pods of a job names, by which they find the first one.
pub fn service(pod: &Pod) -> Service {
    let is_wanted = |name: &&String| [RUN, ATTEMPT].contains(&name.as_str());
    let labels = pod.metadata.labels.iter().flatten();
    let port = ServicePort { port: FIRST_PORT.into(), ..ServicePort::default() };
    Service {
        metadata: owned_by(pod),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            // They find each other before they are ready.
            publish_not_ready_addresses: Some(true),
            selector: Some(labels.filter(|(name, _)| is_wanted(name)).map(|(k, v)| (k.clone(), v.clone())).collect()),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Gives the pod of one of several nodes a name, and no node with another one of them.
fn join_others(spec: &mut Value, launch: &Launch, plan: &Plan) {
    if plan.nodes <= 1 {
        return;
    }
    let first = &plan.first_pod;
    spec["hostname"] = json!(plan.pod);
    spec["subdomain"] = json!(first);
    let mut env = vec![
        json!({"name": NODE_VARIABLE, "value": plan.node.to_string()}),
        json!({"name": FIRST_NODE_VARIABLE, "value": format!("{first}.{first}:{FIRST_PORT}")}),
    ];
    if !launch.env.contains_key("GLOO_SOCKET_IFNAME") {
        // An image may not know how to find its own name.
        env.push(json!({"name": ADDRESS_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}));
    }
    spec["containers"][0]["env"] = json!(env);
    let others = json!({RUN: plan.run.hash, ATTEMPT: plan.attempt.to_string()});
    let has_node = json!([{"key": NODE, "operator": "Exists"}]);
    spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": others, "matchExpressions": has_node},
    }]}});
}

/// The files of that secret.
const WORDS: &str = "words";
const ENV: &str = "env";

/// The pod of a job.
pub fn pod(launch: &Launch, plan: &Plan, settings: &Pods) -> Result<Pod, Error> {
    let image = launch.image.as_deref().unwrap_or_default();
    let settings = &if launch.supervises() { settings.of_supervisor() } else { settings.clone() };
    let mut spec = common(settings);
    spec["automountServiceAccountToken"] = json!(launch.supervises());
    spec["terminationGracePeriodSeconds"] = json!(grace(launch));
    if let Some(minutes) = settings.time {
        spec["activeDeadlineSeconds"] = json!(u64::from(minutes.get()) * 60);
    }
    let upload = joining(image, &ready());
    let linger = match settings.volume {
        Some(_) => LINGER_ON_VOLUME,
        None if launch.supervises() => LINGER_OF_SUPERVISOR,
        None => LINGER_IN_POD,
    };
    let files = helper(FILES, image, &["files", "--control", CONTROL, "--linger", &linger.to_string()]);
    spec["initContainers"] = json!([upload]);
    spec["containers"] = json!([job(launch, plan, settings), files]);
    let mut volumes = volumes(settings);
    volumes.push(json!({"name": "words", "secret": {"secretName": plan.first_pod}}));
    if let JobProgram::Command(_) = launch.program {
        volumes.push(json!({"name": "tmp", "emptyDir": {}}));
    }
    let scratch = scratch(launch).enumerate();
    volumes.extend(scratch.map(|(number, _)| json!({"name": format!("scratch-{number}"), "emptyDir": {}})));
    if let Some(bytes) = launch.resources.shm {
        volumes.push(json!({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": bytes.to_string()}}));
    }
    spec["volumes"] = json!(volumes);
    join_others(&mut spec, launch, plan);
    let mut pod = made(&launch.run_id, plan, settings, &plan.pod, spec)?;
    if plan.nodes > 1 {
        label_group(&mut pod.metadata, plan, settings);
    }
    Ok(pod)
}

/// Says which pods are one job, also to Kueue, which then admits all of them or none.
fn label_group(metadata: &mut ObjectMeta, plan: &Plan, settings: &Pods) {
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(NODE.to_owned(), plan.node.to_string());
    if settings.queue.is_some() {
        labels.insert("kueue.x-k8s.io/pod-group-name".to_owned(), plan.first_pod.clone());
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert("kueue.x-k8s.io/pod-group-total-count".to_owned(), plan.nodes.to_string());
    }
}

/// A pod that only gives back what a job has left on a volume.
pub fn reader(launch: &Launch, plan: &Plan, settings: &Pods) -> Result<Pod, Error> {
    let mut spec = common(settings);
    spec["terminationGracePeriodSeconds"] = json!(1);
    spec["activeDeadlineSeconds"] = json!(LINGER_IN_POD);
    let image = launch.image.as_deref().unwrap_or_default();
    // It has its program as soon as it begins, and waits for no files.
    spec["initContainers"] = json!([joining(image, &program())]);
    spec["containers"] = json!([helper(FILES, image, &["files", "--control", CONTROL, "--linger", "0"])]);
    spec["volumes"] = json!(volumes(settings));
    made(&launch.run_id, plan, settings, &reader_name(&plan.pod), spec)
}

pub fn reader_name(pod: &str) -> String {
    format!("{pod}-files")
}

fn made(run_id: &str, plan: &Plan, settings: &Pods, name: &str, spec: Value) -> Result<Pod, Error> {
    let mut labels: Map<String, Value> =
        settings.labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let mut annotations: Map<String, Value> =
        settings.annotations.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let RunName { short, hash } = &plan.run;
    let attempt = plan.attempt.to_string();
    for (name, value) in [
        ("app.kubernetes.io/name", "pipe"),
        ("app.kubernetes.io/managed-by", "pipe"),
        ("app.kubernetes.io/instance", short.as_str()),
        (RUN, hash.as_str()),
        (ATTEMPT, attempt.as_str()),
    ] {
        labels.insert(name.to_owned(), json!(value));
    }
    annotations.insert(RUN.to_owned(), json!(run_id));
    if let Some(queue) = &settings.queue {
        labels.insert("kueue.x-k8s.io/queue-name".to_owned(), json!(queue));
        annotations.insert("scheduling.volcano.sh/queue-name".to_owned(), json!(queue));
    }
    let object = json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": spec,
    });
    serde_json::from_value(object).map_err(|error| Error::JobRefused {
        engine: super::NAME,
        said: format!("the pod cannot be described: {error}"),
        hint: "correct `kubernetes` in the pipeline".to_owned(),
    })
}

/// The settings that the pods of a run have in common.
fn common(settings: &Pods) -> Value {
    let own = |id: u32| if id == 0 { NOBODY } else { id };
    let user = own(rustix::process::getuid().as_raw());
    let group = own(rustix::process::getgid().as_raw());
    let mut spec = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "nodeSelector": settings.node_selector,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": user,
            "runAsGroup": group,
            "fsGroup": group,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "imagePullSecrets": settings.pull_secrets.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        "tolerations": settings.tolerations.iter().map(|tolerated| {
            let operator = tolerated.operator.clone().or_else(|| tolerated.value.is_none().then(|| "Exists".to_owned()));
            json!({
                "key": tolerated.key,
                "operator": operator,
                "value": tolerated.value,
                "effect": tolerated.effect,
                "tolerationSeconds": tolerated.seconds,
            })
        }).collect::<Vec<_>>(),
    });
    if let Some(account) = &settings.service_account {
        spec["serviceAccountName"] = json!(account);
    }
    if let Some(class) = &settings.priority_class {
        spec["priorityClassName"] = json!(class);
    }
    if let Some(scheduler) = &settings.scheduler {
        spec["schedulerName"] = json!(scheduler);
    }
    spec
}

fn volumes(settings: &Pods) -> Vec<Value> {
    let data = match settings.volume() {
        None => json!({"name": "data", "emptyDir": {}}),
        Some(Volume::Claim { name, .. }) => json!({"name": "data", "persistentVolumeClaim": {"claimName": name}}),
        Some(Volume::Host { path }) => json!({"name": "data", "hostPath": {"path": path, "type": "Directory"}}),
        Some(Volume::Nfs { server, path }) => json!({"name": "data", "nfs": {"server": server, "path": path}}),
    };
    let parts: Vec<Value> = part_names().iter().map(|name| json!({"secret": {"name": name}})).collect();
    vec![
        data,
        json!({"name": "parts", "projected": {"defaultMode": 0o555, "sources": parts}}),
        json!({"name": "program", "emptyDir": {}}),
        json!({"name": "control", "emptyDir": {}}),
    ]
}

/// The least that a container may do.
fn confined() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

/// The container that begins: it joins the first process, which then waits for a file.
fn joining(image: &str, until: &str) -> Value {
    let mut container = helper(UPLOAD, image, &[]);
    let parts = (0..part_names().len()).map(|number| format!("{PARTS_FOLDER}/part-{number}"));
    let begin = [format!("{PARTS_FOLDER}/{JOIN}"), program()].into_iter();
    let words = ["--", "await", "--ready", until].map(str::to_owned);
    container["command"] = begin.chain(parts).chain(words).collect();
    let mounts = [
        json!({"name": "data", "mountPath": DATA}),
        json!({"name": "parts", "mountPath": PARTS_FOLDER, "readOnly": true}),
        json!({"name": "program", "mountPath": PROGRAM_FOLDER}),
        json!({"name": "control", "mountPath": CONTROL}),
    ];
    container["volumeMounts"] = json!(mounts);
    container
}

/// A container that carries files.
fn helper(name: &str, image: &str, args: &[&str]) -> Value {
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": program_words(args),
        "securityContext": confined(),
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "64Mi"},
        },
        "volumeMounts": [
            {"name": "data", "mountPath": DATA},
            {"name": "program", "mountPath": PROGRAM_FOLDER, "readOnly": true},
            {"name": "control", "mountPath": CONTROL},
        ],
    })
}

/// The empty folders of a job that have no other mount.
fn scratch(launch: &Launch) -> impl Iterator<Item = &Path> {
    let Mounts { writable, read_only, scratch } = &launch.mounts;
    let is_free = move |path: &&PathBuf| {
        let mut taken = writable.iter().chain(read_only).map(|(_, mounted)| mounted.as_path());
        path.is_absolute()
            && ![Path::new("/"), Path::new("/tmp")].contains(&path.as_path())
            && taken.all(|it| it != path.as_path())
    };
    scratch.iter().filter(is_free).map(PathBuf::as_path)
}

/// The process that passes a request to stop on to the `pipe` that supervises a run, in its container.
pub fn stop_words(launch: &Launch, at_once: bool) -> Vec<String> {
    let program = match &launch.program {
        JobProgram::Trainer => TRAINER,
        JobProgram::Command(program) => program,
    };
    let env = format!("{WORDS_FOLDER}/{ENV}");
    let own = program_words(&["--env", &env, "--", program, "stop", "--quiet"]);
    let now = at_once.then(|| "--now".to_owned());
    own.into_iter().chain(now).chain(["--".to_owned(), launch.run_id.clone()]).collect()
}

/// The words of the first process with these arguments.
fn program_words(args: &[&str]) -> Vec<String> {
    std::iter::once(program()).chain(args.iter().map(|word| (*word).to_owned())).collect()
}

fn job(launch: &Launch, plan: &Plan, settings: &Pods) -> Value {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut mounts = vec![
        json!({"name": "program", "mountPath": PROGRAM_FOLDER, "readOnly": true}),
        json!({"name": "control", "mountPath": CONTROL}),
        json!({"name": "words", "mountPath": WORDS_FOLDER, "readOnly": true}),
    ];
    mounts.extend(plan.written.iter().map(|written| {
        let stored = format!("{}/{}", plan.attempt_folder(), written.name);
        json!({"name": "data", "mountPath": text(&written.mounted), "subPath": plan.below(&stored)})
    }));
    mounts.extend(plan.given.iter().map(|given| {
        json!({"name": "data", "mountPath": text(&given.mounted), "subPath": plan.below(&given.stored), "readOnly": true})
    }));
    if let JobProgram::Command(_) = launch.program {
        mounts.push(json!({"name": "tmp", "mountPath": "/tmp"}));
    }
    let scratch = scratch(launch).enumerate();
    mounts.extend(scratch.map(|(number, path)| json!({"name": format!("scratch-{number}"), "mountPath": text(path)})));
    if launch.resources.shm.is_some() {
        mounts.push(json!({"name": "shm", "mountPath": "/dev/shm"}));
    }
    let mut resources = Map::new();
    if let Some(cpus) = launch.resources.cpus {
        resources.insert("cpu".to_owned(), json!(format!("{}m", (cpus * 1000.0).round())));
    }
    if let Some(bytes) = launch.resources.memory {
        resources.insert("memory".to_owned(), json!(bytes.to_string()));
    }
    let cards = super::cards(&launch.resources.gpus);
    if cards > 0 {
        resources.insert(settings.gpu_resource.clone(), json!(cards.to_string()));
    }
    let seen = |name: &str| text(&launch.job_folder.1.join(name));
    let words: [&str; 15] = [
        &program(),
        "--output",
        &seen(JobFolder::OUTPUT),
        "--record",
        &seen(JobFolder::END),
        "--signals",
        first_process::signals(launch),
        "--stop-timeout",
        &first_process::stop_timeout(launch).to_string(),
        "--lock",
        &format!("{CONTROL}/lock"),
        "--env",
        &format!("{WORDS_FOLDER}/{ENV}"),
        "--words",
        &format!("{WORDS_FOLDER}/{WORDS}"),
    ];
    let mut container = json!({
        "name": JOB,
        "image": launch.image,
        "imagePullPolicy": "IfNotPresent",
        "command": words,
        "securityContext": confined(),
        "resources": {"requests": resources, "limits": resources},
        "volumeMounts": mounts,
    });
    if launch.supervises() {
        container["resources"]["requests"]["cpu"] = json!(CPU_OF_SUPERVISOR);
    }
    if let Some(folder) = &launch.work_folder {
        container["workingDir"] = json!(text(folder));
    }
    container
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{Container, Gpus};

    use super::*;
    use crate::engine::Resources;

    fn launch() -> Launch {
        let job =
            (std::path::PathBuf::from("/r/attempts/01/job"), std::path::PathBuf::from("/run/pipe/attempts/01/job"));
        Launch {
            run_id: "demo-1".to_owned(),
            image: Some("tool:1".to_owned()),
            args: vec!["--token=sesame".to_owned()],
            env: [("API_KEY".to_owned(), "hunter2".to_owned())].into(),
            mounts: Mounts {
                writable: vec![job.clone()],
                read_only: vec![("/d/a.csv".into(), "/data/a.csv".into())],
                ..Mounts::default()
            },
            job_folder: job,
            resources: Resources {
                gpus: Gpus::Count(2),
                memory: Some(1 << 30),
                shm: Some(1 << 20),
                cpus: Some(1.5),
                nodes: 1,
            },
            ..Launch::example(&Container::default(), 1)
        }
    }

    fn described(settings: &Pods) -> Value {
        let launch = launch();
        json!(pod(&launch, &Plan::new(&launch, settings), settings).unwrap())
    }

    #[test]
    fn secrets_are_in_the_secret_alone() {
        let text = described(&Pods::default()).to_string();
        assert!(!text.contains("sesame") && !text.contains("hunter2"), "{text}");
        let mut made: Pod = serde_json::from_value(described(&Pods::default())).unwrap();
        made.metadata.uid = Some("u".to_owned());
        let secret = job_secret(&launch(), &made);
        let data = secret.data.unwrap();
        assert_eq!(data["words"].0, b"true\0--token=sesame\0");
        assert!(String::from_utf8_lossy(&data["env"].0).contains("API_KEY=hunter2\0"));
        assert_eq!(secret.metadata.owner_references.unwrap()[0].uid, "u");
    }

    #[test]
    fn a_pod_may_do_the_least() {
        let pod = described(&Pods::default());
        let spec = &pod["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_ne!(spec["securityContext"]["runAsUser"], 0);
        let containers = |list: &str| spec[list].as_array().unwrap().clone();
        let all = [containers("initContainers"), containers("containers")].concat();
        assert_eq!(all.len(), 3);
        for container in all {
            assert_eq!(container["securityContext"], confined(), "{container}");
            assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        }
    }

    #[test]
    fn the_pod_that_supervises_has_a_token_and_waits_for_nobody() {
        let settings = Pods {
            supervisor: Some("supervisor".to_owned()),
            service_account: Some("other".to_owned()),
            queue: Some("team-a".to_owned()),
            scheduler: Some("volcano".to_owned()),
            time: std::num::NonZeroU32::new(2),
            ..Pods::default()
        };
        let own = std::path::PathBuf::from("/home/me/runs/demo-1");
        let own_launch = Launch {
            attempt: 0,
            mounts: Mounts {
                writable: vec![(own.clone(), own), launch().job_folder],
                scratch: ["/home/me", "/tmp", "/", "/home/me/runs/demo-1"].map(Into::into).into(),
                ..Mounts::default()
            },
            ..launch()
        };
        let pod = json!(pod(&own_launch, &Plan::new(&own_launch, &settings), &settings).unwrap());
        let spec = &pod["spec"];
        assert_eq!(
            (&spec["serviceAccountName"], &spec["automountServiceAccountToken"]),
            (&json!("supervisor"), &json!(true))
        );
        assert_eq!((&spec["activeDeadlineSeconds"], &spec["schedulerName"]), (&Value::Null, &Value::Null));
        assert!(!pod.to_string().contains("team-a"));
        let job = &spec["containers"][0];
        assert_eq!(job["resources"]["requests"]["cpu"], CPU_OF_SUPERVISOR);
        let empty: Vec<&Value> =
            items(job).filter(|mount| mount["name"].as_str().unwrap().starts_with("scratch")).collect();
        assert_eq!(empty.len(), 1, "{empty:?}");
        let run = items(job).find(|mount| mount["mountPath"] == "/home/me/runs/demo-1").unwrap();
        assert!(run["subPath"].as_str().unwrap().ends_with("/attempts/00/run"), "{run}");
        let words = stop_words(&own_launch, true).join(" ");
        assert!(words.ends_with("-- true stop --quiet --now -- demo-1"), "{words}");
        let trains = json!(super::pod(&launch(), &Plan::new(&launch(), &settings), &settings).unwrap());
        assert_eq!(
            (&trains["spec"]["serviceAccountName"], &trains["spec"]["automountServiceAccountToken"]),
            (&json!("other"), &json!(false))
        );
    }

    fn items(container: &Value) -> std::slice::Iter<'_, Value> {
        container["volumeMounts"].as_array().unwrap().iter()
    }

    #[test]
    fn the_pipeline_says_what_it_has_and_where_it_lies() {
        let settings = Pods {
            volume: Some("claim/training".to_owned()),
            queue: Some("team-a".to_owned()),
            time: std::num::NonZeroU32::new(2),
            priority_class: Some("low".to_owned()),
            scheduler: Some("volcano".to_owned()),
            labels: [("team".to_owned(), "a".to_owned())].into(),
            ..Pods::default()
        };
        let pod = described(&settings);
        let job = &pod["spec"]["containers"][0];
        let wanted = json!({"cpu": "1500m", "memory": "1073741824", "nvidia.com/gpu": "2"});
        assert_eq!((&job["resources"]["limits"], &job["resources"]["requests"]), (&wanted, &wanted));
        let labels = &pod["metadata"]["labels"];
        assert_eq!(
            (labels["kueue.x-k8s.io/queue-name"].as_str(), labels["team"].as_str()),
            (Some("team-a"), Some("a"))
        );
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(
            (&annotations[RUN], &annotations["scheduling.volcano.sh/queue-name"]),
            (&json!("demo-1"), &json!("team-a"))
        );
        let spec = &pod["spec"];
        assert_eq!(
            (spec["activeDeadlineSeconds"].as_u64(), &spec["priorityClassName"], &spec["schedulerName"]),
            (Some(120), &json!("low"), &json!("volcano"))
        );
        let text = pod.to_string();
        assert!(text.contains(r#""claimName":"training""#) && text.contains(r#""sizeLimit":"1048576""#), "{text}");
        let mounts = job["volumeMounts"].as_array().unwrap();
        let data = mounts.iter().find(|mount| mount["mountPath"] == "/data/a.csv").unwrap();
        assert!(data["readOnly"] == true && data["subPath"].as_str().unwrap().contains("/inputs/"), "{data}");
    }

    #[test]
    fn pods_of_several_nodes_find_the_first_and_share_no_node() {
        let settings = Pods { queue: Some("team-a".to_owned()), ..Pods::default() };
        let mut launch = launch();
        launch.resources.nodes = 2;
        let made = |node: u32| pod(&launch, &Plan::of_node(&launch, &settings, node), &settings).unwrap();
        let (first, second) = (made(0), made(1));
        let service = service(&first);
        let name = first.metadata.name.clone().unwrap();
        assert_eq!(service.metadata.name.as_ref(), Some(&name));
        assert_eq!(second.metadata.name, Some(format!("{name}-1")));
        for (node, pod) in [(0, &first), (1, &second)] {
            let pod = json!(pod);
            let env = &pod["spec"]["containers"][0]["env"];
            assert_eq!(
                (&env[0]["value"], &env[1]["value"]),
                (&json!(node.to_string()), &json!(format!("{name}.{name}:29400")))
            );
            assert_eq!(pod["spec"]["subdomain"], json!(name));
            let labels = &pod["metadata"]["labels"];
            assert_eq!(labels["kueue.x-k8s.io/pod-group-name"], json!(name));
            for (key, value) in service.spec.as_ref().unwrap().selector.as_ref().unwrap() {
                assert_eq!(labels[key], json!(value));
            }
            assert!(pod["spec"]["affinity"].to_string().contains(r#""key":"pipe.node""#), "{pod}");
            assert!(pod.to_string().contains(&format!(r#""secretName":"{name}""#)), "{pod}");
        }
        let written = |pod: &Pod| json!(pod)["spec"]["containers"][0]["volumeMounts"].to_string();
        assert!(written(&first).contains("attempts/01/job\"") && written(&second).contains("attempts/01/job-1\""));
        assert!(described(&settings)["spec"]["affinity"].is_null());
    }

    #[test]
    fn a_secret_holds_a_part_of_the_first_process() {
        let parts: Vec<Vec<u8>> = program_secrets()
            .into_iter()
            .map(|secret| {
                secret.data.unwrap().into_iter().filter(|(name, _)| name != JOIN).flat_map(|(_, part)| part.0).collect()
            })
            .collect();
        assert_eq!(parts.concat(), first_process::PROGRAM);
        assert!(parts.iter().all(|part| part.len() + first_process::JOIN.len() < 1 << 20));
    }
}
