//! Training: one attempt from its spec to its end, whatever that is.

mod accumulation;
mod evaluation;
mod export;
mod gradient_cache;
mod session;
mod state;
mod training;

use std::path::Path;

use pipe_spec::Phase;
use pipe_spec::event::{EventKind, Memory};

pub use self::gradient_cache::{Parts, backward as contrastive_backward};
use self::session::Session;
use self::state::State;
use self::training::Training;
pub use self::training::clip_factor;
use crate::error::TrainerError;
use crate::host_memory::HostMemory;
use crate::{boundary, durable, host_limit, oom};

/// Trains as the spec says. An out-of-memory is recorded, and no completed step is lost to it or to a stop.
pub fn train(spec_file: &Path) -> Result<(), TrainerError> {
    let session = boundary::guard(|| Session::open(spec_file))?;
    let mut training = match boundary::guard(|| Training::prepare(&session)) {
        Ok(training) => training,
        Err(error) => return conclude(&session, None, error),
    };
    match boundary::guard(|| training.run()) {
        Ok(()) => Ok(()),
        Err(error) => conclude(&session, Some(&training.state), error),
    }
}

fn conclude(session: &Session, state: Option<&State>, error: TrainerError) -> Result<(), TrainerError> {
    match &error {
        TrainerError::Stopped { .. } => {
            state.map_or(Ok(()), |state| state.save_if_new(session))?;
        }
        TrainerError::OutOfMemory { memory, message, host } => {
            host_limit::lift();
            if let Some(state) = state {
                rescue(session, state);
            }
            record(session, *memory, message, *host);
        }
        _ => {}
    }
    Err(error)
}

/// Saves the last completed step. An update that failed half way has left no such state.
fn rescue(session: &Session, state: &State) {
    let intact = match session.situation.phase() {
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

fn record(session: &Session, memory: Memory, message: &str, host: HostMemory) {
    let record = oom::record(memory, message, host, &session.situation, &session.hardware, session.allocator());
    let folder = session.run.attempt(session.spec.attempt);
    let json = serde_json::to_vec_pretty(&record).expect("a record is plain data");
    let written = std::fs::create_dir_all(folder.path()).and_then(|()| durable::write_whole(&folder.oom(), &json));
    if let Err(error) = written {
        session.warn(format!("cannot write {}: {error}", folder.oom().display()));
    }
    session.emit(EventKind::Oom(record));
}
