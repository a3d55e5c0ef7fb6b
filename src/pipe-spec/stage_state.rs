//! The stages of a run of several, as its `run.json` holds them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How far a stage of a pipeline has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageState {
    pub name: String,
    pub needs: Vec<String>,
    pub status: StageStatus,
    /// The run that does it, or has done it before where nothing has changed since.
    pub run: Option<String>,
    /// Hash of its settings, program and inputs.
    pub hash: Option<String>,
    /// A hash of each file and folder that it reads, as it was when the stage began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// Those that changed while it ran, so that nobody knows what its outputs were made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Hashes of its outputs by name; the whole of a command's has none.
    #[serde(default)]
    pub outputs: BTreeMap<String, String>,
    /// Seconds since the Unix epoch.
    pub began: Option<f64>,
    pub seconds: Option<f64>,
    pub error: Option<String>,
    /// The exit code of `pipe` that its run would have ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// Whether it runs though nothing may have changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

impl StageState {
    pub fn new(name: impl Into<String>, needs: Vec<String>) -> Self {
        Self {
            name: name.into(),
            needs,
            status: StageStatus::Waiting,
            run: None,
            hash: None,
            inputs: BTreeMap::new(),
            changed: Vec::new(),
            outputs: BTreeMap::new(),
            began: None,
            seconds: None,
            error: None,
            exit_code: None,
            again: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageStatus {
    /// For other stages, or for room on the machine.
    Waiting,
    Running,
    Finished,
    /// It has finished before, and nothing that it depends on has changed since.
    Unchanged,
    /// Not selected by `--only`.
    LeftOut,
    Failed,
    Stopped,
}

impl StageStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Unchanged => "unchanged",
            Self::LeftOut => "left out",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }

    /// Whether its outputs are there.
    pub fn is_done(self) -> bool {
        matches!(self, Self::Finished | Self::Unchanged)
    }
}
