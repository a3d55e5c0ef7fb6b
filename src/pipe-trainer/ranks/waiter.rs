//! Waiting for sums, and for nothing that cannot come any more.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pipe_spec::Phase;
use pipe_spec::trainer::Rank;

use super::heartbeat::{Heartbeats, RankState};
use super::notices::Notices;
use crate::error::TrainerError;
use crate::torch::Link;

/// How often a rank that waits finds out whether another is gone.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A sum that is there soon is not slept for.
const SPIN: Duration = Duration::from_micros(300);

/// A rank whose connection is gone has ended: so long may it take until that is known.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);

/// What a rank needs to wait, from whichever thread.
pub struct Waiter {
    pub rank: Rank,
    heartbeats: Heartbeats,
    pub notices: Notices,
    /// Completed steps.
    step: AtomicU64,
    checked: Mutex<Instant>,
}

impl Waiter {
    pub fn open(folder: &Path, rank: Rank) -> Result<Self, TrainerError> {
        let fail = |source| TrainerError::Io { path: folder.to_owned(), source };
        let heartbeats = Heartbeats::open(folder, rank.count).map_err(fail)?;
        heartbeats.set(rank.index, RankState::Joining);
        let checked = Mutex::new(Instant::now());
        Ok(Self { rank, heartbeats, notices: Notices::new(folder), step: AtomicU64::new(0), checked })
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
            if checked.elapsed() < POLL_INTERVAL {
                return Ok(());
            }
            *checked = Instant::now();
        }
        self.check_now()
    }

    /// The same, and never put off.
    pub fn check_now(&self) -> Result<(), TrainerError> {
        if let Some(ended) = self.notices.of_others(self.rank.index, self.rank.count) {
            return Err(TrainerError::PeerEnded { rank: ended.rank, message: ended.message });
        }
        let step = self.step.load(Ordering::Relaxed);
        match self.notices.stops_after() {
            // Less than that is of a rank that was still loading.
            Some(after) if after <= step => Err(TrainerError::Stopped { step }),
            _ => Ok(()),
        }
    }

    fn failed(&self, link: Link, error: TrainerError) -> TrainerError {
        link.leave();
        self.reason(error)
    }

    /// What is behind an error of a sum: most often another rank is gone.
    pub fn reason(&self, error: TrainerError) -> TrainerError {
        let began = Instant::now();
        while began.elapsed() < REASON_TIMEOUT {
            if let Err(reason) = self.check_now() {
                return reason;
            }
            thread::sleep(POLL_INTERVAL);
        }
        error
    }
}
