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
use crate::disk::{Space, nearest};
use crate::error::Error;
use crate::report::FetchProgress;

/// Files that are fetched at the same time.
const WORKERS: usize = 4;

/// A file that is to be fetched.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub(super) address: Address,
    pub(super) commit: String,
    pub(super) file: RemoteFile,
}

/// Why something was not fetched, and whether it is of a data set.
pub struct Unfetched {
    pub is_data: bool,
    pub failure: Failure,
}

impl Hub {
    /// Fetches files, several at a time. What is left where that fails is gone on with the next time.
    pub fn fetch(&self, wanted: &[Wanted]) -> Result<(), Unfetched> {
        let Some(client) = self.client.get().filter(|_| !wanted.is_empty()) else { return Ok(()) };
        let done = |one: &Wanted| {
            let blob = self.cache.blob(&one.address, &one.file.hash);
            let length = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
            length(&blob).max(length(&incomplete(&blob))).min(one.file.size)
        };
        let sizes: Vec<(u64, u64)> = wanted.iter().map(|one| (done(one), one.file.size)).collect();
        let needed = sizes.iter().map(|(done, size)| size - done).sum();
        self.check_space(needed).map_err(|error| Unfetched { is_data: false, failure: error.into() })?;
        let mut names: Vec<String> = wanted.iter().map(|one| one.address.to_string()).collect();
        names.dedup();
        self.progress.begin(&names.join(", "), sizes);
        let fetched = fetch_together(client, &self.cache, wanted, &self.progress);
        self.progress.end(fetched.is_ok());
        fetched
    }

    fn check_space(&self, needed: u64) -> Result<(), Error> {
        match Space::of(nearest(&self.cache.folder)) {
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
        fetch_together(client, &self.cache, &missing, &self.progress).map_err(|unfetched| unfetched.failure)
    }

    /// Those of the files that the cache does not have.
    pub(super) fn missing(
        &self,
        client: &Client,
        address: &Address,
        listing: &Listing,
        names: &[String],
    ) -> Result<Vec<Wanted>, Failure> {
        let folder = self.cache.snapshot(address, &listing.commit);
        let absent = names.iter().filter(|name| !folder.join(name).is_file());
        let wanted = |name: &String| {
            let file = listing.file(client, address, name)?;
            Ok(Wanted { address: address.clone(), commit: listing.commit.clone(), file })
        };
        absent.map(wanted).collect()
    }
}

/// The first failure ends the others, too.
fn fetch_together(
    client: &Client,
    cache: &Cache,
    wanted: &[Wanted],
    progress: &FetchProgress,
) -> Result<(), Unfetched> {
    let (next, stop, failed) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(wanted) = wanted.get(index) else { return };
            if let Err(failure) = (Transfer { client, cache, wanted, progress, index, stop: &stop }).run() {
                // The others are told only then: theirs is not the first failure.
                let is_data = wanted.address.is_data;
                failed.lock().expect("no worker panics with it").get_or_insert(Unfetched { is_data, failure });
                stop.store(true, Ordering::SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(wanted.len()) {
            scope.spawn(work);
        }
    });
    failed.into_inner().expect("no worker panics with it").map_or(Ok(()), Err)
}
