//! Runs on disk: folder, state, owner. A folder stays readable whatever is killed.
//!
//! Room on the disk that is kept for the end of a run: where the disk is full, it is given up so that `run.json` can say so.

mod events;
pub mod history;
pub mod job_file;
mod list;
pub mod lock;
mod notes;
mod owner;
mod record;
pub mod result;

use std::io::ErrorKind::StorageFull;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::{Pipeline, StageGraph, Work};
pub use pipe_spec::run::RunChoices;
use pipe_spec::run::{RunKind, SingleRun, StageState, StudyState};
use pipe_spec::study::Study;
use pipe_spec::{RunFolder, RunState, Status};

use crate::error::Error;
use crate::system::clock::{iso, now};
use crate::system::files::{Space, absolute, write_json, write_whole};

pub use events::{EventLog, Follow, Repeated};
pub use list::{
    Filter, LATEST, Listed, Since, find, find_single, ids_of, latest, list, read_state, sort_stages, stages_of,
};
pub use notes::{Change as NotesChange, MAX_NOTE, NoteText, Notes, Tag};
pub use owner::{Owner, OwnerProcess};
pub use record::{Record, losses, stage_answers, unit};
pub use result::result;

/// A run that this process owns.
pub struct Run {
    pub folder: RunFolder,
    pub state: RunState,
    reserve: Reserve,
    _owner: Owner,
}

impl Run {
    /// A new folder for a run of `pipeline`, whose file said `text`.
    pub fn create(pipeline: &Pipeline, text: &str, engine: &str, choices: RunChoices) -> Result<Self, Error> {
        Self::create_in(&absolute(&runs_folder()), pipeline, text, engine, choices)
    }

    /// The same in the folder `runs`.
    pub fn create_in(
        runs: &Path,
        pipeline: &Pipeline,
        text: &str,
        engine: &str,
        choices: RunChoices,
    ) -> Result<Self, Error> {
        let id = new_id(pipeline.name.as_str());
        Self::create_with(runs, text, &pipeline.to_yaml(), state_of(id, pipeline, engine, choices))
    }

    /// The run of a stage, or of a trial, of the run `part_of`, on the engine of this name and address. Its id is known beforehand, so that there is one such run at most.
    pub fn create_child(
        pipeline: &Pipeline,
        stage: &str,
        part_of: &str,
        engine: (&str, Option<String>),
        choices: RunChoices,
    ) -> Result<Self, Error> {
        let text = pipeline.to_yaml();
        let (engine, engine_address) = engine;
        let state = RunState {
            part_of: Some(part_of.to_owned()),
            engine_address,
            ..state_of(child_id(part_of, stage), pipeline, engine, choices)
        };
        Self::create_with(&absolute(&runs_folder()), &text, &text, state)
    }

    /// The run of all stages of a pipeline, whose file said `text`.
    pub fn create_stages(
        graph: &StageGraph,
        stages: Vec<StageState>,
        text: &str,
        engine: &str,
        choices: RunChoices,
    ) -> Result<Self, Error> {
        let state = RunState {
            choices: for_children(choices),
            kind: RunKind::Stages(stages),
            ..RunState::new(new_id(graph.name.as_str()), graph.name.to_string(), engine)
        };
        Self::create_with(&absolute(&runs_folder()), text, &graph.to_yaml(), state)
    }

    /// The run of a study, whose file said `text`.
    pub fn create_study(study: &Study, text: &str, engine: &str, choices: RunChoices) -> Result<Self, Error> {
        let state = RunState {
            choices: for_children(choices),
            kind: RunKind::Study(StudyState { budget: study.budget.trials, ..StudyState::default() }),
            ..RunState::new(new_id(study.name.as_str()), study.name.to_string(), engine)
        };
        Self::create_with(&absolute(&runs_folder()), text, &study.to_yaml(), state)
    }

    /// Whether the last attempt has no recorded end: its job may still run.
    pub fn is_open(&self) -> bool {
        self.state.attempts().last().is_some_and(|attempt| attempt.outcome.is_none())
    }

    fn create_with(runs: &Path, text: &str, resolved: &str, state: RunState) -> Result<Self, Error> {
        let folder = RunFolder::new(runs.join(&state.id));
        let (cwd, home) = (std::env::current_dir().unwrap_or_default(), folder.path().to_owned());
        let state = RunState { created: now(), cwd, home, ..state };
        Self::begin(&folder, text, resolved, state).inspect_err(|_| {
            // A run that could not start leaves nothing.
            std::fs::remove_dir_all(folder.path()).ok();
        })
    }

    fn begin(folder: &RunFolder, text: &str, resolved: &str, state: RunState) -> Result<Self, Error> {
        for path in [folder.path().to_owned(), folder.path().join("attempts"), folder.checkpoints()] {
            std::fs::create_dir_all(&path).map_err(|source| Error::Write { path, source })?;
        }
        let owner = Owner::take(folder, &state.id)?;
        write_whole(&folder.pipeline(), text.as_bytes())?;
        write_whole(&folder.resolved(), resolved.as_bytes())?;
        let run = Self { folder: folder.clone(), state, reserve: Reserve::take(folder.path()), _owner: owner };
        run.save()?;
        Ok(run)
    }

    /// Takes over an existing run that no process owns.
    pub fn take_over(found: &Listed) -> Result<Self, Error> {
        let folder = found.folder();
        if !found.damage.is_empty() {
            return Err(Error::Damaged { id: found.state.id.clone(), damage: found.damage.clone() });
        }
        let owner = Owner::take(&folder, &found.state.id)?;
        // Its last owner may have changed it since it was found.
        let state = list::read_state(&folder)
            .map_err(|damage| Error::Damaged { id: found.state.id.clone(), damage: vec![damage] })?;
        // Two processes would follow one job.
        found.check_is_no_copy()?;
        let reserve = Reserve::take(folder.path());
        Ok(Self { folder, state, reserve, _owner: owner })
    }

    /// Sets the stage that other processes see.
    pub fn set_doing(&mut self, doing: &str) -> Result<(), Error> {
        self.state.doing = Some(doing.to_owned());
        self.save()
    }

    /// Takes in how the run has ended.
    pub fn note_end(&mut self, error: Option<&Error>) {
        let folder = self.folder.path();
        // A job may fail on a full disk without a word about it.
        let is_disk_full = error.is_some_and(Error::is_of_job) && Space::is_full(folder);
        let state = &mut self.state;
        state.status = match error {
            None => Status::Finished,
            Some(Error::Interrupted | Error::Cancelled { .. }) => Status::Stopped,
            Some(_) => Status::Failed,
        };
        state.error = error.map(|error| match is_disk_full {
            true => format!("the disk of {} is full; {error}", folder.display()),
            false => error.to_string(),
        });
        state.exit_code = Some(error.map_or(0, |error| error.exit_code().code()));
        state.machine_failed = is_disk_full || error.is_some_and(Error::is_of_machine);
        state.doing = None;
    }

    pub fn save(&self) -> Result<(), Error> {
        match write_json(&self.folder.state(), &self.state) {
            Err(Error::Write { source, .. }) if source.kind() == StorageFull && self.reserve.give_up() => {
                write_json(&self.folder.state(), &self.state)
            }
            saved => saved,
        }
    }
}

fn state_of(id: String, pipeline: &Pipeline, engine: &str, choices: RunChoices) -> RunState {
    let single = SingleRun {
        effective_batch: pipeline.work.effective_batch(),
        retries: pipeline.on_oom.retries,
        ..SingleRun::default()
    };
    let kind = match &pipeline.work {
        Work::Training(_) => RunKind::Training(single),
        Work::Command(_) => RunKind::Command(single),
    };
    RunState { choices, kind, ..RunState::new(id, pipeline.name.to_string(), engine) }
}

/// The choices of a run that hands them on to runs of its own.
fn for_children(choices: RunChoices) -> RunChoices {
    let RunChoices { ignore_ledger, no_queue, .. } = choices;
    RunChoices { ignore_ledger, no_queue, ..RunChoices::default() }
}

/// The id of the run that does a stage, or a trial, of the run `part_of`.
pub fn child_id(part_of: &str, stage: &str) -> String {
    format!("{part_of}.{stage}")
}

/// The folder of the run with this id, whether there is one or not.
pub fn folder_of(id: &str) -> RunFolder {
    RunFolder::new(absolute(&runs_folder()).join(id))
}

/// `PIPE_RUNS`, or `runs` in the working directory.
pub fn runs_folder() -> PathBuf {
    std::env::var_os("PIPE_RUNS").filter(|path| !path.is_empty()).map_or_else(|| PathBuf::from("runs"), PathBuf::from)
}

/// `<name>-<date>-<time>-<4 letters>`, in UTC.
fn new_id(name: &str) -> String {
    let at = now();
    let letters: String = {
        let mut random = blake3::Hasher::new();
        random.update(&at.to_le_bytes());
        random.update(&std::process::id().to_le_bytes());
        random.finalize().as_bytes()[..4].iter().map(|byte| char::from(b'a' + byte % 26)).collect()
    };
    let when = iso(at).replace(['-', ':', 'Z'], "").replace('T', "-");
    format!("{name}-{when}-{letters}")
}

/// Bytes: many times what `run.json` takes.
const SIZE: usize = 256 << 10;

pub struct Reserve(PathBuf);

impl Reserve {
    /// Where there is no room for it, a run starts without.
    pub fn take(folder: &Path) -> Self {
        let path = folder.join(".reserve");
        if let Err(error) = std::fs::write(&path, vec![1; SIZE]) {
            tracing::debug!("no room could be reserved at {}: {error}", path.display());
            std::fs::remove_file(&path).ok();
        }
        Self(path)
    }

    /// Gives the room up; whether there was any.
    pub fn give_up(&self) -> bool {
        std::fs::remove_file(&self.0).is_ok()
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_sort_by_time() {
        let ids: Vec<String> = (0..50).map(|_| new_id("demo")).collect();
        let mut distinct = ids.clone();
        distinct.sort();
        distinct.dedup();
        assert!(distinct.len() > 45, "{ids:?}");
        assert!(ids.iter().all(|id| id.len() == "demo-20261115-014500-abcd".len()), "{ids:?}");
    }
}
