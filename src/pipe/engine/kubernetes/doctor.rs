//! The findings of `pipe doctor --engine kubernetes` about the cluster of the current context.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, ResourceQuota};
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

use super::client::{Cluster, answer};
use super::section::Pods;
use super::{allocatable, pod};
use crate::engine::{Check, CheckStatus, Host};

/// The rights that `pipe` uses in a namespace: resource, subresource and verb; and whether runs need it.
const RIGHTS: [(&str, &str, &str, bool); 11] = [
    ("pods", "", "create", true),
    ("pods", "", "get", true),
    ("pods", "", "list", true),
    ("pods", "", "watch", true),
    ("pods", "", "delete", true),
    ("pods", "exec", "get", true),
    ("pods", "exec", "create", true),
    ("secrets", "", "create", true),
    ("services", "", "create", false),
    ("events", "", "list", false),
    ("nodes", "", "list", false),
];

pub async fn checks(_host: &Host) -> Vec<Check> {
    let settings = Pods::default();
    let cluster = match Cluster::connect(&settings, None).await {
        Ok(cluster) => cluster,
        Err(error) => return vec![Check::failed("kubernetes", CheckStatus::Missing, &error)],
    };
    let found = format!("{} at {}, namespace {}", cluster.version, cluster.address, cluster.namespace);
    let mut checks = vec![Check::ok("kubernetes", found), rights(&cluster).await];
    checks.extend([nodes(&cluster, &settings).await, quota(&cluster).await, claims(&cluster).await]);
    checks.extend(clock(&cluster).await);
    checks
}

/// Asks for each right whether this user has it.
async fn rights(cluster: &Cluster) -> Check {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let (mut needed, mut useful) = (Vec::new(), Vec::new());
    for (resource, subresource, verb, is_needed) in RIGHTS {
        let review = json!({"metadata": {}, "spec": {"resourceAttributes": {
            "namespace": if resource == "nodes" { "" } else { cluster.namespace.as_str() },
            "resource": resource, "subresource": subresource, "verb": verb,
        }}});
        let Ok(review) = serde_json::from_value(review) else { continue };
        match answer(reviews.create(&PostParams::default(), &review)).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => {
                let name =
                    if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
                if is_needed { &mut needed } else { &mut useful }.push(format!("{verb} {name}"));
            }
            Err(failure) => return Check::missing("rights", failure.said()),
        }
    }
    let hint = "docs/kubernetes.md has the Role that suffices";
    match (needed.is_empty(), useful.is_empty()) {
        (false, _) => Check::missing("rights", format!("this user may not: {}", needed.join(", "))).hint(hint),
        (true, false) => {
            Check::note("rights", format!("enough for runs; this user may not: {}", useful.join(", "))).hint(
                "without nodes, `pipe` does not know their GPUs and takes a drain for a deletion; without events, a preemption; without \
                 services, a training has one node",
            )
        }
        (true, true) => Check::ok("rights", "all that runs need"),
    }
}

/// The cards of the nodes, and how many of them are free.
async fn nodes(cluster: &Cluster, settings: &Pods) -> Check {
    let nodes = match cluster.nodes().await {
        Ok(nodes) => nodes,
        Err(failure) => return Check::note("nodes", failure.said()),
    };
    let usable: Vec<&Node> = nodes.iter().filter(|node| is_usable(node)).collect();
    let all: Api<Pod> = Api::all(cluster.client.clone());
    let pods = answer(all.list(&ListParams::default())).await.map(|list| list.items).ok();
    let cards: u32 = usable.iter().map(|node| allocatable(node, &settings.gpu_resource)).sum();
    let used = pods.map(|pods| pods.iter().map(|pod| asked(pod, &settings.gpu_resource)).sum::<u32>());
    let free = used.map_or(String::new(), |used| format!(", {} of them free", cards.saturating_sub(used)));
    let gpus = match cards {
        0 => format!("none has {}", settings.gpu_resource),
        cards => format!("{cards} {}{free}", settings.gpu_resource),
    };
    let found = format!("{} of {} nodes take pods; {gpus}", usable.len(), nodes.len());
    if usable.is_empty() {
        return Check::missing("nodes", found).hint("`kubectl get nodes` says why");
    }
    if cards == 0 { Check::note("nodes", found) } else { Check::ok("nodes", found) }
}

fn is_usable(node: &Node) -> bool {
    let is_closed = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    !is_closed && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// How many of a resource a pod that has not ended has.
fn asked(pod: &Pod, resource: &str) -> u32 {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) || pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        return 0;
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref()?.get(resource));
    limits.filter_map(|quantity| quantity.0.parse::<u32>().ok()).sum()
}

async fn quota(cluster: &Cluster) -> Check {
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = match answer(quotas.list(&ListParams::default())).await {
        Ok(list) => list.items,
        Err(failure) => return Check::note("quota", failure.said()),
    };
    let describe = |quota: &ResourceQuota| {
        let status = quota.status.clone().unwrap_or_default();
        let used: BTreeMap<_, _> = status.used.unwrap_or_default();
        let hard = status.hard.unwrap_or_default();
        let each = hard.iter().map(|(name, most)| {
            let used = used.get(name).map_or("0", |used| used.0.as_str());
            format!("{name} {used} of {}", most.0)
        });
        each.collect::<Vec<_>>().join(", ")
    };
    match found.as_slice() {
        [] => Check::ok("quota", "none in this namespace"),
        found => Check::ok("quota", found.iter().map(describe).collect::<Vec<_>>().join("; ")),
    }
}

/// The claims that `kubernetes.volume` may name.
async fn claims(cluster: &Cluster) -> Check {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = match answer(claims.list(&ListParams::default())).await {
        Ok(list) => list.items,
        Err(failure) => return Check::note("volume", failure.said()),
    };
    let describe = |claim: &PersistentVolumeClaim| {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let status = claim.status.clone().unwrap_or_default();
        let modes = status.access_modes.unwrap_or_default().join(", ");
        format!("claim/{name} ({}, {modes})", status.phase.unwrap_or_default())
    };
    match found.as_slice() {
        [] => Check::note("volume", "no claim in this namespace: checkpoints are copied by the API"),
        found => Check::ok("volume", found.iter().map(describe).collect::<Vec<_>>().join("; ")),
    }
}

/// Seconds that two clocks may differ.
const CLOCK_TOLERANCE: u64 = 60;

/// Whether the clock of the cluster is ours: a pod that is made only in thought has the time of the server.
async fn clock(cluster: &Cluster) -> Option<Check> {
    let probe = json!({"metadata": {"name": "pipe-doctor", "labels": {"app.kubernetes.io/managed-by": "pipe"}}, "spec": {
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": pod::JOB, "image": "pipe", "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
    }});
    let made = match cluster.create_pod(&serde_json::from_value(probe).ok()?, true).await {
        Ok(made) => made,
        Err(failure) => {
            return Some(
                Check::missing("pod", failure.said()).hint("ask those who run the cluster what pods must have"),
            );
        }
    };
    let at = made.metadata.creation_timestamp?.0.as_second();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    let apart = now.abs_diff(u64::try_from(at).unwrap_or(0));
    Some(match apart > CLOCK_TOLERANCE {
        true => Check::note("pod", format!("taken; the clock of the cluster is {apart} s away from this one")),
        false => Check::ok("pod", "the cluster would take one with the rights of a job"),
    })
}

/// Whether a pod that a quota refuses would fit if nobody else used it: from the sentence of the server, `requested: a=1,b=2, used: ...,
/// limited: a=2,b=4`.
pub fn may_fit(said: &str) -> bool {
    let part = |name: &str| {
        let rest = said.split_once(&format!("{name}: ")).map_or("", |(_, rest)| rest);
        let end = rest.find(": ").and_then(|end| rest[..end].rfind(", ")).unwrap_or(rest.len());
        let pairs = rest[..end].split(',').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter_map(|(name, value)| Some((name.to_owned(), quantity(value)?))).collect::<BTreeMap<_, _>>()
    };
    let limited = part("limited");
    part("requested").iter().all(|(name, asked)| limited.get(name).is_none_or(|most| asked <= most))
}

/// A quantity as a number: `500m`, `4Gi`, `2`.
fn quantity(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_that_others_use_is_waited_for() {
        let said = |requested: &str, limited: &str| {
            format!(
                "pods \"a\" is forbidden: exceeded quota: q, requested: {requested}, used: pods=2, limited: {limited}"
            )
        };
        assert!(may_fit(&said("pods=1", "pods=2")));
        assert!(!may_fit(&said("pods=1,limits.memory=5Gi", "pods=2,limits.memory=4096Mi")));
        assert!(may_fit(&said("limits.cpu=1500m", "limits.cpu=2")));
        assert!(!may_fit(&said("pods=1", "pods=0")));
        assert!(may_fit("exceeded quota"));
    }
}
