//! The hub's cache on this machine, and that of buckets, in the layout of `huggingface_hub`, so that each finds what the other fetched:
//! ```text
//! models--owner--name/
//!   refs/main                        the commit that the branch named when it was fetched
//!   blobs/<hash>                     contents, named by the hub's hash of them; <hash>.incomplete while they are fetched
//!   snapshots/<commit>/config.json   a link to a blob
//! .locks/models--owner--name/<hash>.lock   held (flock) by the process that fetches this content
//! ```
//!
//! The files of a repository at one commit, as the hub lists them. A commit never changes, so its list is kept.
//!
//! The hash by which the hub names the content of a file, or the ETag of an object.

use std::fmt::Write;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use md5::Md5;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pipe_spec::bucket::BucketAddress;
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::address::{Address, is_commit, is_hex, is_inside};
use super::client::{Failure, Remote, failure};
use crate::bucket::{Bucket, Object};
use crate::error::Error;
use crate::system::digests::cache_folder;
use crate::system::files::{Pattern, write_whole};

/// How often to try a lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    pub folder: PathBuf,
}

impl Cache {
    /// The folder of a repository.
    pub fn repository(&self, address: &Address) -> PathBuf {
        self.folder.join(address.folder_name())
    }

    /// The folder of one commit of it.
    pub fn snapshot(&self, address: &Address, commit: &str) -> PathBuf {
        self.repository(address).join("snapshots").join(commit)
    }

    pub fn blob(&self, address: &Address, hash: &ContentHash) -> PathBuf {
        self.repository(address).join("blobs").join(hash.as_str())
    }

    /// The commit that a revision named when it was fetched.
    pub fn commit(&self, address: &Address) -> Option<String> {
        if address.bucket.is_none() && is_commit(&address.revision) {
            return Some(address.revision.clone());
        }
        let commit = std::fs::read_to_string(self.reference(address)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Writes down which commit a branch or tag names.
    pub fn set_commit(&self, address: &Address, commit: &str) -> Result<(), Error> {
        if address.revision == commit || self.commit(address).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.reference(address);
        make_parent(&path)?;
        write_whole(&path, commit.as_bytes()).map_err(|error| match error {
            Error::Write { path, source } => cannot_write(&path, source),
            other => other,
        })
    }

    fn reference(&self, address: &Address) -> PathBuf {
        self.repository(address).join("refs").join(address.reference_name())
    }

    /// Makes a blob that is whole a file of a commit.
    pub fn link(&self, address: &Address, commit: &str, name: &str, hash: &ContentHash) -> Result<(), Error> {
        let path = self.snapshot(address, commit).join(name);
        let depth = 2 + name.matches('/').count();
        let target = PathBuf::from("../".repeat(depth)).join("blobs").join(hash.as_str());
        if path.is_file() && std::fs::read_link(&path).is_ok_and(|there| there == target) {
            return Ok(());
        }
        make_parent(&path)?;
        // A link cannot be written over; another takes its place in one step.
        let temporary = path.with_file_name(format!(".{}.{}.tmp", hash.as_str(), std::process::id()));
        std::fs::remove_file(&temporary).ok();
        let made = symlink(&target, &temporary).and_then(|()| std::fs::rename(&temporary, &path));
        made.map_err(|source| cannot_write(&path, source))
    }

    /// Waits until no other process fetches this content. `waits` is called once where one does.
    pub fn lock(&self, address: &Address, hash: &ContentHash, mut waits: impl FnMut()) -> Result<Lock, Error> {
        let name = address.folder_name();
        let path = self.folder.join(".locks").join(name).join(format!("{}.lock", hash.as_str()));
        make_parent(&path)?;
        let fail = |source| cannot_write(&path, source);
        let mut reported = false;
        loop {
            // Others of the same group may wait on it as well.
            let file = File::options().create(true).append(true).mode(0o664).open(&path).map_err(fail)?;
            match file.try_lock() {
                // The hub's own tools remove a lock that they have done with: one that has no name locks nothing.
                Ok(()) if file.metadata().is_ok_and(|meta| meta.nlink() > 0) => return Ok(Lock(Some(file))),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if !reported {
                        waits();
                        reported = true;
                    }
                    std::thread::sleep(LOCK_POLL);
                }
                // A file system without locks: contents are written under names of their own all the same.
                Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                    return Ok(Lock(None));
                }
                Err(TryLockError::Error(source)) => return Err(fail(source)),
            }
        }
    }
}

/// Held while a content is fetched.
pub struct Lock(#[expect(dead_code, reason = "closing the file gives the lock back")] Option<File>);

pub fn make_parent(path: &Path) -> Result<(), Error> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|source| cannot_write(folder, source))
}

pub fn cannot_write(path: &Path, source: std::io::Error) -> Error {
    Error::HubCache { path: path.to_owned(), source }
}

/// The characters that are escaped in a path of a repository.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    #[serde(rename = "sha")]
    pub commit: String,
    siblings: Vec<Sibling>,
}

/// As the hub writes it. Size and hashes come with `?blobs=true`, where the hub knows that question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
    /// That of an object of a bucket; empty where the service has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    /// The same, as other answers of the hub call it.
    oid: Option<String>,
    size: Option<u64>,
}

/// A file with all that is needed to fetch and check it.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteFile {
    pub name: String,
    pub size: u64,
    pub hash: ContentHash,
}

impl Listing {
    /// Asks the hub for the files at `revision`.
    pub fn ask(remote: &Remote, address: &Address, revision: &str) -> Result<Self, Failure> {
        let client = match remote {
            Remote::Hub(client) => client,
            Remote::Bucket(bucket) => return Self::ask_bucket(bucket, address),
        };
        let path = format!("api/{}?blobs=true", address.api_path(revision));
        let body = client.text(&path).map_err(|error| failure(error, remote, address, None))?;
        let unusable = || Error::Hub { host: client.host(), reason: format!("its list of {address} cannot be read") };
        let mut listing: Self = serde_json::from_slice(&body).map_err(|_| unusable())?;
        if !is_commit(&listing.commit) {
            return Err(unusable().into());
        }
        // A name from the hub becomes a path on this machine.
        listing.siblings.retain(|sibling| is_inside(&sibling.rfilename));
        listing.keep(address);
        Ok(listing)
    }

    /// The objects of a bucket that are meant. Their names, sizes and ETags together have the place of a commit.
    fn ask_bucket(bucket: &Bucket, address: &Address) -> Result<Self, Failure> {
        let folder = address.bucket.as_ref().expect("an address of a bucket");
        let mut objects = Vec::new();
        let path = folder.join(&address.revision);
        if Pattern::is_meant(&address.revision) {
            let (first, rest) = address.revision.split_once('/').map_or((address.revision.as_str(), ""), |parts| parts);
            let begins = first.split(['*', '?']).next().unwrap_or_default();
            let is_deep = !rest.is_empty() || first.contains("**");
            let pattern = Pattern::new(&address.revision);
            let found = bucket.list(&folder.join(begins), is_deep, None)?;
            let matches = |object: &Object| below(folder, &object.path).is_some_and(|name| pattern.matches(name));
            objects.extend(found.into_iter().filter(matches));
        } else {
            if !address.revision.is_empty() {
                let found = match bucket.list(&path, false, Some(1)) {
                    Ok(found) => found.into_iter().find(|object| object.path == path),
                    // Who may not list a bucket may still read an object of it.
                    Err(failure) => Some(bucket.find(&path).ok().flatten().ok_or(failure)?),
                };
                objects.extend(found);
            }
            if objects.is_empty() {
                let within = folder.join(&address.revision);
                let within = if within.is_empty() { within } else { format!("{}/", within.trim_end_matches('/')) };
                objects = bucket.list(&within, false, None)?;
            }
        }
        let sibling = |object: Object| {
            let rfilename = below(folder, &object.path)?.to_owned();
            let etag = Some(object.etag.unwrap_or_default().trim_matches('"').to_owned());
            Some(Sibling { rfilename, size: Some(object.size), blob_id: None, lfs: None, etag })
        };
        let mut siblings: Vec<Sibling> = objects.into_iter().filter_map(sibling).collect();
        siblings.retain(|sibling| is_inside(&sibling.rfilename));
        siblings.sort_by(|one, other| one.rfilename.cmp(&other.rfilename));
        let mut hasher = blake3::Hasher::new();
        for Sibling { rfilename, size, etag, .. } in &siblings {
            hasher.update(format!("{rfilename}\0{size:?}\0{etag:?}\n").as_bytes());
        }
        let listing = Self { commit: hasher.finalize().to_hex()[..40].to_owned(), siblings };
        listing.keep(address);
        Ok(listing)
    }

    /// The cached list.
    pub fn kept(address: &Address, commit: &str) -> Option<Self> {
        let listing: Self = serde_json::from_slice(&std::fs::read(listing_path(address, commit)?).ok()?).ok()?;
        (listing.commit == commit).then_some(listing)
    }

    /// Caches the list. A failure is no error: the next run requests it again.
    fn keep(&self, address: &Address) {
        let Some(path) = listing_path(address, &self.commit) else { return };
        let kept = path.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok())
            && serde_json::to_vec(self).is_ok_and(|bytes| write_whole(&path, &bytes).is_ok());
        if !kept {
            tracing::debug!("cannot keep the list of {address} in {}", path.display());
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.siblings.iter().map(|sibling| sibling.rfilename.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.names().any(|listed| listed == name)
    }

    /// Size and hash of a file: from the list, or where that has none by a question for this file.
    pub fn file(&self, remote: &Remote, address: &Address, name: &str) -> Result<RemoteFile, Failure> {
        let sibling = self.siblings.iter().find(|sibling| sibling.rfilename == name);
        if let Some(file) = sibling.and_then(Sibling::file) {
            return Ok(file);
        }
        let Remote::Hub(client) = remote else {
            return Err(Failure::Named(format!("{address} has no file {name:?}")));
        };
        let path = resolve_path(address, &self.commit, name);
        let headers = client.head(&path).map_err(|error| failure(error, remote, address, Some(name)))?;
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let size = header("x-linked-size").or_else(|| header("content-length")).and_then(|size| size.parse().ok());
        let hash = header("x-linked-etag").or_else(|| header("etag")).and_then(ContentHash::parse);
        match (size, hash) {
            (Some(size), Some(hash)) => Ok(RemoteFile { name: name.to_owned(), size, hash }),
            _ => {
                let reason =
                    format!("it tells no size and hash of {name} of {address}, so that it could not be checked");
                Err(Error::Hub { host: client.host(), reason }.into())
            }
        }
    }
}

impl Sibling {
    fn file(&self) -> Option<RemoteFile> {
        if let (Some(etag), Some(size)) = (&self.etag, self.size) {
            let hash = ContentHash::of_object(&self.rfilename, size, etag);
            return Some(RemoteFile { name: self.rfilename.clone(), size, hash });
        }
        let lfs = self.lfs.as_ref();
        let hash = match lfs {
            Some(lfs) => lfs.sha256.as_deref().or(lfs.oid.as_deref()),
            None => self.blob_id.as_deref(),
        };
        let size = lfs.and_then(|lfs| lfs.size).or(self.size)?;
        Some(RemoteFile { name: self.rfilename.clone(), size, hash: ContentHash::parse(hash?)? })
    }
}

/// The name of an object below a folder of its bucket.
fn below<'a>(folder: &BucketAddress, path: &'a str) -> Option<&'a str> {
    match folder.path.as_str() {
        "" => Some(path),
        folder => path.strip_prefix(folder)?.strip_prefix('/'),
    }
}

/// Where a file is fetched from, below the endpoint; or in a bucket.
pub fn resolve_path(address: &Address, commit: &str, name: &str) -> String {
    if let Some(folder) = &address.bucket {
        return folder.join(name);
    }
    format!("{}/resolve/{commit}/{}", address.name(), utf8_percent_encode(name, ESCAPED))
}

fn listing_path(address: &Address, commit: &str) -> Option<PathBuf> {
    Some(cache_folder()?.join("hub").join(address.folder_name()).join(format!("{commit}.json")))
}

/// The hub's name for a content, and that of its file in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentHash {
    name: String,
    /// That of an object of a bucket.
    etag: Option<String>,
}

impl ContentHash {
    /// Reads an ETag, `blobId` or `lfs.sha256`: 64 hexadecimal digits are SHA-256 (large files, Git LFS), 40 are SHA-1 as
    /// git computes it (all others). Nothing for any other text, which could not be checked.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches("W/").trim_matches('"');
        (matches!(text.len(), 40 | 64) && is_hex(text)).then(|| Self { name: text.to_owned(), etag: None })
    }

    /// One state of an object of a bucket.
    fn of_object(name: &str, size: u64, etag: &str) -> Self {
        let hash = blake3::hash(format!("{name}\0{size}\0{etag}").as_bytes());
        Self { name: hash.to_hex().to_string(), etag: Some(etag.to_owned()) }
    }

    /// The ETag, to fetch this state of an object and no other.
    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.is_empty())
    }

    /// Whether a content with the hash `found` is this one. Not every ETag is a hash.
    pub fn is(&self, found: Option<&str>) -> bool {
        found.is_none_or(|found| found == self.etag.as_ref().unwrap_or(&self.name))
    }

    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Computes the same kind of hash, of a content of `size` bytes.
    pub fn hasher(&self, size: u64) -> Hasher {
        if let Some(etag) = &self.etag {
            let is_md5 = etag.len() == 32 && is_hex(etag);
            return if is_md5 { Hasher::Md5(Md5::new()) } else { Hasher::None };
        }
        match self.name.len() {
            64 => Hasher::Sha256(Sha256::new()),
            _ => Hasher::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }
}

pub enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
    /// The ETag of an object that was written at once, and is not encrypted with a key of its own.
    Md5(Md5),
    /// Nothing is known of the content but its size.
    None,
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
            Self::Md5(hasher) => hasher.update(bytes),
            Self::None => {}
        }
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    pub fn finish(self) -> Option<String> {
        let bytes = match self {
            Self::None => return None,
            Self::Md5(hasher) => hasher.finalize().to_vec(),
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::Git(hasher) => hasher.finalize().to_vec(),
        };
        Some(bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String takes all that is written");
            text
        }))
    }
}

#[cfg(test)]
mod content_tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_lfs() {
        // `printf hello | git hash-object --stdin` and `printf hello | sha256sum`.
        for hash in [
            "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0",
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        ] {
            let want = ContentHash::parse(&format!("W/\"{hash}\"")).unwrap();
            let mut hasher = want.hasher(5);
            hasher.update(b"hel");
            hasher.update(b"lo");
            assert_eq!(hasher.finish().as_deref(), Some(want.as_str()));
        }
    }

    #[test]
    fn etags_are_checked_where_they_are_hashes() {
        let object = |etag: &str| ContentHash::of_object("a", 5, etag);
        // `printf hello | md5sum`.
        for (etag, is_checked) in
            [("5d41402abc4b2a76b9719d911017c592", true), ("5d41402abc4b2a76b9719d911017c592-2", false), ("", false)]
        {
            let mut hasher = object(etag).hasher(5);
            hasher.update(b"hello");
            let found = hasher.finish();
            assert_eq!((found.is_some(), object(etag).is(found.as_deref())), (is_checked, true), "{etag}");
        }
        assert!(!object(&"a".repeat(32)).is(Some(&"b".repeat(32))));
        assert_ne!(object("x").as_str(), ContentHash::of_object("b", 5, "x").as_str());
    }

    #[test]
    fn what_cannot_be_checked_is_no_hash() {
        for text in ["", "\"abc\"", "../../x", &"g".repeat(40), &"A".repeat(64)] {
            assert_eq!(ContentHash::parse(text), None, "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cache(name: &str, test: impl FnOnce(&Cache, &Address)) {
        let folder = std::env::temp_dir().join(format!("pipe-hub-{name}-{}", std::process::id()));
        let cache = Cache { folder: folder.clone() };
        test(&cache, &Address::of_model("some-org/tiny").unwrap());
        std::fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn a_branch_names_a_commit() {
        with_cache("refs", |cache, address| {
            let (first, second) = ("1".repeat(40), "2".repeat(40));
            assert_eq!(cache.commit(address), None);
            cache.set_commit(address, &first).unwrap();
            cache.set_commit(address, &second).unwrap();
            assert_eq!(cache.commit(address).as_deref(), Some(second.as_str()));
            let pinned = Address { revision: first.clone(), ..address.clone() };
            assert_eq!(cache.commit(&pinned), Some(first));
            for broken in ["", "0abc", "../.."] {
                std::fs::write(cache.reference(address), broken).unwrap();
                assert_eq!(cache.commit(address), None, "{broken}");
            }
        });
    }

    #[test]
    fn links_lead_to_their_blob_from_any_depth() {
        with_cache("links", |cache, address| {
            let hash = ContentHash::parse(&"a".repeat(40)).unwrap();
            let blob = cache.blob(address, &hash);
            make_parent(&blob).unwrap();
            std::fs::write(&blob, "x").unwrap();
            for name in ["config.json", "a/b/c.json"] {
                cache.link(address, "commit", name, &hash).unwrap();
                cache.link(address, "commit", name, &hash).unwrap();
                assert_eq!(std::fs::read(cache.snapshot(address, "commit").join(name)).unwrap(), b"x");
            }
            let left = std::fs::read_dir(cache.snapshot(address, "commit")).unwrap().count();
            assert_eq!(left, 2);
        });
    }

    #[test]
    fn one_at_a_time() {
        with_cache("locks", |cache, address| {
            let hash = ContentHash::parse(&"b".repeat(64)).unwrap();
            let held = cache.lock(address, &hash, || panic!("the lock is free")).unwrap();
            let (said, says) = std::sync::mpsc::channel();
            let (other, there, content) = (cache.clone(), address.clone(), hash.clone());
            let waiting =
                std::thread::spawn(move || drop(other.lock(&there, &content, || said.send(()).unwrap()).unwrap()));
            says.recv().unwrap();
            drop(held);
            waiting.join().unwrap();
        });
    }

    #[test]
    fn sizes_and_hashes_of_both_kinds_of_files() {
        let (sha1, sha256) = ("b".repeat(40), "c".repeat(64));
        let listing: Listing = serde_json::from_value(serde_json::json!({
            "sha": "a".repeat(40), "id": "o/n", "gated": false,
            "siblings": [
                { "rfilename": "config.json", "size": 7, "blobId": sha1 },
                { "rfilename": "model.safetensors", "size": 9, "blobId": sha1,
                  "lfs": { "sha256": sha256, "size": 9, "pointerSize": 1 } },
                { "rfilename": "README.md" },
            ]
        }))
        .unwrap();
        let found: Vec<_> = listing.siblings.iter().map(|one| one.file().map(|file| (file.size, file.hash))).collect();
        let hash = |text: &str| ContentHash::parse(text).unwrap();
        assert_eq!(found, [Some((7, hash(&sha1))), Some((9, hash(&sha256))), None]);
        assert!(listing.has("README.md") && !listing.has("readme.md"));
    }

    #[test]
    fn names_are_escaped_in_addresses() {
        let address = Address::of_model("o/n").unwrap();
        assert_eq!(resolve_path(&address, "c", "a b/ü?.json"), "o/n/resolve/c/a%20b/%C3%BC%3F.json");
    }
}
