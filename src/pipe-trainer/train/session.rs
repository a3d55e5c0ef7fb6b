//! What a training runs with: its spec and folder, the device, the events, and requests to stop.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use pipe_spec::event::EventKind;
use pipe_spec::run::JobFolder;
use pipe_spec::{Device, Phase, RunFolder, TrainerSpec};
use rayon::ThreadPool;

use crate::boundary;
use crate::checkpoint::Store;
use crate::data;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::events::Events;
use crate::host::Stop;
use crate::progress::Progress;

pub struct Session {
    pub spec: TrainerSpec,
    pub run: RunFolder,
    pub hardware: Hardware,
    pub store: Store,
    pub progress: Progress,
    pub pool: Arc<ThreadPool>,
    pub began: Instant,
    events: RefCell<Events>,
    stop: Stop,
}

impl Session {
    /// Threads are started before memory is limited: their stacks are not the training's.
    pub fn open(spec: TrainerSpec, events: Events, stop: Stop) -> Result<Self, TrainerError> {
        let began = Instant::now();
        let hardware = Hardware::prepare(&spec)?;
        let pool = data::workers(spec.data.workers.get())?;
        let run = RunFolder::new(&spec.run);
        let store = Store::open(&run, spec.save.keep.get())?;
        hardware.enforce_limit(&spec.memory, |bytes| bytes)?;
        Ok(Self {
            run,
            hardware,
            store,
            progress: Progress::new(spec.train.batch()),
            pool,
            began,
            events: RefCell::new(events),
            stop,
            spec,
        })
    }

    pub fn emit(&self, kind: EventKind) {
        self.events.borrow_mut().emit(kind);
    }

    /// Waits until the disk has all events so far.
    pub fn sync_events(&self) {
        self.events.borrow().sync();
    }

    pub fn warn(&self, message: String) {
        self.events.borrow_mut().warn(message);
    }

    /// The settings of torch's allocator, where it has any.
    pub fn allocator(&self) -> String {
        match self.spec.device {
            Device::Cpu => String::new(),
            Device::Cuda => self.spec.memory.allocator.to_string(),
        }
    }

    /// Enters a phase; an error where a stop is requested after `step` completed steps or host memory is exhausted.
    pub fn enter(&self, phase: Phase, step: u64) -> Result<(), TrainerError> {
        if self.stop.requested() {
            return Err(TrainerError::Stopped { step });
        }
        self.progress.enter(phase);
        boundary::check_host_memory()
    }
}

/// What the attempt of this spec may write about itself.
pub fn job_folder(spec: &TrainerSpec) -> JobFolder {
    RunFolder::new(&spec.run).attempt(spec.attempt).job()
}
