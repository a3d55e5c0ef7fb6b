//! The engine of `docs/dev/adding-an-engine.md`, for tests only: its jobs are tasks of this process that write the events of a
//! training without training anything. A batch above `toy.fits` runs out of memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use pipe_spec::event::{Event, EventKind, Finished, MemoryKind, Started, Step};
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, EngineSection, Gpus, Image, SectionType, WorkKind};
use pipe_spec::run::{JobFolder, LogPosition};
use pipe_spec::{Device, OomRecord, Phase, TrainerExit, TrainerSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::{
    Ending, Engine, EngineJob, FoundJob, JobHandle, Launch, Line, LineSender, Registration, Source, StartedJob,
    line_channel,
};
use crate::error::Error;
use crate::gpu::Card;

const NAME: &str = "toy";

/// The section `toy` of a pipeline.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ToySection {
    /// The largest batch that a job can hold.
    #[schemars(range(min = 1, max = 64))]
    fits: u32,
    /// Machines of a job.
    #[schemars(range(min = 1, max = 8))]
    nodes: u32,
}

impl Default for ToySection {
    fn default() -> Self {
        Self { fits: 4, nodes: 1 }
    }
}

impl EngineSection for ToySection {
    const HELP: &'static str = "What a job can hold, with the engine toy.";

    fn check(&self, work: WorkKind) -> Vec<(&'static str, String)> {
        match work {
            WorkKind::Command => vec![("fits", "only for a training".to_owned())],
            _ => Vec::new(),
        }
    }
}

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    section: Some(SectionType::of::<ToySection>()),
    nodes: |request| request.section::<ToySection>(NAME).nodes,
    repository: |_| None,
    supervises: |_| false,
    connect: |connection| {
        let engine = ToyEngine { settings: connection.request.section(NAME) };
        async { Ok(Box::new(engine) as Box<dyn Engine>) }.boxed_local()
    },
    is_tried: true,
    keeps_jobs: false,
    has_images: false,
    doctor: |_| async { Vec::new() }.boxed_local(),
    doctor_help: "",
};

struct ToyEngine {
    settings: ToySection,
}

#[async_trait(?Send)]
impl Engine for ToyEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        NAME.to_owned()
    }

    fn device(&self, _gpus: &Gpus) -> Result<Device, Error> {
        Ok(Device::Cpu)
    }

    fn cards(&self, _gpus: &Gpus) -> Vec<Card> {
        Vec::new()
    }

    fn check(&self, _container: &Container) -> Result<(), Error> {
        Ok(())
    }

    fn limits_memory(&self) -> bool {
        true
    }

    fn job_path(&self, host: PathBuf, _mounted: PathBuf) -> PathBuf {
        host
    }

    async fn program(&self, _image: Option<&Image>) -> Result<Program, Error> {
        Ok(Program { engine: NAME.to_owned(), ..Program::default() })
    }

    async fn start(&self, launch: &Launch) -> Result<StartedJob, Error> {
        let path = PathBuf::from(launch.args.last().map_or("", String::as_str));
        let text = std::fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let spec: TrainerSpec = serde_json::from_slice(&text)
            .map_err(|error| Error::Read { path, source: std::io::Error::other(error) })?;
        let (sender, lines) = line_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let folder = launch.work_folder.clone().unwrap_or_default();
        let task = tokio::spawn(train(spec, self.settings.fits, folder, sender, stop.clone()));
        let id = format!("{}-{}", launch.run_id, launch.attempt);
        Ok(StartedJob { handle: Box::new(ToyJob { task, stop }), id, lines })
    }

    /// A task ends with the `pipe` that started it.
    async fn find(&self, _launch: &Launch, id: Option<&str>, _read: Option<&LogPosition>) -> Result<FoundJob, Error> {
        Ok(if id.is_some() { FoundJob::Gone } else { FoundJob::NotStarted })
    }

    async fn jobs(&self) -> Result<Vec<EngineJob>, Error> {
        Ok(Vec::new())
    }

    async fn remove(&self, _id: &str) -> Result<(), Error> {
        Ok(())
    }
}

/// A job writes the events and the out-of-memory record that a trainer would write.
struct ToyJob {
    task: JoinHandle<TrainerExit>,
    stop: Arc<AtomicBool>,
}

#[async_trait(?Send)]
impl JobHandle for ToyJob {
    async fn stop(&self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn kill(&self) -> Result<(), Error> {
        self.task.abort();
        Ok(())
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        let exit = (&mut self.task).await.ok();
        Ok(Ending::exited(exit.map(|exit| exit.code().into())))
    }

    async fn remove(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Steps whose loss is 1 / step, or an out-of-memory where the batch does not fit.
async fn train(spec: TrainerSpec, fits: u32, folder: PathBuf, lines: LineSender, stop: Arc<AtomicBool>) -> TrainerExit {
    let mut seq = 0;
    let mut emit = |kind: EventKind| {
        seq += 1;
        let text = serde_json::to_string(&Event { seq, ts: 0.0, kind }).expect("an event is plain data");
        append(&folder.join(JobFolder::EVENTS), &text);
        Line::new(Source::Job, text)
    };
    let steps = spec.train.steps.unwrap_or(1);
    lines.send(emit(EventKind::Started(started(&spec, steps)))).await.ok();
    if spec.train.batch() > fits {
        let record =
            OomRecord { batch: spec.train.batch(), step: 1, ..OomRecord::new(MemoryKind::Host, Phase::Forward) };
        let text = serde_json::to_string(&record).expect("a record is plain data");
        std::fs::write(folder.join(JobFolder::OOM), text).ok();
        lines.send(emit(EventKind::Oom(record))).await.ok();
        return TrainerExit::HostOutOfMemory;
    }
    for step in 1..=steps {
        if stop.load(Ordering::Relaxed) {
            return TrainerExit::Stopped;
        }
        lines.send(emit(EventKind::Step(one_step(&spec, step)))).await.ok();
    }
    let samples = steps * u64::from(spec.train.effective_batch);
    lines.send(emit(EventKind::Finished(Finished { step: steps, samples, ..Finished::default() }))).await.ok();
    TrainerExit::Done
}

fn append(path: &Path, line: &str) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    std::fs::write(path, format!("{text}{line}\n")).ok();
}

fn started(spec: &TrainerSpec, steps: u64) -> Started {
    Started {
        device: "cpu".to_owned(),
        params: 1,
        batch: spec.train.batch(),
        accum: spec.train.accum(),
        effective_batch: spec.train.effective_batch,
        steps,
        ..Started::default()
    }
}

fn one_step(spec: &TrainerSpec, step: u64) -> Step {
    Step {
        step,
        samples: step * u64::from(spec.train.effective_batch),
        loss: 1.0 / step as f64,
        tokens: 1,
        ms: 1.0,
        ..Step::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use pipe_spec::event::RecordedEvent;
    use pipe_spec::{EventKind, Outcome, Pipeline, Status, Variables};

    use crate::engine::registry;
    use crate::execute::launch::expected_ranks;
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
        let run =
            Run::create_in(&folder.0.join("runs"), &loaded.pipeline, &loaded.text, engine.name(), choices).unwrap();
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
                "line 5: engine: found the text \"tay\"; allowed: one of docker, process, slurm, kubernetes, toy; did you mean `toy`?",
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
}
