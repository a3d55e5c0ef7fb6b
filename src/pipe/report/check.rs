//! One line of `pipe doctor`: what was checked, what was found, what to do.

use serde::Serialize;

use crate::error::Error;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub status: CheckStatus,
    pub found: String,
    /// What to do.
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    Ok,
    /// Good to know; runs can run.
    Note,
    /// Something that runs need.
    Missing,
}

impl CheckStatus {
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
        Self { name, status: CheckStatus::Ok, found: found.into(), hint: None }
    }

    pub fn note(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: CheckStatus::Note, ..Self::ok(name, found) }
    }

    pub fn missing(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: CheckStatus::Missing, ..Self::ok(name, found) }
    }

    /// What an error says, and what it says to do.
    pub fn failed(name: &'static str, status: CheckStatus, error: &Error) -> Self {
        Self { name, status, found: error.to_string(), hint: error.hint() }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}
