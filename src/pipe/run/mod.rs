//! Runs on disk: their folders, their state, who drives them. Whatever is killed, a folder can be read.

mod events;
mod follow;
mod list;
mod owner;
mod record;
mod write;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use pipe_spec::pipeline::Pipeline;
use pipe_spec::{RunFolder, RunState, Status};
use time::OffsetDateTime;

use crate::error::Error;
pub use events::EventLog;
pub use follow::Follow;
pub use list::{Listed, find, list};
pub use owner::Owner;
pub use record::Record;
pub use write::write_whole;

/// A run that this process drives.
pub struct Run {
    pub folder: RunFolder,
    pub state: RunState,
    _owner: Owner,
}

/// What a run is started with, beside its pipeline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices {
    pub ignore_ledger: bool,
    pub no_queue: bool,
}

impl Run {
    /// A new folder for a run of `pipeline`, whose file said `text`.
    pub fn create(pipeline: &Pipeline, text: &str, engine: &str, choices: Choices) -> Result<Self, Error> {
        let created = now();
        let id = new_id(pipeline.name.as_str());
        let folder = RunFolder::new(absolute(&runs_folder()).join(&id));
        Self::begin(pipeline, text, engine, choices, &folder, id, created).inspect_err(|_| {
            // A run that could not be begun leaves nothing.
            std::fs::remove_dir_all(folder.path()).ok();
        })
    }

    fn begin(
        pipeline: &Pipeline,
        text: &str,
        engine: &str,
        choices: Choices,
        folder: &RunFolder,
        id: String,
        created: f64,
    ) -> Result<Self, Error> {
        for path in [folder.path().to_owned(), folder.path().join("attempts"), folder.checkpoints()] {
            std::fs::create_dir_all(&path).map_err(|source| Error::Write { path, source })?;
        }
        let owner = Owner::take(folder, &id)?;
        write_whole(&folder.pipeline(), text.as_bytes())?;
        write_whole(&folder.resolved(), pipeline.to_yaml().as_bytes())?;
        let state = RunState {
            id,
            name: pipeline.name.to_string(),
            status: Status::Running,
            created,
            engine: engine.to_owned(),
            effective_batch: pipeline.train.effective_batch,
            steps: None,
            error: None,
            doing: None,
            cwd: std::env::current_dir().unwrap_or_default(),
            exit_code: None,
            ignore_ledger: choices.ignore_ledger,
            retries: pipeline.on_oom.retries,
            no_queue: choices.no_queue,
            attempts: Vec::new(),
        };
        let run = Self { folder: folder.clone(), state, _owner: owner };
        run.save()?;
        Ok(run)
    }

    /// A run that was there before, and that nobody drives.
    pub fn take_over(found: &Listed) -> Result<Self, Error> {
        let folder = found.folder();
        if !found.damage.is_empty() {
            return Err(Error::Damaged { id: found.state.id.clone(), damage: found.damage.clone() });
        }
        let owner = Owner::take(&folder, &found.state.id)?;
        // Whoever drove it until now may have gone on since it was found.
        let state = list::read_state(&folder)
            .map_err(|damage| Error::Damaged { id: found.state.id.clone(), damage: vec![damage] })?;
        Ok(Self { folder, state, _owner: owner })
    }

    /// What it is at, for those who look from outside.
    pub fn set_doing(&mut self, doing: &str) -> Result<(), Error> {
        self.state.doing = Some(doing.to_owned());
        self.save()
    }

    pub fn save(&self) -> Result<(), Error> {
        write_json(&self.folder.state(), &self.state)
    }
}

/// Writes a JSON file, whole.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Write { path: path.to_owned(), source: error.into() })?;
    text.push('\n');
    write_whole(path, text.as_bytes())
}

/// `PIPE_RUNS`, or `runs` in the working directory.
pub fn runs_folder() -> PathBuf {
    std::env::var_os("PIPE_RUNS").filter(|path| !path.is_empty()).map_or_else(|| PathBuf::from("runs"), PathBuf::from)
}

pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// `<name>-<date>-<time>-<4 letters>`, in UTC.
fn new_id(name: &str) -> String {
    let at = OffsetDateTime::now_utc();
    let letters: String = {
        let mut random = blake3::Hasher::new();
        random.update(&at.unix_timestamp_nanos().to_le_bytes());
        random.update(&std::process::id().to_le_bytes());
        random.finalize().as_bytes()[..4].iter().map(|byte| char::from(b'a' + byte % 26)).collect()
    };
    let when = iso(at).replace(['-', ':', 'Z'], "").replace('T', "-");
    format!("{name}-{when}-{letters}")
}

/// A time in ISO 8601, to the second.
pub fn iso(at: OffsetDateTime) -> String {
    let (date, clock) = (at.date(), at.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second()
    )
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
