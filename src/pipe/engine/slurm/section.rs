//! `slurm` in the pipeline file: what the jobs of a run ask the cluster for.

use std::num::NonZeroU32;
use std::time::Duration;

use pipe_spec::pipeline::bounds::MAX_NODES;
use pipe_spec::pipeline::{EngineSection, WorkKind};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// With `engine: slurm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Default: that of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Who pays. Default: the user's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The quality of service, which sets priority and limits. Default: the user's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// The time limit of a job: minutes, `HH:MM:SS` or `D-HH:MM:SS`. A training that takes longer goes on in the next job. Default:
    /// the partition's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeLimit>,
    /// Machines of a job. `container` says what it has on each of them; a training has as many ranks on each.
    #[schemars(range(min = 1, max = MAX_NODES))]
    pub nodes: NonZeroU32,
    /// How many of them are enough after a node was lost. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_NODES))]
    pub min_nodes: Option<NonZeroU32>,
    /// Features that nodes must have, such as `h100&ib`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Further options of sbatch, such as `--exclusive`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<String>,
    /// The container runtime of the nodes. Default: the first of pyxis, apptainer and charliecloud that is here; without any, `none`:
    /// the trainer runs as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containers: Option<ContainerRuntime>,
    /// Seconds before the time limit at which the job is asked to save and end. Default: 120, and at most a quarter of `time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub save_before: Option<NonZeroU32>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            qos: None,
            time: None,
            nodes: NonZeroU32::MIN,
            min_nodes: None,
            constraint: None,
            extra: Vec::new(),
            containers: None,
            save_before: None,
        }
    }
}

impl Cluster {
    const SAVE_BEFORE: u64 = 120;

    /// How many nodes are enough once one was lost.
    pub fn fewest_nodes(&self) -> u32 {
        self.min_nodes.unwrap_or(self.nodes).get()
    }

    /// How long before its time limit a job is asked to save; `limit` as the cluster knows it.
    pub fn save_before(&self, limit: Option<Duration>) -> Duration {
        let limit = self.time.as_ref().and_then(TimeLimit::seconds).map(Duration::from_secs).or(limit);
        let most = limit.map_or(Self::SAVE_BEFORE, |limit| (limit.as_secs() / 4).clamp(1, Self::SAVE_BEFORE));
        Duration::from_secs(self.save_before.map_or(most, |seconds| seconds.get().into()))
    }
}

impl EngineSection for Cluster {
    const HELP: &'static str = "What the jobs ask the cluster for, with the engine slurm.";

    fn check(&self, work: WorkKind) -> Vec<(&'static str, String)> {
        let Self { nodes, min_nodes, extra, time, save_before, .. } = self;
        let mut problems = Vec::new();
        if let Some(time) = time.as_ref().filter(|time| time.seconds().is_none()) {
            let message = format!("found {:?}; allowed: minutes, HH:MM:SS or D-HH:MM:SS, above 0", time.as_str());
            problems.push(("time", message));
        }
        let limit = time.as_ref().and_then(TimeLimit::seconds);
        if let (Some(limit), Some(before)) = (limit, save_before)
            && u64::from(before.get()) >= limit
        {
            let message = format!("found {before}; allowed: less than slurm.time, which is {limit} s");
            problems.push(("save_before", message));
        }
        if let Some(fewest) = min_nodes.filter(|fewest| fewest > nodes) {
            problems.push(("min_nodes", format!("found {fewest}; allowed: at most slurm.nodes, which is {nodes}")));
        }
        if nodes.get() > 1 && work == WorkKind::Command {
            let message =
                format!("found {nodes}; allowed: 1 for a command, which starts its own processes on other nodes");
            problems.push(("nodes", message));
        }
        for option in extra {
            let name = option.split('=').next().unwrap_or_default();
            if !option.starts_with('-') {
                problems.push(("extra", format!("{option} is no option of sbatch: one begins with - or --")));
            } else if is_set_by_pipe(name) {
                let message = format!("{name} is set by pipe; slurm, container and name say what it is set to");
                problems.push(("extra", message));
            }
        }
        problems
    }
}

/// The options of sbatch that pipe gives itself.
const SET_BY_PIPE: [&str; 41] = [
    "--account",
    "-A",
    "--array",
    "-a",
    "--chdir",
    "--clusters",
    "-M",
    "--wait",
    "-W",
    "-D",
    "--constraint",
    "-C",
    "--cpus-per-task",
    "-c",
    "--error",
    "-e",
    "--export",
    "--job-name",
    "-J",
    "--mem",
    "--mem-per-cpu",
    "--no-requeue",
    "--nodes",
    "-N",
    "--ntasks",
    "-n",
    "--ntasks-per-node",
    "--open-mode",
    "--output",
    "-o",
    "--parsable",
    "--partition",
    "-p",
    "--qos",
    "-q",
    "--requeue",
    "--signal",
    "--test-only",
    "--time",
    "-t",
    "--wrap",
];

/// Long options may be cut short, and a short one may have its value behind it.
fn is_set_by_pipe(option: &str) -> bool {
    SET_BY_PIPE.iter().any(|set| match set.starts_with("--") {
        true => option.len() > 2 && set.starts_with(option),
        false => option.starts_with(set) && !option.starts_with("--"),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContainerRuntime {
    /// The plugin of srun that runs containers of enroot.
    Pyxis,
    Apptainer,
    Charliecloud,
    None,
}

impl ContainerRuntime {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pyxis => "pyxis",
            Self::Apptainer => "apptainer",
            Self::Charliecloud => "charliecloud",
            Self::None => "none",
        }
    }
}

/// As sbatch takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeLimit(String);

impl TimeLimit {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Nothing of a text that is no time.
    pub fn seconds(&self) -> Option<u64> {
        seconds(&self.0).filter(|seconds| *seconds > 0)
    }
}

/// Reads `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` or `days-hours:minutes:seconds`, as
/// Slurm reads and writes times.
pub fn seconds(text: &str) -> Option<u64> {
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(number).collect::<Option<Vec<u64>>>()?;
    let (hours, minutes, seconds) = match (days, parts.as_slice()) {
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (None, [minutes]) => (0, *minutes, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let parts = [(days.unwrap_or(0), 86400), (hours, 3600), (minutes, 60), (seconds, 1)];
    parts.iter().try_fold(0u64, |sum, (count, unit)| sum.checked_add(count.checked_mul(*unit)?))
}

impl Serialize for TimeLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TimeLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Minutes(u64),
            Text(String),
        }
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::Minutes(minutes) => minutes.to_string(),
            Written::Text(text) => text,
        }))
    }
}

impl JsonSchema for TimeLimit {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TimeLimit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 1 },
                {
                    "type": "string",
                    "description": "minutes, HH:MM:SS or D-HH:MM:SS"
                }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;

    use super::*;
    use crate::engine::registry;

    #[test]
    fn times_as_slurm_reads_them() {
        for (text, want) in [
            ("90", Some(5400)),
            ("1:30", Some(90)),
            ("01:00:00", Some(3600)),
            ("2-0", Some(172_800)),
            ("1-02:30", Some(95_400)),
            ("1-00:00:01", Some(86_401)),
            ("1h", None),
            ("18446744073709551615", None),
            ("", None),
            ("-1", None),
            ("1:2:3:4", None),
            ("UNLIMITED", None),
        ] {
            assert_eq!(seconds(text), want, "{text}");
        }
    }

    #[test]
    fn a_short_job_is_not_asked_to_save_at_once() {
        let with = |time: &str| Cluster { time: serde_json::from_value(time.into()).ok(), ..Cluster::default() };
        let seconds = |cluster: &Cluster, limit| cluster.save_before(limit).as_secs();
        assert_eq!(seconds(&with("1"), None), 15);
        assert_eq!(seconds(&with("1-00:00:00"), None), 120);
        assert_eq!(seconds(&Cluster::default(), Some(Duration::from_secs(240))), 60);
        assert_eq!(seconds(&Cluster { save_before: NonZeroU32::new(300), ..with("10") }, None), 300);
    }

    const MINIMAL: &str = "version: 1\nname: demo\nmodel: {arch: t5, config: {d_model: 8}}\ndata: {train: a.jsonl}\n";

    #[test]
    fn what_a_cluster_is_asked_for() {
        let parse = |section: &str| {
            registry::parse_pipeline(&format!("{MINIMAL}engine: slurm\n{section}\n"), &[], &Variables::default())
        };
        let pipeline =
            parse("slurm: {partition: gpu, time: 1-00:00:00, nodes: 4, min_nodes: 2, extra: [--exclusive]}").unwrap();
        let cluster: Cluster = pipeline.engine_request().section("slurm");
        assert_eq!((cluster.nodes.get(), cluster.fewest_nodes(), registry::nodes(&pipeline)), (4, 2, 4));
        let again = registry::parse_pipeline(&pipeline.to_yaml(), &[], &Variables::default()).unwrap();
        assert_eq!(again, pipeline);
        assert!(parse("slurm: {extra: [-é, --exclusive, --gres=gpu:h100:4, -w n1]}").is_ok());
        assert!(!parse("").unwrap().to_yaml().contains("slurm:"), "what is not said is not written");
        for (section, want) in [
            ("slurm: {min_nodes: 2}", "slurm.min_nodes: found 2; allowed: at most slurm.nodes, which is 1"),
            ("slurm: {time: 1h}", "slurm.time: found \"1h\"; allowed: minutes, HH:MM:SS or D-HH:MM:SS, above 0"),
            ("slurm: {extra: [exclusive]}", "slurm.extra: exclusive is no option of sbatch: one begins with - or --"),
            (
                "slurm: {extra: [--nodes=2]}",
                "slurm.extra: --nodes is set by pipe; slurm, container and name say what it is set to",
            ),
            ("slurm: {extra: [-N2]}", "slurm.extra: -N2 is set by pipe"),
            ("slurm: {extra: [--part=x]}", "slurm.extra: --part is set by pipe"),
            (
                "slurm: {time: 1, save_before: 60}",
                "slurm.save_before: found 60; allowed: less than slurm.time, which is 60 s",
            ),
            ("slurm: {queue: x}", "slurm.queue: unknown key"),
            ("slurm: {nodes: 0}", "slurm.nodes: found 0"),
        ] {
            let got = parse(section).unwrap_err().to_string();
            assert!(got.contains(want), "{section}: {got}");
        }
    }
}
