//! Pairs of texts: a source, and a target to be generated.

use std::sync::Arc;

use pipe_model::TaskData;
use pipe_spec::pipeline::{Data, Paths};
use rayon::ThreadPool;

use super::opener::Opener;
use super::rows::Rows;
use super::sources::Sources;
use super::{Column, IGNORED, Padding, Sample, Source, Tokens};
use crate::error::TrainerError;

pub struct Seq2Seq {
    rows: Rows,
    longest: Vec<usize>,
    source: Arc<Tokens>,
    target: Arc<Tokens>,
}

impl Seq2Seq {
    fn open(
        paths: &Paths,
        data: &Data,
        pool: &ThreadPool,
        source: Arc<Tokens>,
        target: Arc<Tokens>,
    ) -> Result<Self, TrainerError> {
        let rows = Rows::open(paths, &[data.field("source"), data.field("target")])?;
        let longest = rows.check(pool, |index| Ok(rows.texts::<2>(index)?.map(|text| text.len())))?;
        Ok(Self { longest: longest.rows(), rows, source, target })
    }
}

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Seq2Seq { vocab_size, pad_token_id } = *task_data else {
        panic!("not for pairs of texts: {task_data:?}")
    };
    let data = &opener.spec.data;
    let (max_source, max_target) = (data.max_source.get(), data.max_target.get());
    let tokens = |setting: &str, length: u32| -> Result<Arc<Tokens>, TrainerError> {
        Tokens::open(opener.tokenizer()?, opener.arch(), setting, length)?.check_vocabulary(vocab_size).map(Arc::new)
    };
    let (source, target) = (tokens("max_source", max_source)?, tokens("max_target", max_target)?);
    let open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        Ok(Arc::new(Seq2Seq::open(paths, data, opener.pool, Arc::clone(&source), Arc::clone(&target))?))
    };
    let padding = |column, with, length: u32| Padding { column, with, length: opener.fixed(length) };
    Ok(Sources {
        train: opener.part(&data.train, &open)?,
        eval: data.eval.as_ref().map(|paths| opener.part(paths, &open)).transpose()?,
        paddings: vec![
            padding("input_ids", pad_token_id, max_source),
            padding("attention_mask", 0, max_source),
            padding("labels", IGNORED, max_target),
        ],
        tokens: Some(target),
        labels: None,
        classes: None,
        notices: Vec::new(),
    })
}

impl Source for Seq2Seq {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (source, target) = self.rows.during(index, || {
            let [source, target] = self.rows.texts(index)?;
            Ok((self.source.encode(&source)?, self.target.encode(&target)?))
        })?;
        Ok(Some(Sample {
            targets: target.len() as u64,
            columns: vec![
                ("attention_mask", Column::Tokens(vec![1; source.len()])),
                ("input_ids", Column::Tokens(source)),
                ("labels", Column::Tokens(target)),
            ],
        }))
    }

    fn longest(&self) -> Vec<usize> {
        self.longest.clone()
    }

    fn reference_texts(&self, index: usize) -> Result<(String, String), TrainerError> {
        self.rows.texts(index).map(|[source, target]| (source, target))
    }
}
