//! The files that a pod gives back: `pipe-job files` is the process of the container that has the files of a job, and `pipe-job send`, which
//! `pipe` starts in it, writes to stdout what the job writes.
//!
//! `send --folder FOLDER --control FOLDER --streams PATHS --whole NAMES --checkpoints FOLDER --pattern PATTERN --last PATH`: the folder of
//! the attempt; files that grow, which are sent as they do; folders whose files are sent once they do not change; the folder whose folders of
//! these names are checkpoints, each of which is sent as a whole; and the record of the end, which is sent once all else was. Names have
//! commas between them. `--growing PATTERNS` names files of these folders that are only added to, `--without PATTERNS` those that stay, and
//! `--after PATH` one that is sent after all others. With `--over yes --keep NAMES` the job is given up: what these folders have now is kept for the next attempt before
//! anything is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Stdout, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::frames::{Frame, Kind, changed, files_below, is_absent, next_piece, open_below};
use super::kept::freeze;
use crate::frames::Flags;

const INTERVAL: Duration = Duration::from_millis(200);

/// Between two signs of life of a connection that has nothing to send.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

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

/// Writes a file of the folder that containers of a pod share. The job may have put a link there.
pub fn mark(path: &Path) -> io::Result<()> {
    match File::create_new(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Whether the job has begun, and has ended since.
fn has_ended(control: &Path) -> bool {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = File::options().write(true).custom_flags(flags).open(control.join(LOCK)) else { return false };
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
    checkpoints: Checkpoints,
    /// Patterns of files that are only added to, and of files that stay.
    growing: Vec<String>,
    without: Vec<String>,
    /// The file that is sent after all others.
    after: String,
    /// The record of the end of the job.
    last: String,
    /// The files that `pipe` has.
    sent: BTreeMap<String, State>,
    /// Files as they were last seen, and since when.
    seen: BTreeMap<String, (State, Instant)>,
    to: BufWriter<Stdout>,
    written: Instant,
}

/// The folders that are sent as a whole: those of a folder whose names match a pattern.
struct Checkpoints {
    folder: String,
    pattern: String,
}

impl Checkpoints {
    /// The checkpoint that a file belongs to.
    fn of<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(&self.folder)?.strip_prefix('/').filter(|_| !self.folder.is_empty())?;
        let (name, _) = rest.split_once('/')?;
        let is_one = !is_staged(name) && matches(self.pattern.as_bytes(), name.as_bytes());
        is_one.then(|| &path[..self.folder.len() + 1 + name.len()])
    }
}

fn is_any_of(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern.as_bytes(), path.as_bytes()))
}

/// Whether a name is what the pattern describes: `*` is any text, `?` one character.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => matches(rest, name) || !name.is_empty() && matches(pattern, &name[1..]),
        (Some((b'?', rest)), Some((first, _))) => {
            // The bytes of one character.
            let length = 1 + name[1..].iter().take_while(|byte| *first >= 0xc0 && **byte & 0xc0 == 0x80).count();
            matches(rest, &name[length..])
        }
        (Some((byte, rest)), Some((first, others))) => byte == first && matches(rest, others),
        _ => false,
    }
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
    let mut sender = Sender {
        folder: flags.path("--folder")?,
        streams: names("--streams")?,
        whole: names("--whole")?,
        checkpoints: Checkpoints {
            folder: flags.text("--checkpoints")?.to_owned(),
            pattern: flags.text("--pattern")?.to_owned(),
        },
        growing: names("--growing")?,
        without: names("--without")?,
        after: flags.text("--after")?.to_owned(),
        last: flags.text("--last")?.to_owned(),
        sent: present()?,
        seen: BTreeMap::new(),
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
    // Where `pipe` has it, it has all.
    sender.file(&sender.last.clone())?;
    Frame::of(Kind::End, "").write(&mut sender.to)?;
    sender.to.flush()?;
    let _ = acknowledged.join();
    mark(&control.join(FETCHED))
}

/// The files that `pipe` has already.
fn present() -> io::Result<BTreeMap<String, State>> {
    let mut found = BTreeMap::new();
    let mut input = io::stdin().lock();
    loop {
        let frame = Frame::read(&mut input)?;
        match frame.kind {
            Kind::End => return Ok(found),
            Kind::Have => drop(found.insert(frame.path, (frame.size, frame.changed))),
            _ => {}
        }
    }
}

impl Sender {
    /// Sends what has changed; all of it when the job has ended.
    fn look(&mut self, is_last: bool) -> io::Result<()> {
        for path in self.streams.clone() {
            self.stream(&path)?;
        }
        let (files, has_all) = self.files()?;
        if has_all {
            self.tell_of_removed(&files)?;
        }
        let (mut single, mut checkpoints) = (Vec::new(), BTreeMap::<String, Vec<(String, State)>>::new());
        for (path, state) in files {
            match self.checkpoints.of(&path) {
                _ if is_any_of(&self.growing, &path) => self.stream(&path)?,
                Some(checkpoint) => checkpoints.entry(checkpoint.to_owned()).or_default().push((path, state)),
                // A checkpoint that is being written is in no other folder.
                None if !is_staged(&path) || is_last && is_below(&self.whole, &path) => single.push((path, state)),
                None => {}
            }
        }
        let (after, single): (Vec<_>, Vec<_>) = single.into_iter().partition(|(path, _)| *path == self.after);
        self.send_files(&single, is_last)?;
        for (path, files) in checkpoints {
            self.checkpoint(&path, &files, is_last)?;
        }
        self.send_files(&after, is_last)?;
        if self.written.elapsed() > ALIVE_INTERVAL {
            self.frame(&Frame::of(Kind::Alive, ""))?;
        }
        self.to.flush()
    }

    /// Sends those of these files that have changed, and are not changing now.
    fn send_files(&mut self, files: &[(String, State)], is_last: bool) -> io::Result<()> {
        for (path, state) in files {
            if self.is_still(path, *state, is_last) && self.sent.get(path) != Some(state) {
                self.file(path)?;
            }
        }
        Ok(())
    }

    /// All files but the streams, those that stay and the record of the end, and whether each of their folders is there.
    fn files(&self) -> io::Result<(BTreeMap<String, State>, bool)> {
        let (mut files, mut has_all) = (BTreeMap::new(), true);
        let names = self.whole.iter().chain(Some(&self.checkpoints.folder).filter(|folder| !folder.is_empty()));
        for name in names {
            let found = files_below(&self.folder, name, &mut |path, meta| {
                if path != self.last && !self.streams.contains(&path) && !is_any_of(&self.without, &path) {
                    files.insert(path, (meta.len(), changed(&meta)));
                }
            });
            match found {
                Err(error) if is_absent(&error) => has_all = false,
                found => found?,
            }
        }
        Ok((files, has_all))
    }

    /// Whether a file has not changed for a while, or never will.
    fn is_still(&mut self, path: &str, state: State, is_last: bool) -> bool {
        let known = self.seen.entry(path.to_owned()).or_insert((state, Instant::now()));
        if known.0 != state {
            *known = (state, Instant::now());
        }
        is_last || known.1.elapsed() > STILL
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        self.written = Instant::now();
        frame.write(&mut self.to)
    }

    /// Tells of files that `pipe` has and that are not there any more; of a whole checkpoint at once. The folder of the first process has
    /// files of `pipe` too.
    fn tell_of_removed(&mut self, files: &BTreeMap<String, State>) -> io::Result<()> {
        let own = self.last.split('/').next().unwrap_or_default().to_owned();
        let is_known = |path: &str| {
            !is_below(std::slice::from_ref(&own), path)
                && (is_below(&self.whole, path) || self.checkpoints.of(path).is_some())
        };
        let gone: Vec<String> =
            self.sent.keys().filter(|path| !files.contains_key(*path) && is_known(path)).cloned().collect();
        let left: BTreeSet<&str> = files.keys().filter_map(|path| self.checkpoints.of(path)).collect();
        let mut told = BTreeSet::new();
        for path in gone {
            self.sent.remove(&path);
            let checkpoint = self.checkpoints.of(&path).map(str::to_owned);
            match checkpoint {
                // One that has lost files is sent again.
                Some(checkpoint) if left.contains(checkpoint.as_str()) => {
                    if let Some(one) = files.keys().find(|path| self.checkpoints.of(path) == Some(&checkpoint)) {
                        self.sent.remove(one);
                    }
                }
                Some(checkpoint) if !told.insert(checkpoint.clone()) => {}
                Some(checkpoint) => self.frame(&Frame::of(Kind::Removed, &checkpoint))?,
                None => self.frame(&Frame::of(Kind::Removed, &path))?,
            }
        }
        Ok(())
    }

    /// Sends what was added to a file, without its holes; one that was cut is sent from its beginning.
    fn stream(&mut self, path: &str) -> io::Result<()> {
        let Ok(mut file) = open_file(&self.folder, path) else { return Ok(()) };
        let (length, at) = (file.metadata()?.len(), self.sent.get(path).map_or(0, |(size, _)| *size));
        let mut at = if length < at { 0 } else { at };
        while let Some((offset, size)) = next_piece(&file, at, length) {
            file.seek(SeekFrom::Start(offset))?;
            let frame = Frame { size, offset, ..Frame::of(Kind::Append, path) };
            frame.write_data(&mut file, &mut self.to)?;
            self.written = Instant::now();
            at = offset + size;
        }
        self.sent.insert(path.to_owned(), (at, 0));
        Ok(())
    }

    /// Sends a file; whether it is there. What cannot be read is not missing.
    fn file(&mut self, path: &str) -> io::Result<bool> {
        let mut file = match open_file(&self.folder, path) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(false),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        };
        let frame = Frame::of_file(path, &file.metadata()?);
        frame.write_data(&mut file, &mut self.to)?;
        self.written = Instant::now();
        self.sent.insert(path.to_owned(), (frame.size, frame.changed));
        Ok(true)
    }

    /// Sends a checkpoint: all of it or nothing.
    fn checkpoint(&mut self, path: &str, files: &[(String, State)], is_last: bool) -> io::Result<()> {
        let still: Vec<bool> = files.iter().map(|(path, state)| self.is_still(path, *state, is_last)).collect();
        let is_new = files.iter().any(|(path, state)| self.sent.get(path) != Some(state));
        if !is_new || still.contains(&false) {
            return Ok(());
        }
        for (file, _) in files {
            // One that goes away meanwhile was replaced: the next look sends what is there then.
            if !self.file(file)? {
                self.sent.retain(|known, _| self.checkpoints.of(known) != Some(path));
                return Ok(());
            }
        }
        self.frame(&Frame::of(Kind::Complete, path))
    }
}

fn is_below(names: &[String], path: &str) -> bool {
    names.iter().any(|name| path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/')))
}

/// The job may have put a link or a pipe there.
fn open_file(folder: &Path, path: &str) -> io::Result<File> {
    let file = open_below(folder, path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Whether a name is that of something that is being written.
fn is_staged(path: &str) -> bool {
    let is_own = |name: &str| name.starts_with('.') || [".new", ".tmp", ".old"].iter().any(|end| name.ends_with(end));
    path.split('/').any(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_checkpoints() {
        for (pattern, name, want) in [
            ("*", "step-1", true),
            ("checkpoint-*", "checkpoint-500", true),
            ("checkpoint-*", "runs", false),
            ("epoch=?.ckpt", "epoch=\u{e9}.ckpt", true),
            ("epoch=?.ckpt", "epoch=12.ckpt", false),
            ("*-*-last", "a-b-last-last", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), want, "{pattern} {name}");
        }
        let checkpoints = Checkpoints { folder: "output/out".to_owned(), pattern: "checkpoint-*".to_owned() };
        assert_eq!(checkpoints.of("output/out/checkpoint-5/a/b"), Some("output/out/checkpoint-5"));
        for path in [
            "output/out/log.txt",
            "output/other/checkpoint-5/a",
            "output/outer/checkpoint-5/a",
            "output/out/checkpoint-5",
        ] {
            assert_eq!(checkpoints.of(path), None, "{path}");
        }
    }
}
