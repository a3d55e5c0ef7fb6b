//! The files of two folders, by their content.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use crate::files::digests::Digests;
use crate::run::job_file;

/// Files of a model that are compared, at most.
const MAX_FILES: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// How many there are by their names, in both together.
    pub count: usize,
    /// Those that are not the same in both.
    pub differ: Vec<String>,
}

impl Files {
    /// Nothing where one of the folders has no files.
    pub fn compare(first: &Path, second: &Path) -> Option<Self> {
        let mut digests = Digests::load();
        let (one, other) = (hashes(first, &mut digests)?, hashes(second, &mut digests)?);
        digests.save();
        let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
        let differ = names.iter().filter(|name| one.get(**name) != other.get(**name)).map(|name| (*name).clone());
        Some(Self { count: names.len(), differ: differ.collect() })
    }
}

fn hashes(folder: &Path, digests: &mut Digests) -> Option<BTreeMap<String, String>> {
    let names = job_file::names(folder, MAX_FILES).ok()?.into_iter();
    let found: BTreeMap<String, String> =
        names.filter_map(|name| Some((name.clone(), digests.hash(&folder.join(name)).ok()?))).collect();
    (!found.is_empty()).then_some(found)
}
