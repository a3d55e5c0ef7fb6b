//! Evaluation: the mean loss over data that is not trained on, and texts that the model writes. Changes nothing.

use std::sync::Arc;
use std::time::Instant;

use pipe_spec::Phase;
use pipe_spec::event::{self, EventKind};
use tch::Kind;

use super::session::Session;
use super::state::{State, milliseconds};
use crate::data::{PartShape, Reader, Rows, Sample};
use crate::error::TrainerError;
use crate::metrics;
use crate::model::{Generation, Mode};

/// Texts that are judged, where any are generated and there is data for so many.
const JUDGED: usize = 32;

pub struct Evaluation {
    reader: Reader,
    batch: usize,
    every: u64,
    /// How many generated texts are shown.
    shown: usize,
    limits: Generation,
}

impl Evaluation {
    /// Absent when the spec names no data for it.
    pub fn open(session: &Session, train: &Reader) -> Result<Option<Self>, TrainerError> {
        let spec = &session.spec;
        let Some(paths) = &spec.data.eval else { return Ok(None) };
        let rows = Arc::new(Rows::open(paths, &spec.data, &session.pool)?);
        Ok(Some(Self {
            reader: Reader { rows, ..train.clone() },
            batch: spec.evaluate.batch.map_or(spec.train.batch, u32::from) as usize,
            every: spec.evaluate.every,
            shown: spec.evaluate.generate as usize,
            limits: Generation { max_length: i64::from(spec.data.max_target.get()), beams: 1 },
        }))
    }

    pub fn is_due(&self, step: u64, last_step: u64) -> bool {
        step == last_step || (step > 0 && self.every > 0 && step.is_multiple_of(self.every))
    }

    /// Events of single texts are sent when all is computed.
    pub fn run(&self, session: &Session, state: &State, shape: &PartShape) -> Result<event::Eval, TrainerError> {
        let clock = Instant::now();
        let _guard = tch::no_grad_guard();
        let pass = Pass { evaluation: self, session, state, shape };
        let loss = pass.loss()?;
        let texts = pass.texts()?;
        let mean = |score: &dyn Fn(&event::Sample) -> f64| {
            (!texts.is_empty()).then(|| texts.iter().map(score).sum::<f64>() / texts.len() as f64)
        };
        let result = event::Eval {
            step: state.step,
            loss,
            perplexity: loss.exp(),
            samples: self.reader.rows.len() as u64,
            ms: milliseconds(clock),
            exact_match: mean(&|text| f64::from(u8::from(metrics::exact_match(&text.target, &text.generated)))),
            rouge_l: mean(&|text| metrics::rouge_l(&text.target, &text.generated)),
        };
        texts.into_iter().take(self.shown).for_each(|text| session.emit(EventKind::Sample(text)));
        Ok(result)
    }
}

/// One evaluation.
struct Pass<'a> {
    evaluation: &'a Evaluation,
    session: &'a Session,
    state: &'a State,
    shape: &'a PartShape,
}

impl Pass<'_> {
    fn loss(&self) -> Result<f64, TrainerError> {
        let indices: Vec<usize> = (0..self.evaluation.reader.rows.len()).collect();
        let (mut loss, mut tokens) = (0.0, 0);
        for part in indices.chunks(self.evaluation.batch) {
            let samples = self.samples(part)?;
            let sum = self.state.model.loss_sum(&self.shape.collate(&samples)?, Mode::Eval)?;
            loss += sum.f_to_kind(Kind::Double)?.f_double_value(&[])?;
            tokens += samples.iter().map(|sample| sample.target.len()).sum::<usize>();
        }
        Ok(loss / tokens.max(1) as f64)
    }

    /// What the model answers to the first rows.
    fn texts(&self) -> Result<Vec<event::Sample>, TrainerError> {
        let Evaluation { reader, batch, shown, limits, .. } = self.evaluation;
        let count = if *shown == 0 { 0 } else { JUDGED.max(*shown).min(reader.rows.len()) };
        let indices: Vec<usize> = (0..count).collect();
        let mut texts = Vec::with_capacity(count);
        for part in indices.chunks(*batch) {
            let answers = self.state.model.generate(&self.shape.collate(&self.samples(part)?)?, limits)?;
            for (index, answer) in part.iter().zip(answers) {
                let row = reader.rows.get(*index)?;
                let fail = |error| TrainerError::Panic { message: format!("the answer to row {index}: {error}") };
                let generated = reader.encoder.decode(&answer).map_err(fail)?;
                texts.push(event::Sample { step: self.state.step, source: row.source, target: row.target, generated });
            }
        }
        Ok(texts)
    }

    fn samples(&self, part: &[usize]) -> Result<Vec<Sample>, TrainerError> {
        self.session.enter(Phase::Eval, self.state.step)?;
        let samples = self.evaluation.reader.read(part)?;
        let (source, target) = self.shape.lengths(&samples);
        self.session.situation.set_part(samples.len() as u32, source.max(target) as u32);
        Ok(samples)
    }
}
