//! Whether the evaluations of a training have the metrics of `save.best` and `train.early_stop`, before it begins.

use pipe_model::{Labels, TaskData};
use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::Metric;

use crate::data::Sources;
use crate::error::TrainerError;

/// A classifier has the metrics of classes or those of a number; only its labels decide which.
pub fn check(spec: &TrainerSpec, task_data: &TaskData, sources: &Sources) -> Result<(), TrainerError> {
    let labels = match task_data {
        TaskData::Classification { labels, .. } => sources.labels.as_ref().or(labels.as_ref()),
        _ => None,
    };
    let metrics = match labels {
        Some(Labels::Classes(_)) => Metric::OF_CLASSES,
        Some(Labels::Number) => Metric::OF_NUMBERS,
        None => spec.model.arch.task().metrics(),
    };
    let early_stop = spec.train.early_stop.as_ref().map(|stop| ("train.early_stop.metric", &stop.metric));
    for (key, metric) in spec.save.best.as_ref().map(|metric| ("save.best", metric)).into_iter().chain(early_stop) {
        metric.check(metrics).map_err(|message| TrainerError::config(key, message))?;
    }
    Ok(())
}
