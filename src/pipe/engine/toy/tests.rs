//! A whole run on the toy engine: nothing outside its folder knows of it but one line of the registry.

use std::path::{Path, PathBuf};

use pipe_spec::event::RecordedEvent;
use pipe_spec::{EventKind, Outcome, Pipeline, Status, Variables};

use crate::engine::registry;
use crate::execute::launch::placement::expected_ranks;
use crate::execute::single::StartMode;
use crate::execute::single::driver::Driver;
use crate::input::hub::HubAccess;
use crate::input::load::{self, Request};
use crate::report::{Reporter, compare};
use crate::run::{Listed, Run, RunChoices};
use crate::system::interrupt::Interrupts;

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("pipe-toy-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn steps(events: &Path) -> Vec<(u32, u64)> {
    let text = std::fs::read_to_string(events).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<RecordedEvent>(line).unwrap());
    let step = |event: RecordedEvent| match event.event.kind {
        EventKind::Step(step) => Some((event.attempt, step.step)),
        _ => None,
    };
    events.filter_map(step).collect()
}

#[tokio::test]
async fn a_run_on_a_new_engine_goes_through_an_out_of_memory() {
    let folder = Folder::new();
    let data = folder.write("train.jsonl", "{\"source\": \"a\", \"target\": \"b\"}\n");
    folder.write("tokenizer.json", "{}");
    let pipeline = folder.write(
        "toy.yaml",
        &format!(
            "version: 1\nname: toy\nmodel: {{arch: t5, config: {{vocab_size: 8}}}}\ndata: {{train: {}}}\n\
             train: {{steps: 3, batch: 8}}\non_oom: {{reduce: halve}}\nengine: toy\ntoy: {{fits: 2}}\n",
            data.display()
        ),
    );
    let mut reporter = Reporter::new(crate::report::Output::Quiet);
    let mut interrupts = Interrupts::listen().unwrap();
    let request = Request { file: pipeline, set: Vec::new(), access: HubAccess::Check, pins: Vec::new() };
    let loaded = load::load(&request, reporter.fetch_progress()).unwrap();
    assert_eq!(loaded.pipeline.engine.as_deref(), Some("toy"));
    let engine = registry::connect_for("toy", &loaded.pipeline.engine_request()).await.unwrap();
    let choices = RunChoices { ignore_ledger: true, ..RunChoices::default() };
    let run = Run::create_in(&folder.0.join("runs"), &loaded.pipeline, &loaded.text, engine.name(), choices).unwrap();
    let run_folder = run.folder.clone();
    let driver = Driver::new(&loaded, run, StartMode::Continue, &mut reporter, &mut interrupts);
    driver.run(engine.as_ref()).await.unwrap();

    let state = Listed::read(run_folder.path()).unwrap().state;
    assert_eq!((state.status, state.engine.as_str()), (Status::Finished, "toy"));
    let attempts: Vec<_> = state.attempts().iter().map(|attempt| (attempt.batch, attempt.outcome)).collect();
    assert_eq!(attempts, [(8, Some(Outcome::Oom)), (4, Some(Outcome::Oom)), (2, Some(Outcome::Finished))]);
    assert_eq!(steps(&run_folder.events()), [(3, 1), (3, 2), (3, 3)]);
}

#[test]
fn engines_have_one_name_each() {
    let names: Vec<&str> = registry::names().collect();
    assert!(names.contains(&"toy"), "{names:?}");
    let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(distinct.len(), names.len());
}

const MINIMAL: &str = "version: 1\nname: x\nmodel: {arch: t5, config: {}}\ndata: {train: a.jsonl}\n";

fn parse(rest: &str) -> Result<Pipeline, String> {
    let parsed = registry::parse_pipeline(&format!("{MINIMAL}{rest}"), &[], &Variables::default());
    parsed.map_err(|problems| problems.to_string())
}

/// The folder of an engine and its line in the registry are enough for its section of the pipeline file.
#[test]
fn the_section_of_a_new_engine_is_read_checked_and_documented() {
    let pipeline = parse("engine: toy\ntoy: {fits: 8, nodes: 3}\n").unwrap();
    assert_eq!(registry::nodes(&pipeline), 3);
    assert_eq!(expected_ranks(&pipeline), 3);
    let resolved = pipeline.to_yaml();
    assert!(resolved.contains("engine: toy\ntoy:\n  fits: 8\n  nodes: 3\n"), "{resolved}");
    assert_eq!(registry::parse_pipeline(&resolved, &[], &Variables::default()).unwrap(), pipeline);
    assert!(!parse("toy: {fits: 4}\n").unwrap().to_yaml().contains("toy"), "what is the default is not written");
    for (rest, want) in [
        ("toy:\n  fit: 8\n", "line 6: toy.fit: unknown key; did you mean `fits`?; allowed: fits, nodes"),
        ("toy: {fits: 0}\n", "line 5: toy.fits: found 0; allowed: a whole number of at least 1 and at most 64"),
        (
            "engine: tay\n",
            "line 5: engine: found the text \"tay\"; allowed: one of docker, process, slurm, toy, kubernetes; did you mean `toy`?",
        ),
        ("tay: {}\n", "line 5: tay: unknown key; did you mean `toy`?"),
    ] {
        assert!(parse(rest).unwrap_err().contains(want), "{rest}: {}", parse(rest).unwrap_err());
    }
    let command = "version: 1\nname: x\ncommand: a\ntoy: {nodes: 2}\n";
    let problems = registry::parse_pipeline(command, &[], &Variables::default()).unwrap_err().to_string();
    assert_eq!(problems, "line 4: toy.fits: only for a training");
    let schema = registry::pipeline_schema();
    let section = schema.pointer("/properties/toy").unwrap();
    assert_eq!(section["description"], "What a job can hold, with the engine toy.");
    let of_section = schema.pointer(section["$ref"].as_str().unwrap().trim_start_matches('#')).unwrap();
    assert_eq!(of_section["properties"]["fits"]["description"], "The largest batch that a job can hold.");
    assert_eq!(schema.pointer("/$defs/Step/properties/toy"), Some(section));
    assert!(compare::may_change("toy.fits", &compare::changeable_settings()));
}
