//! Brings a run from a bucket to this machine: records, the last whole checkpoint and the best, each checked against its hash.
//! The next download uses the files of a broken one, and nothing lies in the folder of the runs before all of it is there.
//!
//! Copies of the records of all runs in a folder of a bucket, so that they can be shown here. Checkpoints and models stay there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pipe_spec::bucket::BucketAddress;
use pipe_spec::text::human_bytes;
use pipe_spec::{Cause, Outcome, RunFolder, RunState, Status, Variables};

use super::run_copy::{Manifest, Mark, RunCopy, StoredFile, piece_path};
use super::{Bucket, Failure};
use crate::error::Error;
use crate::report::{FetchProgress, Output, Reporter, visible_line};
use crate::run::Owner;
use crate::system::files::{Space, absolute, write_json, write_whole};

const PIECE: usize = 256 << 10;

/// Files that are fetched at the same time.
const WORKERS: usize = 4;

/// How often a broken transfer is tried again.
const TRIES: u32 = 6;

/// Takes over the run of this address, puts it into the folder `runs`, and returns its id. It is to be resumed then.
pub fn restore(text: &str, runs: &Path, known: &Variables, progress: &FetchProgress) -> Result<String, Error> {
    let absent = || Error::NoBucketRun { address: text.to_owned() };
    let address = BucketAddress::parse(text).filter(|address| !address.path.is_empty()).ok_or_else(absent)?;
    let id = address.parent().1.to_owned();
    let mut copy = RunCopy::read(address, known)?;
    if copy.version.is_none() {
        return Err(absent());
    }
    let folder = RunFolder::new(absolute(runs).join(&id));
    if folder.path().exists() {
        let of = |mark: &Mark| mark.claim == copy.manifest.claim && mark.generation >= copy.manifest.generation;
        let is_newest = Mark::read(&folder).is_none_or(|mark| of(&mark));
        return Err(Error::RunIsHere { id, folder: folder.path().to_owned(), is_newest });
    }
    if let Some(holder) = copy.manifest.holder.as_ref().filter(|holder| holder.may_live(copy.age)) {
        let (host, pid) = (visible_line(&holder.host).into_owned(), holder.pid);
        return Err(Error::RunHeld { id, host, pid, seconds: copy.age.map_or(0, |age| age.as_secs()) });
    }
    let mut mark = Mark::random();
    copy.claim(&mark.claim).map_err(|failure| match failure {
        Failure::Changed(_) => Error::RunHeld { id: id.clone(), host: "another".to_owned(), pid: 0, seconds: 0 },
        failure => failure.into(),
    })?;
    mark.generation = copy.manifest.generation;
    let staged = RunFolder::new(absolute(runs).join(format!(".{id}.part")));
    let download = Download { copy: &copy, folder: &staged, progress };
    download.records()?;
    download.checkpoints()?;
    adopt(&staged, &id, folder.path())?;
    mark.write(&staged)?;
    let fail = |source| Error::Write { path: folder.path().to_owned(), source };
    for name in ["attempts", "checkpoints"] {
        std::fs::create_dir_all(staged.path().join(name)).map_err(fail)?;
    }
    std::fs::rename(staged.path(), folder.path()).map_err(fail)?;
    File::open(absolute(runs)).and_then(|runs| runs.sync_all()).map_err(fail)?;
    progress.note(&format!("run {id} is here, from {}", copy.address));
    Ok(id)
}

/// Makes the state one that a killed `pipe` would have left in `home`: its job ran on another machine and is gone.
fn adopt(folder: &RunFolder, id: &str, home: &Path) -> Result<(), Error> {
    let read = |source| Error::Read { path: folder.state(), source };
    let text = std::fs::read(folder.state()).map_err(read)?;
    let mut state: RunState = serde_json::from_slice(&text).map_err(|error| read(error.into()))?;
    if state.id != id {
        let reason =
            format!("the copy {id} is that of the run {}; copy it to a folder of that name", visible_line(&state.id));
        return Err(Error::BucketRefused { reason });
    }
    state.cwd = std::env::current_dir().unwrap_or_default();
    state.home = home.to_owned();
    if let Some(attempt) = state.last_attempt_mut() {
        (attempt.job.container, attempt.job.log) = (None, None);
        if attempt.outcome.is_none() {
            attempt.outcome = Some(Outcome::Stopped);
            attempt.cause = Some(Cause::Interrupted);
            attempt.reason = Some("the machine of the run was lost".to_owned());
        }
    }
    if state.status == Status::Orphaned {
        state.status = Status::Running;
    }
    write_json(&folder.state(), &state)
}

/// Fetches files of a run from its bucket to a folder.
pub struct Download<'a> {
    pub copy: &'a RunCopy,
    pub folder: &'a RunFolder,
    pub progress: &'a FetchProgress,
}

impl Download<'_> {
    fn records(&self) -> Result<(), Error> {
        let records: Vec<&StoredFile> =
            self.copy.manifest.files.iter().filter(|file| !file.pieces.is_empty()).collect();
        match self.fetch(&records)?.is_empty() {
            true => Ok(()),
            false => Err(self.damaged("a record of the run")),
        }
    }

    /// The newest checkpoint that is whole, the one that its records call the best, and the model.
    fn checkpoints(&self) -> Result<(), Error> {
        let folder_of = |file: &StoredFile| file.path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
        let stored = || self.copy.manifest.files.iter().filter(|file| file.pieces.is_empty());
        let mut folders: Vec<String> = stored().filter_map(folder_of).collect();
        folders.sort_unstable();
        folders.dedup();
        let files_of = |folder: &str| -> Vec<&StoredFile> {
            stored().filter(|file| folder_of(file).as_deref() == Some(folder)).collect()
        };
        let (mut checkpoints, others): (Vec<String>, Vec<String>) =
            folders.into_iter().partition(|folder| folder.starts_with("checkpoints/"));
        let had_some = !checkpoints.is_empty();
        let mut newest = None;
        while let Some(folder) = checkpoints.pop() {
            if self.fetch(&files_of(&folder))?.is_empty() {
                newest = Some(folder);
                break;
            }
            self.progress.note(&format!("warning: {folder} in the bucket is damaged; going back to one before"));
            std::fs::remove_dir_all(self.folder.path().join(&folder)).ok();
        }
        let Some(newest) = newest else {
            return if had_some { Err(self.damaged("every checkpoint")) } else { Ok(()) };
        };
        let best = best_checkpoint(&self.folder.path().join(&newest)).filter(|best| checkpoints.contains(best));
        for folder in best.iter().chain(&others) {
            if !self.fetch(&files_of(folder))?.is_empty() {
                return Err(self.damaged(folder));
            }
        }
        Ok(())
    }

    fn damaged(&self, what: &str) -> Error {
        let reason = format!("{}: {what} is not what the manifest says", self.copy.address);
        Error::BucketRefused { reason }
    }

    /// Fetches files that are not here yet, several at a time. Those whose content is another than was stored are removed, and
    /// returned.
    pub fn fetch(&self, files: &[&StoredFile]) -> Result<Vec<String>, Error> {
        let is_here = |file: &StoredFile| hash_of(&self.path(file)).is_ok_and(|hash| hash == file.hash);
        let missing: Vec<&StoredFile> = files.iter().copied().filter(|file| !is_here(file)).collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let needed: u64 = missing.iter().fold(0, |sum, file| file.size.saturating_add(sum));
        std::fs::create_dir_all(self.folder.path()).map_err(|source| self.write_error(self.folder.path(), source))?;
        if let Some(space) = Space::at(self.folder.path()).filter(|space| space.free < needed) {
            return Err(self.no_space(needed, space.free));
        }
        self.progress.begin(&self.copy.address.to_string(), missing.iter().map(|file| (0, file.size)).collect());
        let (next, failed, damaged) = (AtomicUsize::new(0), Mutex::new(None), Mutex::new(Vec::new()));
        let work = || {
            while failed.lock().expect("no worker panics").is_none() {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = missing.get(index) else { return };
                match self.fetch_one(file, index) {
                    Ok(true) => {}
                    Ok(false) => damaged.lock().expect("no worker panics").push(file.path.clone()),
                    Err(error) => drop(failed.lock().expect("no worker panics").get_or_insert(error)),
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..WORKERS.min(missing.len()) {
                scope.spawn(work);
            }
        });
        let failed = failed.into_inner().expect("no worker panics");
        self.progress.end(failed.is_none());
        failed.map_or_else(|| Ok(damaged.into_inner().expect("no worker panics")), Err)
    }

    fn no_space(&self, needed: u64, free: u64) -> Error {
        Error::NoRunSpace {
            folder: self.folder.path().to_owned(),
            needed: human_bytes(needed),
            free: human_bytes(free),
        }
    }

    fn write_error(&self, path: &Path, source: std::io::Error) -> Error {
        Error::Write { path: path.to_owned(), source }
    }

    fn path(&self, file: &StoredFile) -> PathBuf {
        self.folder.path().join(&file.path)
    }

    /// Fetches one file, which is there as a whole or not at all; false where it is not what was stored.
    fn fetch_one(&self, file: &StoredFile, index: usize) -> Result<bool, Error> {
        let is_inside = file.path.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !is_inside || file.path.contains('\0') {
            return Ok(false);
        }
        let path = self.path(file);
        let fail = |source| self.write_error(&path, source);
        std::fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(fail)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let staged = path.with_file_name(format!(".{name}.part"));
        let mut written = File::create(&staged).map_err(fail)?;
        let mut hasher = blake3::Hasher::new();
        let mut size = 0;
        let own = [file.path.clone()];
        let pieces: Vec<String> = file.pieces.iter().map(|hash| piece_path(hash)).collect();
        for object in if pieces.is_empty() { own.as_slice() } else { pieces.as_slice() } {
            let object = self.copy.address.join(object);
            let mut from = 0;
            let mut tries = 0;
            loop {
                let before = size;
                let received = self.receive(&self.copy.bucket, &object, &mut from, |bytes| {
                    hasher.update(bytes);
                    size += bytes.len() as u64;
                    self.progress.at(index, size.min(file.size));
                    if size > file.size { Ok(false) } else { written.write_all(bytes).map(|()| true) }
                })?;
                let Err(failure) = received else { break };
                tries = if size > before { 1 } else { tries + 1 };
                match failure {
                    Failure::Unavailable(_) if tries < TRIES => {
                        std::thread::sleep(std::time::Duration::from_millis(250 << tries));
                    }
                    Failure::Missing(_) => return Ok(false),
                    failure => return Err(failure.into()),
                }
            }
        }
        written.sync_all().map_err(fail)?;
        let is_whole = size == file.size && hasher.finalize().to_hex().as_str() == file.hash;
        match is_whole {
            true => std::fs::rename(&staged, &path).map_err(fail)?,
            false => std::fs::remove_file(&staged).map_err(fail)?,
        }
        Ok(is_whole)
    }

    /// Receives an object from byte `from` on, which counts what came, until `take` wants no more. The outer error is one of this machine.
    fn receive(
        &self,
        bucket: &Bucket,
        object: &str,
        from: &mut u64,
        mut take: impl FnMut(&[u8]) -> std::io::Result<bool>,
    ) -> Result<Result<(), Failure>, Error> {
        let mut body = match bucket.get(object, *from, None) {
            Ok(body) => body,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut piece = vec![0; PIECE];
        loop {
            match body.read(&mut piece) {
                Ok(0) => return Ok(Ok(())),
                Ok(count) => {
                    *from += count as u64;
                    if !take(&piece[..count]).map_err(|source| self.write_error(self.folder.path(), source))? {
                        return Ok(Ok(()));
                    }
                }
                Err(error) => return Ok(Err(Failure::Unavailable(format!("{}: {error}", self.copy.address)))),
            }
        }
    }
}

fn hash_of(path: &Path) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// The checkpoint that the trainer keeps because it is the best, by the state in another one.
fn best_checkpoint(newest: &Path) -> Option<String> {
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(newest.join("state.json")).ok()?).ok()?;
    let step = state["metrics"]["save_best"]["best"]["step"].as_u64()?;
    Some(format!("checkpoints/{}", pipe_spec::run::checkpoint_name(step)))
}

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
