//! Whether the settings of a trial fit, before anything is started.

use pipe_spec::Device;
use pipe_spec::pipeline::{BatchSetting, Limit, Pipeline, Training};
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::error::Error;
use crate::execute::launch::placement::Placement;
use crate::fit::forecast::{CONTEXT, Forecast, Forecaster, Target};

/// What is foreseen of a trial, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// What it will hold at its worst moment; on the CPU only what it holds in any case: weights, gradients, optimizer.
    pub predicted: Option<u64>,
    /// What there is.
    pub capacity: Option<u64>,
    pub fits: bool,
    /// Where it does not fit: the largest batch that would, at the same effective batch.
    pub smaller: Option<u32>,
}

impl Room {
    const UNKNOWN: Self = Self { predicted: None, capacity: None, fits: true, smaller: None };

    /// How far above what there is: 0.5 where it would hold half as much again. Not above 0 where it fits.
    pub fn excess(&self) -> f64 {
        match (self.predicted, self.capacity) {
            (Some(predicted), Some(capacity)) if capacity > 0 => {
                let excess = predicted as f64 / capacity as f64 - 1.0;
                // What fits within the margin that is kept free only just does not.
                if self.fits { excess.min(0.0) } else { excess.max(LEAST_EXCESS) }
            }
            _ => 0.0,
        }
    }
}

/// Of what does not fit though it is no larger than what there is: a margin is kept free.
pub const LEAST_EXCESS: f64 = 1e-3;

/// What is foreseen of a trial on this engine; nothing is where there is no estimate.
pub fn foresee(pipeline: &Pipeline, config: &Map<String, Value>, engine: &dyn Engine) -> Result<Room, Error> {
    let Placement { device, ranks, .. } = Placement::find(engine, pipeline)?;
    let Some(training) = pipeline.training() else { return Ok(Room::UNKNOWN) };
    let card = match device {
        Device::Cpu => None,
        Device::Cuda => engine.cards(&pipeline.container.gpus).into_iter().min_by_key(|card| card.total),
    };
    let target = card.map(|card| Target { name: card.name, total: card.total });
    let Ok(forecast) = Forecaster::new(training, config).with_ranks(ranks).forecast(target) else {
        return Ok(Room::UNKNOWN);
    };
    Ok(match device {
        Device::Cuda => on_card(training, &forecast),
        Device::Cpu => on_host(training, pipeline.container.memory.map(|size| size.0 / u64::from(ranks)), &forecast),
    })
}

fn on_card(training: &Training, forecast: &Forecast) -> Room {
    let smaller = forecast.changes.iter().find(|change| change.change.starts_with("train.batch"));
    // With `auto` the trainer finds a batch that fits, if one does.
    let finds_batch = training.train.batch == BatchSetting::Auto;
    Room {
        // As the trainer counts: without what the driver holds.
        predicted: Some(forecast.allocated),
        capacity: forecast.capacity.map(|capacity| capacity.saturating_sub(CONTEXT)),
        fits: forecast.fits.unwrap_or(true) || (finds_batch && smaller.is_some()),
        smaller: smaller.map(|change| change.batch),
    }
}

/// How much activations hold there is not known, but what is held in any case is.
fn on_host(training: &Training, memory: Option<u64>, forecast: &Forecast) -> Room {
    let limit = match training.memory.limit {
        Some(Limit::Size(size)) => Some(size.0),
        Some(Limit::Share(_)) | None => None,
    };
    let capacity = [memory, limit].into_iter().flatten().min();
    let held = &forecast.breakdown;
    let predicted = held.weights.saturating_add(held.gradients).saturating_add(held.optimizer);
    let fits = capacity.is_none_or(|capacity| predicted <= capacity);
    Room { predicted: Some(predicted), capacity, fits, smaller: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_above_what_there_is() {
        let room = |predicted, fits| Room { predicted: Some(predicted), capacity: Some(100), fits, smaller: None };
        assert_eq!(room(150, false).excess(), 0.5);
        assert_eq!(room(99, false).excess(), LEAST_EXCESS);
        assert_eq!(room(80, true).excess(), 80.0 / 100.0 - 1.0);
        assert_eq!(Room::UNKNOWN.excess(), 0.0);
    }
}
