//! The data of each task: one line for each.

use pipe_model::TaskData;
use pipe_spec::TrainerSpec;
use rayon::ThreadPool;

use super::opener::Opener;
use super::sources::Sources;
use super::{classification, contrastive, language, seq2seq, time_series};
use crate::error::TrainerError;

/// Opens the data of a training. Every row is read once, so that a broken one is named before the first step.
pub fn open(spec: &TrainerSpec, task_data: &TaskData, pool: &ThreadPool) -> Result<Sources, TrainerError> {
    let opener = Opener { spec, pool };
    match task_data {
        TaskData::Seq2Seq { .. } => seq2seq::open(&opener, task_data),
        TaskData::Classification { .. } => classification::open(&opener, task_data),
        TaskData::Contrastive { .. } => contrastive::open(&opener, task_data),
        TaskData::TimeSeries { .. } => time_series::open(&opener, task_data),
        TaskData::Language { .. } => language::open(&opener, task_data),
    }
}
