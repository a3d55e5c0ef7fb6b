//! The content of a file or of a whole folder, as one hash.
//!
//! Content hashes of files, remembered by path, size, times and inode, so that an unchanged gigabyte is not read again.
//!
//! Which files of a model's folder a training reads, by the contract of `pipe_spec::model_folder`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pipe_spec::model_folder::{CONFIG, PREPROCESSOR, WEIGHTS, WeightFiles};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::system::files::{self, OF_KERNEL, is_of_kernel};
use crate::system::interrupt::Watch;

/// How links in a folder are treated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Those of the user.
    Followed,
    /// Those of a job, which must not lead out of the folder.
    Kept,
}

/// A file, or all that is in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Hash of names and content.
    pub content: String,
    /// Hash of size, times and inode of each file and folder, which change whenever one is written, though it be put back.
    pub state: String,
}

/// Hashes a file, or all that is in a folder. Only regular files are read: a device or a pipe is an error, and in a folder it counts by
/// its name alone. So does a file of the user that cannot be read: no job of the user can read it either.
pub fn hash_tree(digests: &mut Digests, path: &Path, links: Links) -> Result<Tree, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let meta = std::fs::metadata(path).map_err(read)?;
    if !meta.is_dir() {
        let (content, stamp) = digests.stamped(path)?;
        return Ok(Tree { content, state: format!("{stamp:?}") });
    }
    if is_of_kernel(path) {
        return Err(Error::NotAFile { path: path.to_owned(), what: OF_KERNEL });
    }
    let mut items = list_tree(digests, path, links)?;
    items.sort();
    let (mut content, mut state) = (blake3::Hasher::new(), blake3::Hasher::new());
    state.update(format!("{:?}", Stamp::of(&meta)).as_bytes());
    for (item, follows) in items {
        digests.watch.check()?;
        let text = match follows {
            false => std::fs::read_link(&item).map_err(read)?.into_os_string(),
            true => match item.metadata() {
                Ok(meta) if meta.is_file() && !is_of_kernel(&item) => match digests.stamped(&item) {
                    Ok((digest, stamp)) => {
                        state.update(format!("{stamp:?}").as_bytes());
                        digest.into()
                    }
                    Err(Error::Read { source, .. }) if is_private(&source, links) => "unreadable".into(),
                    Err(error) => return Err(error),
                },
                Ok(meta) => {
                    state.update(format!("{:?}", Stamp::of(&meta)).as_bytes());
                    OsString::new()
                }
                Err(_) => OsString::new(),
            },
        };
        let name = item.strip_prefix(path).unwrap_or(&item).as_os_str();
        for text in [name, &text] {
            content.update(&(text.len() as u64).to_le_bytes());
            content.update(text.as_encoded_bytes());
        }
    }
    let hex = |hasher: blake3::Hasher| hasher.finalize().to_hex().to_string();
    Ok(Tree { content: hex(content), state: hex(state) })
}

/// All that is in a folder, each with whether it counts as what it leads to.
fn list_tree(digests: &Digests, path: &Path, links: Links) -> Result<Vec<(PathBuf, bool)>, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let root = path.canonicalize().map_err(read)?;
    let mut seen = BTreeSet::from([root.clone()]);
    let mut folders = vec![path.to_owned()];
    let mut items = Vec::new();
    while let Some(folder) = folders.pop() {
        let found = match std::fs::read_dir(&folder) {
            Err(source) if folder != path && is_private(&source, links) => continue,
            found => found.map_err(read)?,
        };
        for entry in found {
            digests.watch.check()?;
            let item = entry.map_err(read)?.path();
            let is_link = item.symlink_metadata().map_err(read)?.is_symlink();
            let target = item.canonicalize();
            // A link to nothing could lead anywhere once somebody makes what it names.
            let is_inside = target.as_ref().is_ok_and(|target| target.starts_with(&root));
            if is_link && links == Links::Kept && !is_inside {
                return Err(Error::LinkedOutput { path: item });
            }
            let follows = !is_link || links == Links::Followed;
            let is_folder = follows && item.is_dir() && !is_of_kernel(&item);
            if is_folder && target.is_ok_and(|target| seen.insert(target)) {
                folders.push(item.clone());
            }
            items.push((item, follows));
        }
    }
    Ok(items)
}

fn is_private(error: &std::io::Error, links: Links) -> bool {
    links == Links::Followed && error.kind() == std::io::ErrorKind::PermissionDenied
}

#[derive(Default)]
pub struct Digests {
    file: Option<PathBuf>,
    known: BTreeMap<String, KnownDigest>,
    changed: bool,
    watch: Arc<Watch>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownDigest {
    stamp: Stamp,
    digest: String,
}

/// Metadata that changes when a file is written. The time of its last change cannot be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub size: u64,
    /// Nanoseconds since the Unix epoch.
    modified: i128,
    changed: i128,
    inode: u64,
}

impl Stamp {
    pub fn of(meta: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            size: meta.len(),
            modified: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            changed: nanoseconds(meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
        }
    }

    /// Whether a file that is written now gets another stamp for sure.
    fn is_settled(&self) -> bool {
        self.modified.max(self.changed) + MIN_AGE < (crate::system::clock::now() * 1e9) as i128
    }
}

/// Nanoseconds since the last write before a digest is cached.
const MIN_AGE: i128 = 100_000_000;

/// Bytes that are read at a time.
const CHUNK: u64 = 8 << 20;

impl Digests {
    /// Loads the hashes that are remembered under `PIPE_CACHE`, or the user's cache folder. A file that cannot be read is no loss.
    pub fn load() -> Self {
        Self::watched(Arc::default())
    }

    /// The same for a thread that can be cancelled.
    pub fn watched(watch: Arc<Watch>) -> Self {
        let file = cache_folder().map(|folder| folder.join("digests.json"));
        let known = file
            .as_ref()
            .and_then(|file| files::read_own(file).ok())
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        Self { file, known, changed: false, watch }
    }

    pub fn hash(&mut self, path: &Path) -> Result<String, Error> {
        self.stamped(path).map(|(digest, _)| digest)
    }

    /// With what the file was when it was hashed.
    pub fn stamped(&mut self, path: &Path) -> Result<(String, Stamp), Error> {
        let read_error = |source| Error::Read { path: path.to_owned(), source };
        let path = path.canonicalize().map_err(read_error)?;
        let stamp = Stamp::of(&std::fs::metadata(&path).map_err(read_error)?);
        if let Some(known) = self.cached(&path, stamp) {
            return Ok((known.digest.clone(), stamp));
        }
        let mut file = files::open(&path)?;
        if is_of_kernel(&path) {
            return Err(Error::NotAFile { path, what: OF_KERNEL });
        }
        let stamp_now = |file: &File| file.metadata().map(|meta| Stamp::of(&meta)).map_err(read_error);
        let stamp = stamp_now(&file)?;
        let mut hasher = blake3::Hasher::new();
        let (mut chunk, mut left) = (Vec::new(), stamp.size);
        while left > 0 {
            self.watch.check()?;
            chunk.clear();
            let count = (&mut file).take(left.min(CHUNK)).read_to_end(&mut chunk).map_err(read_error)? as u64;
            hasher.update_rayon(&chunk);
            self.watch.add_done(count);
            left = if count == 0 { 0 } else { left - count };
        }
        let digest = hasher.finalize().to_hex().to_string();
        if stamp.is_settled() && stamp_now(&file)? == stamp {
            self.known.insert(path.to_string_lossy().into_owned(), KnownDigest { stamp, digest: digest.clone() });
            self.changed = true;
        }
        Ok((digest, stamp))
    }

    /// Bytes that have to be read for the hash of a file: none where it is remembered.
    pub fn to_read(&self, path: &Path) -> u64 {
        let Ok(path) = path.canonicalize() else { return 0 };
        let Ok(meta) = std::fs::metadata(&path) else { return 0 };
        if self.cached(&path, Stamp::of(&meta)).is_some() { 0 } else { meta.len() }
    }

    fn cached(&self, path: &Path, stamp: Stamp) -> Option<&KnownDigest> {
        self.known.get(path.to_string_lossy().as_ref()).filter(|known| known.stamp == stamp)
    }

    /// Remembers what was learned. Not being able to is no error: the next time takes longer.
    pub fn save(&self) {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        let saved = file.parent().map(std::fs::create_dir_all).transpose().is_ok()
            && serde_json::to_vec(&self.known).is_ok_and(|bytes| files::write_whole(file, &bytes).is_ok());
        if !saved {
            tracing::debug!("cannot remember file hashes in {}", file.display());
        }
    }
}

pub fn cache_folder() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = var("PIPE_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|home| home.join("pipe")))
        .or_else(|| var("HOME").map(|home| home.join(".cache/pipe")));
    own_folder(folder?)
}

const STICKY: u32 = 0o1000;

/// The part of a cache that can be trusted: `pipe` executes and believes what lies there. In a folder that others can write to, or that
/// is another user's, it is a subfolder that belongs to this user alone; nothing where anybody could exchange that.
fn own_folder(folder: PathBuf) -> Option<PathBuf> {
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let Ok(found) = std::fs::metadata(&folder).or_else(|_| make(&folder).and_then(|()| std::fs::metadata(&folder)))
    else {
        return Some(folder);
    };
    let is_open = found.mode() & 0o002 != 0;
    // Many systems give each user a group of that number and nobody else in it.
    let is_private_group = found.gid() == group && group == user;
    let is_shared = is_open || (found.mode() & 0o020 != 0 && !is_private_group);
    if !is_shared && [user, 0].contains(&found.uid()) {
        return Some(folder);
    }
    if is_open && found.mode() & STICKY == 0 {
        // Its owner alone can keep others from renaming what is in it. Some file systems have no permissions: nothing is kept from anybody.
        let mode = found.mode() & 0o7777 | STICKY;
        std::fs::set_permissions(&folder, Permissions::from_mode(mode)).ok().filter(|()| found.uid() == user)?;
    }
    let own = folder.join(format!("user-{user}"));
    make(&own).ok();
    let made = own.symlink_metadata().ok().filter(|made| made.is_dir() && made.uid() == user)?;
    if made.mode() & 0o077 != 0 {
        std::fs::set_permissions(&own, Permissions::from_mode(0o700)).ok()?;
    }
    Some(own)
}

/// The weights that a folder or repository has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    Single(&'static str),
    /// In several files, named by this index.
    Index(&'static str),
}

impl Weights {
    /// The first format of which there is anything.
    pub fn find(has: impl Fn(&str) -> bool) -> Option<Self> {
        WEIGHTS.iter().find_map(|WeightFiles { single, index }| {
            let alone = has(single).then_some(Self::Single(single));
            alone.or_else(|| has(index).then_some(Self::Index(index)))
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Single(name) | Self::Index(name) => name,
        }
    }

    /// The names that weights may have, for messages.
    pub fn expected() -> String {
        let names = WEIGHTS.iter().flat_map(|format| [format.single, format.index]);
        names.collect::<Vec<_>>().join(", ")
    }

    /// The files that hold them, the index included. None where the index cannot be read.
    pub fn files(self, folder: &Path) -> Option<Vec<String>> {
        match self {
            Self::Single(name) => Some(vec![name.to_owned()]),
            Self::Index(name) => {
                let parts = shards(&std::fs::read(folder.join(name)).ok()?)?;
                Some([name.to_owned()].into_iter().chain(parts).collect())
            }
        }
    }
}

/// The files of a model's folder that a training reads, its tokenizer left out: those that are there.
pub fn list(folder: &Path) -> Vec<String> {
    let has = |name: &str| folder.join(name).is_file();
    let weights = Weights::find(has).and_then(|weights| weights.files(folder)).unwrap_or_default();
    let named = [CONFIG, PREPROCESSOR].into_iter().map(str::to_owned);
    named.chain(weights).filter(|name| has(name)).collect()
}

/// The files that an index of weights names, in the order of their names.
fn shards(index: &[u8]) -> Option<BTreeSet<String>> {
    let index: Value = serde_json::from_slice(index).ok()?;
    let map = index.get("weight_map")?.as_object()?;
    map.values().map(|name| name.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn the_content_of_a_folder() {
        let folder = std::env::temp_dir().join(format!("pipe-content-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let now = || hash_tree(&mut Digests::default(), &folder, Links::Followed).unwrap().content;
        write("a/b", "1");
        write("c", "2");
        let first = now();
        assert_eq!(first, now());
        write("c", "3");
        let changed = now();
        write("c", "2");
        assert!(changed != first && now() == first);
        std::fs::rename(folder.join("c"), folder.join("d")).unwrap();
        let renamed = now();
        let of_job = || hash_tree(&mut Digests::default(), &folder, Links::Kept);
        std::os::unix::fs::symlink("d", folder.join("inside")).unwrap();
        assert!(renamed != first && now() != renamed && of_job().is_ok());
        // A link of the user counts as what it leads to; one of a job must not lead out.
        let outside = folder.with_extension("outside");
        std::fs::write(&outside, "1").unwrap();
        std::os::unix::fs::symlink(&outside, folder.join("outside")).unwrap();
        let one = now();
        std::fs::write(&outside, "2").unwrap();
        assert!(now() != one && matches!(of_job(), Err(Error::LinkedOutput { .. })));
        // Nor may one that leads to nothing yet.
        std::fs::remove_file(folder.join("outside")).unwrap();
        std::os::unix::fs::symlink("../made-later", folder.join("later")).unwrap();
        assert!(now() != one && matches!(of_job(), Err(Error::LinkedOutput { .. })));
        std::fs::remove_file(folder.join("later")).unwrap();
        // Names that are not UTF-8 differ too.
        let not_utf8 = |byte: u8| folder.join(OsString::from_vec(vec![b'a', byte]));
        std::fs::write(not_utf8(0xff), "1").unwrap();
        let first = now();
        std::fs::rename(not_utf8(0xff), not_utf8(0xfe)).unwrap();
        assert_ne!(now(), first);
        std::os::unix::fs::symlink(".", folder.join("circle")).unwrap();
        now();
        assert!(hash_tree(&mut Digests::default(), &folder.join("nothing"), Links::Followed).is_err());
        std::fs::remove_file(outside).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[cfg(test)]
mod shared_cache_tests {
    use super::*;

    #[test]
    fn of_a_shared_cache_a_folder_of_ones_own_is_used() {
        let folder = tempfile::tempdir().unwrap().keep();
        let of_mode = |mode: u32| {
            std::fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            own_folder(folder.clone())
        };
        let own = folder.join(format!("user-{}", rustix::process::geteuid().as_raw()));
        assert_eq!(of_mode(0o755), Some(folder.clone()));
        assert_eq!(of_mode(0o1777), Some(own.clone()));
        assert_eq!(own.metadata().unwrap().mode() & 0o777, 0o700);
        // Its owner keeps others from renaming what is in it.
        assert_eq!(of_mode(0o777), Some(own.clone()));
        assert_eq!(folder.metadata().unwrap().mode() & 0o7777, 0o1777);
        // An own folder that was opened is closed again; one that somebody else has put there is not used.
        std::fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(of_mode(0o1777), Some(own.clone()));
        assert_eq!(own.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::remove_dir(&own).unwrap();
        std::os::unix::fs::symlink("/tmp", &own).unwrap();
        assert_eq!(of_mode(0o1777), None);
        // One that is not there yet is made for this user alone, whatever the umask.
        let missing = folder.join("missing/cache");
        assert_eq!(own_folder(missing.clone()), Some(missing.clone()));
        assert_eq!(missing.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[cfg(test)]
mod special_tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_each_change_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, file) = (folder.path(), folder.path().join("file"));
        std::fs::write(&file, "one").unwrap();
        let hash = |path: &Path| hash_tree(&mut Digests::default(), path, Links::Followed);
        let alone = hash(folder).unwrap();
        // A change that was put back, with the time of the file, has the same content and another state.
        let before = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::write(&file, "two").unwrap();
        std::fs::write(&file, "one").unwrap();
        File::options().write(true).open(&file).unwrap().set_modified(before).unwrap();
        let again = hash(folder).unwrap();
        assert!(again.content == alone.content && again.state != alone.state);
        assert_eq!(hash(folder).unwrap(), again);
        // An entry that is no file counts by its name, and is an error where it is named itself.
        let fifo = folder.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        std::os::unix::fs::symlink("/proc/self", folder.join("kernel")).unwrap();
        assert_ne!(hash(folder).unwrap().content, alone.content);
        for path in [&fifo, &folder.join("socket"), &folder.join("kernel")] {
            assert!(matches!(hash(path), Err(Error::NotAFile { .. })), "{}", path.display());
        }
        for path in ["/dev/zero", "/proc/kmsg", "/proc/version", "/sys/class"] {
            let special = hash(Path::new(path));
            assert!(matches!(special, Err(Error::NotAFile { .. } | Error::Read { .. })), "{path}: {special:?}");
        }
    }

    #[test]
    fn a_large_file_can_be_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sparse");
        File::create(&file).unwrap().set_len(1 << 40).unwrap();
        let watch = Arc::new(Watch::default());
        let mut digests = Digests { watch: watch.clone(), ..Digests::default() };
        let thread = std::thread::spawn(move || digests.hash(&file));
        while watch.done() == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        watch.cancel();
        assert!(matches!(thread.join().unwrap(), Err(Error::Interrupted)));
    }
}

#[cfg(test)]
mod model_files_tests {
    use super::*;

    #[test]
    fn safetensors_come_before_pickles_and_one_file_before_several() {
        let cases: [(&[&str], Option<Weights>); 5] = [
            (&["pytorch_model.bin", "model.safetensors"], Some(Weights::Single("model.safetensors"))),
            (&["model.safetensors.index.json", "model.safetensors"], Some(Weights::Single("model.safetensors"))),
            (
                &["pytorch_model.bin", "model.safetensors.index.json"],
                Some(Weights::Index("model.safetensors.index.json")),
            ),
            (&["pytorch_model.bin.index.json"], Some(Weights::Index("pytorch_model.bin.index.json"))),
            (&["tf_model.h5", "config.json"], None),
        ];
        for (names, want) in cases {
            assert_eq!(Weights::find(|name| names.contains(&name)), want, "{names:?}");
        }
    }

    #[test]
    fn an_index_names_each_file_once() {
        let index = br#"{"metadata": {}, "weight_map": {"b": "two", "a": "one", "c": "two"}}"#;
        assert_eq!(shards(index).unwrap().into_iter().collect::<Vec<_>>(), ["one", "two"]);
        for broken in [&b"{"[..], b"{}", br#"{"weight_map": {"a": 1}}"#] {
            assert_eq!(shards(broken), None);
        }
    }
}
