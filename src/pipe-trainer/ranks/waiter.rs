//! Waiting for sums, and for nothing that cannot come any more; and heartbeats: a file in which every rank of a node counts what it does,
//! for the process that watches them. It is mapped, which other machines would not see: each node has its own.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{io, thread};

use memmap2::MmapRaw;
use pipe_spec::Phase;
use pipe_spec::trainer::Rank;

use super::notices::Notices;
use crate::error::TrainerError;
use crate::session::Node;
use crate::torch::Link;

/// A sum that is there soon is not slept for.
const SPIN: Duration = Duration::from_micros(300);

/// A rank whose connection is gone has ended: so long may it take until that is known, on this machine and over a network.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);
const NETWORK_REASON_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for sums, from whichever thread.
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

    /// The reason behind an error of a sum: most often another rank is gone. One of this node leaves a notice, or its launcher does. Where
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

/// Numbers of a rank: its count, what it does, its phase, its step, how often it has polled while it waits.
const NUMBERS: usize = 5;

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankState {
    Starting,
    /// Waits for all ranks to come.
    Joining,
    Working,
    /// Waits for its own card to compute what it has launched.
    Computing,
    /// Waits for the others.
    Waiting,
}

impl RankState {
    const ALL: [Self; 5] = [Self::Starting, Self::Joining, Self::Working, Self::Computing, Self::Waiting];

    /// Whether it goes on only when others do.
    pub fn waits(self) -> bool {
        matches!(self, Self::Joining | Self::Waiting)
    }
}

pub struct Heartbeats {
    map: MmapRaw,
    ranks: Range<u32>,
}

/// The latest heartbeat of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub count: u64,
    pub state: RankState,
    pub phase: Phase,
    /// Completed steps.
    pub step: u64,
    /// Goes up while it waits.
    pub polls: u64,
}

impl Heartbeats {
    pub fn create(folder: &Path, node: Node) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path(folder, node))?;
        file.set_len(bytes(node))?;
        Self::map(&file, node)
    }

    pub fn open(folder: &Path, node: Node) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path(folder, node))?;
        if file.metadata()?.len() < bytes(node) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::map(&file, node)
    }

    fn map(file: &File, node: Node) -> io::Result<Self> {
        Ok(Self { map: MmapRaw::map_raw(file)?, ranks: node.ranks() })
    }

    fn number(&self, rank: u32, which: usize) -> &AtomicU64 {
        assert!(self.ranks.contains(&rank), "there is no such rank");
        let at = (rank - self.ranks.start) as usize * NUMBERS + which;
        // SAFETY: the file has room for all ranks, the mapping begins at a page, and all access to it is atomic.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(at)) }
    }

    /// A rank has done something.
    pub fn count(&self, rank: u32, phase: Phase, step: u64) {
        let phase = Phase::ALL.iter().position(|one| *one == phase).unwrap_or(0);
        self.number(rank, 2).store(phase as u64, Ordering::Relaxed);
        self.number(rank, 3).store(step, Ordering::Relaxed);
        self.number(rank, 1).store(RankState::Working as u64, Ordering::Relaxed);
        self.number(rank, 0).fetch_add(1, Ordering::Release);
    }

    /// A rank that waits is still there.
    pub fn poll(&self, rank: u32) {
        self.number(rank, 4).fetch_add(1, Ordering::Relaxed);
    }

    pub fn set(&self, rank: u32, state: RankState) {
        self.number(rank, 1).store(state as u64, Ordering::Relaxed);
    }

    pub fn of(&self, rank: u32) -> Heartbeat {
        let number = |which| self.number(rank, which).load(Ordering::Acquire);
        let state = RankState::ALL.get(number(1) as usize).copied().unwrap_or(RankState::Working);
        let phase = Phase::ALL.get(number(2) as usize).copied().unwrap_or(Phase::Load);
        Heartbeat { count: number(0), state, phase, step: number(3), polls: number(4) }
    }
}

fn path(folder: &Path, node: Node) -> PathBuf {
    folder.join(format!("heartbeats-{}", node.index))
}

fn bytes(node: Node) -> u64 {
    u64::from(node.size()) * (NUMBERS * 8) as u64
}

#[cfg(test)]
mod heartbeat_tests {
    use super::*;

    #[test]
    fn what_a_rank_writes_others_read() {
        let folder = std::env::temp_dir().join(format!("pipe-heartbeats-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let node = Node { index: 0, count: 1, all_ranks: 3 };
        let watcher = Heartbeats::create(&folder, node).unwrap();
        let rank = Heartbeats::open(&folder, node).unwrap();
        assert_eq!(
            watcher.of(2),
            Heartbeat { count: 0, state: RankState::Starting, phase: Phase::Load, step: 0, polls: 0 }
        );
        rank.count(2, Phase::Eval, 7);
        rank.set(2, RankState::Waiting);
        rank.poll(2);
        assert_eq!(
            watcher.of(2),
            Heartbeat { count: 1, state: RankState::Waiting, phase: Phase::Eval, step: 7, polls: 1 }
        );
        assert_eq!(watcher.of(1).count, 0);
        assert!(Heartbeats::open(&folder, Node { all_ranks: 4, ..node }).is_err(), "a rank too many");
        let second = Heartbeats::create(&folder, Node { index: 1, count: 2, all_ranks: 6 }).unwrap();
        second.count(5, Phase::Eval, 9);
        assert_eq!((second.of(5).step, watcher.of(2).step), (9, 7), "each node has its own");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
