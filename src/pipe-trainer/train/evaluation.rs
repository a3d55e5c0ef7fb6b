//! Evaluation: the mean loss over data that is not trained on. Changes nothing.

use std::sync::Arc;
use std::time::Instant;

use pipe_spec::Phase;
use pipe_spec::event;
use tch::Kind;

use super::session::Session;
use super::state::{State, milliseconds};
use crate::data::{PartShape, Reader, Rows, Sample};
use crate::error::TrainerError;
use crate::model::Mode;

pub struct Evaluation {
    reader: Reader,
    batch: usize,
    every: u64,
}

impl Evaluation {
    /// Absent when the spec names no data for it.
    pub fn open(session: &Session, train: &Reader) -> Result<Option<Self>, TrainerError> {
        let spec = &session.spec;
        let Some(paths) = &spec.data.eval else { return Ok(None) };
        let rows = Arc::new(Rows::open(paths, &spec.data, &session.pool)?);
        let batch = spec.evaluate.batch.map_or(spec.train.batch, u32::from) as usize;
        Ok(Some(Self { reader: Reader { rows, ..train.clone() }, batch, every: spec.evaluate.every }))
    }

    pub fn is_due(&self, step: u64, last_step: u64) -> bool {
        step == last_step || (step > 0 && self.every > 0 && step.is_multiple_of(self.every))
    }

    pub fn run(&self, session: &Session, state: &State, shape: &PartShape) -> Result<event::Eval, TrainerError> {
        let clock = Instant::now();
        let indices: Vec<usize> = (0..self.reader.rows.len()).collect();
        let (mut loss, mut tokens) = (0.0, 0);
        for part in indices.chunks(self.batch) {
            session.enter(Phase::Eval, state.step)?;
            let samples = self.reader.read(part)?;
            let (source, target) = shape.lengths(&samples);
            session.situation.set_part(samples.len() as u32, source.max(target) as u32);
            loss += loss_sum(state, shape, &samples)?;
            tokens += samples.iter().map(|sample| sample.target.len()).sum::<usize>();
        }
        let loss = loss / tokens.max(1) as f64;
        let samples = indices.len() as u64;
        Ok(event::Eval { step: state.step, loss, perplexity: loss.exp(), samples, ms: milliseconds(clock) })
    }
}

fn loss_sum(state: &State, shape: &PartShape, samples: &[Sample]) -> Result<f64, TrainerError> {
    let _guard = tch::no_grad_guard();
    let loss = state.model.loss_sum(&shape.collate(samples)?, Mode::Eval)?;
    Ok(loss.f_to_kind(Kind::Double)?.f_double_value(&[])?)
}
