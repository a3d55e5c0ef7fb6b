//! `pipe-trainer predict`: sends the rows of a data file through a trained model and writes one JSON object for each.
//! Where rows have labels or targets, it also computes the figures of an evaluation, with the code of the evaluation.

mod batches;
mod classes;
mod texts;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use batches::{Batches, Head, Output, print};
use pipe_model::{Labels, TaskData};
use pipe_spec::event::Scores;
use pipe_spec::trainer::{Evaluation, Predicted};
use pipe_spec::{PredictEvent, PredictSpec};
use rayon::ThreadPool;

use crate::data::{self, KeptColumns, PartShape, Pieces, Source};
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::host::Stop;
use crate::model::{Definition, Model, Setup, Start};
use crate::session;

pub use texts::generate;

pub fn predict(spec_file: &Path, stop: Stop) -> Result<(), TrainerError> {
    let spec = session::read_predict(spec_file)?;
    let hardware = Hardware::prepare(&spec.settings)?;
    let pool = data::workers(spec.settings.data.workers.get())?;
    hardware.enforce_limit(&spec.settings.memory, |bytes| bytes)?;
    let definition = Definition::from_spec(&spec.settings.model)?.with_adapter(spec.settings.adapter.as_ref())?;
    let model = load(&spec, &definition, &hardware)?;
    let _guard = tch::no_grad_guard();
    let batch = spec.settings.evaluate.batch.map_or(spec.settings.train.batch(), u32::from);
    let prediction = Prediction {
        kept: KeptColumns::open(&spec.settings.data.train, &spec.keep)?,
        batches: Batches::new(Arc::clone(&pool), stop, batch as usize),
        threshold: definition.threshold() as f32,
        spec,
        hardware,
        pool,
        model,
    };
    let predicted = prediction.run(&definition.task_data()?)?;
    print(&PredictEvent::Done(predicted));
    Ok(())
}

/// The model of the spec. Everything in it must be trained.
fn load(spec: &PredictSpec, definition: &Definition, hardware: &Hardware) -> Result<Rc<dyn Model>, TrainerError> {
    let train = &spec.settings.train;
    let fail = |message: String| {
        let path = spec.settings.model.from.clone().unwrap_or_default().into();
        Err(TrainerError::Model { path, message })
    };
    let Some(files) = definition.trained()? else { return fail("it is not trained".to_owned()) };
    let model =
        definition.build(&Start::Tensors { files: &files, seed: train.seed }, &Setup::of(train, hardware.device))?;
    match model.weights().newly_initialised() {
        [] => Ok(Rc::from(model)),
        [first, ..] => fail(format!("it has no trained {first}; train it with `pipe run` first")),
    }
}

struct Prediction {
    spec: PredictSpec,
    hardware: Hardware,
    pool: Arc<ThreadPool>,
    model: Rc<dyn Model>,
    kept: KeptColumns,
    batches: Batches,
    /// The probability from which one of several labels applies.
    threshold: f32,
}

impl Prediction {
    fn run(mut self, task_data: &TaskData) -> Result<Predicted, TrainerError> {
        match task_data {
            TaskData::Seq2Seq { .. } => texts::predict_texts(&mut self, task_data),
            TaskData::TokenLabels { .. } => classes::predict_spans(&mut self, task_data),
            TaskData::Classification { labels: Some(Labels::Several(names)), .. } => {
                classes::predict_several(&mut self, task_data, names.clone())
            }
            TaskData::Classification { labels, .. } | TaskData::PictureClasses { labels, .. } => {
                classes::predict_classes(&mut self, task_data, labels.clone().unwrap_or_default())
            }
            TaskData::TimeSeries { names, classes, .. } => {
                let labels = names.clone().map_or_else(|| Labels::numbered(*classes as usize), Labels::Classes);
                classes::predict_classes(&mut self, task_data, labels)
            }
            TaskData::Table { labels, .. } => {
                classes::predict_classes(&mut self, task_data, labels.clone().unwrap_or_default())
            }
            TaskData::Contrastive { .. } => classes::predict_pairs(&mut self, task_data),
            // The runner asks for the answers of a model that learned from pairs.
            TaskData::Preference { .. } => {
                Err(TrainerError::NotAvailable { what: "predictions of pairs of answers".to_owned() })
            }
            TaskData::Language { vocab_size, max_length, joins_texts } => {
                let pieces = Pieces { longest: *max_length as usize, joins_texts: *joins_texts };
                texts::predict_language(&mut self, task_data, *vocab_size, pieces)
            }
        }
    }

    /// The rows, with what pads them.
    fn open(&self, task_data: &TaskData) -> Result<(data::Sources, PartShape), TrainerError> {
        let sources = data::open_for_prediction(&self.spec.settings, task_data, &self.pool)?;
        for message in &sources.notices {
            print(&PredictEvent::Warning { message: message.clone() });
        }
        let shape = PartShape::new(&sources.paddings, self.hardware.device).in_multiples_of(self.model.row_multiple());
        Ok((sources, shape))
    }

    /// Predicts every sample of `source`, and writes a line for each row.
    fn write<H: Head>(&mut self, source: &Arc<dyn Source>, head: &mut H) -> Result<Predicted, TrainerError> {
        let began = Instant::now();
        print(&PredictEvent::Started { predictions: source.len() as u64 });
        let mut output = Output::create(&self.spec.out)?;
        let kept = &self.kept;
        let progress = |predictions: u64| print(&PredictEvent::Progress { predictions });
        self.batches.run(source, head, progress, |outputs| {
            let mut outputs = outputs.into_iter().peekable();
            while let Some((index, first)) = outputs.next() {
                let [first_row, row] = source.rows(index);
                let mut pieces = vec![first];
                while let Some((_, piece)) = outputs.next_if(|(other, _)| H::JOINED && source.rows(*other)[1] == row) {
                    pieces.push(piece);
                }
                let range = (first_row != row).then_some(first_row);
                output.line(row, range, kept.values(row)?, H::fields(pieces))?;
            }
            Ok(())
        })?;
        Ok(Predicted {
            predictions: output.finish()?,
            skipped: source.skipped(),
            device: self.hardware.name.clone(),
            batch: self.batches.batch() as u32,
            ms: began.elapsed().as_secs_f64() * 1000.0,
            evaluation: None,
        })
    }
}

/// The figures of the rows that have a label or target; nothing where none has.
fn evaluation(rows: u64, loss: f64, scores: Scores) -> Option<Evaluation> {
    let metrics = scores.into_iter().chain([("loss".to_owned(), loss)]).filter(|(_, value)| value.is_finite());
    (rows > 0).then(|| Evaluation { rows, metrics: metrics.collect() })
}
