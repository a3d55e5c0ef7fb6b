//! The differences between the two kinds of work that an attempt runs: a training by our trainer, and a command of the user.
//! `execute` asks these questions here and nowhere else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pipe_spec::event::MemoryKind;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Command, Container, EffectiveBatch, Image, LossUnit, Pipeline, Ranks, Training, Work};
use pipe_spec::run::RunResult;
use pipe_spec::{Attempt, Cause, Device, Job, OomRecord, Phase, RunFolder, TrainerExit, Variables};
use serde_json::{Map, Value};

use super::job_spec::{CommandSpec, JobSpec};
use crate::engine::{Engine, registry};
use crate::error::Error;
use crate::execute::decide::metrics;
use crate::execute::decide::retry::Settings;
use crate::fit::ledger::LedgerJob;
use crate::image;
use crate::input::data_cache::ColumnSelection;
use crate::input::{Inputs, data_hash, model_config, named_paths};
use crate::system::files;

/// Seconds after which a command that was cut off is taken to have done something.
const LONG_ENOUGH: f64 = 60.0;

/// Bytes of a file that counts as a script.
const LARGEST_SCRIPT: u64 = 1 << 20;

/// The work of a pipeline.
pub fn workload(pipeline: &Pipeline) -> &dyn Workload {
    match &pipeline.work {
        Work::Training(training) => training.as_ref(),
        Work::Command(command) => command.as_ref(),
    }
}

/// The effect of retries on the result of a command, in a sentence.
pub fn retries_of_command(rule: EffectiveBatch) -> &'static str {
    match rule {
        EffectiveBatch::Kept => {
            "your own program: its effective batch stays the same after a retry; pipe cannot guarantee identical results"
        }
        EffectiveBatch::MayFall => {
            "your own program, without {accum}: a smaller batch after out of memory makes its effective batch smaller, as \
             on_oom.then allows"
        }
        EffectiveBatch::MustNotFall => {
            "your own program, without {accum}: a smaller batch would change its effective batch, so out of memory ends the \
             run; see on_oom.accumulates and on_oom.then"
        }
    }
}

pub trait Workload {
    /// The job in messages.
    fn noun(&self) -> &'static str;

    /// The activity of a run while its job runs, in messages.
    fn activity(&self) -> &'static str;

    /// The activity of the job after a request to stop, in messages.
    fn stopping(&self) -> &'static str;

    /// Whether the job reports its steps as events and its end by the exit codes of the trainer. If not, its lines are shown and
    /// searched for steps and for an out-of-memory, and its exit codes are its own.
    fn is_trainer(&self) -> bool;

    /// Refuses what cannot be started on this engine.
    fn check(&self, engine: &dyn Engine, container: &Container, job: Job) -> Result<(), Error>;

    /// The setting `train.ranks`, where the work has ranks.
    fn ranks(&self) -> Option<Ranks>;

    /// The settings that the pipeline asks for.
    fn settings(&self) -> Settings;

    /// `evaluate.batch`, where it is given.
    fn eval_batch(&self) -> Option<u32>;

    /// Reads `spec.json` of an attempt.
    fn read_spec(&self, path: &Path) -> Option<JobSpec>;

    /// The unit of its loss.
    fn loss_unit(&self) -> Option<LossUnit>;

    /// The result that a new run aims at.
    fn expected_result(&self) -> Option<RunResult>;

    /// The columns of its data that are prepared for it.
    fn columns(&self) -> Option<ColumnSelection>;

    /// `config.json` of its model.
    fn model_config(&self, inputs: &Inputs) -> Map<String, Value>;

    /// The program in the words of the ledger. `in_image` says whether it lies in an image.
    fn program_identity(&self, program: &Program, in_image: bool, variables: &Variables) -> String;

    /// The job of an attempt as the ledger knows it.
    fn ledger_job(&self, spec: &JobSpec, config: &Map<String, Value>, device: Device) -> Option<LedgerJob>;

    /// A hash of what decides how long its rows are, for the ledger.
    fn data_hash(&self, first: &JobSpec, inputs: &Inputs, device: Device) -> String;

    /// Whether a batch of an attempt with this spec keeps as much as one of the attempts to come.
    fn keeps_as_much(&self, spec: Option<JobSpec>, ranks: u32) -> bool;

    /// The reader of the steps that its log tells.
    fn metrics_reader(&self) -> Option<metrics::Reader>;

    /// Whether an attempt that was cut off had done something.
    fn has_progressed(&self, attempt: &Attempt) -> bool;

    /// How many of the last attempts ended at their time limit and began where the last one did: what they did was not saved.
    fn times_without_progress(&self, attempts: &[Attempt]) -> usize;

    /// Whether a card was out of memory when the job ended.
    fn ran_out_of_card(&self, exit_code: Option<i64>, record: Option<&OomRecord>) -> bool;

    /// The phase of a job that left no record. `was_ready` says whether its model was loaded.
    fn phase_without_record(&self, was_ready: bool) -> Option<Phase>;

    /// Whether the exit code says that the input was refused.
    fn refused_input(&self, exit_code: Option<i64>) -> bool;

    /// Whether its log has to explain why it failed.
    fn needs_log(&self, cause: Option<Cause>) -> bool;

    /// Where an output of the work lies in the folder of its run; `outputs` finds the path of a named one.
    fn output_path(&self, folder: &RunFolder, output: Option<PathBuf>) -> PathBuf;

    /// Whether outputs of other stages are mounted for it. A training reads them as its data.
    fn mounts_outputs(&self) -> bool;

    /// Whether the same inputs are known to be the same by their hashes.
    fn is_hashable(&self) -> bool;

    /// The files and folders that the words of a command name, with what they call them.
    fn named_files(&self, variables: &Variables) -> BTreeMap<PathBuf, String>;
}

impl Workload for Training {
    fn noun(&self) -> &'static str {
        "the trainer"
    }

    fn activity(&self) -> &'static str {
        "training"
    }

    fn stopping(&self) -> &'static str {
        "the trainer saves and ends"
    }

    fn is_trainer(&self) -> bool {
        true
    }

    fn check(&self, engine: &dyn Engine, container: &Container, _job: Job) -> Result<(), Error> {
        // An image that is used as it is has a trainer of its own.
        if !matches!(container.image, Some(Image::Existing(_))) {
            image::check_libtorch()?;
        }
        engine.check(container)
    }

    fn ranks(&self) -> Option<Ranks> {
        Some(self.train.ranks)
    }

    fn settings(&self) -> Settings {
        Settings::of_trainer(&self.train, &self.data, &self.evaluate, &self.memory)
    }

    fn eval_batch(&self) -> Option<u32> {
        self.evaluate.batch.map(u32::from)
    }

    fn read_spec(&self, path: &Path) -> Option<JobSpec> {
        serde_json::from_slice(&files::read_own(path).ok()?).ok().map(JobSpec::Training)
    }

    fn loss_unit(&self) -> Option<LossUnit> {
        Some(self.model.task().loss_unit())
    }

    fn expected_result(&self) -> Option<RunResult> {
        Some(RunResult { save_best: self.save.best.clone(), ..RunResult::default() })
    }

    fn columns(&self) -> Option<ColumnSelection> {
        Some(ColumnSelection::new(self.model.task(), &self.data))
    }

    fn model_config(&self, inputs: &Inputs) -> Map<String, Value> {
        model_config(self, inputs).unwrap_or_default()
    }

    fn program_identity(&self, program: &Program, _in_image: bool, _variables: &Variables) -> String {
        program.identity()
    }

    fn ledger_job(&self, spec: &JobSpec, config: &Map<String, Value>, _device: Device) -> Option<LedgerJob> {
        spec.training().map(|spec| LedgerJob::of_training(spec, config))
    }

    fn data_hash(&self, first: &JobSpec, inputs: &Inputs, _device: Device) -> String {
        first.training().map_or_else(String::new, |spec| data_hash(spec, inputs))
    }

    fn keeps_as_much(&self, spec: Option<JobSpec>, ranks: u32) -> bool {
        let shard = spec.as_ref().and_then(JobSpec::training).map(|spec| spec.train.shard);
        ranks == 1 || shard.is_none_or(|shard| shard == self.train.shard)
    }

    fn metrics_reader(&self) -> Option<metrics::Reader> {
        None
    }

    fn has_progressed(&self, attempt: &Attempt) -> bool {
        attempt.figures.last_step.is_some()
    }

    fn times_without_progress(&self, attempts: &[Attempt]) -> usize {
        let Some(last) = attempts.last() else { return 0 };
        let again = |attempt: &&Attempt| {
            attempt.cause == Some(Cause::TimeLimit) && attempt.figures.first_step == last.figures.first_step
        };
        attempts.iter().rev().take_while(again).count()
    }

    fn ran_out_of_card(&self, exit_code: Option<i64>, _record: Option<&OomRecord>) -> bool {
        exit_code == Some(i64::from(TrainerExit::DeviceOutOfMemory.code()))
    }

    fn phase_without_record(&self, was_ready: bool) -> Option<Phase> {
        (!was_ready).then_some(Phase::Load)
    }

    fn refused_input(&self, exit_code: Option<i64>) -> bool {
        exit_code == Some(i64::from(TrainerExit::BadInput.code()))
    }

    fn needs_log(&self, cause: Option<Cause>) -> bool {
        cause != Some(Cause::Trainer)
    }

    fn output_path(&self, folder: &RunFolder, _output: Option<PathBuf>) -> PathBuf {
        folder.model()
    }

    fn mounts_outputs(&self) -> bool {
        false
    }

    /// The pictures that rows name are not hashed: such a training runs each time.
    fn is_hashable(&self) -> bool {
        !self.model.task().reads_pictures()
    }

    fn named_files(&self, _variables: &Variables) -> BTreeMap<PathBuf, String> {
        BTreeMap::new()
    }
}

impl Workload for Command {
    fn noun(&self) -> &'static str {
        "the command"
    }

    fn activity(&self) -> &'static str {
        "running the command"
    }

    fn stopping(&self) -> &'static str {
        "sent SIGTERM to the command"
    }

    fn is_trainer(&self) -> bool {
        false
    }

    fn check(&self, engine: &dyn Engine, container: &Container, job: Job) -> Result<(), Error> {
        if job == Job::Fit {
            return Err(Error::NotATraining);
        }
        if engine.images().is_some() && container.image.is_none() {
            return Err(Error::CommandWithoutImage { other: registry::without_images() });
        }
        Ok(())
    }

    fn ranks(&self) -> Option<Ranks> {
        None
    }

    fn settings(&self) -> Settings {
        Settings {
            expandable_segments: self.memory.allocator.expandable_segments,
            ..Settings::of_command(self.train.batch)
        }
    }

    fn eval_batch(&self) -> Option<u32> {
        None
    }

    fn read_spec(&self, path: &Path) -> Option<JobSpec> {
        let spec: CommandSpec = serde_json::from_slice(&files::read_own(path).ok()?).ok()?;
        Some(JobSpec::Command(spec))
    }

    fn loss_unit(&self) -> Option<LossUnit> {
        None
    }

    fn expected_result(&self) -> Option<RunResult> {
        None
    }

    fn columns(&self) -> Option<ColumnSelection> {
        None
    }

    fn model_config(&self, _inputs: &Inputs) -> Map<String, Value> {
        Map::new()
    }

    /// Without an image the scripts that it names are its program.
    fn program_identity(&self, program: &Program, in_image: bool, variables: &Variables) -> String {
        if in_image {
            return program.identity();
        }
        // Small files, so that no data is read for it.
        let is_script =
            |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.len() <= LARGEST_SCRIPT);
        let scripts = self.named_files(variables).into_keys().filter(is_script);
        let mut hasher = blake3::Hasher::new();
        scripts.filter_map(|script| files::read(&script, LARGEST_SCRIPT).ok()).for_each(|text| {
            hasher.update(blake3::hash(&text).as_bytes());
        });
        format!("{}:{}", program.identity(), &hasher.finalize().to_hex()[..16])
    }

    fn ledger_job(&self, spec: &JobSpec, _config: &Map<String, Value>, device: Device) -> Option<LedgerJob> {
        match spec {
            JobSpec::Training(_) => None,
            JobSpec::Command(spec) => Some(LedgerJob::of_command(self, spec.expandable_segments, device)),
        }
    }

    fn data_hash(&self, _first: &JobSpec, _inputs: &Inputs, device: Device) -> String {
        LedgerJob::of_command(self, false, device).data().to_owned()
    }

    fn keeps_as_much(&self, _spec: Option<JobSpec>, _ranks: u32) -> bool {
        true
    }

    fn metrics_reader(&self) -> Option<metrics::Reader> {
        Some(metrics::Reader::new(&self.metrics))
    }

    /// A command does not always say what it has done.
    fn has_progressed(&self, attempt: &Attempt) -> bool {
        attempt.figures.last_step.is_some() || attempt.figures.seconds > LONG_ENOUGH
    }

    fn times_without_progress(&self, attempts: &[Attempt]) -> usize {
        if self.checkpoints.is_some() {
            return 0;
        }
        attempts.iter().rev().take_while(|attempt| attempt.cause == Some(Cause::TimeLimit)).count()
    }

    fn ran_out_of_card(&self, _exit_code: Option<i64>, record: Option<&OomRecord>) -> bool {
        record.is_some_and(|record| record.memory == MemoryKind::Device)
    }

    fn phase_without_record(&self, _was_ready: bool) -> Option<Phase> {
        None
    }

    fn refused_input(&self, _exit_code: Option<i64>) -> bool {
        false
    }

    fn needs_log(&self, _cause: Option<Cause>) -> bool {
        true
    }

    fn output_path(&self, folder: &RunFolder, output: Option<PathBuf>) -> PathBuf {
        output.map_or_else(|| folder.output(), |output| folder.output().join(output))
    }

    fn mounts_outputs(&self) -> bool {
        true
    }

    fn is_hashable(&self) -> bool {
        true
    }

    fn named_files(&self, variables: &Variables) -> BTreeMap<PathBuf, String> {
        named_paths(self, variables)
    }
}
