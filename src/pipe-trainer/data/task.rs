//! The data of each task: one line for each.

use std::sync::Arc;

use pipe_model::TaskData;
use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::ClassWeights;
use rayon::ThreadPool;

use super::opener::{Opener, Purpose};
use super::sources::Sources;
use super::split::Split;
use super::weighted::{self, Weighted};
use super::{classification, contrastive, language, seq2seq, time_series};
use crate::error::TrainerError;

/// Opens the data of a training. Every row is read once, so that a broken one is named before the first step.
pub fn open(spec: &TrainerSpec, task_data: &TaskData, pool: &ThreadPool) -> Result<Sources, TrainerError> {
    let opener = Opener { spec, pool, purpose: Purpose::Training };
    let mut sources = open_task(&opener, task_data)?;
    // Time series are split by time, where they are opened.
    if spec.data.eval_share > 0.0 && sources.eval.is_none() {
        let by_class = sources.classes.is_some();
        let Split { train, eval } = Split::new(&sources.train, spec.data.eval_share, spec.train.seed, by_class, pool)?;
        (sources.train, sources.eval) = (train, Some(eval));
    }
    if spec.train.class_weights == ClassWeights::Balanced {
        let classes = sources.classes.ok_or_else(|| {
            weighted::refused("only for models that predict classes; this one predicts none, or the labels are numbers")
        })?;
        sources.train = Arc::new(Weighted::balanced(sources.train, classes, pool)?);
    }
    Ok(sources)
}

/// Opens `data.train` as rows to predict: what is to be predicted may be missing. Every row is read once.
pub fn open_for_prediction(
    spec: &TrainerSpec,
    task_data: &TaskData,
    pool: &ThreadPool,
) -> Result<Sources, TrainerError> {
    open_task(&Opener { spec, pool, purpose: Purpose::Prediction }, task_data)
}

fn open_task(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    match task_data {
        TaskData::Seq2Seq { .. } => seq2seq::open(opener, task_data),
        TaskData::Classification { .. } => classification::open(opener, task_data),
        TaskData::Contrastive { .. } => contrastive::open(opener, task_data),
        TaskData::TimeSeries { .. } => time_series::open(opener, task_data),
        TaskData::Language { .. } => language::open(opener, task_data),
    }
}
