//! `pipe-trainer measure`: whole steps on the longest samples, to measure their memory. The trained weights are discarded. It
//! reads batches from stdin and writes an `Answer` for each to stdout.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pipe_spec::Device;
use pipe_spec::event::Measured;
use serde::{Deserialize, Serialize};

use super::evaluation::Evaluator;
use super::rehearsal::{LongestSamples, Rehearsal};
use super::session::Session;
use super::state::{State, milliseconds};
use super::step_splitter::StepSplitter;
use super::training::LONGEST_SAMPLE_COUNT;
use crate::data::{self, Reader, SampleOrder};
use crate::error::TrainerError;
use crate::host::offer_to_be_killed;
use crate::model::Definition;
use crate::session::events::{Console, Events};
use crate::storage::tensor_files;
use crate::{boundary, session, torch};

/// A line of stdout that is meant for the parent. Other lines there are events, or texts of libraries.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Before the first batch is read.
    Ready(Ready),
    /// For each batch.
    Measured(Measured),
    /// The last one, where an error ends the process.
    Failed(Failure),
}

/// The error that ends the process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    pub message: String,
    pub hint: Option<String>,
    /// The exit code.
    pub exit: i32,
}

/// The device.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    pub device: String,
    pub driver: Option<String>,
    /// Bytes that there are for this training now.
    pub capacity: Option<u64>,
    /// Tokens of the longest row, as in `event::Started`.
    pub longest: String,
}

/// An error is for the parent to report, and ends the process here; it is returned where the parent does not take it.
pub fn measure(spec_file: &Path, console: Console) -> Result<(), TrainerError> {
    // Whoever searches for the largest batch must live to hear that this one did not fit.
    offer_to_be_killed();
    let ended = boundary::guard(|| answer_batches(spec_file, console));
    if let Err(error) = &ended {
        let exit = error.exit_code().code();
        let failure = Failure { message: error.to_string(), hint: error.hint().map(str::to_owned), exit };
        if print_line(&Answer::Failed(failure)).is_ok() {
            std::process::exit(exit);
        }
    }
    ended
}

fn answer_batches(spec_file: &Path, console: Console) -> Result<(), TrainerError> {
    let stop = console.stop.clone();
    let session = Session::alone(session::read(spec_file)?, Events::new(console), stop)?;
    // A training holds a little more than its steps do: a batch that fits here must fit there.
    session.hardware.enforce_limit(&session.spec.memory, |bytes| usable(session.spec.device, bytes))?;
    let mut measuring = Measuring::prepare(&session)?;
    print_line(&Answer::Ready(measuring.ready()?))?;
    for line in io::stdin().lock().lines() {
        let batch = line.ok().and_then(|line| line.trim().parse().ok());
        let Some(batch) = batch.filter(|batch| *batch > 0) else { break };
        print_line(&Answer::Measured(measuring.of(batch)?))?;
    }
    Ok(())
}

fn print_line(line: &Answer) -> Result<(), TrainerError> {
    let fail = |source| TrainerError::Io { path: PathBuf::from("stdout"), source };
    let line = serde_json::to_string(line).expect("it is plain data");
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(fail)
}

struct Measuring<'a> {
    session: &'a Session,
    state: State,
    splitter: StepSplitter,
    longest_samples: LongestSamples,
    evaluation: Option<(Evaluator, LongestSamples)>,
}

impl<'a> Measuring<'a> {
    /// From the beginning, whatever checkpoints there are.
    fn prepare(session: &'a Session) -> Result<Self, TrainerError> {
        let spec = &session.spec;
        let definition = Definition::from_spec(&spec.model)?.with_adapter(spec.adapter.as_ref())?;
        let task_data = definition.task_data()?;
        let mut sources = data::open(spec, &task_data, &session.pool)?;
        sources.notices.drain(..).for_each(|notice| session.warn(notice));
        let definition = definition.with_labels(sources.labels.as_ref()).with_keys(sources.train.config_keys());
        let order = SampleOrder::new(sources.train.len(), spec.data.shuffle, &spec.train);
        let state = State::begin(session, &order, &definition)?;
        let reader = |source| Reader { source, pool: Arc::clone(&session.pool) };
        let evaluation = match (Evaluator::open(session, &sources, &definition), &sources.eval) {
            (Some(evaluation), Some(source)) => Some((evaluation, LongestSamples::find(&reader(Arc::clone(source)))?)),
            _ => None,
        };
        let longest_samples = LongestSamples::find(&reader(sources.train))?;
        let splitter =
            StepSplitter::for_model(session, &definition, &task_data, &sources.paddings, state.model.as_ref())?;
        Ok(Self { session, state, splitter, longest_samples, evaluation })
    }

    /// As `Started::longest`.
    fn longest(&self) -> String {
        self.splitter.longest(&self.longest_samples.part(LONGEST_SAMPLE_COUNT))
    }

    fn ready(&self) -> Result<Ready, TrainerError> {
        let (hardware, longest) = (&self.session.hardware, self.longest());
        let capacity = hardware.available()?;
        Ok(Ready { device: hardware.name.clone(), driver: hardware.driver.clone(), capacity, longest })
    }

    fn rehearsal<'r>(&'r self, splitter: &'r StepSplitter) -> Rehearsal<'r> {
        Rehearsal { session: self.session, state: &self.state, splitter, longest_samples: &self.longest_samples }
    }

    /// A batch that does not fit is a result; any other failure is an error.
    fn of(&mut self, batch: u32) -> Result<Measured, TrainerError> {
        let clock = Instant::now();
        let on_card = self.session.hardware.device.is_cuda();
        self.state.model.weights().forget_gradients()?;
        if on_card {
            torch::empty_cache()?;
            self.session.hardware.reset_peaks()?;
        }
        let done = boundary::guard(|| self.steps(batch));
        let fits = match done {
            Ok(()) => true,
            Err(TrainerError::OutOfMemory { .. }) => false,
            Err(other) => return Err(other),
        };
        let usage = self.session.hardware.usage();
        let longest = self.longest();
        Ok(Measured {
            batch,
            fits,
            peak: fits.then_some(usage.peak),
            reserved: fits.then_some(usage.reserved),
            longest,
            ms: milliseconds(clock),
        })
    }

    /// Two steps, an evaluation, and a save that writes nothing. The first step is of rows of full length, which the batch is a
    /// promise for; the second is what the longest rows of this data come to.
    fn steps(&mut self, batch: u32) -> Result<(), TrainerError> {
        for splitter in [&self.splitter.in_full_length(), &self.splitter] {
            let rehearsal = self.rehearsal(splitter);
            let gradients = rehearsal.gradients(&rehearsal.samples(batch), batch)?;
            let norm = torch::total_norm(&gradients)?;
            self.state.optimizer.update(self.state.model.weights(), &gradients, &norm.f_zeros_like()?, 0.0, 1)?;
            self.state.model.step_ended(true)?;
            norm.f_double_value(&[])?;
        }
        if let Some((evaluation, longest_samples)) = &self.evaluation {
            let batch = self.session.spec.evaluate.batch.map_or(batch, u32::from);
            let splitter = self.splitter.with_batch(batch, self.session.spec.train.effective_batch);
            let samples = splitter.room(&longest_samples.part(batch));
            evaluation.rehearse(self.session, &self.state, splitter.shape(), &longest_samples.part(samples))?;
        }
        tensor_files::read_all(&self.state.named_weights())?;
        tensor_files::read_all(&self.state.optimizer.tensors())?;
        // A batch that took memory from the reserve did not fit.
        boundary::check_host_memory()
    }
}

/// How much of its memory a training may hold. All of a card's can be used; on the host the page cache
/// needs some, and programs slow down long before they are killed.
pub fn usable(device: Device, bytes: u64) -> u64 {
    match device {
        Device::Cuda => bytes,
        Device::Cpu => bytes / 10 * 9,
    }
}
