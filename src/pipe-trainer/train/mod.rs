//! Training: one attempt from its spec to its end, whatever that is.

mod accumulation;
mod evaluation;
mod export;
mod fit;
mod gradient_cache;
mod measure;
mod rehearsal;
mod session;
mod state;
mod training;

use std::num::NonZeroU32;
use std::path::Path;

use pipe_spec::event::{EventKind, Memory};
use pipe_spec::pipeline::BatchSetting;
use pipe_spec::{OomRecord, Phase};

pub use self::gradient_cache::{Parts, backward as contrastive_backward};
pub use self::measure::measure;
use self::session::Session;
use self::state::State;
use self::training::Training;
pub use self::training::clip_factor;
use crate::error::TrainerError;
use crate::events::Events;
use crate::stop::Stop;
use crate::{boundary, durable, host_limit, oom, spec};

/// Trains as the spec says. An out-of-memory is recorded, and no completed step is lost to it or to a stop.
pub fn train(spec_file: &Path) -> Result<(), TrainerError> {
    let mut spec = spec::read(spec_file)?;
    let stop = Stop::listen()?;
    let mut events = Events::new(stop.clone());
    if spec.train.batch == BatchSetting::Auto {
        let fitted = fit::search(spec_file, &spec, &mut events, &stop)?;
        // Where nothing could be measured, the training itself will say why.
        let batch = fitted.as_ref().map_or(1, |fitted| fitted.batch);
        spec.train.batch = NonZeroU32::new(batch).map_or(spec.train.batch, BatchSetting::Fixed);
        fitted.into_iter().for_each(|fitted| events.emit(EventKind::Fitted(fitted)));
    }
    let session = boundary::guard(|| Session::open(spec, events, stop))?;
    let mut training = match boundary::guard(|| Training::prepare(&session)) {
        Ok(training) => training,
        Err(error) => return conclude(&session, None, error),
    };
    match boundary::guard(|| training.run()) {
        Ok(()) => Ok(()),
        Err(error) => conclude(&session, Some(&training), error),
    }
}

/// Finds the largest batch that fits, and trains nothing.
pub fn fit(spec_file: &Path) -> Result<(), TrainerError> {
    let spec = spec::read(spec_file)?;
    let stop = Stop::listen()?;
    let mut events = Events::new(stop.clone());
    match fit::search(spec_file, &spec, &mut events, &stop)? {
        Some(fitted) => {
            events.emit(EventKind::Fitted(fitted));
            Ok(())
        }
        None => Err(TrainerError::NothingFits { device: spec.device }),
    }
}

fn conclude(session: &Session, training: Option<&Training<'_>>, error: TrainerError) -> Result<(), TrainerError> {
    match &error {
        TrainerError::Stopped { .. } => {
            training.map_or(Ok(()), |training| training.state.save_if_new(session))?;
        }
        TrainerError::OutOfMemory { memory, message, host } => {
            let mut record =
                oom::record(*memory, message, *host, &session.situation, &session.hardware, session.allocator());
            host_limit::lift();
            if let Some(training) = training {
                rescue(session, &training.state, record.phase);
                if record.memory == Memory::Device && matches!(record.phase, Phase::Forward | Phase::Backward) {
                    record.points = training.rehearsal().smaller(session.spec.train.batch());
                }
            }
            keep(session, record);
        }
        _ => {}
    }
    Err(error)
}

/// Saves the last completed step. An update that failed half way has left no such state.
fn rescue(session: &Session, state: &State, phase: Phase) {
    let intact = match phase {
        Phase::Forward | Phase::Backward | Phase::Eval | Phase::Checkpoint => true,
        Phase::Load | Phase::Optimizer | Phase::Resume => false,
    };
    if !intact {
        return;
    }
    if let Err(error) = boundary::guard(|| state.save_if_new(session)) {
        session.warn(format!("step {} could not be saved after the out-of-memory: {error}", state.step));
    }
}

fn keep(session: &Session, record: OomRecord) {
    let folder = session.run.attempt(session.spec.attempt);
    let json = serde_json::to_vec_pretty(&record).expect("a record is plain data");
    let written = std::fs::create_dir_all(folder.path()).and_then(|()| durable::write_whole(&folder.oom(), &json));
    if let Err(error) = written {
        session.warn(format!("cannot write {}: {error}", folder.oom().display()));
    }
    session.emit(EventKind::Oom(record));
}
