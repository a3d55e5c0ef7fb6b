//! Several files on their way from the hub to the cache.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::cache::Cache;
use super::client::Client;
use super::listing::{Listing, RemoteFile};
use super::refusal::{Failure, no_space};
use super::transfer::{Transfer, incomplete};
use super::{Address, Hub};
use crate::error::Error;
use crate::files::disk::{Space, nearest};
use crate::report::FetchProgress;

/// Files that are fetched at the same time.
const WORKERS: usize = 4;

/// A file that is to be fetched.
#[derive(Clone, Debug)]
pub struct MissingFile {
    pub(super) address: Address,
    pub(super) commit: String,
    pub(super) file: RemoteFile,
}

/// Why a file was not fetched, and whether it belongs to a data set.
pub struct FetchError {
    pub is_data: bool,
    pub failure: Failure,
}

impl Hub {
    /// Fetches files, several at a time. After a failure the next call continues.
    pub fn fetch(&self, missing: &[MissingFile]) -> Result<(), FetchError> {
        let Some(client) = self.client.get().filter(|_| !missing.is_empty()) else { return Ok(()) };
        let done = |one: &MissingFile| {
            let blob = self.cache.blob(&one.address, &one.file.hash);
            let length = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
            length(&blob).max(length(&incomplete(&blob))).min(one.file.size)
        };
        let sizes: Vec<(u64, u64)> = missing.iter().map(|one| (done(one), one.file.size)).collect();
        let needed = sizes.iter().map(|(done, size)| size - done).sum();
        self.check_space(needed).map_err(|error| FetchError { is_data: false, failure: error.into() })?;
        let mut names: Vec<String> = missing.iter().map(|one| one.address.to_string()).collect();
        names.dedup();
        self.progress.begin(&names.join(", "), sizes);
        let fetched = fetch_together(client, &self.cache, missing, &self.progress);
        self.progress.end(fetched.is_ok());
        fetched
    }

    fn check_space(&self, needed: u64) -> Result<(), Error> {
        match Space::at(nearest(&self.cache.folder)) {
            Some(space) if space.free < needed => Err(no_space(&self.cache.folder, needed, space.free)),
            _ => Ok(()),
        }
    }

    /// A small file that decides what else is needed.
    pub(super) fn fetch_now(
        &self,
        client: &Client,
        address: &Address,
        listing: &Listing,
        name: &str,
    ) -> Result<(), Failure> {
        let missing = self.missing(client, address, listing, &[name.to_owned()])?;
        fetch_together(client, &self.cache, &missing, &self.progress).map_err(|error| error.failure)
    }

    /// Those of the files that the cache does not have.
    pub(super) fn missing(
        &self,
        client: &Client,
        address: &Address,
        listing: &Listing,
        names: &[String],
    ) -> Result<Vec<MissingFile>, Failure> {
        let folder = self.cache.snapshot(address, &listing.commit);
        let absent = names.iter().filter(|name| !folder.join(name).is_file());
        let missing = |name: &String| {
            let file = listing.file(client, address, name)?;
            Ok(MissingFile { address: address.clone(), commit: listing.commit.clone(), file })
        };
        absent.map(missing).collect()
    }
}

/// The first failure ends the others, too.
fn fetch_together(
    client: &Client,
    cache: &Cache,
    missing: &[MissingFile],
    progress: &FetchProgress,
) -> Result<(), FetchError> {
    let (next, stop, failed) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(missing) = missing.get(index) else { return };
            if let Err(failure) = (Transfer { client, cache, missing, progress, index, stop: &stop }).run() {
                // Stop the others after this failure is stored, so that it stays the first.
                let is_data = missing.address.is_data;
                failed.lock().expect("no worker panics with it").get_or_insert(FetchError { is_data, failure });
                stop.store(true, Ordering::SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(missing.len()) {
            scope.spawn(work);
        }
    });
    failed.into_inner().expect("no worker panics with it").map_or(Ok(()), Err)
}
