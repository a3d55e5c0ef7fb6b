//! The files that a pod gives back: `pipe-job files` is the process of the container that has the files of a job, and `pipe-job send`, which
//! `pipe` starts in it, writes to stdout what the job writes.
//!
//! `send --folder FOLDER --control FOLDER --streams PATHS --whole NAMES --folders NAMES`: the folder of the attempt; files that grow,
//! which are sent as they do; folders whose files are sent once they do not change; folders whose folders are complete when they are
//! there, such as checkpoints. Names have commas between them. With `--over yes --keep NAMES` the job is given up: what these folders
//! have now is kept for the next attempt before anything is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Stdout, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::frames::{Frame, Kind, changed, files_below};
use super::kept::freeze;
use super::options::Flags;

const INTERVAL: Duration = Duration::from_millis(200);

/// Between two signs of life of a connection that has nothing to send.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// How long a file must have stayed the same before it is sent while the job runs.
const STILL: Duration = Duration::from_secs(1);

/// How long files wait for `pipe` after their pod was asked to end.
const LAST_WAIT: Duration = Duration::from_secs(20);

/// Files of the folder that containers of a pod share: the job holds a lock on the first for as long as it lives, and the second says
/// that `pipe` has all of its files.
pub const LOCK: &str = "lock";
const FETCHED: &str = "fetched";

/// Holds the lock that says that the job lives. The file is there only once it is locked.
pub fn hold_lock(path: &Path) -> io::Result<File> {
    let new = path.with_extension("new");
    let file = File::options().create(true).truncate(false).write(true).open(&new)?;
    // SAFETY: flock takes two integers.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
        return Err(io::Error::last_os_error());
    }
    std::fs::rename(new, path).map(|()| file)
}

/// Whether the job has begun, and has ended since.
fn has_ended(control: &Path) -> bool {
    let Ok(file) = File::options().write(true).open(control.join(LOCK)) else { return false };
    // SAFETY: flock takes two integers.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) == 0 }
}

static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn note_request(_: libc::c_int) {
    ASKED_TO_END.store(true, Ordering::Relaxed);
}

/// The first process of a container gets no signal that it has no handler for.
pub fn heed_requests() {
    let handler = note_request as extern "C" fn(libc::c_int);
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
}

/// Whether SIGTERM has come.
pub fn is_asked_to_end() -> bool {
    ASKED_TO_END.load(Ordering::Relaxed)
}

/// `files --control FOLDER --linger SECONDS`: lives until the job has ended and `pipe` has its files, or has not come for so long.
pub fn stay(flags: &Flags) -> io::Result<()> {
    heed_requests();
    let (control, linger) = (flags.path("--control")?, Duration::from_secs(flags.number("--linger")?));
    let (mut ended, mut asked) = (None, None);
    loop {
        std::thread::sleep(INTERVAL);
        let is_asked = is_asked_to_end();
        if is_asked {
            asked.get_or_insert_with(Instant::now);
        }
        let has_begun = control.join(LOCK).exists();
        if has_ended(&control) {
            ended.get_or_insert_with(Instant::now);
        }
        let wait = if is_asked { linger.min(LAST_WAIT) } else { linger };
        let is_over = match ended {
            _ if control.join(FETCHED).exists() => true,
            // Whoever fetches the files now is not interrupted.
            Some(at) => at.elapsed() > wait && !is_in_use(),
            None => !has_begun && asked.is_some_and(|at: Instant| at.elapsed() > STILL),
        };
        if is_over {
            return Ok(());
        }
    }
}

/// Whether another process of this container runs.
fn is_in_use() -> bool {
    let own = std::process::id();
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).any(|id| id != own)
}

/// A state of a file: its size and when it changed.
type State = (u64, i64);

struct Sender {
    folder: PathBuf,
    streams: Vec<String>,
    whole: Vec<String>,
    folders: Vec<String>,
    /// The files that `pipe` has.
    sent: BTreeMap<String, State>,
    /// Files as they were last seen, and since when.
    seen: BTreeMap<String, (State, Instant)>,
    /// Folders that were sent as complete.
    complete: BTreeSet<String>,
    to: BufWriter<Stdout>,
    written: Instant,
}

pub fn send(flags: &Flags) -> io::Result<()> {
    let names = |flag: &str| -> io::Result<Vec<String>> {
        Ok(flags.text(flag)?.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    };
    let control = flags.path("--control")?;
    // The pod of a job that is gone has left its files on a volume.
    let is_over = flags.text("--over").is_ok_and(|value| value == "yes");
    if is_over {
        freeze(&flags.path("--folder")?, flags.text("--keep")?)?;
    }
    let mut sent = BTreeMap::new();
    let mut input = io::stdin().lock();
    loop {
        let frame = Frame::read(&mut input)?;
        match frame.kind {
            Kind::End => break,
            Kind::Have => drop(sent.insert(frame.path, (frame.size, frame.changed))),
            _ => {}
        }
    }
    drop(input);
    let mut sender = Sender {
        folder: flags.path("--folder")?,
        streams: names("--streams")?,
        whole: names("--whole")?,
        folders: names("--folders")?,
        sent,
        seen: BTreeMap::new(),
        complete: BTreeSet::new(),
        to: BufWriter::with_capacity(1 << 16, io::stdout()),
        written: Instant::now(),
    };
    // A `pipe` that is gone closes the connection.
    let acknowledged = std::thread::spawn(|| {
        let mut input = io::stdin().lock();
        loop {
            match Frame::read(&mut input) {
                Ok(frame) if frame.kind == Kind::End => return,
                Ok(_) => {}
                Err(_) => std::process::exit(1),
            }
        }
    });
    loop {
        let is_last = is_over || has_ended(&control);
        sender.look(is_last)?;
        if is_last {
            break;
        }
        std::thread::sleep(INTERVAL);
    }
    Frame::of(Kind::End, "").write(&mut sender.to)?;
    sender.to.flush()?;
    let _ = acknowledged.join();
    std::fs::write(control.join(FETCHED), "")
}

impl Sender {
    /// Sends what has changed; all of it when the job has ended.
    fn look(&mut self, is_last: bool) -> io::Result<()> {
        for path in self.streams.clone() {
            self.stream(&path)?;
        }
        let mut files = Vec::new();
        for name in &self.whole {
            files_below(&self.folder, name, &mut |path, meta| files.push((path, meta)));
        }
        files.retain(|(path, _)| !self.streams.contains(path) && (is_last || !is_staged(path)));
        for (path, meta) in files {
            let state = (meta.len(), changed(&meta));
            let known = self.seen.entry(path.clone()).or_insert((state, Instant::now()));
            if known.0 != state {
                *known = (state, Instant::now());
            }
            let is_still = is_last || known.1.elapsed() > STILL;
            if is_still && self.sent.get(&path) != Some(&state) {
                self.file(&path)?;
            }
        }
        for name in self.folders.clone() {
            self.folders_of(&name)?;
        }
        if self.written.elapsed() > ALIVE_INTERVAL {
            self.frame(&Frame::of(Kind::Alive, ""))?;
        }
        self.to.flush()
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        self.written = Instant::now();
        frame.write(&mut self.to)
    }

    /// The job may have put a link there: none is followed.
    fn open(&self, path: &str) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(self.folder.join(path))?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Sends what was added to a file; one that was cut is sent from its beginning.
    fn stream(&mut self, path: &str) -> io::Result<()> {
        let Ok(mut file) = self.open(path) else { return Ok(()) };
        let (length, at) = (file.metadata()?.len(), self.sent.get(path).map_or(0, |(size, _)| *size));
        let offset = if length < at { 0 } else { at };
        if length == at {
            return Ok(());
        }
        file.seek(SeekFrom::Start(offset))?;
        let frame = Frame { size: length - offset, offset, ..Frame::of(Kind::Append, path) };
        frame.write_data(&mut file, &mut self.to)?;
        self.written = Instant::now();
        self.sent.insert(path.to_owned(), (length, 0));
        Ok(())
    }

    fn file(&mut self, path: &str) -> io::Result<()> {
        let Ok(mut file) = self.open(path) else { return Ok(()) };
        let meta = file.metadata()?;
        let frame = Frame { size: meta.len(), changed: changed(&meta), ..Frame::of(Kind::File, path) };
        frame.write_data(&mut file, &mut self.to)?;
        self.written = Instant::now();
        self.sent.insert(path.to_owned(), (frame.size, frame.changed));
        Ok(())
    }

    /// The folders in a folder, each whole; and which of them are gone.
    fn folders_of(&mut self, name: &str) -> io::Result<()> {
        let entries = std::fs::read_dir(self.folder.join(name)).into_iter().flatten().flatten();
        let paths = entries.filter_map(|entry| Some(format!("{name}/{}", entry.file_name().into_string().ok()?)));
        let present: BTreeSet<String> = paths.filter(|path| !is_staged(path)).collect();
        for path in present.difference(&self.complete.clone()) {
            let mut files = Vec::new();
            files_below(&self.folder, path, &mut |path, meta| files.push((path, (meta.len(), changed(&meta)))));
            let missing: Vec<_> = files.iter().filter(|(path, state)| self.sent.get(path) != Some(state)).collect();
            // All of it or nothing: what is there only in part is sent again.
            if !missing.is_empty() {
                files.iter().try_for_each(|(path, _)| self.file(path))?;
                self.frame(&Frame::of(Kind::Complete, path))?;
            }
            self.complete.insert(path.clone());
        }
        let is_gone = |path: &&String| !present.contains(&first_two(path));
        let prefix = format!("{name}/");
        let known = self.sent.keys().filter(|path| path.starts_with(&prefix));
        let gone: BTreeSet<String> = known.filter(is_gone).map(|path| first_two(path)).collect();
        for path in gone {
            self.frame(&Frame::of(Kind::Removed, &path))?;
            self.complete.remove(&path);
            self.sent.retain(|known, _| first_two(known) != path);
        }
        Ok(())
    }
}

fn first_two(path: &str) -> String {
    path.splitn(3, '/').take(2).collect::<Vec<_>>().join("/")
}

/// Whether a name is that of something that is being written.
fn is_staged(path: &str) -> bool {
    let is_own = |name: &str| name.starts_with('.') || [".new", ".tmp", ".old"].iter().any(|end| name.ends_with(end));
    path.split('/').any(is_own)
}
