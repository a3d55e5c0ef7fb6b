//! The folders of runs that are shown, the keys of the runs in them, and changes there, as the kernel reports them (inotify). Nothing is
//! polled, so an idle server takes no time.

use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pipe_spec::Variables;
use pipe_spec::bucket::BucketAddress;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, broadcast};

use crate::bucket::restore::RunCopies;
use crate::error::Error;
use crate::system::files::absolute;

/// The folders of runs: first that of `PIPE_RUNS`, whose label is empty.
pub struct Folders(Vec<RunsFolder>);

pub struct RunsFolder {
    pub label: String,
    pub path: PathBuf,
    /// The folder of a bucket that it is a copy of.
    pub bucket: Option<BucketAddress>,
}

impl Folders {
    pub fn new(runs: &Path, others: Vec<(PathBuf, Option<BucketAddress>)>) -> Self {
        let mut folders = vec![RunsFolder { label: String::new(), path: runs.to_owned(), bucket: None }];
        for (path, bucket) in others {
            let name = path.file_name().map_or("other".into(), |name| name.to_string_lossy()).into_owned();
            let mut labels = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
            let is_free = |label: &String| folders.iter().all(|known| known.label != *label);
            let Some(label) = labels.find(is_free).filter(|_| folders.iter().all(|known| known.path != path)) else {
                continue;
            };
            folders.push(RunsFolder { label, path, bucket });
        }
        Self(folders)
    }

    pub fn iter(&self) -> impl Iterator<Item = &RunsFolder> {
        self.0.iter()
    }

    /// Where the run with this key is, whether there is one or not; nothing where no folder has the label.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        self.find(key).map(|(folder, name)| folder.path.join(name))
    }

    /// The address of the run with this key in a bucket, where it is a copy from there.
    pub fn address(&self, key: &str) -> Option<BucketAddress> {
        let (folder, name) = self.find(key)?;
        folder.bucket.as_ref().map(|bucket| bucket.at(&bucket.join(name)))
    }

    fn find<'a>(&self, key: &'a str) -> Option<(&RunsFolder, &'a str)> {
        let (label, name) = match key.split_once('/') {
            Some(("", _)) => return None,
            Some(found) => found,
            None => ("", key),
        };
        let is_name = !matches!(name, "" | "." | "..") && !name.contains('/');
        self.0.iter().find(|known| known.label == label && is_name).map(|known| (known, name))
    }
}

/// A folder of runs by the word that names it. One in a bucket is copied to a folder below `copies`, as long as the process lives.
pub fn open(text: &str, copies: &Path, variables: &Variables) -> Result<(PathBuf, Option<BucketAddress>), Error> {
    if !BucketAddress::is_meant(text) {
        let path = absolute(Path::new(text));
        std::fs::read_dir(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        return Ok((path, None));
    }
    let refused = || Error::BucketRefused { reason: format!("{text:?} is none of {}", BucketAddress::ALLOWED) };
    let address = BucketAddress::parse(text).ok_or_else(refused)?;
    let name = if address.path.is_empty() { address.bucket.as_str() } else { address.parent().1 };
    let above = copies.join(&blake3::hash(text.as_bytes()).to_hex()[..16]);
    let folder = above.join(name);
    std::fs::create_dir_all(&folder).map_err(|source| Error::Write { path: folder.clone(), source })?;
    let copies = RunCopies::open(address.clone(), folder.clone(), variables)?;
    std::thread::spawn(move || copies.follow());
    Ok((folder, Some(address)))
}

/// The key of a run: the name of its folder, after the label of the folder that this is in.
pub fn key_of(label: &str, name: &str) -> String {
    if label.is_empty() { name.to_owned() } else { format!("{label}/{name}") }
}

/// The key of a part of a run, such as a trial, which lies beside it.
pub fn key_beside(key: &str, name: &str) -> String {
    key_of(key.split_once('/').map_or("", |(label, _)| label), name)
}

/// The kind of a change of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Lines were added to a log.
    Log,
    Run,
}

/// The runs that changed.
#[derive(Debug, Default)]
pub struct Dirty {
    /// Whether any run may have changed: the kernel could not tell all.
    pub all: bool,
    /// By their keys.
    pub runs: BTreeMap<String, What>,
}

/// The content of a watched folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A folder of runs, by its label.
    Runs(String),
    /// A run, by its key.
    Run(String),
    /// An attempt of a run.
    Attempt(String),
}

#[derive(Default)]
struct Watches {
    places: HashMap<i32, Place>,
    numbers: HashMap<PathBuf, i32>,
    /// Whether the kernel has refused a watch: it allows only so many.
    refused: bool,
}

/// Changes that are waiting to be sent to browsers, at most; one that is slower than that shows everything again.
const BACKLOG: usize = 64;

pub struct Changes {
    folders: Arc<Folders>,
    inotify: Option<AsyncFd<OwnedFd>>,
    watches: Mutex<Watches>,
    dirty: Mutex<Dirty>,
    pub wake: Notify,
    /// The changes, sent to all browsers.
    pub news: broadcast::Sender<Arc<BTreeMap<String, What>>>,
}

impl Changes {
    /// Watches these folders. Needs a running tokio runtime.
    pub fn new(folders: Arc<Folders>) -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(std::io::Error::from);
        let inotify = inotify.and_then(register).inspect_err(|error| tracing::warn!("changes are not seen: {error}"));
        let changes = Self {
            folders: folders.clone(),
            inotify: inotify.ok(),
            watches: Mutex::default(),
            dirty: Mutex::new(Dirty { all: true, ..Dirty::default() }),
            wake: Notify::new(),
            news: broadcast::channel(BACKLOG).0,
        };
        folders.iter().for_each(|folder| changes.watch(&folder.path, Place::Runs(folder.label.clone())));
        changes
    }

    /// Whether all changes are seen without a reload.
    pub fn sees_all(&self) -> bool {
        let watches = self.watches.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let watched = watches.places.values().filter(|place| matches!(place, Place::Runs(_))).count();
        !watches.refused && watched == self.folders.iter().count()
    }

    /// Watches the folder of a run.
    pub fn watch_run(&self, name: &str) {
        if let Some(path) = self.folders.path(name) {
            self.watch(&path, Place::Run(name.to_owned()));
        }
    }

    /// Watches the folder of an attempt, where its log is.
    pub fn watch_attempt(&self, name: &str, folder: &Path) {
        self.watch(folder, Place::Attempt(name.to_owned()));
    }

    fn watch(&self, path: &Path, place: Place) {
        let Some(inotify) = &self.inotify else { return };
        let mut watches = self.watches.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if watches.numbers.contains_key(path) {
            return;
        }
        let what = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            // The end of the process that owns a run closes its files.
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(inotify.get_ref(), path, what) {
            Ok(number) => {
                watches.places.insert(number, place);
                watches.numbers.insert(path.to_owned(), number);
            }
            Err(Errno::NOSPC) => watches.refused = true,
            Err(error) => tracing::debug!("{} is not watched: {error}", path.display()),
        }
    }

    /// The changes since this was last called.
    pub fn take(&self) -> Dirty {
        std::mem::take(&mut self.dirty.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Reads what the kernel tells, for as long as the server runs.
    pub async fn read(&self) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        loop {
            let Ok(mut ready) = inotify.readable().await else { return };
            self.read_all(inotify.get_ref());
            ready.clear_ready();
        }
    }

    fn read_all(&self, inotify: &OwnedFd) {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut has_news = false;
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            has_news |= self.note(event.wd(), event.events(), name);
        }
        if has_news {
            self.wake.notify_one();
        }
    }

    /// Takes in one event; whether it tells of a change.
    fn note(&self, number: i32, events: ReadFlags, name: String) -> bool {
        let mut watches = self.watches.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut dirty = self.dirty.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            dirty.all = true;
            return true;
        }
        if events.contains(ReadFlags::IGNORED) {
            watches.places.remove(&number);
            watches.numbers.retain(|_, known| *known != number);
            return false;
        }
        let (run, what) = match watches.places.get(&number) {
            // A name with a dot is that of a run which is still being fetched.
            Some(Place::Runs(_)) if name.starts_with('.') => return false,
            Some(Place::Runs(label)) => (key_of(label, &name), What::Run),
            Some(Place::Run(run)) => match name.as_str() {
                "run.json" | "events.jsonl" | "lock.json" | "attempts" | "model" | "notes.json" => {
                    (run.clone(), What::Run)
                }
                // Its owner writes to it every few seconds.
                ".owner" if events.contains(ReadFlags::CLOSE_WRITE) => (run.clone(), What::Run),
                _ => return false,
            },
            Some(Place::Attempt(run)) if name == "log.txt" => (run.clone(), What::Log),
            Some(Place::Attempt(_)) | None => return false,
        };
        let known = dirty.runs.entry(run).or_insert(what);
        *known = what.max(*known);
        true
    }
}

fn register(inotify: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: its descriptor stays open, and is the same, as long as it is owned here.
    let registered = unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) };
    registered.map_err(std::io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_labels() {
        let bucket = BucketAddress::parse("s3://lab/team/runs");
        let others = ["/b/runs", "/c/runs", "/a/runs", "/"].map(|path| (PathBuf::from(path), None));
        let others = others.into_iter().chain([(PathBuf::from("/d/runs"), bucket)]).collect();
        let folders = Folders::new(Path::new("/a/runs"), others);
        let labels: Vec<&str> = folders.iter().map(|folder| folder.label.as_str()).collect();
        assert_eq!(labels, ["", "runs", "runs-2", "other", "runs-3"]);
        let address = |key: &str| folders.address(key).map(|address| address.to_string());
        assert_eq!((address("runs/x"), address("runs-3/x")), (None, Some("s3://lab/team/runs/x".to_owned())));
        let path = |key: &str| folders.path(key).map(|path| path.display().to_string()).unwrap_or_default();
        assert_eq!([path("x"), path("runs/x"), path("runs-2/x")], ["/a/runs/x", "/b/runs/x", "/c/runs/x"]);
        assert_eq!(
            [path(""), path(".."), path("runs/.."), path("none/x"), path("runs/x/y"), path("/x")],
            [""; 6].map(str::to_owned)
        );
        assert_eq!((key_beside("runs/x", "y"), key_beside("x", "y")), ("runs/y".to_owned(), "y".to_owned()));
    }
}
