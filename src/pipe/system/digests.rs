//! The content of a file or of a whole folder, as one hash.
//!
//! Content hashes of files, remembered by path, size and time, so that an unchanged gigabyte is not read again.
//!
//! Which files of a model's folder a training reads, by the contract of `pipe_spec::model_folder`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pipe_spec::model_folder::{CONFIG, PREPROCESSOR, WEIGHTS, WeightFiles};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;

/// How links in a folder are treated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Those of the user.
    Followed,
    /// Those of a job, which must not lead out of the folder.
    Kept,
}

/// The content of a file, or of all that is in a folder.
pub fn hash_tree(digests: &mut Digests, path: &Path, links: Links) -> Result<String, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(read)?.is_dir() {
        return digests.hash(path);
    }
    let root = path.canonicalize().map_err(read)?;
    let mut seen = BTreeSet::from([root.clone()]);
    let mut folders = vec![path.to_owned()];
    let mut entries = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(read)? {
            let place = entry.map_err(read)?.path();
            let is_link = place.symlink_metadata().map_err(read)?.is_symlink();
            let target = place.canonicalize();
            if let (true, Links::Kept, Ok(target)) = (is_link, links, &target)
                && !target.starts_with(&root)
            {
                return Err(Error::LinkedOutput { path: place });
            }
            let follows = !is_link || links == Links::Followed;
            if follows && place.is_dir() && target.is_ok_and(|target| seen.insert(target)) {
                folders.push(place.clone());
            }
            entries.push((place, follows));
        }
    }
    entries.sort();
    let mut hasher = blake3::Hasher::new();
    for (place, follows) in entries {
        let content = match follows {
            true if place.is_file() => digests.hash(&place)?,
            true => String::new(),
            false => std::fs::read_link(&place).map_err(read)?.to_string_lossy().into_owned(),
        };
        let name = place.strip_prefix(path).unwrap_or(&place).to_string_lossy().into_owned();
        for text in [name, content] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[derive(Default)]
pub struct Digests {
    file: Option<PathBuf>,
    known: BTreeMap<String, KnownDigest>,
    changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownDigest {
    size: u64,
    modified: i128,
    inode: u64,
    digest: String,
}

/// Nanoseconds since the last write before a digest is cached.
const MIN_AGE: i128 = 100_000_000;

impl Digests {
    /// Loads the hashes that are remembered under `PIPE_CACHE`, or the user's cache folder. A file that cannot be read is no loss.
    pub fn load() -> Self {
        let file = cache_folder().map(|folder| folder.join("digests.json"));
        let known = file
            .as_ref()
            .and_then(|file| std::fs::read(file).ok())
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        Self { file, known, changed: false }
    }

    pub fn hash(&mut self, path: &Path) -> Result<String, Error> {
        let read_error = |source| Error::Read { path: path.to_owned(), source };
        let path = path.canonicalize().map_err(read_error)?;
        let meta = std::fs::metadata(&path).map_err(read_error)?;
        if let Some(known) = self.cached(&path, &meta) {
            return Ok(known.digest.clone());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_mmap_rayon(&path).map_err(read_error)?;
        let digest = hasher.finalize().to_hex().to_string();
        // A file that was just written may be written again within the resolution of its time stamp.
        if modified(&meta) + MIN_AGE < (crate::system::clock::now() * 1e9) as i128 {
            let known =
                KnownDigest { size: meta.len(), modified: modified(&meta), inode: meta.ino(), digest: digest.clone() };
            self.known.insert(path.to_string_lossy().into_owned(), known);
            self.changed = true;
        }
        Ok(digest)
    }

    /// Bytes that have to be read for the hash of a file: none where it is remembered.
    pub fn to_read(&self, path: &Path) -> u64 {
        let Ok(path) = path.canonicalize() else { return 0 };
        let Ok(meta) = std::fs::metadata(&path) else { return 0 };
        if self.cached(&path, &meta).is_some() { 0 } else { meta.len() }
    }

    fn cached(&self, path: &Path, meta: &Metadata) -> Option<&KnownDigest> {
        let known = self.known.get(path.to_string_lossy().as_ref())?;
        ((known.size, known.modified, known.inode) == (meta.len(), modified(meta), meta.ino())).then_some(known)
    }

    /// Remembers what was learned. Not being able to is no error: the next time takes longer.
    pub fn save(&self) {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        let saved = file.parent().map(std::fs::create_dir_all).transpose().is_ok()
            && serde_json::to_vec(&self.known)
                .is_ok_and(|bytes| crate::system::files::write_whole(file, &bytes).is_ok());
        if !saved {
            tracing::debug!("cannot remember file hashes in {}", file.display());
        }
    }
}

/// Nanoseconds.
fn modified(meta: &Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

pub fn cache_folder() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("PIPE_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|home| home.join("pipe")))
        .or_else(|| var("HOME").map(|home| home.join(".cache/pipe")))
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
    use super::*;

    #[test]
    fn the_content_of_a_folder() {
        let folder = std::env::temp_dir().join(format!("pipe-content-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let now = || hash_tree(&mut Digests::default(), &folder, Links::Followed).unwrap();
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
        std::os::unix::fs::symlink(".", folder.join("circle")).unwrap();
        now();
        assert!(hash_tree(&mut Digests::default(), &folder.join("nothing"), Links::Followed).is_err());
        std::fs::remove_file(outside).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
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
