//! Why a journal could not be read or written.

use std::io;
use std::path::PathBuf;

use crate::trial::{Direction, TrialState};

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: line {line} cannot be read: {reason}", path.display())]
    Line { path: PathBuf, line: u64, reason: String },
    #[error("{} has no study \"{study}\"{}", path.display(), list(others))]
    NoStudy { path: PathBuf, study: String, others: Vec<String> },
    #[error("study \"{study}\" of {} was deleted", path.display())]
    Deleted { path: PathBuf, study: String },
    #[error("study \"{study}\" of {} has the directions {} and not {}", path.display(), names(found), names(wanted))]
    Directions { path: PathBuf, study: String, found: Vec<Direction>, wanted: Vec<Direction> },
    #[error("{} was opened for reading only", path.display())]
    ReadOnly { path: PathBuf },
    #[error("there is no trial {number}")]
    NoTrial { number: u64 },
    #[error("parameter {name}: {reason}")]
    Parameter { name: String, reason: String },
    #[error("a trial cannot be {state:?} with the values {values:?}: {reason}")]
    Values { state: TrialState, values: Vec<f64>, reason: String },
}

fn list(others: &[String]) -> String {
    if others.is_empty() { ", and no other".into() } else { format!(", but {}", others.join(", ")) }
}

fn names(directions: &[Direction]) -> String {
    let name = |direction: &Direction| match direction {
        Direction::Minimize => "minimize",
        Direction::Maximize => "maximize",
    };
    directions.iter().map(name).collect::<Vec<_>>().join(", ")
}
