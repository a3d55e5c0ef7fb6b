//! The optimizer's state of all ranks, for one checkpoint. Each rank hands in its share as a file: so it can, too, when nothing is summed
//! any more.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tch::Tensor;

use super::session::Session;
use crate::error::TrainerError;
use crate::optim::{Optimizer, Share};
use crate::ranks::Peers;
use crate::session::spec::job_folder;
use crate::storage::{TensorFiles, tensor_writer};

/// How long the leading rank waits while nothing is written of the shares of others that end too.
const AWAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A file that is not whole yet.
const PART: &str = "part";

/// Exit codes above this are of a process that was killed by a signal.
const KILLED: i32 = 128;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Files of other ranks, beginning with rank 1; none where every rank has all of it.
pub struct OptimizerShares {
    files: Vec<PathBuf>,
}

/// The tensors in these files, mapped.
pub struct ReadShares {
    pub tensors: Vec<(String, Tensor)>,
    _files: Vec<TensorFiles>,
}

/// Writes this rank's share, unless it is the one that saves.
pub fn hand_in(
    session: &Session,
    share: &Share,
    optimizer: &Optimizer,
    step: u64,
) -> Result<OptimizerShares, TrainerError> {
    if session.peers.is_nobody() || share.owners().is_none() {
        return Ok(OptimizerShares { files: Vec::new() });
    }
    let folder = job_folder(&session.spec).ranks();
    let file = |rank: u32| folder.join(format!("optimizer-{step}-{rank}.safetensors"));
    let rank = session.peers.rank;
    if !session.peers.leads() {
        let path = file(rank.index);
        let part = path.with_extension(PART);
        let written = tensor_writer::write(&part, &optimizer.tensors()).and_then(|_| fs::rename(&part, &path));
        written.map_err(|source| {
            let last = session.store.newest_path();
            TrainerError::Save { path, source, last }
        })?;
    }
    Ok(OptimizerShares { files: (1..rank.count).map(file).collect() })
}

impl OptimizerShares {
    /// Whether all come. Not of a rank that was killed.
    pub fn await_all(&self, peers: &Peers) -> bool {
        let written = || {
            let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
            self.files.iter().map(|file| size(file) + size(&file.with_extension(PART))).sum::<u64>()
        };
        let mut progress = (written(), Instant::now());
        loop {
            let missing: Vec<u32> =
                (1..).zip(&self.files).filter(|(_, file)| !file.is_file()).map(|(rank, _)| rank).collect();
            if missing.is_empty() {
                return true;
            }
            let is_killed = |rank: &u32| peers.ended(*rank).is_some_and(|ended| ended.exit > KILLED);
            if missing.iter().any(is_killed) || progress.1.elapsed() > AWAIT_TIMEOUT {
                return false;
            }
            let now = written();
            if now != progress.0 {
                progress = (now, Instant::now());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Nothing of them is copied. Their names are gone afterwards.
    pub fn read(self) -> Result<ReadShares, TrainerError> {
        let mut read = ReadShares { tensors: Vec::new(), _files: Vec::new() };
        for path in self.files {
            let file = TensorFiles::open_file(&path)?;
            read.tensors.extend(file.views()?);
            read._files.push(file);
            let _ = fs::remove_file(&path);
        }
        Ok(read)
    }
}
