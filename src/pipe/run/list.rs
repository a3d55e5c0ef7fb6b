//! Finding runs again.
//!
//! Which runs of a list are wanted. Pure.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use pipe_spec::pipeline::WorkKind;
use pipe_spec::run::{RunKind, SingleRun};
use pipe_spec::{Attempt, RunFolder, RunState, Status};
use serde::Serialize;

use super::notes::{Notes, Tag};
use super::owner::Owner;
use super::{absolute, now, runs_folder};
use crate::error::Error;
use crate::system::files::{self, Pattern};

/// A run as it is found on disk.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    #[serde(flatten)]
    pub state: RunState,
    #[serde(flatten)]
    pub notes: Notes,
    pub folder: String,
    /// The containers that a killed `pipe` left behind.
    pub left_behind: Vec<String>,
    /// Files of its folder that cannot be read, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<String>,
}

impl Listed {
    /// The run in this folder, as far as it can be read; nothing where there is none.
    pub fn read(path: &Path) -> Option<Self> {
        let folder = RunFolder::new(path);
        let (read, owned) = read_with_owner(&folder);
        let (mut state, damage) = match read {
            Ok(state) => (state, Vec::new()),
            // It is just being made.
            Err(_) if owned && !folder.state().exists() => return None,
            Err(damage) if looks_like_a_run(&folder) => (reconstruct_state(&folder, &damage), vec![damage]),
            Err(_) => return None,
        };
        match state.status {
            Status::Running if !owned => {
                state.status = Status::Orphaned;
                match state.choices.supervised {
                    true => state.doing = Some(format!("in a job of {}: `pipe attach` follows it", state.engine)),
                    false => state.error = Some("the pipe process of the run was killed".to_owned()),
                }
            }
            // It is being resumed, and run.json does not say so yet.
            Status::Stopped | Status::Failed if owned => {
                state.status = Status::Running;
                state.doing = Some("resuming".to_owned());
                (state.error, state.exit_code) = (None, None);
            }
            _ => {}
        }
        // The time of a running attempt is recorded at its end.
        let is_running = state.status == Status::Running;
        if let Some(attempt) = state.last_attempt_mut().filter(|attempt| is_running && attempt.outcome.is_none()) {
            attempt.figures.seconds = (now() - attempt.began).max(0.0);
        }
        let notes = Notes::read(&folder);
        Some(Self { state, notes, folder: folder.path().display().to_string(), left_behind: Vec::new(), damage })
    }

    pub fn folder(&self) -> RunFolder {
        RunFolder::new(&self.folder)
    }

    /// The folder of the run that this one is a copy of, if that one is not over, or beside it. What belongs to that run, such as its
    /// containers, is no matter of the copy.
    pub fn original(&self) -> Option<PathBuf> {
        let own = read_state(&self.folder()).ok()?;
        let beside = self.folder().path().with_file_name(&own.id);
        let inode = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
        let is_original = |path: &PathBuf| {
            let there = read_state(&RunFolder::new(path)).ok().filter(|there| there.id == own.id);
            let counts = |there: RunState| *path == beside || there.status == Status::Running;
            there.is_some_and(counts) && inode(path) != inode(self.folder().path())
        };
        [&own.home, &beside].into_iter().find(|path| is_original(path)).cloned()
    }

    pub fn check_is_no_copy(&self) -> Result<(), Error> {
        let copy = |original| Error::CopyOfRun { folder: self.folder.clone().into(), original };
        self.original().map_or(Ok(()), |original| Err(copy(original)))
    }

    /// The other user whose run it is. What that user wrote there is neither executed nor used unless this run is named.
    pub fn other_user(&self) -> Option<String> {
        files::belongs_to(self.folder().path())
    }

    /// Whether it is a run of this user.
    pub fn is_own(&self) -> bool {
        self.other_user().is_none()
    }

    /// The ids that the run which it is a stage or trial of may have. Of one that is just being made only its name tells.
    pub fn wholes(&self) -> impl Iterator<Item = &str> {
        self.state.id.match_indices('.').map(|(at, _)| &self.state.id[..at])
    }

    /// Whether it is a stage or trial of one of these runs.
    pub fn is_part_of(&self, wholes: &HashSet<String>) -> bool {
        self.wholes().any(|whole| wholes.contains(whole))
    }

    /// Its status in a word.
    pub fn status_name(&self) -> &'static str {
        match self.state.status {
            Status::Orphaned if self.state.choices.supervised => Status::Running.name(),
            status => status.name(),
        }
    }

    /// Whether a live process owns it.
    pub fn is_owned(&self) -> bool {
        Owner::exists(&self.folder())
    }
}

/// `run.json`, and whether a live process owned the run when it was read.
fn read_with_owner(folder: &RunFolder) -> (Result<RunState, String>, bool) {
    loop {
        let owned = Owner::exists(folder);
        let state = read_state(folder);
        if Owner::exists(folder) == owned {
            return (state, owned);
        }
    }
}

/// `run.json`, or why it cannot be read.
pub fn read_state(folder: &RunFolder) -> Result<RunState, String> {
    match files::read_own(&folder.state()) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| format!("run.json is damaged: {error}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err("run.json is missing".to_owned()),
        Err(error) => Err(format!("run.json cannot be read: {error}")),
    }
}

fn looks_like_a_run(folder: &RunFolder) -> bool {
    [folder.state(), folder.events(), folder.resolved(), folder.pipeline()].iter().any(|file| file.is_file())
}

/// The state of a run without a readable `run.json`, from the other files of its folder.
fn reconstruct_state(folder: &RunFolder, damage: &str) -> RunState {
    let id = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let outcome = |number: u32| serde_json::from_slice(&files::read_own(&folder.attempt(number).outcome()).ok()?).ok();
    let attempts: Vec<Attempt> = (1..).map_while(outcome).collect();
    let modified = std::fs::metadata(folder.path()).and_then(|found| found.modified()).ok();
    let created = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64());
    let name = id.rsplitn(4, '-').last().unwrap_or_default().to_owned();
    let effective_batch = attempts.first().map_or(0, |attempt| attempt.batch * attempt.accum);
    RunState {
        status: Status::Unknown,
        created,
        error: Some(format!("{damage}; the rest is read from other files of the run folder")),
        kind: RunKind::Training(SingleRun { effective_batch, attempts, ..SingleRun::default() }),
        ..RunState::new(id, name, "")
    }
}

/// All runs, newest first.
pub fn list() -> Result<Vec<Listed>, Error> {
    let runs = absolute(&runs_folder());
    let entries = match std::fs::read_dir(&runs) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::Read { path: runs, source }),
    };
    // A name with a dot is that of a run which is still being fetched.
    let entries = entries.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    let mut found: Vec<Listed> = entries.filter_map(|entry| Listed::read(&entry.path())).collect();
    name_copies(&mut found);
    found.sort_by(|a, b| b.state.created.total_cmp(&a.state.created));
    Ok(found)
}

/// Where several folders have one run, it is that of the folder with its name. The others are copies, and have the names of their folders.
fn name_copies(found: &mut [Listed]) {
    let mut counts: HashMap<String, u32> = HashMap::new();
    found.iter().for_each(|run| *counts.entry(run.state.id.clone()).or_default() += 1);
    for run in found.iter_mut().filter(|run| counts[&run.state.id] > 1) {
        let folder = run.folder();
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy();
        if name == run.state.id {
            continue;
        }
        run.state.error = Some(format!("it is a copy of the run {}", run.state.id));
        if matches!(run.state.status, Status::Running | Status::Orphaned) {
            run.state.status = Status::Unknown;
        }
        run.state.id = name.into_owned();
    }
}

/// The runs of this list that are stages of the run `whole`, in the order of its file.
pub fn stages_of<'a>(all: &'a [Listed], whole: &RunState) -> Vec<&'a Listed> {
    let mut stages: Vec<&Listed> = all.iter().filter(|run| run.wholes().any(|id| id == whole.id)).collect();
    sort_stages(&mut stages, whole);
    stages
}

/// Into the order of the file.
pub fn sort_stages(stages: &mut [&Listed], whole: &RunState) {
    let runs =
        whole.stages().iter().enumerate().filter_map(|(position, stage)| Some((stage.run.as_deref()?, position)));
    let positions: HashMap<&str, usize> = runs.collect();
    stages.sort_by_key(|run| positions.get(run.state.id.as_str()));
}

pub fn ids_of(runs: &[Listed]) -> HashSet<String> {
    runs.iter().map(|run| run.state.id.clone()).collect()
}

/// The name that stands for the run that was begun last.
pub const LATEST: &str = "latest";

/// The run that `wanted` names: an id, the name of its pipeline, the beginning of an id, or `latest`.
pub fn find(wanted: &str) -> Result<Listed, Error> {
    let none = || Error::NoRun { wanted: wanted.to_owned(), runs: runs_folder() };
    if wanted == LATEST {
        return latest(|_| true)?.ok_or_else(none);
    }
    // An empty variable of a script is not the beginning of every id.
    if wanted.is_empty() {
        return Err(none());
    }
    let all = list()?;
    if let Some(exact) = all.iter().find(|run| run.state.id == wanted) {
        return Ok(exact.clone());
    }
    let mut matches: Vec<Listed> = all.into_iter().filter(|run| run.state.id.starts_with(wanted)).collect();
    // The beginning of a run's id is also that of its stages'.
    let ids = ids_of(&matches);
    matches.retain(|run| !run.is_part_of(&ids));
    // The name of a pipeline is not the beginning of another name.
    if matches.iter().any(|run| run.state.name == wanted) {
        matches.retain(|run| run.state.name == wanted);
    }
    match matches.len() {
        0 => Err(none()),
        1 => Ok(matches.remove(0)),
        _ => Err(Error::AmbiguousRun {
            wanted: wanted.to_owned(),
            matches: matches.into_iter().map(|run| run.state.id).collect(),
        }),
    }
}

/// The latest run that fulfils a condition.
pub fn latest(is_wanted: impl Fn(&Listed) -> bool) -> Result<Option<Listed>, Error> {
    let all = list()?;
    // Stages began after the run that they belong to.
    let ids = ids_of(&all);
    Ok(all.iter().find(|run| !run.is_part_of(&ids) && is_wanted(run)).cloned())
}

/// The same, of a run that trains or runs a command itself.
pub fn find_single(wanted: &str) -> Result<Listed, Error> {
    let found = find(wanted)?;
    match found.state.work() {
        WorkKind::Training | WorkKind::Command => Ok(found),
        WorkKind::Stages => {
            let runs = found.state.stages().iter().filter_map(|stage| stage.run.clone()).collect();
            Err(Error::HasStages { id: found.state.id, runs })
        }
        WorkKind::Study => Err(Error::HasTrials { id: found.state.id }),
    }
}

/// All conditions must hold; without any, every run is wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Any of these; empty for all.
    pub statuses: Vec<Status>,
    /// A pattern for the name of the pipeline: `*` is any text, `?` any character.
    pub name: Option<String>,
    /// Started at this time or later, in seconds since the Unix epoch.
    pub since: Option<f64>,
    /// All of these.
    pub tags: Vec<Tag>,
}

impl Filter {
    pub fn wants(&self, run: &Listed) -> bool {
        self.wants_state(&run.state) && self.tags.iter().all(|tag| run.notes.has_tag(&tag.0))
    }

    fn wants_state(&self, state: &RunState) -> bool {
        let status = self.statuses.is_empty() || self.statuses.contains(&state.status);
        let name = self.name.as_ref().is_none_or(|pattern| Pattern::new(pattern).matches(&state.name));
        status && name && self.since.is_none_or(|since| state.created >= since)
    }

    pub fn is_empty(&self) -> bool {
        self.statuses.is_empty() && self.name.is_none() && self.since.is_none() && self.tags.is_empty()
    }
}

/// A time as people write it: how long ago, or a date.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Since {
    /// Seconds ago.
    Ago(f64),
    /// Seconds since the Unix epoch.
    Date(f64),
}

impl Since {
    const RULE: &str = "allowed: a number with m, h, d or w, such as 90m or 2d, or a date such as 2026-01-31";

    /// Seconds since the Unix epoch.
    pub fn seconds(self, now: f64) -> f64 {
        match self {
            Self::Ago(seconds) => now - seconds,
            Self::Date(seconds) => seconds,
        }
    }
}

impl FromStr for Since {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        date(text).map(Self::Date).or_else(|| age(text).map(Self::Ago)).ok_or(Self::RULE)
    }
}

fn age(text: &str) -> Option<f64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        'm' => 60.0,
        'h' => 3600.0,
        'd' => 86_400.0,
        'w' => 604_800.0,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit());
    let number: f64 = digits.parse().ok().filter(|_| is_number)?;
    Some(number * seconds).filter(|seconds| seconds.is_finite())
}

/// The beginning of a day, in UTC.
fn date(text: &str) -> Option<f64> {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return None };
    let date = Date::new(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?).ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::files::write_json;

    #[test]
    fn a_run_is_what_its_state_and_its_owner_say() {
        let folder = RunFolder::new(std::env::temp_dir().join(format!("pipe-listed-{}", std::process::id())));
        std::fs::create_dir_all(folder.path()).unwrap();
        let status = || Listed::read(folder.path()).unwrap().state.status;
        for (written, alone, owned) in [
            (Status::Running, Status::Orphaned, Status::Running),
            (Status::Stopped, Status::Stopped, Status::Running),
            (Status::Failed, Status::Failed, Status::Running),
            (Status::Finished, Status::Finished, Status::Finished),
        ] {
            let state = RunState { status: written, ..RunState::new("x", "x", "toy") };
            write_json(&folder.state(), &state).unwrap();
            assert_eq!(status(), alone);
            let owner = Owner::take(&folder, "x").unwrap();
            assert_eq!(status(), owned);
            drop(owner);
        }
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}

#[cfg(test)]
mod filter_tests {
    use super::*;

    #[test]
    fn patterns_of_names() {
        for (pattern, name, want) in [
            ("recipes", "recipes", true),
            ("recipes", "recipes-t5", false),
            ("recipes*", "recipes-t5", true),
            ("*t5", "recipes-t5", true),
            ("*-t?", "recipes-t5", true),
            ("?", "", false),
            ("*", "", true),
            ("**a*b", "xaxbxb", true),
            ("a*b", "axc", false),
            ("[a]", "a", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn times() {
        let now = 1_000_000.0;
        for (text, want) in [
            ("90m", Some(now - 5400.0)),
            ("2d", Some(now - 172_800.0)),
            ("1.5h", Some(now - 5400.0)),
            ("1w", Some(now - 604_800.0)),
            ("1970-01-03", Some(172_800.0)),
            ("2d ", None),
            ("-2d", None),
            ("infd", None),
            ("2", None),
            ("2x", None),
            ("d", None),
            ("1970-13-01", None),
            ("2026-02-30", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Since>().ok().map(|since| since.seconds(now)), want, "{text}");
        }
    }

    #[test]
    fn all_conditions_must_hold() {
        let state = RunState { created: 100.0, status: Status::Failed, ..RunState::new("a-1", "a", "process") };
        let filter = |statuses: &[Status], name: Option<&str>, since: Option<f64>| Filter {
            statuses: statuses.to_vec(),
            name: name.map(str::to_owned),
            since,
            tags: Vec::new(),
        };
        assert!(filter(&[], None, None).wants_state(&state) && filter(&[], None, None).is_empty());
        assert!(filter(&[Status::Running, Status::Failed], Some("a"), Some(100.0)).wants_state(&state));
        assert!(!filter(&[Status::Running], Some("a"), Some(100.0)).wants_state(&state));
        assert!(!filter(&[Status::Failed], Some("b"), Some(100.0)).wants_state(&state));
        assert!(!filter(&[Status::Failed], Some("a"), Some(100.1)).wants_state(&state));
    }
}
