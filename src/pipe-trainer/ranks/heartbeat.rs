//! Heartbeats: a file in which every rank of a node counts what it does, for the process that watches them. It is mapped, which other
//! machines would not see: each node has its own.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::node::Node;
use memmap2::MmapRaw;
use pipe_spec::Phase;

/// Numbers of a rank: its count, what it does, its phase, its step, how often it has polled while it waits.
const NUMBERS: usize = 5;

/// What a rank is doing.
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

/// What is known of a rank.
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
mod tests {
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
