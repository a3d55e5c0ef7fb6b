//! The session of a training: its spec and folder, the device, the events, and requests to stop.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use pipe_spec::event::EventKind;
use pipe_spec::{Device, Phase, RunFolder, TrainerSpec};
use rayon::ThreadPool;

use crate::boundary;
use crate::checkpoint::Store;
use crate::data;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::host::{self, Stop};
use crate::ranks::Peers;
use crate::session::events::Events;
use crate::session::oom::Progress;

pub struct Session {
    pub spec: TrainerSpec,
    pub run: RunFolder,
    pub hardware: Hardware,
    pub store: Store,
    pub progress: Progress,
    pub pool: Arc<ThreadPool>,
    pub peers: Peers,
    pub began: Instant,
    events: RefCell<Events>,
    stop: Stop,
}

impl Session {
    /// One of the ranks of an attempt, which waits for the others.
    pub fn join(spec: TrainerSpec, events: Events, stop: Stop) -> Result<Self, TrainerError> {
        Self::open(spec, events, stop, Peers::join)
    }

    /// Without others, however many ranks the spec has.
    pub fn alone(spec: TrainerSpec, events: Events, stop: Stop) -> Result<Self, TrainerError> {
        Self::open(spec, events, stop, |_, _| Ok(Peers::nobody()))
    }

    /// Threads are started before memory is limited: their stacks are not the training's.
    fn open(
        spec: TrainerSpec,
        events: Events,
        stop: Stop,
        join: impl FnOnce(&TrainerSpec, &Hardware) -> Result<Peers, TrainerError>,
    ) -> Result<Self, TrainerError> {
        let began = Instant::now();
        let hardware = Hardware::prepare(&spec)?;
        let pool = data::workers(spec.data.workers.get())?;
        let run = RunFolder::new(&spec.run);
        let peers = join(&spec, &hardware)?;
        if peers.is_nobody() {
            host::stops_while_opening(&stop);
        }
        let store = Store::open(&run, spec.save.keep.get(), peers.leads())?;
        hardware.enforce_limit(&spec.memory, |bytes| bytes)?;
        Ok(Self {
            run,
            hardware,
            store,
            progress: Progress::new(spec.train.batch()),
            pool,
            peers,
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
        self.begin(phase, step, true)
    }

    /// The same where other ranks count on this one to go on: it stops only where there are none.
    pub fn go_on(&self, phase: Phase, step: u64) -> Result<(), TrainerError> {
        self.begin(phase, step, false)
    }

    fn begin(&self, phase: Phase, step: u64, may_leave: bool) -> Result<(), TrainerError> {
        if self.peers.is_nobody() && self.stop.requested() {
            return Err(TrainerError::Stopped { step });
        }
        // Before the others are asked: what was done before this is complete, also where it goes no further.
        self.progress.enter(phase);
        self.peers.enter(phase, step, &self.stop, may_leave)?;
        boundary::check_host_memory()
    }
}
