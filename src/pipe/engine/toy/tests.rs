//! A whole run on the toy engine: nothing outside its folder knows of it but one line of the registry.

use std::path::{Path, PathBuf};

use pipe_spec::event::RecordedEvent;
use pipe_spec::{EventKind, Outcome, Status};

use crate::engine::registry;
use crate::execute::single::StartMode;
use crate::execute::single::driver::Driver;
use crate::input::hub::HubAccess;
use crate::input::load::{self, Request};
use crate::report::Reporter;
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
             train: {{steps: 3, batch: 8}}\non_oom: {{reduce: halve}}\n",
            data.display()
        ),
    );
    let mut reporter = Reporter::new(crate::report::Output::Quiet);
    let mut interrupts = Interrupts::listen().unwrap();
    let request = Request { file: pipeline, set: Vec::new(), access: HubAccess::Check, pins: Vec::new() };
    let loaded = load::load(&request, reporter.fetch_progress()).unwrap();
    let engine = registry::connect("toy").await.unwrap();
    let choices = RunChoices { ignore_ledger: true, ..RunChoices::default() };
    let run = Run::create_in(&folder.0.join("runs"), &loaded.pipeline, &loaded.text, engine.name(), choices).unwrap();
    let run_folder = run.folder.clone();
    let driver = Driver::new(&loaded, run, StartMode::Continue, &mut reporter, &mut interrupts);
    driver.run(engine.as_ref()).await.unwrap();

    let state = Listed::read(run_folder.path()).unwrap().state;
    assert_eq!((state.status, state.engine.as_str()), (Status::Finished, "toy"));
    let attempts: Vec<_> = state.attempts().iter().map(|attempt| (attempt.batch, attempt.outcome)).collect();
    assert_eq!(attempts, [(8, Some(Outcome::Oom)), (4, Some(Outcome::Finished))]);
    assert_eq!(steps(&run_folder.events()), [(2, 1), (2, 2), (2, 3)]);
}

#[test]
fn engines_have_one_name_each() {
    let names: Vec<&str> = registry::names().collect();
    assert!(names.contains(&"toy"), "{names:?}");
    let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(distinct.len(), names.len());
}
