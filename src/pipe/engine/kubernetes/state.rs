//! How far a pod is, and how a job ended: from what the cluster says of a pod to our words. Pure.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition};
use pipe_spec::TrainerExit;
use pipe_spec::run::JobEnd;

use super::pod::{FILES, JOB, UPLOAD};
use crate::engine::first_process::{self, KILLED};
use crate::engine::{EndedBy, Ending};

/// How far a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits, and this is why.
    Waits {
        why: String,
    },
    /// It cannot start; `is_final` where waiting does not help.
    Stuck {
        why: String,
        is_final: bool,
    },
    /// It waits for its files.
    Takes,
    Runs {
        node: String,
    },
    /// The job has ended, or will never begin.
    Ended,
}

/// The reasons of a container that waits which are errors, and whether they can go away by themselves.
const STUCK: [(&str, bool); 9] = [
    ("ErrImagePull", false),
    ("ImagePullBackOff", false),
    ("RegistryUnavailable", false),
    ("CreateContainerConfigError", false),
    ("RunContainerError", false),
    ("InvalidImageName", true),
    ("ErrImageNeverPull", true),
    ("CreateContainerError", true),
    ("StartError", true),
];

/// Words of a registry that knows the image or the user not.
const NOT_THERE: [&str; 5] = ["not found", "manifest unknown", "unauthorized", "denied", "does not exist"];

pub fn stage(pod: &Pod) -> Stage {
    let status = pod.status.clone().unwrap_or_default();
    let (upload, job) = (container(pod, UPLOAD), container(pod, JOB));
    if job.is_some_and(|job| job.terminated.is_some()) {
        return Stage::Ended;
    }
    if job.is_some_and(|job| job.running.is_some()) {
        return Stage::Runs { node: node(pod) };
    }
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        return Stage::Ended;
    }
    if upload.is_some_and(|upload| upload.running.is_some()) {
        return Stage::Takes;
    }
    for state in [upload, job].into_iter().flatten() {
        let Some(waiting) = &state.waiting else { continue };
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = waiting.message.as_deref().unwrap_or_default();
        if let Some((_, is_final)) = STUCK.iter().find(|(name, _)| *name == reason) {
            let is_final = *is_final || NOT_THERE.iter().any(|words| message.contains(words));
            let why = if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") };
            return Stage::Stuck { why, is_final };
        }
    }
    let condition = |name: &str| conditions(pod).iter().find(|condition| condition.type_ == name);
    let why = match condition("PodScheduled") {
        Some(scheduled) if scheduled.status == "False" => {
            let message = scheduled.message.clone().filter(|message| !message.is_empty());
            message.or_else(|| scheduled.reason.clone()).unwrap_or_default()
        }
        Some(_) => format!("{} prepares it", node(pod)),
        None => String::new(),
    };
    match why.contains("persistentvolumeclaim") && why.contains("not found") {
        true => Stage::Stuck { why, is_final: false },
        false => Stage::Waits { why },
    }
}

fn node(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

fn conditions(pod: &Pod) -> &[PodCondition] {
    pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerState> {
    let status = pod.status.as_ref()?;
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut all = lists.into_iter().filter_map(|list| list.as_ref()).flatten();
    let found: &ContainerStatus = all.find(|status| status.name == name)?;
    found.state.as_ref()
}

/// Whether the container that gives files back runs, or will.
pub fn gives_files(pod: &Pod) -> bool {
    container(pod, FILES).is_some_and(|state| state.terminated.is_none())
}

/// Whether somebody or something has asked the pod to end.
pub fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The facts about the end of a job beside its own record.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The pod as it was last seen.
    pub phase: String,
    pub reason: String,
    pub message: String,
    pub node: String,
    /// Exit code and reason of the container.
    pub exit: Option<(i64, String)>,
    /// Why newer clusters say that they ended it.
    pub disruption: String,
    pub is_deleted: bool,
    /// The reasons and messages of its events.
    pub events: Vec<(String, String)>,
    /// Whether its node takes no new pods.
    pub node_is_closed: bool,
    /// Whether its node does not answer.
    pub node_is_lost: bool,
    /// Whether `pipe` has asked it to end.
    pub is_asked: bool,
    /// Whether another `pipe` has.
    pub was_asked: bool,
    /// Whether all files that it wrote are here.
    pub has_files: bool,
}

impl Seen {
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let disruption = conditions(pod).iter().find(|condition| condition.type_ == "DisruptionTarget");
        let exit = container(pod, JOB).and_then(|state| state.terminated.as_ref());
        Self {
            phase: status.phase.unwrap_or_default(),
            reason: status.reason.unwrap_or_default(),
            message: status.message.unwrap_or_default(),
            node: node(pod),
            exit: exit.map(|ended| (ended.exit_code.into(), ended.reason.clone().unwrap_or_default())),
            disruption: disruption.and_then(|condition| condition.reason.clone()).unwrap_or_default(),
            is_deleted: is_deleted(pod),
            ..Self::default()
        }
    }

    fn event(&self, reason: &str) -> bool {
        self.events.iter().any(|(found, _)| found == reason)
    }

    /// Whether its node evicted the pod for memory of which the job itself had more than it asked for. A node says that in words: `Container
    /// job was using 2Gi, which exceeds its request of 1Gi` before 1.26, `using 2Gi, request is 1Gi, has larger consumption of memory` since.
    pub fn is_evicted_for_own_memory(&self) -> bool {
        let used = self.message.split("Container ").skip(1).find(|part| part.starts_with(&format!("{JOB} was using ")));
        self.reason == "Evicted"
            && self.message.contains("low on resource: memory")
            && used.is_some_and(|used| {
                used.contains("exceeds its request") || used.contains("has larger consumption of memory")
            })
    }
}

/// Exit codes by which a job says that its files are whole: done, and the trainer's after it has saved on request.
const SAVED: [i64; 2] = [TrainerExit::Done as i64, TrainerExit::Stopped as i64];

/// The end of a job whose last files did not come: its result is not here, whatever it said.
fn without_files(seen: &Seen, code: i64, memory_limit: Option<u64>) -> Ending {
    let what = format!("pod of {} ended with exit code {code}, and its last files were lost with it", seen.node);
    let by_cluster = ended_by(seen, None);
    Ending {
        lost: Some(what.clone()),
        memory_limit,
        ended_by: by_cluster.or_else(|| (!seen.is_asked).then_some(EndedBy::NodeLost { what })),
        ..Ending::exited(None)
    }
}

/// The end of a job, from its own record and what the cluster says; `seen` is nothing where the cluster does not know it any more.
pub fn ending(own: Option<&JobEnd>, seen: Option<&Seen>, is_trainer: bool, memory_limit: Option<u64>) -> Ending {
    let exit = seen.and_then(|seen| seen.exit.as_ref());
    let code = own.map(|end| end.exit_code).or_else(|| exit.map(|(code, _)| *code));
    // The record of the end comes after all other files.
    let has_files = own.is_some() || seen.is_none_or(|seen| seen.has_files);
    if let (Some(seen), Some(code), false) = (seen, code.filter(|code| SAVED.contains(code)), has_files) {
        return without_files(seen, code, memory_limit);
    }
    let evicted = own.is_none() && seen.is_some_and(Seen::is_evicted_for_own_memory);
    let oom_killed = evicted
        || exit.is_some_and(|(_, reason)| reason == "OOMKilled")
        || first_process::is_oom_killed(own.map_or(0, |end| end.oom_kills), code, is_trainer, true);
    let exit_code = match code {
        _ if evicted => Some(KILLED),
        // A trainer that the kernel did not kill has an exit code for it.
        Some(1) if oom_killed && is_trainer => Some(KILLED),
        code => code,
    };
    let ended_by = match seen {
        _ if evicted || is_trainer && exit_code == Some(0) => None,
        Some(seen) => ended_by(seen, exit_code),
        None => None,
    };
    let lost = exit_code.is_none().then(|| match seen {
        Some(seen) if !seen.reason.is_empty() => format!("its pod ended: {}", sentence(&seen.reason, &seen.message)),
        Some(seen) if seen.is_deleted => "its pod was deleted".to_owned(),
        Some(seen) => format!("its pod is {} and left no exit code", seen.phase),
        None => "the cluster does not know its pod any more".to_owned(),
    });
    let completed = own.is_some_and(JobEnd::is_completed);
    Ending {
        exit_code,
        oom_killed,
        memory_limit,
        lost,
        outage: exit_code.is_none() && seen.is_none(),
        ended_by,
        completed,
    }
}

fn sentence(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {}", message.trim()) }
}

/// Why the cluster ended a job, if it did.
fn ended_by(seen: &Seen, exit_code: Option<i64>) -> Option<EndedBy> {
    let lost = |what: String| Some(EndedBy::NodeLost { what });
    let node = if seen.node.is_empty() { "its node" } else { &seen.node };
    match seen.reason.as_str() {
        "DeadlineExceeded" => return Some(EndedBy::TimeLimit),
        "Evicted" => return lost(format!("{node} evicted the pod: {}", seen.message.trim())),
        "Preempting" | "Preempted" => return Some(EndedBy::Preempted),
        "NodeLost" => return lost(format!("{node} does not answer any more")),
        "Shutdown" | "Terminated" | "NodeShutdown" => return lost(format!("{node} was shut down")),
        // It was refused by the node that it was given to.
        "" => {}
        _ if seen.exit.is_none() && seen.phase == "Failed" && exit_code.is_none() => {
            return lost(format!("{node} did not take the pod: {}", sentence(&seen.reason, &seen.message)));
        }
        _ => {}
    }
    match seen.disruption.as_str() {
        "PreemptionByScheduler" | "PreemptionByKubeScheduler" => return Some(EndedBy::Preempted),
        "EvictionByEvictionAPI" => return lost(format!("{node} was drained")),
        "DeletionByTaintManager" => return lost(format!("{node} is lost, or was closed to its pods")),
        "DeletionByPodGC" => return lost(format!("{node} is gone from the cluster")),
        "TerminationByKubelet" => return lost(format!("{node} ended the pod")),
        _ => {}
    }
    // Asked by pipe, or ended by itself.
    if seen.is_asked || !seen.is_deleted {
        return None;
    }
    if seen.event("Preempted") {
        return Some(EndedBy::Preempted);
    }
    if seen.node_is_lost || seen.event("TaintManagerEviction") {
        return lost(format!("{node} does not answer any more"));
    }
    if seen.node_is_closed {
        return lost(format!("{node} was drained"));
    }
    if seen.was_asked {
        return Some(EndedBy::Requested);
    }
    Some(EndedBy::Cancelled { by_other: None })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n1", "containers": []}, "status": status}),
        )
        .unwrap()
    }

    #[test]
    fn stages() {
        let waits = |reason: &str, message: &str| {
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "upload", "ready": false, "restartCount": 0,
                   "image": "", "imageID": "", "state": {"waiting": {"reason": reason, "message": message}}}]})
        };
        let state = |list: &str, name: &str, state: Value| {
            json!({"phase": "Running", list: [{"name": name, "ready": false, "restartCount": 0, "image": "", "imageID": "",
                   "state": state}]})
        };
        let full = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.";
        let unscheduled = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": full}]});
        let claim = "persistentvolumeclaim \"x\" not found";
        let no_claim = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": claim}]});
        for (status, want) in [
            (no_claim, Stage::Stuck { why: claim.to_owned(), is_final: false }),
            (json!({"phase": "Pending"}), Stage::Waits { why: String::new() }),
            (unscheduled, Stage::Waits { why: full.to_owned() }),
            (
                waits("ImagePullBackOff", "Back-off"),
                Stage::Stuck { why: "ImagePullBackOff: Back-off".to_owned(), is_final: false },
            ),
            (
                waits("ErrImagePull", "x not found"),
                Stage::Stuck { why: "ErrImagePull: x not found".to_owned(), is_final: true },
            ),
            (waits("InvalidImageName", ""), Stage::Stuck { why: "InvalidImageName".to_owned(), is_final: true }),
            (state("initContainerStatuses", "upload", json!({"running": {}})), Stage::Takes),
            (state("containerStatuses", "job", json!({"running": {}})), Stage::Runs { node: "n1".to_owned() }),
            (state("containerStatuses", "job", json!({"terminated": {"exitCode": 0}})), Stage::Ended),
            (json!({"phase": "Failed", "reason": "Evicted"}), Stage::Ended),
        ] {
            assert_eq!(stage(&pod(status.clone())), want, "{status}");
        }
    }

    fn seen(exit: Option<(i64, &str)>) -> Seen {
        let exit = exit.map(|(code, reason)| (code, reason.to_owned()));
        Seen { phase: "Failed".to_owned(), node: "n1".to_owned(), exit, has_files: true, ..Seen::default() }
    }

    fn lost(what: &str) -> Option<EndedBy> {
        Some(EndedBy::NodeLost { what: what.to_owned() })
    }

    #[test]
    fn memory_by_the_reason_and_not_by_the_code() {
        for (code, is_trainer, want) in [(137, true, 137), (1, true, 137), (1, false, 1), (137, false, 137)] {
            let ending = ending(None, Some(&seen(Some((code, "OOMKilled")))), is_trainer, Some(1 << 30));
            assert_eq!((ending.oom_killed, ending.exit_code, ending.ended_by), (true, Some(want), None), "{code}");
        }
        let killed = ending(None, Some(&seen(Some((137, "Error")))), true, None);
        assert!(!killed.oom_killed);
        // Our own count, where the cluster says nothing of it.
        let own = JobEnd { exit_code: 137, oom_kills: 1, error: None, stop_requested: None };
        assert!(ending(Some(&own), Some(&seen(Some((137, "Error")))), true, None).oom_killed);
    }

    #[test]
    fn why_the_cluster_ended_it() {
        let status =
            |reason: &str, message: &str| Seen { reason: reason.to_owned(), message: message.to_owned(), ..seen(None) };
        let disruption =
            |reason: &str| Seen { disruption: reason.to_owned(), is_deleted: true, ..seen(Some((143, "Error"))) };
        let deleted = |event: &str| Seen {
            is_deleted: true,
            events: vec![(event.to_owned(), String::new())],
            ..seen(Some((143, "Error")))
        };
        for (seen, want) in [
            (status("DeadlineExceeded", ""), Some(EndedBy::TimeLimit)),
            (
                status("Evicted", "The node was low on resource: memory. "),
                lost("n1 evicted the pod: The node was low on resource: memory."),
            ),
            (status("NodeShutdown", ""), lost("n1 was shut down")),
            (status("OutOfcpu", "no cpu"), lost("n1 did not take the pod: OutOfcpu: no cpu")),
            (disruption("PreemptionByScheduler"), Some(EndedBy::Preempted)),
            (disruption("EvictionByEvictionAPI"), lost("n1 was drained")),
            (disruption("DeletionByTaintManager"), lost("n1 is lost, or was closed to its pods")),
            (disruption("DeletionByPodGC"), lost("n1 is gone from the cluster")),
            (Seen { node_is_lost: true, ..deleted("Killing") }, lost("n1 does not answer any more")),
            (deleted("Preempted"), Some(EndedBy::Preempted)),
            (deleted("TaintManagerEviction"), lost("n1 does not answer any more")),
            (Seen { node_is_closed: true, ..deleted("Killing") }, lost("n1 was drained")),
            (deleted("Killing"), Some(EndedBy::Cancelled { by_other: None })),
            (Seen { is_asked: true, ..deleted("Killing") }, None),
            (Seen { was_asked: true, ..deleted("Killing") }, Some(EndedBy::Requested)),
            (seen(Some((3, "Error"))), None),
        ] {
            assert_eq!(ending(None, Some(&seen), true, None).ended_by, want, "{seen:?}");
        }
        // A trainer that was done at that moment is done.
        let done = Seen { is_deleted: true, ..seen(Some((0, "Completed"))) };
        assert_eq!(ending(None, Some(&done), true, None).ended_by, None);
    }

    /// A result is one only once it is here: else the next pod continues.
    #[test]
    fn a_job_whose_files_did_not_come_has_not_finished() {
        let own = |exit_code| JobEnd { exit_code, oom_kills: 0, error: None, stop_requested: Some(false) };
        let lacking = |code, reason| Seen { has_files: false, ..seen(Some((code, reason))) };
        for is_trainer in [true, false] {
            let ending = ending(None, Some(&lacking(0, "Completed")), is_trainer, None);
            assert_eq!((ending.exit_code, ending.completed), (None, false));
            assert!(matches!(ending.ended_by, Some(EndedBy::NodeLost { .. })), "{ending:?}");
        }
        // A job that was asked to stop has stopped, and is not said to have saved.
        let asked = Seen { is_asked: true, is_deleted: true, ..lacking(143, "Error") };
        let stopped = ending(None, Some(&asked), true, None);
        assert_eq!((stopped.exit_code, stopped.ended_by), (None, None));
        // The record comes last, also where another `pipe` has fetched it.
        let done = ending(Some(&own(0)), Some(&lacking(0, "Completed")), true, None);
        assert_eq!((done.exit_code, done.completed), (Some(0), true));
        // Other ends are known without files.
        assert_eq!(ending(None, Some(&lacking(3, "Error")), true, None).exit_code, Some(3));
        assert!(ending(None, Some(&lacking(137, "OOMKilled")), true, None).oom_killed);
    }

    #[test]
    fn an_eviction_for_own_memory_is_out_of_memory() {
        let evicted = |message: &str| Seen { reason: "Evicted".to_owned(), message: message.to_owned(), ..seen(None) };
        let low = "The node was low on resource: memory.";
        for (message, want) in [
            (format!("{low} Container job was using 2Gi, which exceeds its request of 1Gi. "), true),
            (
                format!(
                    "{low} Threshold quantity: 100Mi, available: 9Mi. Container job was using 2Gi, request is 1Gi, has larger consumption of memory. "
                ),
                true,
            ),
            (format!("{low} Container files was using 90Mi, which exceeds its request of 64Mi. "), false),
            (low.to_owned(), false),
            ("The node was low on resource: ephemeral-storage. Container job was using 9Gi, which exceeds its request of 0. ".to_owned(), false),
        ] {
            let ending = ending(None, Some(&evicted(&message)), true, None);
            assert_eq!((ending.oom_killed, ending.ended_by.is_none()), (want, want), "{message}");
            assert_eq!(ending.exit_code.is_some(), want, "{message}");
        }
    }

    #[test]
    fn without_the_word_of_the_cluster() {
        let own = JobEnd { exit_code: 42, oom_kills: 0, error: None, stop_requested: None };
        assert_eq!(ending(Some(&own), None, true, None).exit_code, Some(42));
        let nothing = ending(None, None, true, None);
        assert!(nothing.outage && nothing.lost.is_some());
    }
}
