//! The copy of a run in a bucket: the manifest that names its files, and who holds it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use pipe_spec::bucket::BucketAddress;
use pipe_spec::{RunFolder, Variables};
use serde::{Deserialize, Serialize};

use super::{Bucket, Condition, Failure, Version};
use crate::error::Error;
use crate::system::files::write_json;

/// After how long without a sign of life the process that holds a run counts as gone.
pub const GONE_AFTER: Duration = Duration::from_secs(120);

pub const MANIFEST: &str = "manifest.json";
pub const MANIFEST_LIMIT: u64 = 64 << 20;

/// The file of a run folder that tells of its copy.
const MARK: &str = ".mirror.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    /// Counts the manifests of a run.
    pub generation: u64,
    /// The claim under which it was written: another one for each machine that continues the run.
    pub claim: String,
    /// The process that runs the run; absent after its end.
    pub holder: Option<Holder>,
    pub files: Vec<StoredFile>,
}

impl Manifest {
    pub const VERSION: u32 = 1;

    /// The objects that it names, below the run.
    pub fn objects(&self) -> BTreeSet<String> {
        let own = self.files.iter().filter(|file| file.pieces.is_empty()).map(|file| file.path.clone());
        let pieces = self.files.iter().flat_map(|file| &file.pieces).map(|hash| piece_path(hash));
        own.chain(pieces).collect()
    }
}

/// A process on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub host: String,
    pub pid: u32,
    /// The machine since it was started, with its processes as they are counted there.
    pub machine: String,
}

impl Holder {
    pub fn here() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            host: host.trim().to_owned(),
            pid: std::process::id(),
            machine: format!("{} {}", boot.trim(), space.display()),
        }
    }

    /// Whether it may still run, `age` after it last showed that it lives.
    pub fn may_live(&self, age: Option<Duration>) -> bool {
        if self.machine == Self::here().machine {
            return self.pid != std::process::id() && Path::new(&format!("/proc/{}", self.pid)).exists();
        }
        age.is_none_or(|age| age < GONE_AFTER)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Below the run folder.
    pub path: String,
    pub size: u64,
    /// BLAKE3 of its content.
    pub hash: String,
    /// The hashes of its pieces; none for one that is stored under its own path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<String>,
}

/// Where a piece is stored, below the run.
pub fn piece_path(hash: &str) -> String {
    format!("pieces/{hash}")
}

/// The claim of a run folder on its copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub claim: String,
    pub generation: u64,
}

impl Mark {
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok();
        Self { claim: blake3::hash(&bytes).to_hex()[..32].to_owned(), generation: 0 }
    }

    pub fn read(folder: &RunFolder) -> Option<Self> {
        serde_json::from_slice(&crate::system::files::read_own(&folder.path().join(MARK)).ok()?).ok()
    }

    pub fn write(&self, folder: &RunFolder) -> Result<(), Error> {
        write_json(&folder.path().join(MARK), self)
    }
}

/// A run in a bucket, with the manifest as it was read or written last.
pub struct RunCopy {
    pub bucket: Bucket,
    /// Its own folder in the bucket.
    pub address: BucketAddress,
    pub manifest: Manifest,
    pub version: Option<Version>,
    pub age: Option<Duration>,
}

impl RunCopy {
    /// Reads the copy of a run, which need not be there.
    pub fn read(address: BucketAddress, known: &Variables) -> Result<Self, Failure> {
        Self::read_in(Bucket::open(&address, known)?, address)
    }

    /// The same in a bucket that is open.
    pub fn read_in(bucket: Bucket, address: BucketAddress) -> Result<Self, Failure> {
        let (mut manifest, mut version, mut age) = (Manifest::default(), None, None);
        if let Some(content) = bucket.read(&address.join(MANIFEST), MANIFEST_LIMIT)? {
            let unreadable = || {
                Failure::Refused(format!(
                    "{address}/{MANIFEST} cannot be read: another version of pipe may have written it"
                ))
            };
            manifest = serde_json::from_slice(&content.bytes).map_err(|_| unreadable())?;
            if manifest.version != Manifest::VERSION {
                return Err(unreadable());
            }
            (version, age) = (Some(content.version), content.age);
        }
        Ok(Self { bucket, address, manifest, version, age })
    }

    /// Writes the manifest, if nobody else has since.
    pub fn write(&mut self, next: Manifest) -> Result<(), Failure> {
        match self.put(&next) {
            // The answer to an earlier write of this process may have been lost on its way.
            Err(Failure::Changed(_)) if self.is_held_by(&next.claim)? => self.put(&next)?,
            put => put?,
        }
        self.manifest = next;
        Ok(())
    }

    fn put(&mut self, next: &Manifest) -> Result<(), Failure> {
        let bytes = serde_json::to_vec_pretty(next).expect("it is plain data");
        let condition = self.version.clone().map_or(Condition::New, Condition::Is);
        self.version = Some(self.bucket.put(&self.address.join(MANIFEST), bytes, condition)?);
        Ok(())
    }

    /// Reads which claim the manifest has now, and takes it as the one that was written last where that is `claim`.
    fn is_held_by(&mut self, claim: &str) -> Result<bool, Failure> {
        let content = self.bucket.read(&self.address.join(MANIFEST), MANIFEST_LIMIT)?;
        let found = content.and_then(|content| {
            Some((serde_json::from_slice::<Manifest>(&content.bytes).ok()?.claim, content.version))
        });
        let own = found.filter(|(found, _)| found == claim);
        let is_own = own.is_some();
        self.version = own.map(|(_, version)| version).or_else(|| self.version.take());
        Ok(is_own)
    }

    pub fn next(&self, files: Vec<StoredFile>, holder: Option<Holder>) -> Manifest {
        let generation = self.manifest.generation.saturating_add(1);
        Manifest { version: Manifest::VERSION, generation, claim: self.manifest.claim.clone(), holder, files }
    }

    /// Takes the run for this process.
    pub fn claim(&mut self, claim: &str) -> Result<(), Failure> {
        let next = self.next(self.manifest.files.clone(), Some(Holder::here()));
        self.write(Manifest { claim: claim.to_owned(), ..next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_counts_as_gone() {
        let here = Holder::here();
        let elsewhere = Holder { machine: "another".to_owned(), ..here.clone() };
        let gone = Holder { pid: u32::MAX, ..here.clone() };
        let parent = Holder { pid: 1, ..here.clone() };
        for (holder, seconds, want) in [
            (&here, Some(0), false),
            (&gone, Some(0), false),
            (&parent, Some(9999), true),
            (&elsewhere, Some(5), true),
            (&elsewhere, Some(9999), false),
            (&elsewhere, None, true),
        ] {
            assert_eq!(holder.may_live(seconds.map(Duration::from_secs)), want, "{holder:?} {seconds:?}");
        }
    }

    #[test]
    fn a_manifest_names_files_and_pieces() {
        let file = |path: &str, pieces: &[&str]| StoredFile {
            path: path.to_owned(),
            size: 1,
            hash: String::new(),
            pieces: pieces.iter().map(|piece| (*piece).to_owned()).collect(),
        };
        let files =
            vec![file("run.json", &["a"]), file("checkpoints/step-1/x", &[]), file("events.jsonl", &["b", "a"])];
        let manifest = Manifest { files, ..Manifest::default() };
        let named: Vec<String> = manifest.objects().into_iter().collect();
        assert_eq!(named, ["checkpoints/step-1/x", "pieces/a", "pieces/b"]);
        let text = serde_json::to_string(&manifest).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest);
    }
}
