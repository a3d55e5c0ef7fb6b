//! What an attempt is to do, as `spec.json` of its folder holds it.

use std::collections::BTreeMap;
use std::path::Path;

use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::WorkKind;
use serde::{Deserialize, Serialize};

use super::retry::Settings;

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum JobSpec {
    /// What the trainer reads.
    Training(Box<TrainerSpec>),
    Command(CommandSpec),
}

/// A command with the values of one attempt. Variables of the environment are put in when it is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandSpec {
    pub command: Vec<String>,
    pub batch: u32,
    pub accum: u32,
    pub expandable_segments: bool,
    /// `PIPE_BATCH` and the like, and the settings of allocators.
    pub env: BTreeMap<String, String>,
}

impl JobSpec {
    /// The one that was written for an attempt.
    pub fn read(path: &Path, kind: WorkKind) -> Option<Self> {
        let text = std::fs::read(path).ok()?;
        match kind {
            WorkKind::Training => serde_json::from_slice(&text).ok().map(Self::Training),
            WorkKind::Command => serde_json::from_slice(&text).ok().map(Self::Command),
            WorkKind::Steps | WorkKind::Study => None,
        }
    }

    pub fn training(&self) -> Option<&TrainerSpec> {
        match self {
            Self::Training(spec) => Some(spec),
            Self::Command(_) => None,
        }
    }

    pub fn accum(&self) -> u32 {
        match self {
            Self::Training(spec) => spec.train.accum(),
            Self::Command(spec) => spec.accum,
        }
    }

    /// The settings that it was written with, after so many changes to the training result.
    pub fn settings(&self, changes: usize) -> Settings {
        match self {
            Self::Training(spec) => {
                Settings { changes, ..Settings::of_trainer(&spec.train, &spec.data, &spec.evaluate, &spec.memory) }
            }
            Self::Command(spec) => {
                Settings { expandable_segments: spec.expandable_segments, changes, ..Settings::of_command(spec.batch) }
            }
        }
    }
}
