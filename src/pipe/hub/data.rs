//! Data sets: which files of a repository a path means, and which of those the cache has.

use std::path::Path;

use super::address::DataAddress;
use super::listing::Listing;
use super::refusal::Failure;
use super::{Hub, Snapshot, pattern};

/// Files of a data set, by their paths in the repository.
pub struct FoundData {
    pub snapshot: Snapshot,
    pub names: Vec<String>,
}

impl Hub {
    /// The files that a path of a data set means, in the order of their names. Of a folder those that `accepts` takes.
    pub fn data(&self, data: &DataAddress, accepts: impl Fn(&Path) -> bool) -> Result<FoundData, Failure> {
        let address = &data.repository;
        let has = |commit: &str, name: &str| self.cache.snapshot(address, commit).join(name).is_file();
        if let Some(commit) = self.commit(address) {
            let kept = Listing::kept(address, &commit).and_then(|listing| expand(&listing, &data.path, &accepts));
            // A file needs no list.
            let names = kept.or_else(|| has(&commit, &data.path).then(|| vec![data.path.clone()]));
            if let Some(names) = names.filter(|names| names.iter().all(|name| has(&commit, name))) {
                return Ok(FoundData { snapshot: self.snapshot(address, &commit), names });
            }
        }
        let client = self.client(address)?;
        let listing = self.listing(client, address)?;
        let names = expand(&listing, &data.path, &accepts).ok_or_else(|| {
            Failure::Named(format!(
                "the data set {address} has no file, and no folder with data, that is {:?}",
                data.path
            ))
        })?;
        let mut snapshot = self.snapshot(address, &listing.commit);
        snapshot.missing = self.missing(client, address, &listing, &names)?;
        Ok(FoundData { snapshot, names })
    }
}

/// The files that `path` means: one file, those that match it, or those of a folder that `accepts` takes.
fn expand(listing: &Listing, path: &str, accepts: impl Fn(&Path) -> bool) -> Option<Vec<String>> {
    if listing.has(path) {
        return Some(vec![path.to_owned()]);
    }
    let chosen = |name: &&str| match pattern::is_pattern(path) {
        true => pattern::matches(path, name),
        false => pattern::is_in(path, name) && accepts(Path::new(name)),
    };
    let mut names: Vec<String> = listing.names().filter(chosen).map(str::to_owned).collect();
    names.sort();
    Some(names).filter(|names| !names.is_empty())
}
