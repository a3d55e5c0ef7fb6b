//! Which trials are one training: how a step is cut into batches, and what is kept in memory, changes no result.

use std::collections::BTreeMap;

use pipe_spec::pipeline::Pipeline;
use pipe_spec::study::{MEASURED, Study};
use serde_json::Value;

/// The settings that a training has the same result with, whatever they are.
const WITHOUT_EFFECT: [&str; 9] = [
    "name",
    "container",
    "memory",
    "on_oom",
    "train.batch",
    "train.accum",
    "train.checkpointing",
    "train.split",
    "data.workers",
];

/// The trainings of a study that have come to their end, with the number of the trial.
#[derive(Default)]
pub struct Trainings(BTreeMap<String, u64>);

impl Trainings {
    /// A name for a training that changes with anything that has an effect; nothing where two of the same need not end the same: a
    /// command is not ours, and time and memory differ.
    pub fn name(study: &Study, pipeline: &Pipeline) -> Option<String> {
        pipeline.training()?;
        if study.objectives.iter().any(|objective| MEASURED.contains(&objective.metric.as_str())) {
            return None;
        }
        let mut settings = serde_json::to_value(pipeline).ok()?;
        for path in WITHOUT_EFFECT {
            remove(&mut settings, path);
        }
        Some(blake3::hash(settings.to_string().as_bytes()).to_hex().to_string())
    }

    pub fn find(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// The first trial of a training stands for it.
    pub fn add(&mut self, name: String, number: u64) {
        let first = self.0.entry(name).or_insert(number);
        *first = (*first).min(number);
    }
}

/// The settings that do not change how much a training holds.
const WITHOUT_MEMORY: [&str; 12] = [
    "name",
    "on_oom",
    "evaluate",
    "save",
    "track",
    "notify",
    "train.seed",
    "train.steps",
    "train.epochs",
    "train.schedule",
    "train.optimizer.lr",
    "train.optimizer.weight_decay",
];

/// A name for what decides how much a trial holds.
pub fn memory_name(pipeline: &Pipeline) -> Option<String> {
    let mut settings = serde_json::to_value(pipeline).ok()?;
    WITHOUT_MEMORY.iter().for_each(|path| remove(&mut settings, path));
    Some(settings.to_string())
}

fn remove(value: &mut Value, path: &str) {
    let Some(map) = value.as_object_mut() else { return };
    match path.split_once('.') {
        None => drop(map.remove(path)),
        Some((first, rest)) => map.get_mut(first).into_iter().for_each(|inner| remove(inner, rest)),
    }
}
