//! Models: which of their files are needed, and which of those the cache has.

use std::path::PathBuf;

use pipe_spec::model_folder::{CONFIG, OPTIONAL, tokenizer_set};
use pipe_spec::pipeline::Arch;

use super::client::Client;
use super::listing::Listing;
use super::refusal::Failure;
use super::{Address, Hub, HubAccess, Snapshot};
use crate::files::model_files::Weights;

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
        let (client, listing) = self.with_config(address)?;
        let mut snapshot = self.snapshot(address, &listing.commit);
        let mut names = self.weights(client, address, &listing, &snapshot)?;
        let set = tokenizer_set(arch, |name| listing.has(name)).filter(|_| tokenizer).unwrap_or_default();
        names.extend(set.iter().chain(&OPTIONAL).filter(|name| listing.has(name)).map(|name| (*name).to_owned()));
        snapshot.missing = self.missing(client, address, &listing, &names)?;
        let unfetched_tokenizer = set.first().copied().filter(|name| snapshot.is_missing(name));
        Ok(FoundModel { snapshot, unfetched_tokenizer })
    }

    /// The folder that has a model's config.json, and need have nothing else.
    pub fn config(&self, address: &Address) -> Result<PathBuf, Failure> {
        let folder = self.commit(address).map(|commit| self.cache.snapshot(address, &commit));
        if let Some(folder) = folder.filter(|folder| folder.join(CONFIG).is_file()) {
            return Ok(folder);
        }
        let (_, listing) = self.with_config(address)?;
        Ok(self.cache.snapshot(address, &listing.commit))
    }

    /// What the hub has, with the config.json of it in the cache.
    fn with_config(&self, address: &Address) -> Result<(&Client, Listing), Failure> {
        let client = self.client(address)?;
        let listing = self.listing(client, address)?;
        if !listing.has(CONFIG) {
            let message = format!("{address} has no {CONFIG}; it must be a model in the layout of transformers");
            return Err(Failure::Named(message));
        }
        self.fetch_now(client, address, &listing, CONFIG)?;
        Ok((client, listing))
    }

    /// Whether the cache has all of a model that is needed.
    fn has_model(&self, address: &Address, commit: &str, arch: Arch, tokenizer: bool) -> bool {
        let folder = self.cache.snapshot(address, commit);
        let has = |name: &str| folder.join(name).is_file();
        let weights = || Weights::find(has).and_then(|weights| weights.files(&folder));
        let is_whole = || weights().is_some_and(|names| names.iter().all(|name| has(name)));
        let has_tokenizer = || !tokenizer || tokenizer_set(arch, has).is_some();
        has(CONFIG) && is_whole() && has_tokenizer()
    }

    /// The names of the files that hold the weights. Those of an index only where they are to be fetched.
    fn weights(
        &self,
        client: &Client,
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
            self.fetch_now(client, address, listing, found.name())?;
        }
        let names = found.files(&snapshot.folder());
        names.filter(|names| names.iter().all(|name| listing.has(name))).ok_or_else(|| {
            Failure::Named(format!("{address}: {} names files that the repository does not have", found.name()))
        })
    }
}
