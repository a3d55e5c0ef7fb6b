//! The files of two folders, by their content.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use crate::digests::Digests;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// How many there are by their names, in both together.
    pub count: usize,
    /// Those that are not the same in both.
    pub differ: Vec<String>,
}

impl Files {
    /// Nothing where one of the folders has no files.
    pub fn of(first: &Path, second: &Path) -> Option<Self> {
        let mut digests = Digests::load();
        let (one, other) = (hashes(first, &mut digests)?, hashes(second, &mut digests)?);
        digests.save();
        let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
        let differ = names.iter().filter(|name| one.get(**name) != other.get(**name)).map(|name| (*name).clone());
        Some(Self { count: names.len(), differ: differ.collect() })
    }
}

impl Files {
    /// How many there are.
    pub fn words(&self) -> String {
        if self.count == 1 { "1 file".to_owned() } else { format!("{} files", self.count) }
    }
}

fn hashes(folder: &Path, digests: &mut Digests) -> Option<BTreeMap<String, String>> {
    let paths = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    let hash =
        |path: std::path::PathBuf| Some((path.file_name()?.to_string_lossy().into_owned(), digests.of(&path).ok()?));
    let found: BTreeMap<String, String> = paths.filter_map(hash).collect();
    (!found.is_empty()).then_some(found)
}
