//! Changes in the folder of runs, as the kernel reports them (inotify). Nothing is polled, so an idle server takes no time.

use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, broadcast};

use super::folders::{Folders, key_of};

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
