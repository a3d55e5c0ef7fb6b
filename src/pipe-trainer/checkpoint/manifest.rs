//! The JSON files of a checkpoint: its files with their checksums, the training that it belongs to, and the state
//! beside tensors.
//!
//! The record of a metric over the evaluations of a run: saved with every checkpoint, so that a resumed run knows
//! it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use pipe_spec::event::{BestEval, Eval};
use pipe_spec::pipeline::{ClassWeights, Metric, OptimizerKind, Precision, Preference};
use serde::{Deserialize, Serialize};

use crate::optim::LossScale;
use crate::storage::tensor_files::Written;

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

/// The records of `save.best` and of `train.early_stop`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricRecords {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_best: Option<MetricRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<MetricRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricRecord {
    pub metric: Metric,
    /// Where the metric was best; absent before the first evaluation that has a value.
    pub best: Option<Best>,
    /// Evaluations in a row, up to the last, that brought no improvement.
    pub without_improvement: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub step: u64,
    pub value: f64,
}

impl MetricRecords {
    /// Empty records of the metrics that a pipeline names.
    pub fn new(save_best: Option<&Metric>, early_stop: Option<&Metric>) -> Self {
        Self { save_best: save_best.map(MetricRecord::new), early_stop: early_stop.map(MetricRecord::new) }
    }

    /// The same metrics with what `saved` knows about them.
    pub fn resumed_from(self, saved: &Self) -> Self {
        let resume = |new: Option<MetricRecord>, saved: &Option<MetricRecord>| {
            new.map(|new| saved.clone().filter(|saved| saved.metric == new.metric).unwrap_or(new))
        };
        Self {
            save_best: resume(self.save_best, &saved.save_best),
            early_stop: resume(self.early_stop, &saved.early_stop),
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn add(&mut self, eval: &Eval) {
        self.save_best.iter_mut().chain(&mut self.early_stop).for_each(|record| record.add(eval));
    }

    /// The step whose checkpoint is kept because it is the best.
    pub fn best_step(&self) -> Option<u64> {
        self.save_best.as_ref()?.best.map(|best| best.step)
    }

    /// The best evaluation by `save.best`.
    pub fn best_eval(&self) -> Option<BestEval> {
        let MetricRecord { metric, best, .. } = self.save_best.as_ref()?;
        best.map(|best| BestEval { metric: metric.clone(), step: best.step, value: best.value })
    }
}

impl MetricRecord {
    fn new(metric: &Metric) -> Self {
        Self { metric: metric.clone(), best: None, without_improvement: 0 }
    }

    /// An evaluation without the metric, or where it is not finite, brings no improvement.
    fn add(&mut self, eval: &Eval) {
        let value = eval.value(&self.metric).filter(|value| value.is_finite());
        match value.filter(|value| self.metric.is_better(*value, self.best.map(|best| best.value))) {
            Some(value) => {
                self.best = Some(Best { step: eval.step, value });
                self.without_improvement = 0;
            }
            None => self.without_improvement = self.without_improvement.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::Scores;

    use super::*;

    fn record(values: &[f64]) -> MetricRecord {
        let mut record = MetricRecord::new(&Metric::named("accuracy"));
        for (index, value) in values.iter().enumerate() {
            let scores = Scores::from([("accuracy".to_owned(), *value)]);
            record.add(&Eval { step: 10 * (index as u64 + 1), loss: 1.0, samples: 1, ms: 0.0, headline: None, scores });
        }
        record
    }

    #[test]
    fn only_a_strictly_better_value_is_an_improvement() {
        type Case = (&'static [f64], Option<(u64, f64)>, u32);
        let cases: [Case; 5] = [
            (&[], None, 0),
            (&[0.5, 0.5, 0.4], Some((10, 0.5)), 2),
            (&[0.5, 0.4, 0.6], Some((30, 0.6)), 0),
            (&[f64::NAN, f64::INFINITY], None, 2),
            (&[f64::NAN, 0.5, f64::NAN], Some((20, 0.5)), 1),
        ];
        for (values, best, without_improvement) in cases {
            let record = record(values);
            assert_eq!(record.best.map(|best| (best.step, best.value)), best, "{values:?}");
            assert_eq!(record.without_improvement, without_improvement, "{values:?}");
            let read: MetricRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
            assert_eq!(read, record);
        }
    }

    #[test]
    fn a_resumed_run_takes_over_what_is_known_about_its_metrics() {
        let saved = MetricRecords { save_best: Some(record(&[0.5, 0.4])), early_stop: None };
        let (accuracy, loss) = (Metric::named("accuracy"), Metric::loss());
        let resumed = MetricRecords::new(Some(&accuracy), Some(&loss)).resumed_from(&saved);
        assert_eq!(resumed.best_step(), Some(10));
        assert_eq!(resumed.early_stop, Some(MetricRecord::new(&loss)));
        assert_eq!(MetricRecords::new(Some(&loss), None).resumed_from(&saved).best_step(), None);
        assert!(MetricRecords::new(None, None).resumed_from(&saved).is_empty());
    }
}
