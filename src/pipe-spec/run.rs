//! `run.json`: the state of a run, the file that `pipe ls` reads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::event::Baseline;
use crate::pipeline::{Metric, WorkKind};

pub use crate::attempt::{Attempt, Cause, JobEnd, LogPosition, Outcome, StageState, StageStatus};
pub use crate::run_folder::{AttemptFolder, JobFolder, RunFolder, checkpoint_name};

/// The state of a run, `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "RunFile", into = "RunFile")]
pub struct RunState {
    pub id: String,
    pub name: String,
    pub status: Status,
    /// Seconds since the Unix epoch.
    pub created: f64,
    pub engine: String,
    /// Where its jobs are, as the engine wrote it down, where engines of this kind are in several places.
    pub engine_address: Option<String>,
    /// Where `pipe` was started: what the paths of the pipeline begin from.
    pub cwd: PathBuf,
    /// The folder that the run was made in: it tells a copy from the run. Empty in those of an older version.
    pub home: PathBuf,
    /// Why the run failed.
    pub error: Option<String>,
    /// The present activity of a run: building the image, waiting for a card, training.
    pub doing: Option<String>,
    /// The exit code of `pipe`, once the run is over.
    pub exit_code: Option<u8>,
    /// Whether the machine failed, and not what was asked of it.
    pub machine_failed: bool,
    /// The run that this one is a stage or a trial of.
    pub part_of: Option<String>,
    pub choices: RunChoices,
    pub kind: RunKind,
}

/// Choices that a run is started with, beside its pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunChoices {
    pub job: Job,
    /// Whether the ledger is neither read nor written.
    pub ignore_ledger: bool,
    /// Whether it starts though other runs hold the card.
    pub no_queue: bool,
    /// Whether a batch that is known not to fit ends the run, instead of being made smaller.
    pub as_asked: bool,
    /// Whether a job of the engine supervises it, in place of a process of this machine.
    pub supervised: bool,
}

/// The work of a run, with the state of that work.
#[derive(Clone, Debug, PartialEq)]
pub enum RunKind {
    Training(SingleRun),
    Command(SingleRun),
    /// Several of these, each in a run of its own, in the order of the file.
    Stages(Vec<StageState>),
    /// A search: trials, each in a run of its own.
    Study(StudyState),
}

impl RunKind {
    pub fn work(&self) -> WorkKind {
        match self {
            Self::Training(_) => WorkKind::Training,
            Self::Command(_) => WorkKind::Command,
            Self::Stages(_) => WorkKind::Stages,
            Self::Study(_) => WorkKind::Study,
        }
    }
}

/// A run that has attempts of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SingleRun {
    pub effective_batch: u32,
    /// Steps of the whole run, once the trainer has said so.
    pub steps: Option<u64>,
    /// How often it may run out of memory and be tried again.
    pub retries: u32,
    /// The result: while the run lasts its target, at its end the whole. Runs of older versions have none.
    pub result: Option<RunResult>,
    /// Why it was not tried, where what it asks for is known not to fit.
    pub infeasible: Option<String>,
    pub attempts: Vec<Attempt>,
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// `run.json` as it is written, and was by earlier versions: the fields of every kind side by side.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RunFile {
    id: String,
    name: String,
    status: Status,
    created: f64,
    engine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    engine_address: Option<String>,
    #[serde(default)]
    work: WorkKind,
    #[serde(default)]
    job: Job,
    effective_batch: u32,
    steps: Option<u64>,
    error: Option<String>,
    #[serde(default)]
    doing: Option<String>,
    #[serde(default)]
    exit_code: Option<u8>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    machine_failed: bool,
    #[serde(default)]
    cwd: PathBuf,
    #[serde(default, skip_serializing_if = "is_empty")]
    home: PathBuf,
    #[serde(default)]
    ignore_ledger: bool,
    #[serde(default)]
    retries: u32,
    #[serde(default)]
    no_queue: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<RunResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part_of: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    graph: Vec<StageState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    study: Option<StudyState>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    as_asked: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    supervised: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    infeasible: Option<String>,
    attempts: Vec<Attempt>,
}

impl From<RunFile> for RunState {
    fn from(file: RunFile) -> Self {
        let RunFile { effective_batch, steps, retries, result, infeasible, attempts, .. } = file;
        let single = SingleRun { effective_batch, steps, retries, result, infeasible, attempts };
        let RunFile { job, ignore_ledger, no_queue, as_asked, supervised, .. } = file;
        Self {
            id: file.id,
            name: file.name,
            status: file.status,
            created: file.created,
            engine: file.engine,
            engine_address: file.engine_address,
            cwd: file.cwd,
            home: file.home,
            error: file.error,
            doing: file.doing,
            exit_code: file.exit_code,
            machine_failed: file.machine_failed,
            part_of: file.part_of,
            choices: RunChoices { job, ignore_ledger, no_queue, as_asked, supervised },
            kind: match file.work {
                WorkKind::Training => RunKind::Training(single),
                WorkKind::Command => RunKind::Command(single),
                WorkKind::Stages => RunKind::Stages(file.graph),
                WorkKind::Study => RunKind::Study(file.study.unwrap_or_default()),
            },
        }
    }
}

impl From<RunState> for RunFile {
    fn from(state: RunState) -> Self {
        let work = state.kind.work();
        let (single, graph, study) = match state.kind {
            RunKind::Training(single) | RunKind::Command(single) => (single, Vec::new(), None),
            RunKind::Stages(stages) => (SingleRun::default(), stages, None),
            RunKind::Study(study) => (SingleRun::default(), Vec::new(), Some(study)),
        };
        let RunChoices { job, ignore_ledger, no_queue, as_asked, supervised } = state.choices;
        Self {
            id: state.id,
            name: state.name,
            status: state.status,
            created: state.created,
            engine: state.engine,
            engine_address: state.engine_address,
            work,
            job,
            effective_batch: single.effective_batch,
            steps: single.steps,
            error: state.error,
            doing: state.doing,
            exit_code: state.exit_code,
            machine_failed: state.machine_failed,
            cwd: state.cwd,
            home: state.home,
            ignore_ledger,
            retries: single.retries,
            no_queue,
            result: single.result,
            part_of: state.part_of,
            graph,
            study,
            as_asked,
            supervised,
            infeasible: single.infeasible,
            attempts: single.attempts,
        }
    }
}

/// How far a search has come, as `run.json` holds it. Its trials are in its storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StudyState {
    /// A journal file of Optuna.
    pub storage: PathBuf,
    /// Seconds that it ran for, over all `pipe` processes.
    pub seconds: f64,
    pub trials: TrialCounts,
    /// Trials that it may run.
    pub budget: Option<u64>,
    /// The number of the best trial, and its value, with one objective.
    pub best: Option<(u64, f64)>,
}

/// Trials of a study, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrialCounts {
    pub running: u64,
    pub complete: u64,
    /// Ended early because others were better, or out of memory.
    pub pruned: u64,
    /// Never begun: known not to fit.
    pub infeasible: u64,
    /// Never begun: the same training as another trial, whose values they have.
    pub repeated: u64,
    pub failed: u64,
}

impl TrialCounts {
    /// Those that count against the budget.
    pub fn run(&self) -> u64 {
        self.running + self.complete + self.pruned + self.failed
    }
}

/// The result of a run. Metrics have the names that `save.best` takes, such as `eval.loss`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunResult {
    /// The metric that runs are compared by: that of `save.best`, else the first score of the task, else `eval.loss`, else
    /// `loss`, that of the training.
    pub metric: Option<String>,
    /// Its value: of the best evaluation with `save.best`, else of the last.
    pub value: Option<f64>,
    pub save_best: Option<Metric>,
    pub first: Option<Evaluation>,
    /// The evaluation where `metric` is best.
    pub best: Option<Evaluation>,
    pub last: Option<Evaluation>,
    /// How good the model is, of the same evaluation as `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// The step that the exported model is from.
    pub model_step: Option<u64>,
    /// Why `train.early_stop` ended the training, if it did.
    pub stopped_early: Option<String>,
    /// Whether rows of the evaluation are trained on too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trains_on_evaluation: bool,
}

/// How good a model is, against an answer that ignores the input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The metric, such as `eval.accuracy`, or `loss`, that of the training.
    pub metric: String,
    pub value: f64,
    /// The step after which it was measured.
    pub step: u64,
    /// The rows that it is counted over, as in the `eval` event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Whether some of these rows were trained on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trained_on: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    /// Whether the model is better than the baseline, or the training loss fell; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<bool>,
}

/// One evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub step: u64,
    /// Those that are finite.
    pub metrics: BTreeMap<String, f64>,
}

/// The purpose that the trainer is started for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    #[default]
    Train,
    /// To find the largest batch that fits.
    Fit,
}

impl Job {
    /// The subcommand of the trainer.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Fit => "fit",
        }
    }
}

impl RunState {
    /// A training that has just been created.
    pub fn new(id: impl Into<String>, name: impl Into<String>, engine: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            status: Status::Running,
            created: 0.0,
            engine: engine.into(),
            engine_address: None,
            cwd: PathBuf::new(),
            home: PathBuf::new(),
            error: None,
            doing: None,
            exit_code: None,
            machine_failed: false,
            part_of: None,
            choices: RunChoices::default(),
            kind: RunKind::Training(SingleRun::default()),
        }
    }

    pub fn work(&self) -> WorkKind {
        self.kind.work()
    }

    /// The state of a training or a command.
    pub fn single(&self) -> Option<&SingleRun> {
        match &self.kind {
            RunKind::Training(single) | RunKind::Command(single) => Some(single),
            RunKind::Stages(_) | RunKind::Study(_) => None,
        }
    }

    pub fn single_mut(&mut self) -> Option<&mut SingleRun> {
        match &mut self.kind {
            RunKind::Training(single) | RunKind::Command(single) => Some(single),
            RunKind::Stages(_) | RunKind::Study(_) => None,
        }
    }

    /// The attempts of a training or a command.
    pub fn attempts(&self) -> &[Attempt] {
        self.single().map_or(&[], |single| &single.attempts)
    }

    pub fn last_attempt_mut(&mut self) -> Option<&mut Attempt> {
        self.single_mut()?.attempts.last_mut()
    }

    /// The stages of a pipeline that has several.
    pub fn stages(&self) -> &[StageState] {
        match &self.kind {
            RunKind::Stages(stages) => stages,
            RunKind::Training(_) | RunKind::Command(_) | RunKind::Study(_) => &[],
        }
    }

    pub fn stages_mut(&mut self) -> &mut [StageState] {
        match &mut self.kind {
            RunKind::Stages(stages) => stages,
            RunKind::Training(_) | RunKind::Command(_) | RunKind::Study(_) => &mut [],
        }
    }

    pub fn study(&self) -> Option<&StudyState> {
        match &self.kind {
            RunKind::Study(study) => Some(study),
            RunKind::Training(_) | RunKind::Command(_) | RunKind::Stages(_) => None,
        }
    }

    pub fn study_mut(&mut self) -> Option<&mut StudyState> {
        match &mut self.kind {
            RunKind::Study(study) => Some(study),
            RunKind::Training(_) | RunKind::Command(_) | RunKind::Stages(_) => None,
        }
    }

    /// The samples of a step; 0 where a run has no steps of its own.
    pub fn effective_batch(&self) -> u32 {
        self.single().map_or(0, |single| single.effective_batch)
    }

    /// Steps of the whole run, once the trainer has said so.
    pub fn steps(&self) -> Option<u64> {
        self.single()?.steps
    }

    pub fn set_steps(&mut self, steps: u64) {
        if let Some(single) = self.single_mut() {
            single.steps = Some(steps);
        }
    }

    /// Why it was not tried, where what it asks for is known not to fit.
    pub fn infeasible(&self) -> Option<&str> {
        self.single()?.infeasible.as_deref()
    }

    pub fn result(&self) -> Option<&RunResult> {
        self.single()?.result.as_ref()
    }

    /// How often it ran out of memory since a person last resumed it.
    pub fn times_out_of_memory(&self) -> u32 {
        let since = self.attempts().iter().rposition(|attempt| attempt.resumed).unwrap_or(0);
        self.attempts()[since..].iter().filter(|attempt| attempt.outcome == Some(Outcome::Oom)).count() as u32
    }

    /// How many attempts there will be at most, as it stands.
    pub fn at_most(&self) -> u32 {
        let ended = self.attempts().iter().filter(|attempt| attempt.outcome.is_some()).count() as u32;
        let next = u32::from(self.attempts().last().is_none_or(|last| last.outcome != Some(Outcome::Finished)));
        ended + next + self.single().map_or(0, |single| single.retries).saturating_sub(self.times_out_of_memory())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Running,
    Finished,
    Failed,
    Stopped,
    /// Running according to the folder, but its `pipe` process was killed. Never written to disk.
    Orphaned,
    /// The folder does not say. Never written down.
    Unknown,
}

impl Status {
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Finished, Self::Failed, Self::Stopped, Self::Orphaned, Self::Unknown];

    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Orphaned => "orphaned",
            Self::Unknown => "unknown",
        }
    }
}
