//! Calls of the cluster's own programs: sbatch, squeue, scontrol, sacct, scancel, sinfo.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use super::NAME;
use super::state::JobState;
use crate::error::Error;

/// Why a program of the cluster did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is not installed here.
    Absent { program: String },
    /// The controller does not answer; it may later.
    Away { said: String },
    /// In the cluster's own words.
    Refused { said: String },
}

impl Failure {
    pub fn said(&self) -> String {
        match self {
            Self::Absent { program } => format!("{program} is not installed here"),
            Self::Away { said } | Self::Refused { said } => said.clone(),
        }
    }

    /// As an error of `pipe`; `hint` for what was refused.
    pub fn error(self, hint: &str) -> Error {
        match self {
            Self::Refused { said } => Error::JobRefused { engine: NAME, said, hint: hint.to_owned() },
            Self::Absent { .. } => Error::NoEngine {
                reason: self.said(),
                hint: "run pipe on a login node of the cluster, or choose another engine with --engine".to_owned(),
            },
            Self::Away { said } => Error::NoEngine {
                reason: said,
                hint: "`scontrol ping` tells whether the controller is up; `pipe doctor` tells more".to_owned(),
            },
        }
    }
}

/// Runs a program and returns what it prints. Variables of a job that `pipe` itself may run in are kept from it.
pub fn call(program: &str, args: &[String]) -> Result<String, Failure> {
    call_with(program, args, "")
}

/// The same with `input` on its stdin.
fn call_with(program: &str, args: &[String], input: &str) -> Result<String, Failure> {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_job = ["SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_"];
        let kept = ["SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER"];
        if of_job.iter().any(|prefix| text.starts_with(prefix)) && !kept.contains(&text.as_ref()) {
            command.env_remove(&name);
        }
    }
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::Absent { program: program.to_owned() },
        _ => Failure::Refused { said: format!("{program}: {error}") },
    };
    let mut child = command.spawn().map_err(failed)?;
    // It ends without reading where it refuses its options.
    child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()).ok());
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let said = match said.is_empty() {
        true => format!("{program} ended with {}", output.status),
        false => said.join("\n"),
    };
    let away = ["Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes were"];
    Err(if away.iter().any(|text| said.contains(text)) { Failure::Away { said } } else { Failure::Refused { said } })
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The cluster's own description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub cluster: String,
    pub version: String,
    /// Whether a job is held to its memory.
    pub limits_memory: bool,
}

pub fn config() -> Result<Config, Failure> {
    Ok(read_config(&call("scontrol", &words(&["show", "config"]))?))
}

fn read_config(text: &str) -> Config {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix('='));
        line.map_or("", str::trim).to_owned()
    };
    Config {
        cluster: value("ClusterName"),
        version: value("SLURM_VERSION"),
        limits_memory: value("ConstrainRAMSpace").eq_ignore_ascii_case("yes"),
    }
}

/// A group of nodes of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGroup {
    pub partition: String,
    pub is_default: bool,
    /// The longest that a job may take, and what it gets where it does not say.
    pub time_limit: String,
    pub default_time: String,
    pub nodes: u32,
    pub state: String,
    /// Cards of each.
    pub cards: u32,
}

impl NodeGroup {
    pub fn is_usable(&self) -> bool {
        is_usable(&self.state)
    }
}

/// Whether jobs can run on nodes in this state, now or when others have ended.
fn is_usable(state: &str) -> bool {
    let state = state.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-', '+']);
    !["down", "drain", "drained", "draining", "drng", "fail", "failing", "unk", "unknown", "maint", "inval"]
        .contains(&state)
}

/// A node, as one partition has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub partition: String,
    pub state: String,
    pub features: Vec<String>,
}

pub fn nodes() -> Result<Vec<Node>, Failure> {
    let text = call("sinfo", &words(&["--all", "--Node", "--noheader", "--format=%N|%R|%t|%b"]))?;
    Ok(text.lines().filter_map(node).collect())
}

fn node(line: &str) -> Option<Node> {
    let mut parts = line.split('|').map(|part| part.trim().to_owned());
    let (name, partition, state) = (parts.next()?, parts.next()?, parts.next()?);
    let features = parts.next()?.split(',').map(str::to_owned).collect();
    Some(Node { name, partition, state, features })
}

/// How many nodes a job can have, now or when others have ended: a job gets those of one partition.
pub fn usable_count(nodes: &[Node], is_own: impl Fn(&str) -> bool, constraint: &str) -> u32 {
    let mut counts = BTreeMap::<&str, u32>::new();
    for node in nodes {
        if is_own(&node.partition) && is_usable(&node.state) && has_features(constraint, &node.features) {
            *counts.entry(&node.partition).or_default() += 1;
        }
    }
    counts.into_values().max().unwrap_or(0)
}

/// Whether a node has the features of a `--constraint`. What is more than a list with `&` or `|` is left to the cluster.
fn has_features(constraint: &str, features: &[String]) -> bool {
    if constraint.is_empty() || constraint.contains(['(', ')', '[', ']', '*', '!']) {
        return true;
    }
    let has = |name: &str| features.iter().any(|feature| feature == name.trim());
    constraint.split('|').any(|all| all.split(['&', ',']).all(has))
}

pub fn node_groups() -> Result<Vec<NodeGroup>, Failure> {
    let text = call("sinfo", &words(&["--all", "--noheader", "--format=%P|%l|%L|%D|%t|%G"]))?;
    Ok(text.lines().filter_map(node_group).collect())
}

fn node_group(line: &str) -> Option<NodeGroup> {
    let mut parts = line.split('|').map(str::trim);
    let name = parts.next()?;
    let (time_limit, default_time) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let (nodes, state) = (parts.next()?.parse().ok()?, parts.next()?.to_owned());
    let partition = name.trim_end_matches('*').to_owned();
    let is_default = name.ends_with('*');
    Some(NodeGroup { partition, is_default, time_limit, default_time, nodes, state, cards: card_count(parts.next()?) })
}

/// The cpus, memory in MiB and cards of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSize {
    pub cpus: u64,
    pub memory: u64,
    pub cards: u64,
}

/// Each node of these partitions; none where the cluster does not answer.
pub fn node_sizes(is_own: impl Fn(&str) -> bool) -> Vec<NodeSize> {
    let text = call("sinfo", &words(&["--all", "--Node", "--exact", "--noheader", "--format=%R|%c|%m|%G"]));
    text.unwrap_or_default().lines().filter_map(|line| node_size(line, &is_own)).collect()
}

fn node_size(line: &str, is_own: impl Fn(&str) -> bool) -> Option<NodeSize> {
    let mut parts = line.split('|').map(str::trim);
    is_own(parts.next()?).then_some(())?;
    let mut number = || parts.next()?.parse().ok();
    let (cpus, memory) = (number()?, number()?);
    Some(NodeSize { cpus, memory, cards: card_count(parts.next()?).into() })
}

/// Names the requests of a job that no node can meet, each with the largest node.
pub fn too_large(asked: &NodeSize, nodes: &[NodeSize]) -> Vec<String> {
    let Some(first) = nodes.first() else { return Vec::new() };
    let most = nodes.iter().fold(*first, |most, node| NodeSize {
        cpus: most.cpus.max(node.cpus),
        memory: most.memory.max(node.memory),
        cards: most.cards.max(node.cards),
    });
    let sizes = [
        ("container.cpus", "", asked.cpus, most.cpus),
        ("container.memory", " MiB", asked.memory, most.memory),
        ("container.gpus", "", asked.cards, most.cards),
    ];
    let too_large = sizes.iter().filter(|(_, _, asked, most)| asked > most);
    too_large
        .map(|(key, unit, asked, most)| format!("{key} is {asked}{unit}, a node has at most {most}{unit}"))
        .collect()
}

/// Counts the cards in a text such as `gpu:h100:4(S:0-1),mps:400`.
fn card_count(gres: &str) -> u32 {
    let of_cards = gres.split(',').filter(|one| one.starts_with("gpu:") || *one == "gpu");
    of_cards
        .map(|one| one.split('(').next().unwrap_or_default().rsplit(':').next()?.parse::<u32>().ok())
        .map(|count| count.unwrap_or(1))
        .sum()
}

/// A job of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenJob {
    pub id: String,
    pub name: String,
    pub nodes: String,
    pub state: JobState,
}

/// All jobs of this user that the controller remembers, as text.
pub fn squeue() -> Result<String, Failure> {
    let user = user().to_string();
    let options = ["--noheader", "--array", "--states=all", "--format=%i|%T|%r|%N|%j", "--user", &user];
    call("squeue", &words(&options))
}

pub fn read_squeue(text: &str) -> Vec<SeenJob> {
    let job = |line: &str| {
        let mut parts = line.splitn(5, '|');
        let (id, state, reason) = (parts.next()?.to_owned(), parts.next()?, parts.next()?);
        let (nodes, name) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        Some(SeenJob { id, name, nodes, state: JobState::new(state, reason, "") })
    };
    text.lines().filter_map(job).collect()
}

/// One job, from the controller or from accounting; nothing where both do not know it any more.
pub fn job(id: &str) -> Result<Option<JobState>, Failure> {
    let known = match call("scontrol", &words(&["show", "job", "--details", "--oneliner", id])) {
        Ok(text) => read_scontrol(&text),
        Err(Failure::Refused { said }) if said.contains("Invalid job id") => None,
        Err(other) => return Err(other),
    };
    match known {
        // Only accounting knows by whom.
        Some(job) if job.state != "CANCELLED" => Ok(Some(job)),
        known => Ok(from_accounting(id).filter(JobState::has_ended).or(known)),
    }
}

fn read_scontrol(text: &str) -> Option<JobState> {
    let value = |name: &str| text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let known = JobState::new(value("JobState")?, value("Reason").unwrap_or(""), value("ExitCode").unwrap_or(""));
    let step_out_of_memory = value("DerivedExitCode") == Some(OUT_OF_MEMORY);
    let preempted = value("PreemptTime").is_some_and(|time| time != "None");
    Some(JobState { step_out_of_memory, preempted, ..known })
}

/// The code and signal of a step that ran out of memory.
const OUT_OF_MEMORY: &str = "0:125";

/// Nothing where there is no accounting.
fn from_accounting(id: &str) -> Option<JobState> {
    let args =
        ["--noheader", "--parsable2", "--allocations", "--format=State,Reason,ExitCode,DerivedExitCode", "--jobs", id];
    let text = call("sacct", &words(&args)).ok()?;
    let mut parts = text.lines().last()?.split('|');
    let (state, reason, exit) = (parts.next()?, parts.next()?, parts.next()?);
    let step_out_of_memory = parts.next() == Some(OUT_OF_MEMORY);
    Some(JobState { step_out_of_memory, ..JobState::new(state, reason, exit) })
}

/// The id of the job that was submitted. The script may hold values of variables, which are never written to disk.
pub fn sbatch(args: &[String], script: &str) -> Result<String, Failure> {
    let text = call_with("sbatch", args, script)?;
    // With several clusters their name follows.
    let id = text.trim().split(';').next().unwrap_or_default().to_owned();
    match id.bytes().all(|byte| byte.is_ascii_digit()) && !id.is_empty() {
        true => Ok(id),
        false => Err(Failure::Refused { said: format!("sbatch printed {:?} in place of a job id", text.trim()) }),
    }
}

/// A job that is gone already is fine.
pub fn scancel(args: &[&str]) -> Result<(), Failure> {
    match call("scancel", &words(args)) {
        Err(Failure::Refused { said }) if said.contains("Invalid job id") || said.contains("already completing") => {
            Ok(())
        }
        other => other.map(drop),
    }
}

/// The number of this user.
pub fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_print() {
        let config = read_config(
            "ClusterName             = local\nSLURM_VERSION           = 22.05.8\n\nCgroup Support Configuration:\nConstrainRAMSpace       = yes\n",
        );
        let want = Config { cluster: "local".to_owned(), version: "22.05.8".to_owned(), limits_memory: true };
        assert_eq!(config, want);

        let group = node_group("p*|10:00|n/a|3|idle|gpu:2(S:0)").unwrap();
        assert!(
            group.is_default && group.partition == "p" && group.nodes == 3 && group.cards == 2 && group.is_usable()
        );
        assert!(!node_group("p|10:00|n/a|1|down*|(null)").unwrap().is_usable());

        let jobs = read_squeue("7|RUNNING|None|n[1-2]|pipe:a:1\n8|PENDING|Resources||other|job\n");
        assert_eq!((jobs[0].id.as_str(), jobs[0].nodes.as_str(), jobs[1].name.as_str()), ("7", "n[1-2]", "other|job"));
        assert!(jobs[1].state.is_pending() && jobs[1].state.reason == "Resources");

        let job =
            read_scontrol("JobId=7 JobName=x JobState=FAILED Reason=NonZeroExitCode Dependency=(null) ExitCode=42:0");
        assert_eq!(job, Some(JobState::new("FAILED", "NonZeroExitCode", "42:0")));
        let job = read_scontrol(
            "JobState=FAILED Reason=None ExitCode=1:0 DerivedExitCode=0:125 PreemptTime=2026-01-01T00:00:00",
        );
        assert!(job.is_some_and(|job| job.step_out_of_memory && job.preempted));
    }

    #[test]
    fn features_of_nodes() {
        let node = node("n7|gpu|mix|h100,ib").unwrap();
        assert_eq!((node.name.as_str(), node.partition.as_str()), ("n7", "gpu"));
        for (constraint, want) in [
            ("", true),
            ("h100", true),
            ("a100", false),
            ("h100&ib", true),
            ("h100&fast", false),
            ("a100|h100", true),
            ("[rack1*2&rack2*2]", true),
        ] {
            assert_eq!(has_features(constraint, &node.features), want, "{constraint}");
        }
    }

    #[test]
    fn usable_nodes_of_one_partition() {
        let lines =
            ["n1|a|idle|ib", "n2|a|down*|ib", "n2|b|down*|ib", "n3|b|mix|ib", "n4|b|alloc|slow", "n5|c|idle|ib"];
        let nodes: Vec<Node> = lines.iter().filter_map(|line| node(line)).collect();
        for (partitions, constraint, want) in
            [(&["a"][..], "", 1), (&["a", "b"], "", 2), (&["b"], "ib", 1), (&["a", "b", "c"], "ib", 1), (&["d"], "", 0)]
        {
            let is_own = |partition: &str| partitions.contains(&partition);
            assert_eq!(usable_count(&nodes, is_own, constraint), want, "{partitions:?} {constraint}");
        }
    }

    #[test]
    fn jobs_that_no_node_has_room_for() {
        let lines = ["a|64|512000|gpu:h100:4", "a|128|256000|(null)", "b|256|999999|gpu:8"];
        let nodes: Vec<NodeSize> = lines.iter().filter_map(|line| node_size(line, |name| name == "a")).collect();
        assert_eq!(nodes.len(), 2);
        let asked = |cpus, memory, cards| too_large(&NodeSize { cpus, memory, cards }, &nodes);
        assert!(asked(128, 512_000, 4).is_empty());
        assert_eq!(asked(129, 1, 0), ["container.cpus is 129, a node has at most 128"]);
        let both = [
            "container.memory is 600000 MiB, a node has at most 512000 MiB",
            "container.gpus is 8, a node has at most 4",
        ];
        assert_eq!(asked(1, 600_000, 8), both);
        assert!(too_large(&NodeSize { cpus: 9, memory: 9, cards: 9 }, &[]).is_empty());
    }

    #[test]
    fn cards_of_nodes() {
        for (gres, want) in
            [("(null)", 0), ("gpu:2", 2), ("gpu:h100:4(S:0-1)", 4), ("gpu:a:1,gpu:b:2,mps:400", 3), ("gpu", 1)]
        {
            assert_eq!(card_count(gres), want, "{gres}");
        }
    }
}
