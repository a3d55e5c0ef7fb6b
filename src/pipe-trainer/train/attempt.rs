//! One attempt: reads the spec, trains, and handles the error that ends it.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, Mutex};

use pipe_spec::event::{EventKind, MemoryKind};
use pipe_spec::pipeline::BatchSetting;
use pipe_spec::{OomRecord, Phase, TrainerExit, TrainerSpec};

use super::fit::{Searched, search};
use super::measure::Failure;
use super::session::Session;
use super::state::State;
use super::training::Training;
use crate::cli::RankArgs;
use crate::error::TrainerError;
use crate::host::{self, Stop};
use crate::ranks::{self, Exchange, Notices};
use crate::session::events::{Console, Events};
use crate::session::{self, Node, job_folder, oom};
use crate::{boundary, storage};

/// Trains as the spec says. An out-of-memory is recorded, and no completed step is lost to it or to a stop. Several ranks are processes
/// of their own, which this one starts, unless it is one of them.
pub fn train(spec_file: &Path, rank: &RankArgs, console: Console) -> Result<(), TrainerError> {
    let mut spec = session::read(spec_file)?;
    if let Some(index) = rank.rank {
        return train_rank(spec, rank, index, console);
    }
    let node = session::node(spec_file, &spec)?;
    if !node.is_only() {
        return train_node(spec_file, spec, node, console);
    }
    let stop = console.stop.clone();
    let mut events = Events::in_folder(&job_folder(&spec), console);
    choose_batch(spec_file, &mut spec, &mut events, &stop)?;
    match spec.rank.count {
        1 => run(boundary::guard(|| Session::alone(spec, events, stop))?),
        _ => ranks::launch(&ranks::Start { spec_file, spec: &spec, node, events: events.count() }, &stop),
    }
}

/// The ranks of one of several nodes, each of which runs this. The first one writes events and finds the batch.
fn train_node(spec_file: &Path, mut spec: TrainerSpec, node: Node, console: Console) -> Result<(), TrainerError> {
    let stop = &console.stop.clone();
    let folder = job_folder(&spec).ranks();
    std::fs::create_dir_all(&folder).map_err(|source| TrainerError::Io { path: folder.clone(), source })?;
    let notices = &Notices::new(&folder, node);
    let exchange = Exchange::start(&Arc::new(Mutex::new(Notices::new(&folder, node))), node)?;
    let is_auto = spec.train.batch == BatchSetting::Auto;
    let train = || {
        let mut events = Events::silent(stop.clone());
        if node.index == 0 {
            events = Events::in_folder(&job_folder(&spec), console);
            choose_batch(spec_file, &mut spec, &mut events, stop)?;
            if is_auto {
                notices.leave_batch(spec.train.batch());
            }
        } else if is_auto {
            spec.train.batch = BatchSetting::Fixed(ranks::await_batch(notices, stop)?);
        }
        ranks::launch(&ranks::Start { spec_file, spec: &spec, node, events: events.count() }, stop)
    };
    let ended = train().inspect_err(|error| notices.leave_launcher(error));
    if let Some(exchange) = exchange {
        exchange.finish();
    }
    ended
}

/// Finds the largest batch that fits, where the spec leaves it open.
fn choose_batch(
    spec_file: &Path,
    spec: &mut TrainerSpec,
    events: &mut Events,
    stop: &Stop,
) -> Result<(), TrainerError> {
    if spec.train.batch != BatchSetting::Auto {
        return Ok(());
    }
    let searched = search(spec_file, spec, events, stop, false)?;
    // Where nothing could be measured, the training itself will say why.
    let batch = if let Searched::Fitted(fitted) = &searched { fitted.batch } else { 1 };
    spec.train.batch = NonZeroU32::new(batch).map_or(spec.train.batch, BatchSetting::Fixed);
    if let Searched::Fitted(fitted) = searched {
        events.emit(EventKind::Fitted(fitted));
    }
    Ok(())
}

/// One of several ranks. The process that started it reports what goes wrong.
fn train_rank(mut spec: TrainerSpec, args: &RankArgs, index: u32, console: Console) -> Result<(), TrainerError> {
    let node = Node::with_rank(&spec, index);
    spec.rank.index = index;
    spec.device_index += (index - node.ranks().start) % spec.cards;
    if let Some(batch) = args.batch {
        spec.train.batch = BatchSetting::Fixed(batch);
    }
    let stop = console.stop.clone();
    let events = match index {
        0 => Events::after(args.events, &job_folder(&spec), console),
        _ => Events::silent(stop.clone()),
    };
    let notices = Notices::new(&job_folder(&spec).ranks(), node);
    let ended = boundary::guard(|| Session::join(spec, events, stop)).and_then(run);
    ended.inspect_err(|error| notices.leave_unless_others_have(index, error))
}

fn run(session: Session) -> Result<(), TrainerError> {
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
pub fn fit(spec_file: &Path, console: Console) -> Result<(), TrainerError> {
    let spec = session::read(spec_file)?;
    let stop = console.stop.clone();
    let mut events = Events::in_folder(&job_folder(&spec), console);
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
    let error = session.peers.behind(error);
    match &error {
        TrainerError::Stopped { .. } => {
            let training = training.filter(|_| session.peers.is_nobody() || is_intact(session.progress.phase()));
            training.map_or(Ok(()), |training| training.state.save_at_the_end(session))?;
        }
        TrainerError::PeerEnded { rank, .. } => {
            tracing::info!("ending, because rank {rank} has ended");
            session.peers.abandon();
            let ended = session.peers.ended(*rank);
            if let Some(training) = training.filter(|_| !ended.as_ref().is_some_and(|ended| ended.weights_differ)) {
                save_last_step(session, &training.state, session.progress.phase());
            }
            if let Some(record) = ended.and_then(|ended| ended.oom) {
                session.emit(EventKind::Oom(*record));
            }
        }
        TrainerError::NodeLost { .. } => {
            session.peers.leave(&error, None);
            session.peers.abandon();
            if let Some(training) = training {
                save_last_step(session, &training.state, session.progress.phase());
            }
        }
        TrainerError::OutOfMemory { memory, message, host } => {
            let mut record =
                oom::record(*memory, message, *host, &session.progress, &session.hardware, session.allocator());
            record.rank = session.peers.rank.index;
            host::lift_limit();
            // The others are not to wait for what follows, nor this rank for them.
            session.peers.leave(&error, Some(record.clone()));
            session.peers.abandon();
            write_oom_record(session, &record);
            if let Some(training) = training {
                training.forget_sums()?;
                save_last_step(session, &training.state, record.phase);
                let may_measure = training.state.shared_sum.is_none()
                    && matches!(record.phase, Phase::Forward | Phase::Backward)
                    && record.memory == MemoryKind::Device;
                if may_measure {
                    record.points = training.rehearsal().smaller(session.spec.train.batch());
                    write_oom_record(session, &record);
                }
            }
            session.emit(EventKind::Oom(record));
        }
        _ => session.peers.leave(&error, None),
    }
    Err(error)
}

/// Saves the last completed step, unless an update failed half way and left no such state.
fn save_last_step(session: &Session, state: &State, phase: Phase) {
    if !is_intact(phase) {
        return;
    }
    if let Err(error) = boundary::guard(|| state.save_at_the_end(session)) {
        session.warn(format!("step {} could not be saved at the end: {error}", state.step));
    }
}

/// Whether the state is that of the last completed step.
fn is_intact(phase: Phase) -> bool {
    match phase {
        Phase::Forward | Phase::Backward | Phase::Eval | Phase::Checkpoint => true,
        Phase::Load | Phase::Optimizer | Phase::Resume => false,
    }
}

/// The first of several ranks whose memory runs out is the one that counts.
fn write_oom_record(session: &Session, record: &OomRecord) {
    if session.peers.another_ended() {
        return;
    }
    let folder = job_folder(&session.spec);
    let json = serde_json::to_vec_pretty(record).expect("a record is plain data");
    let written = std::fs::create_dir_all(folder.path()).and_then(|()| storage::write_whole(&folder.oom(), &json));
    if let Err(error) = written {
        session.warn(format!("cannot write {}: {error}", folder.oom().display()));
    }
}
