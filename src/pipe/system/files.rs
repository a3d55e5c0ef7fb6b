//! Files and folders: written whole, read within bounds, hashed. Knows nothing of runs, engines or training.
//!
//! A file is written whole or not at all.
//!
//! Small files that people name: read whole, but only regular files and only up to a bound.
//!
//! Files that are locked: for their owner alone, because whoever can open a file can lock it.
//!
//! The space of a file system.
//!
//! Paths below a folder that is the root of a container: its symbolic links lead to places in the folder, never out of it.
//!
//! Patterns for names of files and runs.

use std::ffi::OsString;
use std::fs::{File, FileType, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::OFlags;

use crate::error::Error;

pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Refuses a path that is not UTF-8: what is written about a run could not name it.
pub fn check_utf8(what: &'static str, path: &Path) -> Result<(), Error> {
    if path.to_str().is_some() { Ok(()) } else { Err(Error::NotUtf8 { what, path: path.to_owned() }) }
}

/// Writes under a random temporary name, syncs, renames, syncs the folder: a reader sees the old content
/// or the new, never a part, also after a crash of the machine.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        // As any file is made: the user's umask says who may read it.
        let mode = Permissions::from_mode(0o666);
        let prefix = format!(".{name}.");
        let mut file = tempfile::Builder::new().prefix(&prefix).suffix(".tmp").permissions(mode).tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|source: std::io::Error| Error::Write { path: path.to_owned(), source })
}

/// Writes a JSON file, whole.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Write { path: path.to_owned(), source: error.into() })?;
    text.push('\n');
    write_whole(path, text.as_bytes())
}

/// Opens a regular file. A device, a pipe or a folder is an error at once.
pub fn open(path: &Path) -> Result<File, Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    // Opening a pipe must not wait for its other end.
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(|source| {
        // A socket cannot be opened at all.
        let what = std::fs::metadata(path).ok().map(|meta| meta.file_type()).filter(FileTypeExt::is_socket);
        what.map_or_else(|| read_error(source), |what| Error::NotAFile { path: path.to_owned(), what: noun(what) })
    })?;
    let kind = file.metadata().map_err(read_error)?.file_type();
    if kind.is_file() { Ok(file) } else { Err(Error::NotAFile { path: path.to_owned(), what: noun(kind) }) }
}

/// Bytes of a file that `pipe` wrote itself, at most.
const OWN_LIMIT: u64 = 1 << 30;

/// Opens a file of a run folder. Whoever else can write there may have put a pipe in its place, which must not be waited for, or a link
/// to a file that only this user may read.
pub fn open_own(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")),
    }
}

/// The content of a file of a run folder.
pub fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_own(path)?;
    if file.metadata()?.len() > OWN_LIMIT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    file.take(OWN_LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same of a text.
pub fn read_own_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_own(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn noun(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

/// Says what a path is, if it is neither a regular file nor a folder on a disk: a device, say, or what the kernel shows in /proc.
/// Opens nothing.
pub fn special(path: &Path) -> io::Result<Option<&'static str>> {
    let kind = std::fs::metadata(path)?.file_type();
    Ok(match kind.is_file() || kind.is_dir() {
        true => is_of_kernel(path).then_some(OF_KERNEL),
        false => Some(noun(kind)),
    })
}

/// Describes a file that `is_of_kernel`.
pub const OF_KERNEL: &str = "part of a file system of the kernel";

/// The magic numbers of /proc, /sys and what is mounted below them: reading there may wait, or never end.
const KERNEL_FILE_SYSTEMS: [u64; 14] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x1cd1,      // devpts
    0x6265_6570, // configfs
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0x4249_4e4d, // binfmt_misc
    0xf97c_ff8c, // selinux
];

/// Whether a path lies where the kernel makes up what is read.
pub fn is_of_kernel(path: &Path) -> bool {
    let magic = rustix::fs::statfs(path).map(|found| u64::from(found.f_type as u32));
    magic.is_ok_and(|magic| KERNEL_FILE_SYSTEMS.contains(&magic))
}

/// Opens a file to lock it, or makes it. Whoever can open a file can lock it, also for reading alone: it is for its owner alone.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = File::options();
    let file = options.create(true).truncate(false).read(true).write(true).mode(LOCK_MODE).custom_flags(flags);
    let file = file.open(path)?;
    let found = file.metadata()?;
    if found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o777 != LOCK_MODE {
        file.set_permissions(Permissions::from_mode(LOCK_MODE))?;
    }
    Ok(file)
}

const LOCK_MODE: u32 = 0o600;

/// A process of another user that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    pub pid: u32,
    pub user: String,
}

/// Who locks a file that is not theirs, as far as the kernel tells. The administrator may.
pub fn stranger(file: &File) -> Option<Stranger> {
    let found = file.metadata().ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let uid_of = |pid: u32| std::fs::metadata(format!("/proc/{pid}")).ok().map(|process| process.uid());
    let (pid, uid) = strange_holder(&locks, found.ino(), found.uid(), uid_of)?;
    Some(Stranger { pid, user: user(uid) })
}

/// The process, and its user, that holds the lock of `inode` in the text of `/proc/locks`, where no process of `owner` or of the
/// administrator does. Files of other file systems may have that number too: whoever makes one cannot hide the real holder.
fn strange_holder(locks: &str, inode: u64, owner: u32, uid_of: impl Fn(u32) -> Option<u32>) -> Option<(u32, u32)> {
    let inode = format!(":{inode}");
    // 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
    let holder = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, locked, ..] = words[..] else { return None };
        let pid = locked.ends_with(&inode).then(|| pid.parse::<u32>().ok()).flatten()?;
        // A process that cannot be seen may be the owner's.
        Some((pid, uid_of(pid).unwrap_or(owner)))
    };
    let holders: Vec<(u32, u32)> = locks.lines().filter_map(holder).collect();
    let is_strange = holders.iter().all(|(_, uid)| *uid != owner && *uid != 0);
    holders.first().copied().filter(|_| is_strange)
}

/// The name of the other user that a file belongs to; nothing where it is the own one.
pub fn belongs_to(path: &Path) -> Option<String> {
    let uid = std::fs::metadata(path).ok()?.uid();
    (uid != rustix::process::geteuid().as_raw()).then(|| user(uid))
}

/// The name of a user, or the number where the machine has no name for it.
pub fn user(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.map_or_else(|| format!("the user with uid {uid}"), |name| format!("the user {name}"))
}

/// The content of the file. A device, a pipe or a folder is an error at once, and so is more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let mut file = open(path)?;
    let meta = file.metadata().map_err(read_error)?;
    let too_large = |size| Error::TooLarge { path: path.to_owned(), size, limit };
    if meta.len() > limit {
        return Err(too_large(meta.len()));
    }
    let mut bytes = Vec::new();
    (&mut file).take(limit + 1).read_to_end(&mut bytes).map_err(read_error)?;
    // Some files, such as those of /proc, have no size.
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Bytes of a file system, or of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

impl Space {
    /// The space of the file system that `path` is on.
    pub fn at(path: &Path) -> Option<Self> {
        let stat = rustix::fs::statvfs(path).ok()?;
        Some(Self { free: stat.f_bavail * stat.f_frsize, total: stat.f_blocks * stat.f_frsize })
    }

    /// The memory of this machine. What programs can still take of it is free.
    pub fn of_memory() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let bytes = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        Some(Self { free: bytes("MemAvailable:")?, total: bytes("MemTotal:")? })
    }

    /// Whether the file system that `path` is on has no room for anything but small files.
    pub fn is_full(path: &Path) -> bool {
        const LEAST: u64 = 1 << 20;
        Self::at(path).is_some_and(|space| space.free < LEAST)
    }
}

/// The path itself, or the first folder above it that is there.
pub fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

/// As many links as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Where `path` lies, for who has `root` as the root. What is not there yet is taken as it is written.
pub fn inside(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut left = parts(path);
    let (mut found, mut links) = (PathBuf::new(), 0);
    while let Some(part) = left.pop() {
        if part == ".." {
            found.pop();
            continue;
        }
        match std::fs::read_link(root.join(&found).join(&part)) {
            Ok(_) if links == MAX_LINKS => return Err(io::Error::other("too many symbolic links")),
            Ok(target) => {
                links += 1;
                if target.is_absolute() {
                    found.clear();
                }
                left.extend(parts(&target));
            }
            // It is no link, or not there.
            Err(_) => found.push(part),
        }
    }
    Ok(root.join(found))
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(named).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod lock_tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_not_hidden_by_another_file_of_that_number() {
        let uid_of = |pid: u32| [(10, 1000), (20, 1001), (30, 0)].iter().find(|(one, _)| *one == pid).map(|one| one.1);
        let (mine, theirs, root) = (
            "1: FLOCK ADVISORY WRITE 10 08:01:77 0 EOF",
            "2: FLOCK ADVISORY READ 20 00:2a:77 0 EOF",
            "3: FLOCK ADVISORY READ 30 00:2a:77 0 EOF",
        );
        for (lines, want) in [
            (vec![mine], None),
            (vec![theirs], Some((20, 1001))),
            (vec![theirs, mine], None),
            (vec![theirs, root], None),
            (vec!["4: POSIX ADVISORY WRITE 20 08:01:77 0 EOF"], None),
            (vec!["5: FLOCK ADVISORY WRITE 20 08:01:177 0 EOF"], None),
            (vec![theirs, "6: FLOCK ADVISORY WRITE 40 08:01:77 0 EOF"], None),
            (vec![], None),
        ] {
            assert_eq!(strange_holder(&lines.join("\n"), 77, 1000, uid_of), want, "{lines:?}");
        }
    }
}

#[cfg(test)]
mod whole_tests {
    use super::*;

    #[test]
    fn nothing_planted_is_written_through() {
        let folder = std::env::temp_dir().join(format!("pipe-write-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("victim"), "victim").unwrap();
        for name in ["run.json".to_owned(), format!(".run.json.{}.tmp", std::process::id())] {
            std::os::unix::fs::symlink(folder.join("victim"), folder.join(name)).unwrap();
        }
        write_whole(&folder.join("run.json"), b"new").unwrap();
        assert_eq!(std::fs::read(folder.join("victim")).unwrap(), b"victim");
        assert_eq!(std::fs::read(folder.join("run.json")).unwrap(), b"new");
        assert!(!folder.join("run.json").is_symlink());
        let mode = std::fs::metadata(folder.join("run.json")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o600, 0o600);
        assert!(write_whole(&folder.join("missing/run.json"), b"x").is_err());
        // Nothing temporary stays.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[cfg(test)]
mod bounded_tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_bound() {
        let folder = std::env::temp_dir().join(format!("pipe-bounded-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), "12345").unwrap();
        assert_eq!(read(&folder.join("file"), 5).unwrap(), b"12345");
        assert!(matches!(read(&folder.join("file"), 4), Err(Error::TooLarge { size: 5, .. })));
        std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap();
        let what = |path: &Path| match read(path, 5) {
            Err(Error::NotAFile { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(&folder.join("pipe")), "a pipe");
        assert_eq!(what(&folder), "a folder");
        assert_eq!(what(Path::new("/dev/zero")), "a device");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[cfg(test)]
mod rooted_tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_in_a_run_folder_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("own"), "text").unwrap();
        std::os::unix::fs::symlink(path("own"), path("link")).unwrap();
        assert_eq!(read_own_text(&path("own")).unwrap(), "text");
        assert!(read_own(&path("link")).is_err());
    }

    #[test]
    fn links_stay_in_the_root() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir_all(root.join("var/real")).unwrap();
        for (link, target) in
            [("absolute", "/var/real"), ("var/up", "../../../etc"), ("chain", "var/up/x"), ("loop", "loop")]
        {
            symlink(target, root.join(link)).unwrap();
        }
        for (path, want) in [
            ("/var/real/new", "var/real/new"),
            ("absolute/new", "var/real/new"),
            ("var/up/passwd", "etc/passwd"),
            ("/chain/y", "etc/x/y"),
            ("../../etc", "etc"),
            ("/", ""),
        ] {
            assert_eq!(inside(root, Path::new(path)).unwrap(), root.join(want), "{path}");
        }
        assert!(inside(root, Path::new("loop")).is_err());
    }
}

/// A pattern: `*` is any text without a slash, `?` one character of it, `**` any text.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    /// Absent where the pattern is too large to be compiled: it matches only itself then.
    matcher: Option<GlobMatcher>,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        let parts: Vec<String> = text.split('/').map(glob_part).collect();
        let glob = GlobBuilder::new(&parts.join("/")).literal_separator(true).backslash_escape(false).build();
        Self { text: text.to_owned(), matcher: glob.ok().map(|glob| glob.compile_matcher()) }
    }

    /// Whether `text` is more than one name.
    pub fn is_meant(text: &str) -> bool {
        text.contains(['*', '?'])
    }

    /// Whether all of `name` is what the pattern describes.
    pub fn matches(&self, name: &str) -> bool {
        self.matcher.as_ref().map_or(self.text == name, |matcher| matcher.is_match(name))
    }
}

/// A part of a path as `globset` wants it, which takes `**` for any text only where it is a whole part.
fn glob_part(part: &str) -> String {
    if part == "**" {
        return part.to_owned();
    }
    let mut glob = String::new();
    let mut rest = part;
    while let Some(letter) = rest.chars().next() {
        let stars = rest.len() - rest.trim_start_matches('*').len();
        let length = if stars > 0 { stars } else { letter.len_utf8() };
        match (stars, letter) {
            (0, '[' | ']' | '{' | '}') => glob.extend(['[', letter, ']']),
            (0, _) => glob.push(letter),
            (1, _) => glob.push('*'),
            _ => glob.push_str("{*,*/**/*}"),
        }
        rest = &rest[length..];
    }
    glob
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("data/train-*.parquet", "data/train-00000-of-00002.parquet", true),
            ("data/train-*.parquet", "data/eval-00000.parquet", false),
            ("data/train-*.parquet", "data/train-a/b.parquet", false),
            ("*.jsonl", "a.jsonl", true),
            ("*.jsonl", "a/b.jsonl", false),
            ("**.jsonl", "a/b.jsonl", true),
            ("**.jsonl", "a/b/c.jsonl", true),
            ("**.jsonl", "a.jsonl", true),
            ("a**", "ab/c/d", true),
            ("a/**", "a/b/c", true),
            ("a/**/b.csv", "a/b.csv", true),
            ("a/**/b.csv", "a/x/y/b.csv", true),
            ("a/**/b.csv", "a/xb.csv", false),
            ("part-?.csv", "part-1.csv", true),
            ("part-?.csv", "part-12.csv", false),
            ("part?x.csv", "part/x.csv", false),
            ("a[1]{2}!\\.csv", "a[1]{2}!\\.csv", true),
            ("a[1].csv", "a1.csv", false),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("é*", "étude.csv", true),
        ];
        for (pattern, name, want) in cases {
            assert_eq!(Pattern::new(pattern).matches(name), want, "{pattern} {name}");
        }
        assert!(Pattern::is_meant("a?") && Pattern::is_meant("*") && !Pattern::is_meant("a[1]"));
    }
}
