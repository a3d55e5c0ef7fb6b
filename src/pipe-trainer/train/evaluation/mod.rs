//! Evaluation: the mean loss over data that is not trained on, and how good the model is by the measures of its task.
//! Changes nothing.

mod classes;
mod pairs;
mod texts;

use std::sync::Arc;
use std::time::Instant;

use pipe_spec::Phase;
use pipe_spec::event::{self, Scores};
use pipe_spec::pipeline::{Every, Task};
use tch::Kind;

use super::session::Session;
use super::state::{State, milliseconds};
use crate::data::{PartShape, Plan, Reader, Sample, Sources, Tokens};
use crate::error::TrainerError;
use crate::model::Mode;

pub struct Evaluation {
    reader: Reader,
    tokens: Option<Arc<Tokens>>,
    task: Task,
    batch: usize,
    every: Every,
}

impl Evaluation {
    /// Absent when the spec names no data for it.
    pub fn open(session: &Session, sources: &Sources) -> Option<Self> {
        let spec = &session.spec;
        let source = Arc::clone(sources.eval.as_ref()?);
        Some(Self {
            reader: Reader { source, pool: Arc::clone(&session.pool) },
            tokens: sources.tokens.clone(),
            task: spec.model.arch.task(),
            batch: spec.evaluate.batch.map_or(spec.train.batch(), u32::from) as usize,
            every: spec.evaluate.every,
        })
    }

    pub fn is_due(&self, step: u64, plan: &Plan) -> bool {
        let due = match self.every {
            Every::Steps(every) => every > 0 && step.is_multiple_of(every),
            Every::Epoch => plan.ends_epoch(step),
        };
        step == plan.steps() || (step > 0 && due)
    }

    /// One part through the model, for what it holds.
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
        let computed = match state.model.contrast() {
            Some(contrast) => contrast.embed(&part, Mode::Eval)?.images.f_sum(Kind::Float)?,
            None => state.model.loss_sum(&part, Mode::Eval)?,
        };
        computed.f_double_value(&[])?;
        Ok(())
    }

    /// Events of single texts are sent when all is computed.
    pub fn run(&self, session: &Session, state: &State, shape: &PartShape) -> Result<event::Eval, TrainerError> {
        let clock = Instant::now();
        let _guard = tch::no_grad_guard();
        let pass = Pass { evaluation: self, session, state, shape };
        let (loss, scores) = match (self.task, state.model.contrast()) {
            (_, Some(contrast)) => pairs::judge(&pass, contrast)?,
            (Task::Seq2Seq | Task::Language, None) => texts::judge(&pass)?,
            (Task::Classification | Task::TimeSeries, None) => classes::judge(&pass)?,
            (Task::Contrastive, None) => (pass.loss()?, Scores::new()),
        };
        let samples = self.reader.source.len() as u64 - self.reader.source.skipped();
        Ok(event::Eval { step: state.step, loss, samples, ms: milliseconds(clock), scores })
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
    /// The mean over all targets.
    fn loss(&self) -> Result<f64, TrainerError> {
        let indices: Vec<usize> = (0..self.evaluation.reader.source.len()).collect();
        let (mut loss, mut targets) = (0.0, 0);
        for part in indices.chunks(self.evaluation.batch) {
            let samples = self.samples(part)?;
            let sum = self.state.model.loss_sum(&self.shape.collate(&samples)?, Mode::Eval)?;
            loss += sum.f_to_kind(Kind::Double)?.f_double_value(&[])?;
            targets += samples.iter().map(|sample| sample.targets).sum::<u64>();
        }
        Ok(loss / targets.max(1) as f64)
    }

    fn samples(&self, part: &[usize]) -> Result<Vec<Sample>, TrainerError> {
        self.read(|| self.evaluation.reader.read(part))
    }

    /// What the model is given to write something for the samples.
    fn prompts(&self, part: &[usize]) -> Result<Vec<Sample>, TrainerError> {
        let prompt = |index: &usize| self.evaluation.reader.source.prompt(*index).transpose();
        self.read(|| part.iter().filter_map(prompt).collect())
    }

    fn read(&self, read: impl FnOnce() -> Result<Vec<Sample>, TrainerError>) -> Result<Vec<Sample>, TrainerError> {
        self.session.enter(Phase::Eval, self.state.step)?;
        let samples = read()?;
        self.session.situation.set_part(samples.len() as u32, self.shape.longest(&samples) as u32);
        Ok(samples)
    }
}
