//! Compares two runs: settings, locks, results. Reads their folders and changes nothing.
//!
//! The files of two folders, by their content.
//!
//! The results of a run, as figures that can be compared.
//!
//! Which settings two runs do not share, by their dotted paths.

mod curves;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pipe_spec::pipeline::LossUnit;
use pipe_spec::text::{count, human_bytes};
use pipe_spec::{Attempt, Cause, Outcome, Pipeline, RunFolder, Variables, variables};
use serde::Serialize;
use serde_json::Value;

use super::{duration, times_ranks};
use crate::engine::registry;
use crate::run::lock::{self, Difference, Effect, differences};
use crate::run::{Record, job_file};
use crate::system::digests::Digests;

pub use curves::Curves;
pub use verdict::{ComputeMode, judge};

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The ids.
    pub runs: [String; 2],
    /// Those that differ; absent where they are not known of both.
    pub settings: Option<Vec<Setting>>,
    /// The differences of the locks; absent where not both runs have one.
    pub lock: Option<Vec<Difference>>,
    pub results: [Results; 2],
    pub curves: Curves,
    /// The files of the exported models; absent where not both have one.
    pub model: Option<Files>,
}

impl Comparison {
    pub fn read(first: &RunFolder, second: &RunFolder) -> Self {
        let records = [Record::read(first), Record::read(second)];
        let locks = lock::read(first).zip(lock::read(second));
        let [one, other] = &records;
        let settings = differing(one.resolved.as_deref(), other.resolved.as_deref());
        let curves = match one.history.has_all_steps() && other.history.has_all_steps() {
            true => Curves::compare(one, other),
            false => Curves::compare_files((one, first), (other, second)),
        };
        Self {
            lock: locks.map(|(one, other)| with_effect_of(settings.as_deref(), differences(&one, &other))),
            settings,
            results: [Results::from_record(one), Results::from_record(other)],
            curves,
            model: Files::compare(&first.model(), &second.model()),
            runs: records.map(|record| record.id),
        }
    }
}

/// A lock knows only whether the settings are the same. Where all that differ are settings that a run may be resumed with, such as
/// the number of cards, the computation is the same.
fn with_effect_of(settings: Option<&[Setting]>, mut differences: Vec<Difference>) -> Vec<Difference> {
    let same_training = |setting: &Setting| setting.path == "name" || may_change(&setting.path, &changeable_settings());
    if settings.is_some_and(|settings| settings.iter().all(same_training)) {
        let found = differences.iter_mut().filter(|difference| difference.what == "settings");
        found.for_each(|difference| difference.effect = Effect::Rounding);
        differences.sort_by_key(|difference| difference.effect);
    }
    differences
}

/// Files of a model that are compared, at most.
const MAX_FILES: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// How many there are by their names, in both together.
    pub count: usize,
    /// Those that are not the same in both.
    pub differ: Vec<String>,
}

impl Files {
    /// Whether the exported models are the same, in a sentence.
    pub fn sentence(files: Option<&Self>) -> String {
        match files {
            None => "model: not exported by both".to_owned(),
            Some(files) if files.differ.is_empty() => {
                format!("model: {}, the same bit for bit", count(files.count, "file"))
            }
            Some(files) => {
                format!("model: different files: {} (of {})", files.differ.join(", "), count(files.count, "file"))
            }
        }
    }

    /// Nothing where one of the folders has no files.
    pub fn compare(first: &Path, second: &Path) -> Option<Self> {
        let mut digests = Digests::load();
        let (one, other) = (hashes(first, &mut digests)?, hashes(second, &mut digests)?);
        digests.save();
        let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
        let differ = names.iter().filter(|name| one.get(**name) != other.get(**name)).map(|name| (*name).clone());
        Some(Self { count: names.len(), differ: differ.collect() })
    }
}

fn hashes(folder: &Path, digests: &mut Digests) -> Option<BTreeMap<String, String>> {
    let names = job_file::names(folder, MAX_FILES).ok()?.into_iter();
    let found: BTreeMap<String, String> =
        names.filter_map(|name| Some((name.clone(), digests.hash(&folder.join(name)).ok()?))).collect();
    (!found.is_empty()).then_some(found)
}

/// The results of one run. A value that is not known is absent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    pub status: Option<&'static str>,
    pub attempts: Vec<AttemptResult>,
    /// Steps that were done.
    pub steps: u64,
    /// The loss of the last step.
    pub loss: Option<f64>,
    /// The loss and the scores of the last evaluation, by name.
    pub eval: BTreeMap<String, f64>,
    pub seconds: Option<f64>,
    /// Bytes.
    pub peak_memory: Option<u64>,
    pub tokens_per_second: Option<f64>,
    /// The unit that the speed counts.
    pub unit: LossUnit,
}

/// An attempt, as far as it says how the run was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttemptResult {
    pub batch: u32,
    pub accum: u32,
    pub ranks: u32,
    pub outcome: Option<Outcome>,
    pub cause: Option<Cause>,
    pub changes: Vec<String>,
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
}

impl Results {
    pub fn from_record(run: &Record) -> Self {
        let eval = run.history.evals.last();
        let scores = eval.into_iter().flat_map(|eval| eval.scores.iter().map(|(name, score)| (name.clone(), *score)));
        Self {
            status: run.state.as_ref().map(|state| state.status.name()),
            attempts: run.state.iter().flat_map(|state| state.attempts()).map(AttemptResult::new).collect(),
            steps: run.history.step_count(),
            loss: run.history.steps.last().map(|step| step.loss),
            eval: eval.map(|eval| ("loss".to_owned(), eval.loss)).into_iter().chain(scores).collect(),
            seconds: run.seconds(),
            peak_memory: run.peak_memory(),
            tokens_per_second: run.tokens_per_second(),
            unit: run.unit(),
        }
    }

    /// Names and values, for people.
    pub fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            rows.push((name.to_owned(), value.unwrap_or_else(|| "-".to_owned())));
        };
        add("status", self.status.map(str::to_owned));
        add("attempts", Some(self.attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")));
        add("steps", Some(self.steps.to_string()));
        add("training loss", self.loss.map(|loss| loss.to_string()));
        for (name, score) in &self.eval {
            add(&format!("eval {}", name.replace('_', " ")), Some(score.to_string()));
        }
        add("time", self.seconds.map(duration));
        add("peak memory", self.peak_memory.map(human_bytes));
        add(&format!("{} per second", self.unit.name()), self.tokens_per_second.map(|rate| format!("{rate:.1}")));
        rows
    }
}

impl AttemptResult {
    fn new(attempt: &Attempt) -> Self {
        let Attempt { batch, accum, ranks, outcome, cause, .. } = *attempt;
        let (first_step, last_step) = (attempt.figures.first_step, attempt.figures.last_step);
        Self { batch, accum, ranks, outcome, cause, changes: attempt.changes.clone(), first_step, last_step }
    }
}

impl std::fmt::Display for AttemptResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} x {}{} {}",
            self.batch,
            self.accum,
            times_ranks(self.ranks),
            self.outcome.map_or("running", Outcome::name)
        )?;
        // A cause is written as in run.json.
        if let Some(Ok(Value::String(cause))) = self.cause.map(serde_json::to_value) {
            write!(f, " ({})", cause.replace('_', " "))?;
        }
        Ok(())
    }
}

/// The settings that may change when a run is resumed, besides the sections of engines. None of them changes the training result.
const CHANGEABLE: [&str; 13] = [
    "checkpoints",
    "container",
    "data.prefetch",
    "data.workers",
    "evaluate.batch",
    "memory",
    "notify",
    "on_oom",
    "save.to",
    "track",
    "train.rank_timeout",
    "train.ranks",
    "train.shard",
];

/// The settings that may change when a run is resumed.
pub fn changeable_settings() -> Vec<&'static str> {
    let mut all: Vec<&str> = CHANGEABLE.into_iter().chain(registry::section_names()).collect();
    all.sort_unstable();
    all
}

/// A setting that differs; absent where a run has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub path: String,
    pub first: Option<String>,
    pub second: Option<String>,
}

/// Those of two `resolved.yaml` that differ; nothing where one of them cannot be read.
pub fn differing(first: Option<&str>, second: Option<&str>) -> Option<Vec<Setting>> {
    let (first, second) = (flat_settings(first?)?, flat_settings(second?)?);
    let paths: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let setting = |path: &&String| Setting {
        path: (*path).clone(),
        first: first.get(*path).cloned(),
        second: second.get(*path).cloned(),
    };
    Some(paths.iter().map(setting).filter(|setting| setting.first != setting.second).collect())
}

/// Every setting of a `resolved.yaml` by its dotted path.
pub fn flat_settings(resolved: &str) -> Option<BTreeMap<String, String>> {
    // The names of variables are compared, so that none need be set here.
    let named = variables::names(resolved).map(|name| (name.to_owned(), String::new()));
    let pipeline = registry::parse_pipeline(resolved, &[], &Variables::new(None, named)).ok()?;
    Some(flat(&pipeline))
}

/// Every setting by its dotted path.
pub fn flat(pipeline: &Pipeline) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    flatten("", &serde_json::to_value(pipeline).unwrap_or_default(), &mut flat);
    flat
}

/// The paths of the settings that two pipelines do not share.
pub fn paths_that_differ(first: &Pipeline, second: &Pipeline) -> Vec<String> {
    let (first, second) = (flat(first), flat(second));
    let paths: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    paths.into_iter().filter(|path| first.get(*path) != second.get(*path)).cloned().collect()
}

/// Whether the setting at this path may change on resume, where those `allowed` may.
pub fn may_change(path: &str, allowed: &[&str]) -> bool {
    let under =
        |allowed: &&str| path.strip_prefix(*allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    allowed.iter().any(under) && path != "container.image"
}

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, into);
            }
        }
        Value::String(text) => drop(into.insert(path.to_owned(), text.clone())),
        other => drop(into.insert(path.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str =
        "version: 1\nname: a\nmodel: {arch: t5, config: {d_model: 8}}\ndata: {train: \"${DIR}/t.jsonl\"}\n";

    #[test]
    fn only_what_differs() {
        let other = PLAIN.replace("name: a", "name: b").replace("d_model: 8", "d_ff: 9");
        let found = differing(Some(PLAIN), Some(&other)).unwrap();
        let seen: Vec<(&str, Option<&str>, Option<&str>)> =
            found.iter().map(|one| (one.path.as_str(), one.first.as_deref(), one.second.as_deref())).collect();
        assert_eq!(
            seen,
            [
                ("model.config.d_ff", None, Some("9")),
                ("model.config.d_model", Some("8"), None),
                ("name", Some("a"), Some("b"))
            ]
        );
        assert_eq!(differing(Some(PLAIN), Some(PLAIN)), Some(Vec::new()));
    }

    #[test]
    fn what_cannot_be_read_is_not_known() {
        for text in [None, Some("version: [")] {
            assert_eq!(differing(Some(PLAIN), text), None);
        }
    }
}
