//! `pipe-trainer measure`: whole steps at batches that are asked for, on the longest samples, for their memory alone. What is
//! trained is thrown away. It answers on stdout, one line for each batch that it reads from stdin.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pipe_spec::event::Measured;
use serde::{Deserialize, Serialize};

use super::evaluation::Evaluation;
use super::rehearsal::{Rehearsal, Worst};
use super::session::Session;
use super::state::{State, milliseconds};
use super::training::LOOKED_AT;
use crate::data::{PartShape, Plan, Reader, Sources};
use crate::error::TrainerError;
use crate::events::Events;
use crate::model::Definition;
use crate::stop::Stop;
use crate::{boundary, spec, tensor_writer, torch};

/// The first line: what is measured on.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    pub device: String,
    pub driver: Option<String>,
    /// Bytes that there are for this training now.
    pub capacity: Option<u64>,
    /// Tokens of the longest row, as in `event::Started`.
    pub longest: String,
}

pub fn measure(spec_file: &Path) -> Result<(), TrainerError> {
    let stop = Stop::listen()?;
    let session = Session::open(spec::read(spec_file)?, Events::new(stop.clone()), stop)?;
    let mut measuring = Measuring::prepare(&session)?;
    say(&measuring.ready()?)?;
    for line in io::stdin().lock().lines() {
        let batch = line.ok().and_then(|line| line.trim().parse().ok());
        let Some(batch) = batch.filter(|batch| *batch > 0) else { break };
        say(&measuring.of(batch)?)?;
    }
    Ok(())
}

fn say(line: &impl Serialize) -> Result<(), TrainerError> {
    let fail = |source| TrainerError::Io { path: PathBuf::from("stdout"), source };
    let line = serde_json::to_string(line).expect("it is plain data");
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(fail)
}

struct Measuring<'a> {
    session: &'a Session,
    state: State,
    shape: PartShape,
    worst: Worst,
    evaluation: Option<(Evaluation, Worst)>,
}

impl<'a> Measuring<'a> {
    /// From the beginning, whatever checkpoints there are.
    fn prepare(session: &'a Session) -> Result<Self, TrainerError> {
        let spec = &session.spec;
        let definition = Definition::from_spec(&spec.model)?;
        let sources = Sources::open(spec, &definition.expects()?, &session.pool)?;
        let definition = definition.with_labels(sources.labels.as_ref()).with_keys(sources.train.learned());
        let plan = Plan::new(sources.train.len(), spec.data.shuffle, &spec.train);
        let state = State::begin(session, &plan, &definition)?;
        let reader = |source| Reader { source, pool: Arc::clone(&session.pool) };
        let evaluation = match (Evaluation::open(session, &sources), &sources.eval) {
            (Some(evaluation), Some(source)) => Some((evaluation, Worst::find(&reader(Arc::clone(source)))?)),
            _ => None,
        };
        let worst = Worst::find(&reader(sources.train))?;
        let shape = PartShape::new(&sources.paddings, session.hardware.device);
        Ok(Self { session, state, shape, worst, evaluation })
    }

    fn ready(&self) -> Result<Ready, TrainerError> {
        let hardware = &self.session.hardware;
        let longest = self.shape.lengths(&self.worst.part(LOOKED_AT));
        let capacity = hardware.available()?;
        Ok(Ready { device: hardware.name.clone(), driver: hardware.driver.clone(), capacity, longest })
    }

    fn rehearsal(&self) -> Rehearsal<'_> {
        Rehearsal { session: self.session, state: &self.state, shape: &self.shape, worst: &self.worst }
    }

    /// A batch that does not fit is an answer; what else goes wrong is an error.
    fn of(&mut self, batch: u32) -> Result<Measured, TrainerError> {
        let clock = Instant::now();
        let on_card = self.session.hardware.device.is_cuda();
        self.state.model.weights().forget_gradients()?;
        if on_card {
            torch::empty_cache()?;
            torch::reset_peaks()?;
        }
        let done = boundary::guard(|| self.steps(batch));
        let fits = match done {
            Ok(()) => true,
            Err(TrainerError::OutOfMemory { .. }) => false,
            Err(other) => return Err(other),
        };
        let usage = self.session.hardware.usage();
        let longest = self.shape.lengths(&self.worst.part(LOOKED_AT));
        Ok(Measured {
            batch,
            fits,
            peak: fits.then_some(usage.peak),
            reserved: fits.then_some(usage.reserved),
            longest,
            ms: milliseconds(clock),
        })
    }

    /// Two steps, an evaluation, and a save that goes nowhere.
    fn steps(&mut self, batch: u32) -> Result<(), TrainerError> {
        for _ in 0..2 {
            let rehearsal = self.rehearsal();
            let gradients = rehearsal.gradients(&rehearsal.samples(batch), batch)?;
            let norm = torch::total_norm(&gradients)?;
            self.state.optimizer.update(self.state.model.weights(), &gradients, &norm.f_zeros_like()?, 0.0, 1)?;
            self.state.model.step_ended(true)?;
            norm.f_double_value(&[])?;
        }
        if let Some((evaluation, worst)) = &self.evaluation {
            let batch = self.session.spec.evaluate.batch.map_or(batch, u32::from);
            evaluation.rehearse(self.session, &self.state, &self.shape, &worst.part(batch))?;
        }
        tensor_writer::read_all(&self.state.named_weights())?;
        tensor_writer::read_all(&self.state.optimizer.tensors())?;
        Ok(())
    }
}
