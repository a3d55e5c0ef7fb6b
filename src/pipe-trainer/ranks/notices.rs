//! Notices: files that ranks leave for each other in the folder of their attempt when they cannot be heard any more.

use std::ffi::OsStr;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use pipe_spec::{OomRecord, TrainerExit};
use serde::{Deserialize, Serialize};

use crate::error::TrainerError;
use crate::session::Node;

const STOP: &str = "stop";
const BATCH: &str = "batch";

/// How often the folder is read, on this machine and over a network.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const NETWORK_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Why a rank has ended before its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub rank: u32,
    pub message: String,
    pub hint: Option<String>,
    /// The exit code of the attempt.
    pub exit: i32,
    /// Whether it found other weights than its own on another rank.
    #[serde(default)]
    pub weights_differ: bool,
    pub oom: Option<Box<OomRecord>>,
}

impl Ended {
    /// The notice of a rank that can say no more than this error.
    pub fn by(rank: u32, error: &TrainerError) -> Self {
        Self {
            rank,
            message: error.to_string(),
            hint: error.hint().map(str::to_owned),
            exit: error.exit_code().code(),
            weights_differ: matches!(error, TrainerError::RanksDiffer { .. }),
            oom: None,
        }
    }

    fn is_out_of_memory(&self) -> bool {
        let exit = TrainerExit::from_code(i64::from(self.exit));
        matches!(exit, Some(TrainerExit::DeviceOutOfMemory | TrainerExit::HostOutOfMemory))
    }
}

/// The error of the process that started the ranks.
impl From<Ended> for TrainerError {
    fn from(Ended { rank, message, hint, exit, .. }: Ended) -> Self {
        Self::RankEnded { rank, message, hint, exit }
    }
}

fn is_notice(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("ended-") && name.ends_with(".json"))
}

pub struct Notices {
    folder: PathBuf,
    /// The one that this process is on.
    node: Node,
}

impl Notices {
    pub fn new(folder: &Path, node: Node) -> Self {
        Self { folder: folder.to_owned(), node }
    }

    pub fn poll_interval(&self) -> Duration {
        if self.node.is_only() { POLL_INTERVAL } else { NETWORK_POLL_INTERVAL }
    }

    fn path(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("ended-{rank}.json"))
    }

    /// The notice of all ranks of a node.
    fn node_path(&self, node: u32) -> PathBuf {
        self.folder.join(format!("ended-node-{node}.json"))
    }

    /// The first one of a rank counts. Where it cannot be written, others find out by themselves, only later.
    pub fn leave(&self, ended: &Ended) {
        self.write_once(&self.path(ended.rank), ended);
    }

    /// Why all ranks of this node end: its own ranks find it too.
    pub fn leave_for_node(&self, ended: &Ended) {
        self.write_once(&self.node_path(self.node.index), ended);
    }

    /// How the process that starts the ranks of this node has ended, for those that wait for its ranks.
    pub fn leave_launcher(&self, error: &TrainerError) {
        match error {
            // Where a rank of this node could agree on a step, there is a notice already.
            TrainerError::Stopped { .. } => self.stop_after(0),
            TrainerError::RankEnded { .. } => {}
            _ => self.leave_for_node(&Ended::by(self.node.ranks().start, error)),
        }
    }

    fn write_once(&self, path: &Path, ended: &Ended) {
        if !path.exists() {
            let json = serde_json::to_vec(ended).expect("it is plain data");
            self.write(path, &json);
        }
    }

    /// Leaves the notice of a rank that could not say more, unless it has left one or ends because of another.
    pub fn leave_unless_others_have(&self, rank: u32, error: &TrainerError) {
        let follows = matches!(error, TrainerError::PeerEnded { .. } | TrainerError::Stopped { .. });
        let known =
            || fs::read_dir(&self.folder).into_iter().flatten().flatten().any(|entry| is_notice(&entry.file_name()));
        if !follows && !known() {
            self.leave(&Ended::by(rank, error));
        }
    }

    /// That all ranks are to stop after so many completed steps.
    pub fn stop_after(&self, step: u64) {
        let path = self.folder.join(STOP);
        if !path.exists() {
            self.write(&path, step.to_string().as_bytes());
        }
    }

    /// The batch that the first node has found, for the others.
    pub fn leave_batch(&self, batch: u32) {
        self.write(&self.folder.join(BATCH), batch.to_string().as_bytes());
    }

    pub fn batch(&self) -> Option<NonZeroU32> {
        self.number(BATCH)
    }

    /// That a rank of this node works, for nodes whose ranks all wait for it.
    pub fn leave_progress(&self, count: u64) {
        self.write(&self.folder.join(progress_name(self.node.index)), count.to_string().as_bytes());
    }

    /// The progress that each node has left.
    pub fn progress(&self) -> Vec<Option<u64>> {
        (0..self.node.count).map(|node| self.number(&progress_name(node))).collect()
    }

    /// The notices that other nodes may need, by the names of their files.
    pub fn all(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_for_others(name));
        names
            .filter_map(|name| {
                let text = fs::read_to_string(self.folder.join(&name)).ok()?;
                Some((name, text))
            })
            .collect()
    }

    /// A notice that another node has sent. The first one counts, except of progress.
    pub fn take(&self, name: &str, text: &str) {
        let path = self.folder.join(name);
        if is_for_others(name) && (name.starts_with(PROGRESS) || !path.exists()) {
            self.write(&path, text.as_bytes());
        }
    }

    /// Whole, or not at all. Processes of two nodes may have the same number.
    fn write(&self, path: &Path, bytes: &[u8]) {
        let temporary = path.with_extension(format!("{}-{}.tmp", self.node.index, std::process::id()));
        if let Err(error) = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path)) {
            tracing::warn!("cannot write {}: {error}", path.display());
        }
    }

    pub fn of(&self, rank: u32) -> Option<Ended> {
        self.refresh();
        read(&self.path(rank))
    }

    /// The notice of any rank but this one.
    pub fn of_others(&self, own: u32) -> Option<Ended> {
        self.first(|rank| rank != own)
    }

    /// The notice of any rank.
    pub fn any(&self) -> Option<Ended> {
        self.first(|_| true)
    }

    /// An out-of-memory counts before what followed from it.
    fn first(&self, which: impl Fn(u32) -> bool) -> Option<Ended> {
        self.refresh();
        let ranks = (0..self.node.all_ranks).filter(|rank| which(*rank)).map(|rank| self.path(rank));
        let nodes = (0..self.node.count).map(|node| self.node_path(node));
        ranks.chain(nodes).filter_map(|path| read(&path)).min_by_key(|ended| !ended.is_out_of_memory())
    }

    pub fn stops_after(&self) -> Option<u64> {
        self.number(STOP)
    }

    fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.refresh();
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }

    /// NFS remembers for up to a minute that a file is not there, unless its folder is opened again.
    fn refresh(&self) {
        if !self.node.is_only() {
            let _ = fs::File::open(&self.folder);
        }
    }
}

const PROGRESS: &str = "progress-";

fn progress_name(node: u32) -> String {
    format!("{PROGRESS}{node}")
}

/// Whether a file of this name is a notice that is complete.
fn is_for_others(name: &str) -> bool {
    let is_progress = name.strip_prefix(PROGRESS).is_some_and(|node| node.parse::<u32>().is_ok());
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    [STOP, BATCH].contains(&name) || is_progress || is_plain && is_notice(OsStr::new(name))
}

fn read(path: &Path) -> Option<Ended> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(rank: u32, exit: i32) -> Ended {
        let (message, weights_differ) = ("it ended".to_owned(), false);
        Ended { rank, message, hint: None, exit, weights_differ, oom: None }
    }

    #[test]
    fn an_out_of_memory_of_another_node_counts_first() {
        let folder = std::env::temp_dir().join(format!("pipe-notices-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [first, second] = [0, 1].map(|index| Notices::new(&folder, Node { index, count: 2, all_ranks: 4 }));
        assert_eq!((first.any(), first.stops_after(), first.batch()), (None, None, None));
        second.leave_for_node(&ended(2, 1));
        assert_eq!(first.any(), Some(ended(2, 1)));
        assert_eq!(second.of_others(2), Some(ended(2, 1)), "also for the rank that it names");
        first.leave(&ended(0, 1));
        second.leave(&ended(3, TrainerExit::HostOutOfMemory.code()));
        assert_eq!(first.any(), second.of(3));
        assert_eq!(first.of_others(3), Some(ended(0, 1)));
        second.leave_launcher(&TrainerError::Stopped { step: 7 });
        first.stop_after(5);
        assert_eq!(first.stops_after(), Some(0), "the first one counts");
        first.leave_batch(1);
        assert_eq!(second.batch(), Some(NonZeroU32::MIN));
        second.leave_progress(3);
        second.leave_progress(4);
        assert_eq!(first.progress(), [None, Some(4)]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
