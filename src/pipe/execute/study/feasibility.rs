//! Whether a trial is worth starting: whether it fits in memory, and whether the same training has run before.

use std::collections::BTreeMap;

use pipe_spec::Device;
use pipe_spec::pipeline::{BatchSetting, Limit, Pipeline, Training};
use pipe_spec::study::{MEASURED, Study};
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::error::Error;
use crate::execute::launch::Placement;
use crate::fit::{CONTEXT, Forecast, Forecaster, Target};

/// The memory forecast of a trial, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryForecast {
    /// The peak memory of the trial; on the CPU only what it holds in any case: weights, gradients, optimizer.
    pub predicted: Option<u64>,
    /// The memory that there is.
    pub capacity: Option<u64>,
    pub fits: bool,
    /// Where it does not fit: the largest batch that would, at the same effective batch.
    pub smaller: Option<u32>,
}

impl MemoryForecast {
    const UNKNOWN: Self = Self { predicted: None, capacity: None, fits: true, smaller: None };

    /// How far above the capacity: 0.5 where it would hold half as much again. Not above 0 where it fits.
    pub fn excess(&self) -> f64 {
        match (self.predicted, self.capacity) {
            (Some(predicted), Some(capacity)) if capacity > 0 => {
                let excess = predicted as f64 / capacity as f64 - 1.0;
                // A trial that would fit into the margin that is kept free just misses.
                if self.fits { excess.min(0.0) } else { excess.max(LEAST_EXCESS) }
            }
            _ => 0.0,
        }
    }
}

/// The excess of a trial that is no larger than the capacity but does not fit: a margin is kept free.
pub const LEAST_EXCESS: f64 = 1e-3;

/// The forecast of a trial on this engine; unknown where there is no estimate.
pub fn foresee(pipeline: &Pipeline, config: &Map<String, Value>, engine: &dyn Engine) -> Result<MemoryForecast, Error> {
    let Placement { device, ranks, .. } = Placement::find(engine, pipeline)?;
    let Some(training) = pipeline.training() else { return Ok(MemoryForecast::UNKNOWN) };
    let card = match device {
        Device::Cpu => None,
        Device::Cuda => engine.cards(&pipeline.container.gpus).into_iter().min_by_key(|card| card.total),
    };
    let target = card.map(|card| Target { name: card.name, total: card.total });
    let Ok(forecast) = Forecaster::new(training, config).with_ranks(ranks).forecast(target) else {
        return Ok(MemoryForecast::UNKNOWN);
    };
    Ok(match device {
        Device::Cuda => on_card(training, &forecast),
        Device::Cpu => on_host(training, pipeline.container.memory.map(|size| size.0 / u64::from(ranks)), &forecast),
    })
}

fn on_card(training: &Training, forecast: &Forecast) -> MemoryForecast {
    let smaller = forecast.changes.iter().find(|change| change.change.starts_with("train.batch"));
    // With `auto` the trainer finds a batch that fits, if one does.
    let finds_batch = training.train.batch == BatchSetting::Auto;
    MemoryForecast {
        // As the trainer counts: without what the driver holds.
        predicted: Some(forecast.allocated),
        capacity: forecast.capacity.map(|capacity| capacity.saturating_sub(CONTEXT)),
        fits: forecast.fits.unwrap_or(true) || (finds_batch && smaller.is_some()),
        smaller: smaller.map(|change| change.batch),
    }
}

/// How much activations hold there is not known, but what is held in any case is.
fn on_host(training: &Training, memory: Option<u64>, forecast: &Forecast) -> MemoryForecast {
    let limit = match training.memory.limit {
        Some(Limit::Size(size)) => Some(size.0),
        Some(Limit::Share(_)) | None => None,
    };
    let capacity = [memory, limit].into_iter().flatten().min();
    let held = &forecast.breakdown;
    let predicted = held.weights.saturating_add(held.gradients).saturating_add(held.optimizer);
    let fits = capacity.is_none_or(|capacity| predicted <= capacity);
    MemoryForecast { predicted: Some(predicted), capacity, fits, smaller: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_above_what_there_is() {
        let room =
            |predicted, fits| MemoryForecast { predicted: Some(predicted), capacity: Some(100), fits, smaller: None };
        assert_eq!(room(150, false).excess(), 0.5);
        assert_eq!(room(99, false).excess(), LEAST_EXCESS);
        assert_eq!(room(80, true).excess(), 80.0 / 100.0 - 1.0);
        assert_eq!(MemoryForecast::UNKNOWN.excess(), 0.0);
    }
}

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
