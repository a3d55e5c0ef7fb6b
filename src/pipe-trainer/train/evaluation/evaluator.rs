//! When the model is evaluated, and how: the mean loss over the evaluation data and the scores of its task. Changes nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pipe_model::{Labels, TaskData};
use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::{self, Eval};
use pipe_spec::pipeline::{Every, Metric, Task};
use pipe_spec::{Phase, TrainerSpec};
use tch::Kind;

use super::token_labels::{self, are_numbers};
use super::{Measures, Pass, classification, contrastive, generation};
use crate::data::{PartShape, Reader, Sample, SampleOrder, Sources};
use crate::error::TrainerError;
use crate::model::{Definition, Mode};
use crate::ranks::Peers;
use crate::session::job_folder;
use crate::storage;
use crate::tokenizer::Tokens;
use crate::train::session::Session;
use crate::train::state::{State, milliseconds};
use crate::train::step_splitter::StepSplitter;

/// Rows that are read at a time for each sample of a batch, where they are only tokens: among so many there are enough of one
/// length.
const ROWS_PER_SAMPLE: usize = 64;

pub struct Evaluator {
    reader: Reader,
    tokens: Option<Arc<Tokens>>,
    task: Task,
    class_names: Vec<String>,
    labels_per_text: usize,
    batch: usize,
    every: Every,
}

impl Evaluator {
    /// Absent when the spec names no data for it.
    pub fn open(session: &Session, sources: &Sources, definition: &Definition) -> Option<Self> {
        let spec = &session.spec;
        let source = Arc::clone(sources.eval.as_ref()?);
        Some(Self {
            reader: Reader { source, pool: Arc::clone(&session.pool) },
            tokens: sources.tokens.clone(),
            task: spec.model.task(),
            class_names: definition.class_names(),
            labels_per_text: definition.labels_per_text(),
            batch: spec.evaluate.batch.map_or(spec.train.batch(), u32::from) as usize,
            every: spec.evaluate.every,
        })
    }

    pub fn is_due(&self, step: u64, order: &SampleOrder) -> bool {
        let due = match self.every {
            Every::Steps(every) => every > 0 && step.is_multiple_of(every),
            Every::Epoch => order.ends_epoch(step),
        };
        step == order.steps() || (step > 0 && due)
    }

    /// One part through the model, to measure its memory.
    pub fn rehearse(
        &self,
        session: &Session,
        state: &State,
        shape: &PartShape,
        samples: &[Sample],
    ) -> Result<(), TrainerError> {
        let _guard = tch::no_grad_guard();
        session.enter(Phase::Eval, state.step)?;
        let part = shape.collate(samples)?;
        let computed = match state.model.contrastive() {
            Some(contrastive) => contrastive.embed(&part, Mode::Eval)?.images.f_sum(Kind::Float)?,
            None => state.model.loss_sum(&part, Mode::Eval)?,
        };
        computed.f_double_value(&[])?;
        Ok(())
    }

    /// Events of single texts are sent when all is computed.
    pub fn run(&self, session: &Session, state: &State, splitter: &StepSplitter) -> Result<Evaluated, TrainerError> {
        let clock = Instant::now();
        let _guard = tch::no_grad_guard();
        let rows = if splitter.is_by_length() { self.batch * ROWS_PER_SAMPLE } else { self.batch };
        let pass = Pass {
            reader: &self.reader,
            tokens: self.tokens.as_deref(),
            task: self.task,
            class_names: &self.class_names,
            labels_per_text: self.labels_per_text,
            batch: self.batch,
            session,
            state,
            rows,
            splitter: &splitter.without_gradients(self.batch as u32, rows as u32),
        };
        let Measures { loss, scores, mut details, headline, samples } = match (self.task, state.model.contrastive()) {
            (_, Some(model)) => contrastive::evaluate(&pass, model)?,
            (Task::Preference, None) => match state.model.pairs() {
                Some(pairs) => generation::evaluate_pairs(&pass, pairs)?,
                None => Measures { loss: pass.loss()?, ..Measures::default() },
            },
            (Task::Seq2Seq | Task::Language, None) => generation::evaluate(&pass)?,
            (Task::Classification | Task::TimeSeries | Task::Table | Task::PictureClasses, None) => {
                classification::evaluate(&pass)?
            }
            (Task::TokenLabels, None) => token_labels::evaluate(&pass)?,
            (Task::Contrastive, None) => Measures { loss: pass.loss()?, ..Measures::default() },
        };
        let samples = samples.unwrap_or_else(|| self.reader.source.len() as u64 - self.reader.source.skipped());
        details.step = state.step;
        let eval = event::Eval { step: state.step, loss, samples, ms: milliseconds(clock), headline, scores };
        Ok(Evaluated { eval: as_led(&session.peers, eval)?, details })
    }
}

/// The evaluation of the leading rank: some of it only that one has computed.
fn as_led(peers: &Peers, eval: event::Eval) -> Result<event::Eval, TrainerError> {
    if peers.is_nobody() {
        return Ok(eval);
    }
    // As bits: JSON has no numbers that are not finite.
    let scores: Vec<(&String, u64)> = eval.scores.iter().map(|(name, score)| (name, score.to_bits())).collect();
    let said = peers.broadcast_bytes(serde_json::to_vec(&(eval.loss.to_bits(), scores)).expect("it is plain data"))?;
    let (loss, scores): (u64, Vec<(String, u64)>) = serde_json::from_slice(&said)
        .map_err(|error| TrainerError::Panic { message: format!("an evaluation of rank 0: {error}") })?;
    let scores = scores.into_iter().map(|(name, bits)| (name, f64::from_bits(bits))).collect();
    Ok(event::Eval { loss: f64::from_bits(loss), scores, ..eval })
}

/// The event of an evaluation, and what is too large for an event.
pub struct Evaluated {
    pub eval: Eval,
    pub details: EvaluationDetails,
}

/// Writes the details of the latest evaluation, and again as those of the best where it is. A training does not end because
/// they cannot be written.
pub fn write_details(session: &Session, details: &EvaluationDetails, is_best: bool) {
    if details.is_empty() {
        return;
    }
    let folder = job_folder(&session.spec);
    let json = serde_json::to_vec(details).expect("details are plain data");
    let write = |path: &Path| {
        let written = std::fs::create_dir_all(folder.path()).and_then(|()| storage::write_whole(path, &json));
        if let Err(error) = written {
            session.warn(format!("cannot write {}: {error}", path.display()));
        }
    };
    write(&folder.evaluation());
    if is_best {
        write(&folder.best_evaluation());
    }
}

/// Whether the evaluations have the metrics of `save.best` and `train.early_stop`, before the training begins. A classifier has the
/// metrics of classes, of several labels or of a number; only its labels decide which.
pub fn check_metrics(spec: &TrainerSpec, task_data: &TaskData, sources: &Sources) -> Result<(), TrainerError> {
    let labels = match task_data {
        TaskData::Classification { labels, .. } | TaskData::Table { labels, .. } => {
            sources.labels.as_ref().or(labels.as_ref())
        }
        _ => None,
    };
    let tags = match (task_data, &sources.labels) {
        (TaskData::TokenLabels { .. }, Some(Labels::Classes(names))) => Some(names),
        (TaskData::TokenLabels { names, .. }, _) => names.as_ref(),
        _ => None,
    };
    let metrics = match labels {
        _ if tags.is_some_and(|names| are_numbers(names)) => Metric::OF_NUMBERED_TAGS,
        _ if tags.is_some() => Metric::OF_ENTITIES,
        Some(Labels::Classes(_)) => Metric::OF_CLASSES,
        Some(Labels::Number) => Metric::OF_NUMBERS,
        Some(Labels::Several(_)) => Metric::OF_SEVERAL,
        None => spec.model.task().metrics(),
    };
    let early_stop = spec.train.early_stop.as_ref().map(|stop| ("train.early_stop.metric", &stop.metric));
    for (key, metric) in spec.save.best.as_ref().map(|metric| ("save.best", metric)).into_iter().chain(early_stop) {
        metric.check(metrics).map_err(|message| TrainerError::config(key, message))?;
    }
    Ok(())
}
