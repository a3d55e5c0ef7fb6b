//! Copies of the records of all runs in a folder of a bucket, so that they can be shown here. Checkpoints and models stay there.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pipe_spec::bucket::BucketAddress;
use pipe_spec::{RunFolder, Variables};

use super::restore::Download;
use super::run_copy::{Manifest, RunCopy, StoredFile};
use super::{Bucket, Failure};
use crate::report::{Output, Reporter};
use crate::run::Owner;
use crate::system::files::write_whole;

/// How often a run that goes on is looked at, and one that has ended.
const INTERVAL: Duration = Duration::from_secs(5);
const ENDED_INTERVAL: Duration = Duration::from_secs(300);

/// Bytes of a record that is copied.
const MAX_RECORD: u64 = 256 << 20;

/// The copies, in a folder of this machine.
pub struct RunCopies {
    bucket: Bucket,
    address: BucketAddress,
    folder: PathBuf,
    known: HashMap<String, Known>,
    /// The warning that was printed last.
    warning: String,
}

/// A run as it was looked at last.
struct Known {
    claim: String,
    generation: u64,
    has_ended: bool,
    at: Instant,
}

impl RunCopies {
    /// Fails where the bucket cannot be listed.
    pub fn open(address: BucketAddress, folder: PathBuf, variables: &Variables) -> Result<Self, Failure> {
        let bucket = Bucket::open(&address, variables)?;
        bucket.folders(&address.join(""))?;
        Ok(Self { bucket, address, folder, known: HashMap::new(), warning: String::new() })
    }

    /// Keeps the copies up to date until the process ends.
    pub fn follow(mut self) {
        loop {
            let warning = self.update().map_or_else(|failure| failure.said().to_owned(), |()| String::new());
            if !warning.is_empty() && warning != self.warning {
                tracing::warn!("{}: {warning}; trying again every {} s", self.address, INTERVAL.as_secs());
            }
            self.warning = warning;
            std::thread::sleep(INTERVAL);
        }
    }

    fn update(&mut self) -> Result<(), Failure> {
        let ids = self.bucket.folders(&self.address.join(""))?;
        let mut problem = Ok(());
        for id in ids.iter().filter(|id| is_name(id)) {
            let is_new_enough = |known: &Known| known.has_ended && known.at.elapsed() < ENDED_INTERVAL;
            if !self.known.get(id).is_some_and(is_new_enough) {
                // One that is damaged does not stop the others.
                problem = self.copy(id).and(problem);
            }
        }
        for gone in self.known.extract_if(|id, _| !ids.contains(id)) {
            std::fs::remove_dir_all(self.folder.join(gone.0)).unwrap_or_else(|error| tracing::debug!("{error}"));
        }
        problem
    }

    fn copy(&mut self, id: &str) -> Result<(), Failure> {
        let copy = RunCopy::read_in(self.bucket.clone(), self.address.at(&self.address.join(id)))?;
        if copy.version.is_none() {
            return Ok(());
        }
        let folder = RunFolder::new(self.folder.join(id));
        let Manifest { claim, generation, holder, files, .. } = &copy.manifest;
        let is_known = |known: &Known| known.claim == *claim && known.generation == *generation;
        if !self.known.get(id).is_some_and(is_known) {
            let is_wanted = |file: &&StoredFile| !file.pieces.is_empty() && file.size <= MAX_RECORD;
            let wanted: Vec<&StoredFile> = files.iter().filter(is_wanted).collect();
            let progress = Reporter::new(Output::Quiet).fetch_progress();
            let download = Download { copy: &copy, folder: &folder, progress: &progress };
            let damaged = download.fetch(&wanted).map_err(|error| Failure::Refused(error.to_string()))?;
            if !damaged.is_empty() {
                return Err(Failure::Refused(format!("{id}: {} is damaged", damaged.join(", "))));
            }
        }
        let lives = holder.as_ref().filter(|holder| holder.may_live(copy.age));
        let owner = lives.map_or(String::new(), |holder| Owner::text_of_copy(holder.pid, &holder.host));
        write_whole(&folder.owner(), owner.as_bytes()).map_err(|error| Failure::Refused(error.to_string()))?;
        let (claim, generation) = (claim.clone(), *generation);
        self.known.insert(id.to_owned(), Known { claim, generation, has_ended: lives.is_none(), at: Instant::now() });
        Ok(())
    }
}

fn is_name(id: &str) -> bool {
    !id.starts_with('.') && Path::new(id).components().count() == 1 && !id.contains('\0')
}
