//! Models and data sets of the Hugging Face hub, in the cache that its own tools fill, fetched where they are missing.
//!
//! The crate `hf-hub` knows the hub's names: which folder of the cache and which address a repository has (`Repo`,
//! `CacheRepo`). The transfer is our own: `hf-hub` neither checks hashes, nor continues what an earlier process left,
//! nor knows HF_HUB_OFFLINE, nor says why the hub refuses something. So `client` asks (with `ureq`), `listing` reads what
//! a repository has, `transfer` fetches and checks one file, and `cache` writes in the layout of `huggingface_hub`.
//!
//! Knows nothing of pipelines: `preflight` says what is wanted.

mod address;
mod cache;
mod client;
mod content;
mod data;
mod fetch;
mod listing;
mod model;
mod pattern;
mod refusal;
mod settings;
mod transfer;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use pipe_spec::Variables;
use pipe_spec::lock::LockedRepository;

use crate::error::Error;
use crate::report::FetchProgress;
pub use address::{Address, DataAddress};
use cache::Cache;
use client::Client;
pub use fetch::MissingFile;
use listing::Listing;
pub use refusal::Failure;
use settings::Settings;

/// How much is fetched from the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubAccess {
    /// What is in the cache; the network is not used.
    CacheOnly,
    /// A model's config.json, and whether the hub has all the rest.
    Check,
    /// Everything that a training reads.
    Fetch,
}

pub struct Hub {
    settings: Settings,
    cache: Cache,
    client: OnceCell<Client>,
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
        Self { settings, cache, client: OnceCell::new(), access, pins: pins.to_vec(), progress }
    }

    pub fn access(&self) -> HubAccess {
        self.access
    }

    fn snapshot(&self, address: &Address, commit: &str) -> Snapshot {
        let locked =
            LockedRepository { name: address.name(), revision: address.revision.clone(), commit: commit.to_owned() };
        let repository = self.cache.repository(address);
        let path = Path::new("snapshots").join(commit);
        Snapshot { cache: self.cache.folder.clone(), repository, path, locked, missing: Vec::new() }
    }

    /// The commit that a run began with, or that the cache knows for the revision.
    fn commit(&self, address: &Address) -> Option<String> {
        self.pin(address).map(str::to_owned).or_else(|| self.cache.commit(address))
    }

    fn pin(&self, address: &Address) -> Option<&str> {
        let name = address.name();
        let pin = self.pins.iter().find(|pin| pin.name == name && pin.revision == address.revision)?;
        Some(&pin.commit)
    }

    /// What the hub has at the commit that is known for the revision; without one, or where the hub no longer has that
    /// commit, at the one that the revision names now. So all that a pipeline names of a revision is of one commit.
    fn listing(&self, client: &Client, address: &Address) -> Result<Listing, Failure> {
        if let Some(commit) = self.commit(address) {
            let listing = Listing::kept(address, &commit).map_or_else(|| Listing::ask(client, address, &commit), Ok);
            match listing {
                Err(Failure::Named(_)) if self.pin(address).is_none() => {}
                listing => return listing,
            }
        }
        let listing = Listing::ask(client, address, &address.revision)?;
        self.cache.set_commit(address, &listing.commit)?;
        Ok(listing)
    }

    /// Prints the commits that a run uses.
    pub fn announce(&self, repositories: &[LockedRepository]) {
        for LockedRepository { name, commit, .. } in repositories {
            self.progress.note(&format!("hub: {name} at commit {}", &commit[..commit.len().min(12)]));
        }
    }

    /// The client for files that the cache does not have.
    fn client(&self, address: &Address) -> Result<&Client, Failure> {
        let cache = self.cache.folder.clone();
        if self.access == HubAccess::CacheOnly {
            return Err(Failure::Named(format!("{address} is not in the hub cache {}", cache.display())));
        }
        if let Some(variable) = self.settings.offline {
            let command = address.download_command();
            return Err(Error::HubOffline { what: address.to_string(), cache, variable, command }.into());
        }
        Ok(self.client.get_or_init(|| Client::new(&self.settings)))
    }
}
