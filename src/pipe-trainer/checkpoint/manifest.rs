//! The JSON files of a checkpoint: its files with their checksums, the training that it belongs to, and the state
//! beside tensors.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use pipe_spec::event::Eval;
use pipe_spec::pipeline::{ClassWeights, OptimizerKind, Precision, Preference};
use serde::{Deserialize, Serialize};

use super::metric_record::MetricRecords;
use crate::optim::LossScale;
use crate::storage::tensor_writer::Written;

pub const NAME: &str = "manifest.json";

/// `manifest.json`: size and checksum of every file of a checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Manifest {
    pub files: BTreeMap<String, FileEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub bytes: u64,
    pub blake3: String,
}

impl Manifest {
    pub fn add(&mut self, name: &str, written: Written) {
        self.files.insert(name.to_owned(), FileEntry { bytes: written.bytes, blake3: written.blake3 });
    }

    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Reads the manifest of `folder` and every file it names; the error says what is damaged.
    pub fn verify(folder: &Path, required: &[&str]) -> Result<(), String> {
        let text = fs::read(folder.join(NAME)).map_err(|error| format!("{NAME}: {error}"))?;
        let manifest: Self = serde_json::from_slice(&text).map_err(|error| format!("{NAME}: {error}"))?;
        if let Some(name) = required.iter().find(|name| !manifest.files.contains_key(**name)) {
            return Err(format!("{NAME} does not name {name}"));
        }
        manifest.files.iter().try_for_each(|(name, entry)| {
            let found = FileEntry::of(&folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
            match found {
                found if found.bytes != entry.bytes => {
                    Err(format!("{name} has {} bytes instead of {}", found.bytes, entry.bytes))
                }
                found if found.blake3 != entry.blake3 => Err(format!("{name} has another checksum")),
                _ => Ok(()),
            }
        })
    }
}

impl FileEntry {
    fn of(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        Ok(Self { bytes, blake3: hasher.finalize().to_hex().to_string() })
    }
}

/// The settings that must not change within a run: resuming is the same training only where they agree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    pub seed: u64,
    pub effective_batch: u32,
    pub shuffle: bool,
    pub precision: Precision,
    pub optimizer: OptimizerKind,
    /// Rows of the training data.
    pub rows: u64,
    #[serde(default, skip_serializing_if = "ClassWeights::is_none")]
    pub class_weights: ClassWeights,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<Preference>,
}

impl Identity {
    /// How `self`, found in a checkpoint, differs from what the run asks for. Where `on_oom.then` changed settings on purpose,
    /// precision and optimizer may differ.
    pub fn difference(&self, run: &Self, maths_changed: bool) -> Option<String> {
        let differs = |what: &str, saved: String, asked: String| {
            (saved != asked).then(|| format!("it was made with {what} {saved}, this run has {asked}"))
        };
        differs("seed", self.seed.to_string(), run.seed.to_string())
            .or_else(|| differs("effective batch", self.effective_batch.to_string(), run.effective_batch.to_string()))
            .or_else(|| {
                let maths = || {
                    differs("precision", format!("{:?}", self.precision), format!("{:?}", run.precision)).or_else(
                        || differs("optimizer", format!("{:?}", self.optimizer), format!("{:?}", run.optimizer)),
                    )
                };
                if maths_changed { None } else { maths() }
            })
            .or_else(|| differs("shuffle", self.shuffle.to_string(), run.shuffle.to_string()))
            .or_else(|| differs("training rows", self.rows.to_string(), run.rows.to_string()))
            .or_else(|| {
                let [saved, asked] = [self, run].map(|one| format!("{:?}", one.class_weights));
                differs("class weights", saved, asked)
            })
            .or_else(|| {
                let [saved, asked] = [self, run].map(|one| format!("{:?}", one.preference.unwrap_or_default()));
                differs("the loss of pairs", saved, asked)
            })
    }
}

/// `state.json`. Order, dropout and schedule are functions of these numbers, so nothing more needs saving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedState {
    pub version: u32,
    /// Completed steps.
    pub step: u64,
    /// The last step after which the model was evaluated.
    pub evaluated: u64,
    /// The result of that evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_eval: Option<Eval>,
    pub samples: u64,
    pub total_steps: u64,
    /// The batch it was made with; a resumed run may have another one.
    pub batch: u32,
    pub loss_scale: Option<LossScale>,
    /// The metrics of the evaluations so far. Checkpoints from before `save.best` do not have it.
    #[serde(default, skip_serializing_if = "MetricRecords::is_empty")]
    pub metrics: MetricRecords,
    pub identity: Identity,
}

impl SavedState {
    pub const VERSION: u32 = 1;
}
