//! Models and data sets of the Hugging Face hub, in the cache that its own tools fill; files that are missing there are
//! downloaded. Folders of buckets are repositories too, in a cache of pipe's own: the ETags of their objects together have the place
//! of a commit.
//!
//! The crate `hf-hub` is not used: it neither checks hashes, nor continues what an earlier process left, nor knows
//! HF_HUB_OFFLINE, nor says why the hub refuses something. So `client` asks (with `ureq`), `listing` reads the files of a
//! repository, `transfer` downloads and checks one file, and `cache` writes in the layout of `huggingface_hub`.
//!
//! Knows nothing of pipelines: `preflight` says what is wanted.

mod address;
mod cache;
mod client;
mod transfer;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use address::Settings;
use cache::{Cache, Listing};
use client::{Client, Remote};
use pipe_spec::Variables;
use pipe_spec::lock::LockedRepository;
use pipe_spec::model_folder::{CONFIG, OPTIONAL, tokenizer_set};
use pipe_spec::pipeline::Arch;

use crate::bucket::Bucket;
use crate::error::Error;
use crate::report::FetchProgress;
use crate::system::digests::{Weights, cache_folder};
use crate::system::files::{Pattern, absolute};

pub use address::{Address, DataAddress};
pub use client::Failure;
pub use transfer::MissingFile;

/// The cache of models and data sets.
pub fn cache_path(known: &Variables) -> PathBuf {
    Settings::read(known).cache
}

/// Files of a data set, by their paths in the repository.
pub struct FoundData {
    pub snapshot: Snapshot,
    pub names: Vec<String>,
}

impl Hub {
    /// The files that a path of a data set means, in the order of their names; in a folder, those that `accepts` takes.
    pub fn data(&self, data: &DataAddress, accepts: impl Fn(&Path) -> bool) -> Result<FoundData, Failure> {
        let address = &data.repository;
        let cache = self.cache_of(address);
        let has = |commit: &str, name: &str| cache.snapshot(address, commit).join(name).is_file();
        if let Some(commit) = self.commit(address) {
            let kept = Listing::kept(address, &commit).and_then(|listing| expand(&listing, &data.path, &accepts));
            // A file needs no list.
            let names = kept.or_else(|| has(&commit, &data.path).then(|| vec![data.path.clone()]));
            if let Some(names) = names.filter(|names| names.iter().all(|name| has(&commit, name))) {
                return Ok(FoundData { snapshot: self.snapshot(address, &commit), names });
            }
        }
        let remote = self.remote(address)?;
        let listing = self.listing(&remote, address)?;
        let names = expand(&listing, &data.path, &accepts).ok_or_else(|| {
            Failure::Named(match &address.bucket {
                Some(_) => format!("there is no object {address}, and no folder of it with data"),
                None => {
                    let path = &data.path;
                    format!("the data set {address} has no file, and no folder with data, that is {path:?}")
                }
            })
        })?;
        let mut snapshot = self.snapshot(address, &listing.commit);
        snapshot.missing = self.missing(&remote, address, &listing, &names)?;
        Ok(FoundData { snapshot, names })
    }
}

/// The files that `path` means: one file, those that match it, or those of a folder that `accepts` takes.
fn expand(listing: &Listing, path: &str, accepts: impl Fn(&Path) -> bool) -> Option<Vec<String>> {
    if listing.has(path) {
        return Some(vec![path.to_owned()]);
    }
    let pattern = Pattern::is_meant(path).then(|| Pattern::new(path));
    let chosen = |name: &&str| match &pattern {
        Some(pattern) => pattern.matches(name),
        None => address::is_in(path, name) && accepts(Path::new(name)),
    };
    let mut names: Vec<String> = listing.names().filter(chosen).map(str::to_owned).collect();
    names.sort();
    Some(names).filter(|names| !names.is_empty())
}

/// A model, with the tokenizer that the hub has and the cache has not.
pub struct FoundModel {
    pub snapshot: Snapshot,
    pub unfetched_tokenizer: Option<&'static str>,
}

impl Hub {
    /// A model, with `tokenizer` where its own is needed.
    pub fn model(&self, address: &Address, arch: Arch, tokenizer: bool) -> Result<FoundModel, Failure> {
        let known = self.commit(address);
        if let Some(commit) = known.as_ref().filter(|commit| self.has_model(address, commit, arch, tokenizer)) {
            return Ok(FoundModel { snapshot: self.snapshot(address, commit), unfetched_tokenizer: None });
        }
        let (remote, listing) = self.with_config(address)?;
        let mut snapshot = self.snapshot(address, &listing.commit);
        let mut names = self.weights(&remote, address, &listing, &snapshot)?;
        let set = tokenizer_set(arch, |name| listing.has(name)).filter(|_| tokenizer).unwrap_or_default();
        names.extend(set.iter().chain(&OPTIONAL).filter(|name| listing.has(name)).map(|name| (*name).to_owned()));
        snapshot.missing = self.missing(&remote, address, &listing, &names)?;
        let unfetched_tokenizer = set.first().copied().filter(|name| snapshot.is_missing(name));
        Ok(FoundModel { snapshot, unfetched_tokenizer })
    }

    /// The folder that has a model's config.json, and need have nothing else.
    pub fn config(&self, address: &Address) -> Result<PathBuf, Failure> {
        let folder = self.commit(address).map(|commit| self.cache_of(address).snapshot(address, &commit));
        if let Some(folder) = folder.filter(|folder| folder.join(CONFIG).is_file()) {
            return Ok(folder);
        }
        let (_, listing) = self.with_config(address)?;
        Ok(self.cache_of(address).snapshot(address, &listing.commit))
    }

    /// The files that the hub has, after config.json was put into the cache.
    fn with_config(&self, address: &Address) -> Result<(Arc<Remote>, Listing), Failure> {
        let remote = self.remote(address)?;
        let listing = self.listing(&remote, address)?;
        if !listing.has(CONFIG) {
            let message = format!("{address} has no {CONFIG}; it must be a model in the layout of transformers");
            return Err(Failure::Named(message));
        }
        self.fetch_now(&remote, address, &listing, CONFIG)?;
        Ok((remote, listing))
    }

    /// Whether the cache has all of a model that is needed.
    fn has_model(&self, address: &Address, commit: &str, arch: Arch, tokenizer: bool) -> bool {
        let folder = self.cache_of(address).snapshot(address, commit);
        let has = |name: &str| folder.join(name).is_file();
        let weights = || Weights::find(has).and_then(|weights| weights.files(&folder));
        let is_whole = || weights().is_some_and(|names| names.iter().all(|name| has(name)));
        let has_tokenizer = || !tokenizer || tokenizer_set(arch, has).is_some();
        has(CONFIG) && is_whole() && has_tokenizer()
    }

    /// The names of the files that hold the weights. Those of an index only where they are to be fetched.
    fn weights(
        &self,
        remote: &Arc<Remote>,
        address: &Address,
        listing: &Listing,
        snapshot: &Snapshot,
    ) -> Result<Vec<String>, Failure> {
        let found = Weights::find(|name| listing.has(name)).ok_or_else(|| {
            Failure::Named(format!("{address} has no weights in a known format: {}", Weights::expected()))
        })?;
        if matches!(found, Weights::Index(_)) {
            if self.access != HubAccess::Fetch {
                return Ok(vec![found.name().to_owned()]);
            }
            self.fetch_now(remote, address, listing, found.name())?;
        }
        let names = found.files(&snapshot.folder());
        names.filter(|names| names.iter().all(|name| listing.has(name))).ok_or_else(|| {
            Failure::Named(format!("{address}: {} names files that the repository does not have", found.name()))
        })
    }
}

/// How much is fetched from the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubAccess {
    /// Only files of the cache; the network is not used.
    CacheOnly,
    /// A model's config.json, and whether the hub has all the rest.
    Check,
    /// Everything that a training reads.
    Fetch,
}

pub struct Hub {
    settings: Settings,
    known: Variables,
    cache: Cache,
    /// That of the objects of buckets.
    buckets: Cache,
    /// The hub and the buckets that were asked, by their names.
    remotes: RefCell<Vec<(String, Arc<Remote>)>>,
    access: HubAccess,
    /// The commits that a run began with.
    pins: Vec<LockedRepository>,
    progress: FetchProgress,
}

/// One commit of a repository in the cache. Its files are links to what lies elsewhere in the repository's folder.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The cache.
    pub cache: PathBuf,
    /// The folder of the repository, which holds all of it.
    pub repository: PathBuf,
    /// The commit's folder, relative to `repository`.
    pub path: PathBuf,
    pub locked: LockedRepository,
    /// Files that are not in the cache yet.
    pub missing: Vec<MissingFile>,
}

impl Snapshot {
    pub fn folder(&self) -> PathBuf {
        self.repository.join(&self.path)
    }

    fn is_missing(&self, name: &str) -> bool {
        self.missing.iter().any(|missing| missing.file.name == name)
    }
}

impl Hub {
    pub fn new(known: &Variables, access: HubAccess, pins: &[LockedRepository], progress: FetchProgress) -> Self {
        let settings = Settings::read(known);
        let cache = Cache { folder: settings.cache.clone() };
        let own = cache_folder().map_or_else(|| settings.cache.clone(), |folder| absolute(&folder));
        let buckets = Cache { folder: own.join("buckets") };
        let (known, remotes) = (known.clone(), RefCell::default());
        Self { settings, known, cache, buckets, remotes, access, pins: pins.to_vec(), progress }
    }

    fn cache_of(&self, address: &Address) -> &Cache {
        if address.bucket.is_some() { &self.buckets } else { &self.cache }
    }

    pub fn access(&self) -> HubAccess {
        self.access
    }

    fn snapshot(&self, address: &Address, commit: &str) -> Snapshot {
        let locked =
            LockedRepository { name: address.name(), revision: address.revision.clone(), commit: commit.to_owned() };
        let cache = self.cache_of(address);
        let repository = cache.repository(address);
        let path = Path::new("snapshots").join(commit);
        Snapshot { cache: cache.folder.clone(), repository, path, locked, missing: Vec::new() }
    }

    /// The commit that a run began with, or that the cache knows for the revision. Objects of a bucket may change at any time: a new run
    /// asks for them.
    fn commit(&self, address: &Address) -> Option<String> {
        let asks = address.bucket.is_some() && self.access != HubAccess::CacheOnly && self.settings.offline.is_none();
        let cached = || self.cache_of(address).commit(address).filter(|_| !asks);
        self.pin(address).map(str::to_owned).or_else(cached)
    }

    fn pin(&self, address: &Address) -> Option<&str> {
        let name = address.name();
        let pin = self.pins.iter().find(|pin| pin.name == name && pin.revision == address.revision)?;
        Some(&pin.commit)
    }

    /// The files that the hub has at the commit that is known for the revision; without one, or where the hub no longer has that
    /// commit, at the one that the revision names now. So all that a pipeline names of a revision is of one commit.
    fn listing(&self, remote: &Remote, address: &Address) -> Result<Listing, Failure> {
        if let Some(commit) = self.commit(address) {
            let listing = Listing::kept(address, &commit).map_or_else(|| Listing::ask(remote, address, &commit), Ok);
            match listing {
                Err(Failure::Named(_)) if self.pin(address).is_none() => {}
                Ok(listing) if listing.commit != commit && address.bucket.is_some() => {
                    return Err(Failure::Named(format!(
                        "{address} has changed since the run started; restore it, or start a new run with `pipe run`"
                    )));
                }
                listing => return listing,
            }
        }
        let listing = Listing::ask(remote, address, &address.revision)?;
        let cache = self.cache_of(address);
        if address.bucket.is_some() && cache.commit(address).is_some_and(|before| before != listing.commit) {
            self.progress.note(&format!("{address} has changed since it was last fetched"));
        }
        cache.set_commit(address, &listing.commit)?;
        Ok(listing)
    }

    /// Prints the commits that a run uses.
    pub fn announce(&self, repositories: &[LockedRepository]) {
        for LockedRepository { name, revision, commit } in repositories {
            let short = &commit[..commit.len().min(12)];
            self.progress.note(&match name.contains("://") {
                true => format!("bucket: {} as of {short}", format!("{name}/{revision}").trim_end_matches('/')),
                false => format!("hub: {name} at commit {short}"),
            });
        }
    }

    /// Where files come from that the cache does not have.
    fn remote(&self, address: &Address) -> Result<Arc<Remote>, Failure> {
        let cache = self.cache_of(address).folder.clone();
        if self.access == HubAccess::CacheOnly {
            return Err(Failure::Named(format!("{address} is not in the hub cache {}", cache.display())));
        }
        if let Some(variable) = self.settings.offline {
            let command = address.download_command();
            return Err(Error::HubOffline { what: address.to_string(), cache, variable, command }.into());
        }
        let bucket = address.bucket.as_ref().map(|folder| folder.at(""));
        let name = bucket.as_ref().map(ToString::to_string).unwrap_or_default();
        let mut remotes = self.remotes.borrow_mut();
        if let Some((_, remote)) = remotes.iter().find(|(known, _)| *known == name) {
            return Ok(remote.clone());
        }
        let remote = Arc::new(match bucket {
            Some(bucket) => Remote::Bucket(Bucket::open(&bucket, &self.known)?),
            None => Remote::Hub(Client::new(&self.settings)),
        });
        remotes.push((name, remote.clone()));
        Ok(remote)
    }
}
