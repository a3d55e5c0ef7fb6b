//! One thing that was looked at.

use serde::Serialize;

use crate::error::Error;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    pub found: String,
    /// What to do.
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// Good to know; runs can run.
    Note,
    /// Something that runs need.
    Missing,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Missing => "missing",
        }
    }
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), hint: None }
    }

    pub fn note(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: Status::Note, ..Self::ok(name, found) }
    }

    pub fn missing(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: Status::Missing, ..Self::ok(name, found) }
    }

    /// What an error says, and what it says to do.
    pub fn failed(name: &'static str, status: Status, error: &Error) -> Self {
        Self { name, status, found: error.to_string(), hint: error.hint() }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}
