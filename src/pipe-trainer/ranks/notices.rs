//! What ranks leave for each other in the folder of their attempt when they cannot be heard any more.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use pipe_spec::OomRecord;
use serde::{Deserialize, Serialize};

use crate::error::TrainerError;

const STOP: &str = "stop";

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

fn is_notice(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("ended-") && name.ends_with(".json"))
}

pub struct Notices {
    folder: PathBuf,
}

impl Notices {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn path(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("ended-{rank}.json"))
    }

    /// The first one of a rank counts. Where it cannot be written, others find out by themselves, only later.
    pub fn leave(&self, ended: &Ended) {
        let path = self.path(ended.rank);
        if !path.exists() {
            let json = serde_json::to_vec(ended).expect("it is plain data");
            self.write(&path, &json);
        }
    }

    /// Of a rank that could not say more, unless it has left one or ends because of another.
    pub fn leave_unless_others_have(&self, rank: u32, error: &TrainerError) {
        let follows = matches!(error, TrainerError::PeerEnded { .. } | TrainerError::Stopped { .. });
        let known =
            || fs::read_dir(&self.folder).into_iter().flatten().flatten().any(|entry| is_notice(&entry.file_name()));
        if !follows && !known() {
            let hint = error.hint().map(str::to_owned);
            self.leave(&Ended {
                rank,
                message: error.to_string(),
                hint,
                exit: error.exit_code().code(),
                weights_differ: false,
                oom: None,
            });
        }
    }

    /// That all ranks are to stop after so many completed steps.
    pub fn stop_after(&self, step: u64) {
        let path = self.folder.join(STOP);
        if !path.exists() {
            self.write(&path, step.to_string().as_bytes());
        }
    }

    /// Whole, or not at all.
    fn write(&self, path: &Path, bytes: &[u8]) {
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        if let Err(error) = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path)) {
            tracing::warn!("cannot write {}: {error}", path.display());
        }
    }

    pub fn of(&self, rank: u32) -> Option<Ended> {
        serde_json::from_slice(&fs::read(self.path(rank)).ok()?).ok()
    }

    /// Of any rank but this one.
    pub fn of_others(&self, own: u32, count: u32) -> Option<Ended> {
        (0..count).filter(|rank| *rank != own).find_map(|rank| self.of(rank))
    }

    pub fn stops_after(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(STOP)).ok()?.trim().parse().ok()
    }
}
