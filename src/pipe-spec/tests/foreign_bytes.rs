//! The readers of the contracts and untrusted bytes: pipelines, events, state, locks, specs. They refuse or
//! read, within bounds of time and memory, and what was read can be written and read again.

#[path = "../../../tests/fuzz/allocation.rs"]
mod allocation;
#[path = "../../../tests/fuzz/mod.rs"]
mod fuzz;

use std::path::PathBuf;

use allocation::Counting;
use fuzz::repository;
use pipe_spec::event::RecordedEvent;
use pipe_spec::pipeline::{EngineEntry, EngineSection, Engines, SectionType, WorkKind};
use pipe_spec::{Event, Lock, OomRecord, Pipeline, RunState, TrainerSpec, Variables};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The section that a pipeline of the repository has.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Section {
    time: Option<String>,
    nodes: Option<u32>,
    min_nodes: Option<u32>,
}

impl EngineSection for Section {
    const HELP: &'static str = "";

    fn check(&self, _work: WorkKind) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

const ENGINES: Engines = Engines {
    entries: &[EngineEntry { name: "slurm", section: Some(SectionType::of::<Section>()) }],
    planned: &[],
    default: "",
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that reading one input may hold. The largest seed has some thousand.
const MAX_BYTES: usize = 64 << 20;

fn fuzz(kind: &str, more: &[PathBuf], iterations: u64, read: impl Fn(&[u8])) {
    fuzz::fuzz(kind, more, iterations, |bytes| {
        let peak = Counting::peak_of(|| read(bytes));
        assert!(peak < MAX_BYTES, "{peak} bytes were held");
    });
}

fn variables() -> Variables {
    Variables::new(Some("HOME=/home/user\nHOOK=https://example.org\nMLFLOW=http://localhost"), std::iter::empty())
}

/// The pipelines of the repository.
fn pipelines() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join("pipelines")).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "yaml")).collect()
}

#[test]
fn pipelines_are_read_or_refused() {
    let variables = variables();
    fuzz("pipeline", &pipelines(), 3000, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match Pipeline::parse(&text, &[], &variables, ENGINES) {
            Err(problems) => assert!(!problems.to_string().is_empty()),
            Ok(pipeline) => {
                let again = Pipeline::parse(&pipeline.to_yaml(), &[], &variables, ENGINES);
                assert_eq!(again.ok(), Some(pipeline), "what is written is not what was read");
            }
        }
    });
}

#[test]
fn settings_of_the_command_line_are_read_or_refused() {
    let base = std::fs::read_to_string(repository().join("pipelines/demo.yaml")).unwrap();
    let variables = variables();
    fuzz("set", &[], 3000, |bytes| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        if let Err(problems) = Pipeline::parse(&base, &[text], &variables, ENGINES) {
            assert!(!problems.to_string().is_empty());
        }
    });
}

#[test]
fn events_are_read_or_passed_over() {
    fuzz("event", &[], 20_000, |bytes| {
        let line = String::from_utf8_lossy(bytes);
        if let Some(event) = Event::parse(&line) {
            let written = serde_json::to_string(&event).unwrap();
            assert!(!written.contains('\n'), "an event is one line");
            assert_eq!(Event::parse(&written), Some(event));
        }
        same_again::<RecordedEvent>(bytes);
    });
}

#[test]
fn records_of_memory_that_ran_out() {
    fuzz("oom", &[], 10_000, same_again::<OomRecord>);
}

#[test]
fn states_of_runs() {
    fuzz("run", &[], 10_000, |bytes| {
        same_again::<RunState>(bytes);
        if let Ok(state) = serde_json::from_slice::<RunState>(bytes) {
            state.times_out_of_memory();
            state.at_most();
        }
    });
}

#[test]
fn locks() {
    fuzz("lock", &[], 10_000, same_again::<Lock>);
}

#[test]
fn specs_of_attempts() {
    fuzz("spec", &[], 5000, same_again::<TrainerSpec>);
}

/// A value that could be read can be written, and read again as the same.
fn same_again<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(read) = serde_json::from_slice::<T>(bytes) {
        let written = serde_json::to_vec(&read).unwrap();
        let again: T = serde_json::from_slice(&written).expect("what was written can be read");
        assert_eq!(serde_json::to_vec(&again).unwrap(), written);
    }
}
