//! Finding runs again.

use std::path::Path;

use pipe_spec::{RunFolder, RunState, Status};
use serde::Serialize;

use super::owner::Owner;
use super::{absolute, runs_folder};
use crate::error::Error;

/// A run as it is found on disk.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    #[serde(flatten)]
    pub state: RunState,
    pub folder: String,
    /// The containers that a killed `pipe` left behind.
    pub left_behind: Vec<String>,
}

impl Listed {
    /// The run in this folder; nothing where its state cannot be read.
    pub fn read(path: &Path) -> Option<Self> {
        let folder = RunFolder::new(path);
        let text = std::fs::read(folder.state()).ok()?;
        let mut state: RunState = match serde_json::from_slice(&text) {
            Ok(state) => state,
            Err(error) => {
                tracing::warn!("{}: {error}", folder.state().display());
                return None;
            }
        };
        if state.status == Status::Running && !Owner::exists(&folder) {
            state.status = Status::Orphaned;
            state.error = Some("the pipe that drove it was killed".to_owned());
        }
        Some(Self { state, folder: folder.path().display().to_string(), left_behind: Vec::new() })
    }

    pub fn folder(&self) -> RunFolder {
        RunFolder::new(&self.folder)
    }

    /// Whether some living process drives it.
    pub fn is_owned(&self) -> bool {
        Owner::exists(&self.folder())
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
    let mut found: Vec<Listed> = entries.flatten().filter_map(|entry| Listed::read(&entry.path())).collect();
    found.sort_by(|a, b| b.state.created.total_cmp(&a.state.created));
    Ok(found)
}

/// The run that `wanted` names: an id, the beginning of one, or `latest`.
pub fn find(wanted: &str) -> Result<Listed, Error> {
    let all = list()?;
    let none = || Error::NoRun { wanted: wanted.to_owned(), runs: runs_folder() };
    if wanted == "latest" {
        return all.into_iter().next().ok_or_else(none);
    }
    if let Some(exact) = all.iter().find(|run| run.state.id == wanted) {
        return Ok(exact.clone());
    }
    let mut matches: Vec<Listed> = all.into_iter().filter(|run| run.state.id.starts_with(wanted)).collect();
    match matches.len() {
        0 => Err(none()),
        1 => Ok(matches.remove(0)),
        _ => Err(Error::AmbiguousRun {
            wanted: wanted.to_owned(),
            matches: matches.into_iter().map(|run| run.state.id).collect(),
        }),
    }
}
