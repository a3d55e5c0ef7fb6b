//! Waiting for sums, and for nothing that cannot come any more.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use pipe_spec::Phase;
use pipe_spec::trainer::Rank;

use super::heartbeat::{Heartbeats, RankState};
use super::notices::Notices;
use crate::error::TrainerError;
use crate::node::Node;
use crate::torch::Link;

/// A sum that is there soon is not slept for.
const SPIN: Duration = Duration::from_micros(300);

/// A rank whose connection is gone has ended: so long may it take until that is known, on this machine and over a network.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);
const NETWORK_REASON_TIMEOUT: Duration = Duration::from_secs(30);

/// What a rank needs to wait, from whichever thread.
pub struct Waiter {
    pub rank: Rank,
    node: Node,
    heartbeats: Heartbeats,
    pub notices: Notices,
    /// Completed steps.
    step: AtomicU64,
    checked: Mutex<Instant>,
    /// How a connection to other nodes was lost, without a notice of a rank that has ended.
    lost: OnceLock<String>,
}

impl Waiter {
    pub fn open(folder: &Path, rank: Rank, node: Node) -> Result<Self, TrainerError> {
        let fail = |source| TrainerError::Io { path: folder.to_owned(), source };
        let heartbeats = Heartbeats::open(folder, node).map_err(fail)?;
        heartbeats.set(rank.index, RankState::Joining);
        let checked = Mutex::new(Instant::now());
        let (notices, lost) = (Notices::new(folder, node), OnceLock::new());
        Ok(Self { rank, node, heartbeats, notices, step: AtomicU64::new(0), checked, lost })
    }

    /// All ranks have come.
    pub fn joined(&self) {
        self.heartbeats.set(self.rank.index, RankState::Working);
    }

    pub fn heartbeat(&self, phase: Phase, step: u64) {
        self.step.store(step, Ordering::Relaxed);
        self.heartbeats.count(self.rank.index, phase, step);
    }

    pub fn wait(&self, link: Link) -> Result<(), TrainerError> {
        self.wait_and(link, || {})
    }

    /// Until all that was begun on `link` is done; `ready` is called when what this rank gives to it is there. An error where another
    /// rank has ended, or all are to stop here.
    pub fn wait_and(&self, link: Link, ready: impl FnOnce()) -> Result<(), TrainerError> {
        let began = Instant::now();
        let mut ready = Some(ready);
        self.heartbeats.set(self.rank.index, RankState::Computing);
        loop {
            if ready.is_some() && link.ready().map_err(|error| self.failed(link, error.into()))? {
                self.heartbeats.set(self.rank.index, RankState::Waiting);
                if let Some(ready) = ready.take() {
                    ready();
                }
            }
            if link.done().map_err(|error| self.failed(link, error.into()))? {
                if let Some(ready) = ready.take() {
                    ready();
                }
                self.heartbeats.set(self.rank.index, RankState::Working);
                return Ok(());
            }
            if began.elapsed() < SPIN {
                thread::yield_now();
                continue;
            }
            self.heartbeats.poll(self.rank.index);
            self.check().inspect_err(|_| link.leave())?;
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// An error where another rank has ended, or all are to stop after the steps that are completed here. It costs nothing to ask often.
    pub fn check(&self) -> Result<(), TrainerError> {
        {
            let mut checked = self.checked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if checked.elapsed() < self.notices.poll_interval() {
                return Ok(());
            }
            *checked = Instant::now();
        }
        self.check_now()
    }

    /// The same, and never put off.
    pub fn check_now(&self) -> Result<(), TrainerError> {
        if let Some(ended) = self.notices.of_others(self.rank.index) {
            return Err(TrainerError::PeerEnded { rank: ended.rank, message: ended.message });
        }
        let step = self.step.load(Ordering::Relaxed);
        match self.notices.stops_after() {
            // Less than that is of a rank that was still loading.
            Some(after) if after <= step => return Err(TrainerError::Stopped { step }),
            _ => {}
        }
        match self.lost.get() {
            Some(message) => Err(TrainerError::NodeLost { message: message.clone() }),
            None => Ok(()),
        }
    }

    fn failed(&self, link: Link, error: TrainerError) -> TrainerError {
        link.leave();
        self.reason(error)
    }

    /// What is behind an error of a sum: most often another rank is gone. One of this node leaves a notice, or its launcher does. Where
    /// there is none, a whole node is gone.
    pub fn reason(&self, error: TrainerError) -> TrainerError {
        let began = Instant::now();
        let timeout = if self.node.is_only() { REASON_TIMEOUT } else { NETWORK_REASON_TIMEOUT };
        while began.elapsed() < timeout {
            if let Err(reason) = self.check_now() {
                return reason;
            }
            thread::sleep(self.notices.poll_interval());
        }
        match error {
            TrainerError::Torch { message } if !self.node.is_only() => {
                TrainerError::NodeLost { message: self.lost.get_or_init(|| message).clone() }
            }
            error => error,
        }
    }
}
