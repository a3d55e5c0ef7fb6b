//! One attempt: reads the spec, trains, and handles the error that ends it.

use std::num::NonZeroU32;
use std::path::Path;

use pipe_spec::event::{EventKind, MemoryKind};
use pipe_spec::pipeline::BatchSetting;
use pipe_spec::{OomRecord, Phase, TrainerExit};

use super::fit::{Searched, search};
use super::measure::Failure;
use super::session::{Session, job_folder};
use super::state::State;
use super::training::Training;
use crate::error::TrainerError;
use crate::events::Events;
use crate::host::Stop;
use crate::host::limit;
use crate::storage::durable;
use crate::{boundary, oom, spec};

/// Trains as the spec says. An out-of-memory is recorded, and no completed step is lost to it or to a stop.
pub fn train(spec_file: &Path) -> Result<(), TrainerError> {
    let mut spec = spec::read(spec_file)?;
    let stop = Stop::on_signals().map_err(TrainerError::signals)?;
    let mut events = Events::in_folder(&job_folder(&spec), stop.clone());
    if spec.train.batch == BatchSetting::Auto {
        let searched = search(spec_file, &spec, &mut events, &stop, false)?;
        // Where nothing could be measured, the training itself will say why.
        let batch = if let Searched::Fitted(fitted) = &searched { fitted.batch } else { 1 };
        spec.train.batch = NonZeroU32::new(batch).map_or(spec.train.batch, BatchSetting::Fixed);
        if let Searched::Fitted(fitted) = searched {
            events.emit(EventKind::Fitted(fitted));
        }
    }
    let session = boundary::guard(|| Session::open(spec, events, stop))?;
    let mut training = match boundary::guard(|| Training::prepare(&session)) {
        Ok(training) => training,
        Err(error) => return handle_error(&session, None, error),
    };
    match boundary::guard(|| training.run()) {
        Ok(()) => Ok(()),
        Err(error) => handle_error(&session, Some(&training), error),
    }
}

/// Finds the largest batch that fits, and trains nothing.
pub fn fit(spec_file: &Path) -> Result<(), TrainerError> {
    let spec = spec::read(spec_file)?;
    let stop = Stop::on_signals().map_err(TrainerError::signals)?;
    let mut events = Events::in_folder(&job_folder(&spec), stop.clone());
    match search(spec_file, &spec, &mut events, &stop, true)? {
        Searched::Fitted(fitted) => {
            events.emit(EventKind::Fitted(fitted));
            Ok(())
        }
        Searched::NothingFits => Err(TrainerError::NothingFits { device: spec.device }),
        Searched::Failed(Failure { message, hint, exit }) => {
            let exit = TrainerExit::from_code(i64::from(exit)).unwrap_or(TrainerExit::Unexpected);
            Err(TrainerError::Measurer { message, hint, exit })
        }
    }
}

fn handle_error(session: &Session, training: Option<&Training<'_>>, error: TrainerError) -> Result<(), TrainerError> {
    match &error {
        TrainerError::Stopped { .. } => {
            training.map_or(Ok(()), |training| training.state.save_if_new(session))?;
        }
        TrainerError::OutOfMemory { memory, message, host } => {
            let mut record =
                oom::record(*memory, message, *host, &session.progress, &session.hardware, session.allocator());
            limit::lift();
            if let Some(training) = training {
                save_last_step(session, &training.state, record.phase);
                if record.memory == MemoryKind::Device && matches!(record.phase, Phase::Forward | Phase::Backward) {
                    record.points = training.rehearsal().smaller(session.spec.train.batch());
                }
            }
            write_oom_record(session, record);
        }
        _ => {}
    }
    Err(error)
}

/// Saves the last completed step, unless an update failed half way and left no such state.
fn save_last_step(session: &Session, state: &State, phase: Phase) {
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

fn write_oom_record(session: &Session, record: OomRecord) {
    let folder = job_folder(&session.spec);
    let json = serde_json::to_vec_pretty(&record).expect("a record is plain data");
    let written = std::fs::create_dir_all(folder.path()).and_then(|()| durable::write_whole(&folder.oom(), &json));
    if let Err(error) = written {
        session.warn(format!("cannot write {}: {error}", folder.oom().display()));
    }
    session.emit(EventKind::Oom(record));
}
