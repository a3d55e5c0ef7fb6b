//! Runs one run from its state on disk to its end: engine, image, lock, card, attempts, report.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pipe_spec::bucket::BucketAddress;
use pipe_spec::event::Fitted;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Gpus, Pipeline};
use pipe_spec::text::human_bytes;
use pipe_spec::{Device, Job, Lock, Status};

use super::{StartMode, Supervisor, warn};
use crate::bucket::mirror::Mirror;
use crate::engine::Engine;
use crate::error::Error;
use crate::execute::launch::environment;
use crate::execute::launch::template::JobTemplate;
use crate::execute::launch::workload::{retries_of_command, workload};
use crate::fit::ledger::{Ledger, LedgerSession};
use crate::gpu::queue::{self, Ticket};
use crate::input::Inputs;
use crate::input::data_cache::{self, PreparedInputs};
use crate::input::load::Loaded;
use crate::report::{Reporter, html};
use crate::run::lock::{self, Difference, Effect};
use crate::run::{self, Record, Run};
use crate::system::files::{write_json, write_whole};
use crate::system::interrupt::{self, Interrupts};
use crate::track::{Listeners, Notice};

/// The largest batch that a search has found, and the ranks that share a step.
pub struct FoundBatch {
    pub fitted: Fitted,
    pub ranks: u32,
}

pub struct Driver<'a> {
    pub loaded: &'a Loaded,
    pub run: Run,
    pub start_mode: StartMode,
    pub reporter: &'a mut Reporter,
    pub interrupts: &'a mut Interrupts,
    pub listeners: Listeners,
}

impl<'a> Driver<'a> {
    pub fn new(
        loaded: &'a Loaded,
        run: Run,
        start_mode: StartMode,
        reporter: &'a mut Reporter,
        interrupts: &'a mut Interrupts,
    ) -> Self {
        if let Some(unit) = workload(&loaded.pipeline).loss_unit() {
            reporter.set_unit(unit);
        }
        Self { loaded, run, start_mode, reporter, interrupts, listeners: Listeners::default() }
    }

    /// Does the job of the run to its end, and leaves the run's state on disk whatever happens. Returns what a search found.
    pub async fn run(self, engine: &dyn Engine) -> Result<Option<FoundBatch>, Error> {
        match self.run.state.choices.job {
            Job::Train => self.train(engine).await.map(|()| None),
            Job::Fit => self.fit(engine).await.map(Some),
        }
    }

    async fn train(mut self, engine: &dyn Engine) -> Result<(), Error> {
        self.note_start();
        let training = self.loaded.pipeline.training();
        let doubled = training.map_or(Vec::new(), |training| self.loaded.inputs.evaluated_and_trained(&training.data));
        if let Some(single) = self.run.state.single_mut() {
            single.retries = self.loaded.pipeline.on_oom.retries;
            single.result = workload(&self.loaded.pipeline).expected_result();
            if let Some(result) = &mut single.result {
                result.trains_on_evaluation = !doubled.is_empty();
            }
        }
        warn(self.reporter, doubled);
        self.doing("preparing")?;
        let (listeners, missing) =
            Listeners::from_pipeline(&self.loaded.pipeline, &self.run.folder, &self.loaded.variables);
        self.listeners = listeners;
        warn(self.reporter, missing);
        let mirror = match self.start_mirror().await {
            Ok(mirror) => mirror,
            Err(error) => {
                let is_new = self.start_mode == StartMode::New && !matches!(error, Error::Interrupted);
                let saved = if is_new { self.remove_folder() } else { self.end(Some(&error)) };
                return saved.and(Err(error));
            }
        };
        warn(self.reporter, self.listeners.notify(&Notice::RunStarted(&self.run.state)));
        let result = self.on(engine, Job::Train).await.map(drop);
        let saved = match result.as_ref().err() {
            // Its error says all that there is to know.
            Some(error) if self.start_mode == StartMode::New && self.failed_on_input(error) => {
                mirror.iter().for_each(Mirror::discard);
                self.discard(error)
            }
            error => self.end(error),
        };
        let copied = match mirror {
            Some(mirror) => finish_mirror(&mirror, &self.run.state.id, self.reporter, self.interrupts).await,
            None => Ok(()),
        };
        if let (Err(_), Err(error)) = (&result, &copied) {
            self.reporter.note(&format!("warning: {error}"));
        }
        result.and(saved).and(copied)
    }

    /// Starts to copy the run to the bucket of `save.to`.
    async fn start_mirror(&mut self) -> Result<Option<Mirror>, Error> {
        let Some(to) = mirror_address(&self.loaded.pipeline) else { return Ok(None) };
        let (id, folder, known) = (self.run.state.id.clone(), self.run.folder.clone(), self.loaded.variables.clone());
        let start = move || Mirror::start(&to, &id, &folder, &known);
        let mirror = interrupt::run_interruptibly(self.interrupts, start).await?;
        self.listeners.add(mirror.listener());
        self.reporter.note(&format!("copying the run to {}", mirror.address));
        Ok(Some(mirror))
    }

    /// Whether the trainer refused its input before it started to train.
    fn failed_on_input(&self, error: &Error) -> bool {
        let refused = matches!(error, Error::TrainingFailed { bad_input: true, .. });
        refused && Record::read(&self.run.folder).history.started.is_empty()
    }

    fn discard(&mut self, error: &Error) -> Result<(), Error> {
        self.run.note_end(Some(error));
        warn(self.reporter, self.listeners.notify(&Notice::RunEnded(&self.run.state)));
        self.remove_folder()
    }

    fn remove_folder(&self) -> Result<(), Error> {
        let path = self.run.folder.path().to_owned();
        std::fs::remove_dir_all(&path).map_err(|source| Error::Write { path, source })
    }

    /// Searches for the largest batch. If that fails, the run stays for `pipe show` and `pipe resume`.
    async fn fit(mut self, engine: &dyn Engine) -> Result<FoundBatch, Error> {
        self.note_start();
        self.doing("preparing")?;
        let found = self.on(engine, Job::Fit).await;
        if let Err(error) = &found {
            self.run.note_end(Some(error));
            self.run.save()?;
        }
        let found = found?.ok_or(Error::Interrupted)?;
        // Nothing was trained: what is worth keeping is in the ledger.
        self.remove_folder()?;
        Ok(found)
    }

    fn note_start(&mut self) {
        let state = &mut self.run.state;
        state.status = Status::Running;
        (state.error, state.exit_code) = (None, None);
    }

    async fn on(&mut self, engine: &dyn Engine, job: Job) -> Result<Option<FoundBatch>, Error> {
        if !self.run.is_open() {
            self.interrupts.check()?;
        }
        let prepared = self.prepare_data().await?;
        self.doing(engine.preparation())?;
        let image = self.loaded.pipeline.container.image.as_ref();
        let first = lock::read(&self.run.folder).map(|lock| lock.on);
        let is_open = self.run.is_open();
        let program = tokio::select! {
            program = engine.prepare(image, first.as_ref(), self.reporter) => program?,
            // A job that runs is asked to stop once it is taken over.
            () = self.interrupts.signal(), if !is_open => return Err(Error::Interrupted),
        };
        self.supervise(engine, program, job, &prepared.inputs).await
    }

    /// Data that the trainer cannot read as it is. A job that runs has its own, and its stop does not wait for that of the next attempt.
    async fn prepare_data(&mut self) -> Result<PreparedInputs, Error> {
        let inputs = &self.loaded.inputs;
        let is_open = self.run.is_open();
        if is_open && self.interrupts.check().is_err() {
            return Ok(PreparedInputs::unchanged(inputs));
        }
        if data_cache::needs_preparation(inputs) {
            self.doing("preparing the data")?;
        }
        let Some(columns) = workload(&self.loaded.pipeline).columns() else {
            return Ok(PreparedInputs::unchanged(inputs));
        };
        match data_cache::prepare_inputs(inputs, columns, self.reporter, self.interrupts).await {
            Err(Error::Interrupted) if is_open => {
                self.interrupts.postpone();
                Ok(PreparedInputs::unchanged(inputs))
            }
            prepared => prepared,
        }
    }

    async fn supervise(
        &mut self,
        engine: &dyn Engine,
        program: Program,
        job: Job,
        inputs: &Inputs,
    ) -> Result<Option<FoundBatch>, Error> {
        let loaded = self.loaded;
        let template = JobTemplate::new(loaded, inputs, engine, &program, job)?;
        let gpus = &loaded.pipeline.container.gpus;
        if let Some(command) = loaded.pipeline.command() {
            // A step that has no batch has nothing to change in a retry.
            if self.run.state.part_of.is_none() || command.has_batch() {
                self.reporter.note(retries_of_command(loaded.pipeline.effective_batch_rule()));
            }
            if !engine.limits_memory() && loaded.pipeline.container.memory.is_some() {
                let engine = &self.run.state.engine;
                self.reporter
                    .note(&format!("the engine {engine} does not limit memory: container.memory has no effect"));
            }
        }
        if let Some(limit) = template.own_limit(engine).filter(|_| !engine.limits_memory()) {
            let own = match template.placement.ranks {
                1 => format!("the trainer limits its own allocations to container.memory ({limit})"),
                ranks => format!(
                    "each of {ranks} ranks limits its own allocations to its share of container.memory ({limit})"
                ),
            };
            self.reporter.note(&format!(
                "the engine {} does not limit memory: {own}; libraries and mapped files are not counted",
                self.run.state.engine
            ));
        }
        self.check_lock(&program, engine, &template).await?;
        let _tickets = self.queue(engine, template.placement.device, gpus).await?;
        let ledger = Ledger::find().filter(|_| !self.run.state.choices.ignore_ledger);
        self.check_ledger(ledger.as_ref());
        let first = template.spec(engine, self.run.folder.path(), 1, &template.first_settings());
        let workload = template.workload();
        let config = workload.model_config(inputs);
        let in_image = engine.runs_in_image(loaded.pipeline.container.image.as_ref());
        let session = ledger.clone().map(|ledger| {
            let identity = workload.program_identity(&program, in_image, &loaded.variables);
            let data = workload.data_hash(&first, inputs, template.placement.device);
            LedgerSession::open(ledger, &self.run.state.id, identity, data)
        });
        let ranks = template.placement.ranks;
        let supervisor = Supervisor {
            engine,
            template,
            run: &mut self.run,
            reporter: self.reporter,
            interrupts: self.interrupts,
            listeners: &mut self.listeners,
            start_mode: self.start_mode,
            session,
            config,
            points: Vec::new(),
            fitted: None,
            oom: None,
            metrics: None,
        };
        let result = match job {
            Job::Train => supervisor.run().await.map(|()| None),
            Job::Fit => supervisor.fit().await.map(|fitted| Some(FoundBatch { fitted, ranks })),
        };
        self.warn_of(ledger.as_ref());
        result
    }

    /// A damaged ledger is set aside before the run asks it.
    fn check_ledger(&self, ledger: Option<&Ledger>) {
        // Where it cannot be read, the run says so when it asks.
        ledger.map(Ledger::entries);
        self.warn_of(ledger);
    }

    fn warn_of(&self, ledger: Option<&Ledger>) {
        warn(self.reporter, ledger.map(Ledger::take_warnings).unwrap_or_default());
    }

    /// Writes the lock of a new run. The inputs of a resumed run must match its lock.
    async fn check_lock(
        &mut self,
        program: &Program,
        engine: &dyn Engine,
        template: &JobTemplate<'_>,
    ) -> Result<(), Error> {
        // A job that runs has what it has.
        if self.run.is_open() {
            return Ok(());
        }
        let now =
            environment::collect(program.clone(), engine, &self.run.folder, template, self.reporter, self.interrupts)
                .await?;
        let before = lock::read(&self.run.folder);
        let Some(then) = before.clone().filter(|_| !self.run.state.attempts().is_empty()) else {
            // Where a job supervises the run, the commit is known to the machine that started it alone.
            let commit = now.commit.clone().or_else(|| before.and_then(|before| before.commit));
            return write_json(&self.run.folder.lock(), &Lock { commit, ..now });
        };
        let of_inputs = |difference: &Difference| INPUTS.contains(&difference.what.as_str());
        let differences = lock::differences(&then, &now);
        let (inputs, others): (Vec<_>, Vec<_>) = differences
            .iter()
            // The settings were compared as a file: a newer pipe may write the same settings differently.
            .filter(|difference| difference.effect != Effect::None && difference.what != "settings")
            .partition(|difference| of_inputs(difference));
        others.iter().for_each(|other| self.reporter.note(&format!("changed since the run started: {other}")));
        match inputs.is_empty() {
            true => Ok(()),
            false => Err(Error::InputsChanged { changes: inputs.iter().map(ToString::to_string).collect() }),
        }
    }

    /// Waits until no other run has the cards. They are queued for one after the other, in one order for all runs, so that
    /// no two runs wait for each other.
    async fn queue(&mut self, engine: &dyn Engine, device: Device, gpus: &Gpus) -> Result<Vec<Ticket>, Error> {
        let mut tickets = Vec::new();
        if device == Device::Cpu || self.run.state.choices.no_queue || engine.has_queue() {
            return Ok(tickets);
        }
        let cards = queue::card_names(gpus, &engine.cards(&Gpus::All));
        for card in &cards {
            match self.queue_for(card, &cards).await? {
                Some(ticket) => tickets.push(ticket),
                None => break,
            }
        }
        Ok(tickets)
    }

    /// `cards` are all that the run wants.
    async fn queue_for(&mut self, card: &str, cards: &BTreeSet<String>) -> Result<Option<Ticket>, Error> {
        let ticket = match Ticket::take(card, &self.run.state.id) {
            Ok((ticket, warning)) => {
                warning.iter().for_each(|warning| self.reporter.note(warning));
                ticket
            }
            Err(error) => return Ok(self.without_queue(&error)),
        };
        // A job that is on the card already does not wait for it.
        if self.run.is_open() {
            return Ok(Some(ticket));
        }
        let mut reported = Vec::new();
        loop {
            let ahead = match ticket.ahead() {
                Ok(ahead) => ahead,
                Err(error) => return Ok(self.without_queue(&error)),
            };
            let Some(first) = ahead.first() else { return Ok(Some(ticket)) };
            if ahead != reported {
                let more = match ahead.len() {
                    1 => String::new(),
                    count => format!(", {} more ahead of this run", count - 1),
                };
                let all = match cards.len() {
                    1 => String::new(),
                    _ => {
                        format!("; this run wants {}", cards.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
                    }
                };
                let waiting = format!("waiting for {card}: {first} has it{more}{all}");
                self.reporter.note(&waiting);
                self.doing(&waiting)?;
                reported = ahead;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.interrupts.signal() => return Err(Error::Interrupted),
            }
        }
    }

    /// Where there can be no queue, a run does not wait for others.
    fn without_queue(&self, error: &Error) -> Option<Ticket> {
        self.reporter.note(&format!("warning: {error}; the run does not wait for others"));
        None
    }

    fn doing(&mut self, what: &str) -> Result<(), Error> {
        self.reporter.doing(what);
        self.run.set_doing(what)
    }

    /// Everything that belongs to the end of a run. Its state is written last: if `pipe` is killed before that,
    /// the next process does all of it again.
    fn end(&mut self, error: Option<&Error>) -> Result<(), Error> {
        self.doing("reporting").ok();
        self.run.note_end(error);
        self.note_result();
        warn(self.reporter, self.listeners.notify(&Notice::RunEnded(&self.run.state)));
        let saved = self.run.save();
        self.reporter.run_ended(&self.run.state, &self.run.folder.path().display().to_string());
        saved
    }

    /// The result of the run, and the run as a page. That it cannot be written takes nothing from the run.
    fn note_result(&mut self) {
        let mut record = Record::read(&self.run.folder);
        if let Some(single) = self.run.state.single_mut() {
            let known = single.result.take().unwrap_or_default();
            single.result = Some(run::result(&record.history, &known));
        }
        record.state = Some(self.run.state.clone());
        let page = html::page(&[record], &self.loaded.variables);
        if let Err(error) = write_whole(&self.run.folder.report(), page.as_bytes()) {
            self.reporter.note(&format!("warning: {error}"));
        }
    }
}

/// The bucket that a pipeline names for copies of its run.
pub fn mirror_address(pipeline: &Pipeline) -> Option<BucketAddress> {
    BucketAddress::parse(pipeline.training()?.save.to.as_deref()?)
}

/// Waits until all of a run that is over is in its bucket, or until a person does not want to wait.
pub async fn finish_mirror(
    mirror: &Mirror,
    id: &str,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    mirror.finish();
    let not_copied =
        |reason: String| Error::NotCopied { id: id.to_owned(), address: mirror.address.to_string(), reason };
    let began = Instant::now();
    let mut is_told = false;
    loop {
        if let Some(how) = mirror.ended() {
            if how.is_ok() && is_told {
                reporter.note(&format!("the run is in {}", mirror.address));
            }
            return how.map_err(not_copied);
        }
        if began.elapsed() > Duration::from_secs(1) && !is_told {
            is_told = true;
            let left = match mirror.left() {
                0 => String::new(),
                left => format!(" ({})", human_bytes(left)),
            };
            reporter.note(&format!("copying the rest{left} to {}; Ctrl-C stops waiting for it", mirror.address));
        }
        tokio::select! {
            () = tokio::time::sleep(MIRROR_INTERVAL) => {}
            _ = interrupts.next() => return Err(not_copied("it was not waited for".to_owned())),
        }
    }
}

/// How often the end of the copying is looked for.
const MIRROR_INTERVAL: Duration = Duration::from_millis(100);

/// The inputs that must not change when a run is resumed.
const INPUTS: [&str; 4] = ["data.train", "data.eval", "tokenizer", "model"];

/// How often the queue is read while a run waits.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
