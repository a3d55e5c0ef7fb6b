//! One run, from where it stands on disk to its end: engine, image, lock, card, attempts, report.

use std::time::Duration;

mod chosen;
pub mod image;

use pipe_spec::event::Fitted;
use pipe_spec::pipeline::Gpus;
use pipe_spec::{Device, Status};
use serde_json::{Value, json};

use crate::data_cache::{self, Ready, Wanted};
use crate::engine::Engine;
use crate::error::Error;
use crate::interrupt::Interrupts;
use crate::ledger::{Diary, Ledger};
use crate::load::{self, Loaded};
use crate::lock::{self, Difference, Effect};
use crate::plan::{Job, Plan, first_settings};
use crate::preflight::Inputs;
use crate::queue::{self, Place};
use crate::report::{Reporter, html};
use crate::run::{Record, Run, write_json, write_whole};
use crate::supervise::{Entry, Supervisor, warn};
use crate::track::{Audience, News};
pub use chosen::Chosen;
use chosen::device;

pub struct Driver<'a> {
    pub loaded: &'a Loaded,
    pub run: Run,
    pub entry: Entry,
    pub reporter: &'a mut Reporter,
    pub interrupts: &'a mut Interrupts,
    pub audience: Audience,
}

impl<'a> Driver<'a> {
    pub fn new(
        loaded: &'a Loaded,
        run: Run,
        entry: Entry,
        reporter: &'a mut Reporter,
        interrupts: &'a mut Interrupts,
    ) -> Self {
        reporter.keep_journal(&run.folder.journal());
        Self { loaded, run, entry, reporter, interrupts, audience: Audience::default() }
    }

    /// Trains to the end, and leaves the run's state on disk whatever happens.
    pub async fn train(mut self, engine: Chosen) -> Result<(), Error> {
        self.run.state.status = Status::Running;
        (self.run.state.error, self.run.state.exit_code) = (None, None);
        self.run.state.retries = self.loaded.pipeline.on_oom.retries;
        self.doing("preparing")?;
        let (audience, missing) = Audience::of(&self.loaded.pipeline, &self.run.folder, &self.loaded.variables);
        self.audience = audience;
        warn(self.reporter, missing);
        warn(self.reporter, self.audience.tell(&News::RunStarted(&self.run.state)));
        let result = self.on(engine, Job::Train).await.map(drop);
        let saved = self.end(result.as_ref().err());
        result.and(saved)
    }

    /// Looks for the largest batch. Where that fails, the run stays to be looked at.
    pub async fn fit(mut self, engine: Chosen) -> Result<Fitted, Error> {
        let found = self.on(engine, Job::Fit).await;
        if let Err(error) = &found {
            self.note_end(Some(error));
            self.run.save()?;
        }
        let found = found?.ok_or(Error::Interrupted)?;
        // Nothing was trained: what is worth keeping is in the ledger.
        let path = self.run.folder.path().to_owned();
        std::fs::remove_dir_all(&path).map_err(|source| Error::Write { path, source })?;
        Ok(found)
    }

    async fn on(&mut self, engine: Chosen, job: Job) -> Result<Option<Fitted>, Error> {
        if !self.is_open() {
            self.interrupts.check()?;
        }
        let ready = self.prepare_data().await?;
        match engine {
            Chosen::Process(engine) => self.with(&engine, json!({ "engine": "process" }), job, &ready.inputs).await,
            Chosen::Docker(mut engine) => {
                self.doing("building the image")?;
                let first = self.first_image();
                let name = tokio::select! {
                    name = image::ready(&engine, &self.loaded.pipeline, self.reporter, first) => name?,
                    () = self.interrupts.signal() => return Err(Error::Interrupted),
                };
                engine.set_image(name.clone());
                let id = engine.image_id(&name).await?;
                let version = &engine.info().version;
                let on = json!({ "engine": "docker", "engine_version": version, "image": name, "image_id": id });
                self.with(engine.as_ref(), on, job, &ready.inputs).await
            }
        }
    }

    /// Data that the trainer cannot read as it is.
    async fn prepare_data(&mut self) -> Result<Ready, Error> {
        let Loaded { pipeline, inputs, .. } = self.loaded;
        if data_cache::needed(inputs) {
            self.doing("preparing the data")?;
        }
        let wanted = Wanted::of(pipeline.model.arch.task(), &pipeline.data);
        data_cache::ready(inputs, wanted, self.reporter, self.interrupts).await
    }

    async fn with<E: Engine>(
        &mut self,
        engine: &E,
        on: Value,
        job: Job,
        inputs: &Inputs,
    ) -> Result<Option<Fitted>, Error> {
        let Loaded { pipeline, variables, .. } = self.loaded;
        let device = device(engine, &pipeline.container.gpus)?;
        let plan = Plan { pipeline, inputs, variables, device, job };
        if let Some(limit) = plan.limit_without_container(engine) {
            self.reporter.note(&format!("no container: the trainer keeps itself to container.memory ({limit})"));
        }
        let image = image::word(&on)?;
        self.hold_to_lock(&on, &plan)?;
        let _place = self.queue(device, &pipeline.container.gpus).await?;
        let ledger = Ledger::find().filter(|_| !self.run.state.ignore_ledger);
        let diary = ledger.map(|ledger| {
            let spec = plan.spec(engine, self.run.folder.path(), 1, &first_settings(pipeline));
            let config = load::model_config(pipeline, inputs).unwrap_or_default();
            Diary::open(ledger, &self.run.state.id, image, config, &spec, inputs)
        });
        let supervisor = Supervisor {
            engine,
            plan: &plan,
            run: &mut self.run,
            reporter: self.reporter,
            interrupts: self.interrupts,
            audience: &mut self.audience,
            entry: self.entry,
            diary,
            points: Vec::new(),
            fitted: None,
        };
        match job {
            Job::Train => supervisor.run().await.map(|()| None),
            Job::Fit => supervisor.fit().await.map(Some),
        }
    }

    /// What it stands on is written down when it begins, and must be the same when it goes on.
    fn hold_to_lock(&self, on: &Value, plan: &Plan<'_>) -> Result<(), Error> {
        // A job that runs has what it has.
        if self.is_open() {
            return Ok(());
        }
        let now = lock::collect(on, &self.run.folder, plan, self.reporter)?;
        let then = lock::read(&self.run.folder).filter(|_| !self.run.state.attempts.is_empty());
        let Some(then) = then else { return write_json(&self.run.folder.lock(), &now) };
        let of_inputs = |difference: &Difference| INPUTS.contains(&difference.what.as_str());
        let differences = lock::differences(&then, &now);
        let (inputs, others): (Vec<_>, Vec<_>) = differences
            .iter()
            .filter(|difference| difference.effect != Effect::None)
            .partition(|difference| of_inputs(difference));
        others.iter().for_each(|other| self.reporter.note(&format!("since it began: {other}")));
        match inputs.is_empty() {
            true => Ok(()),
            false => Err(Error::InputsChanged { changes: inputs.iter().map(ToString::to_string).collect() }),
        }
    }

    /// Whether there is an attempt that nobody has seen the end of.
    fn is_open(&self) -> bool {
        self.run.state.attempts.last().is_some_and(|attempt| attempt.outcome.is_none())
    }

    /// The image that earlier attempts had.
    fn first_image(&self) -> Option<String> {
        let text = std::fs::read(self.run.folder.lock()).ok()?;
        let lock: Value = serde_json::from_slice(&text).ok()?;
        Some(lock["on"]["image"].as_str()?.to_owned())
    }

    /// Waits until no other run has the card.
    async fn queue(&mut self, device: Device, gpus: &Gpus) -> Result<Option<Place>, Error> {
        if device == Device::Cpu || self.run.state.no_queue {
            return Ok(None);
        }
        let place = match Place::draw(gpus, &self.run.state.id) {
            Ok(place) => place,
            Err(error) => {
                // Where there can be no queue, a run does not wait for others.
                self.reporter.note(&format!("warning: no queue for the card: {error}"));
                return Ok(None);
            }
        };
        // What is on the card already does not wait for it.
        if self.is_open() {
            return Ok(Some(place));
        }
        let mut told = Vec::new();
        loop {
            let before = place.before();
            let Some(first) = before.first() else { return Ok(Some(place)) };
            if before != told {
                let more = match before.len() {
                    1 => String::new(),
                    count => format!(", {} more before this one", count - 1),
                };
                let waiting = format!("waiting for {}: run {} has it{more}", queue::card_name(gpus), first.run);
                self.reporter.note(&waiting);
                self.doing(&waiting)?;
                told = before;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.interrupts.signal() => return Err(Error::Interrupted),
            }
        }
    }

    fn doing(&mut self, what: &str) -> Result<(), Error> {
        self.reporter.doing(what);
        self.run.set_doing(what)
    }

    fn note_end(&mut self, error: Option<&Error>) {
        let state = &mut self.run.state;
        state.status = match error {
            None => Status::Finished,
            Some(Error::Interrupted) => Status::Stopped,
            Some(_) => Status::Failed,
        };
        state.error = error.map(ToString::to_string);
        state.exit_code = Some(error.map_or(0, |error| error.exit_code().code()));
        state.doing = None;
    }

    /// Everything that belongs to the end of a run. Its state is written last: where `pipe` is killed before that, whoever
    /// goes on does all of it again.
    fn end(&mut self, error: Option<&Error>) -> Result<(), Error> {
        self.doing("reporting").ok();
        self.note_end(error);
        self.write_report();
        warn(self.reporter, self.audience.tell(&News::RunEnded(&self.run.state)));
        let saved = self.run.save();
        self.reporter.run_ended(&self.run.state, &self.run.folder.path().display().to_string());
        saved
    }

    /// The run as a page. That it cannot be written takes nothing from the run.
    fn write_report(&self) {
        let mut record = Record::read(&self.run.folder);
        record.state = Some(self.run.state.clone());
        let page = html::page(&[record], &self.loaded.variables);
        if let Err(error) = write_whole(&self.run.folder.report(), page.as_bytes()) {
            self.reporter.note(&format!("warning: {error}"));
        }
    }
}

/// What a run that goes on cannot have other than it was.
const INPUTS: [&str; 4] = ["data.train", "data.eval", "tokenizer", "model"];

/// How often the queue is looked at.
const LOOK: Duration = Duration::from_millis(500);
