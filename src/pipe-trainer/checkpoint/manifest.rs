//! `manifest.json`: size and checksum of every file of a checkpoint.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::storage::tensor_writer::Written;

pub const NAME: &str = "manifest.json";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Manifest {
    pub files: BTreeMap<String, FileEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub bytes: u64,
    pub blake3: String,
}

impl Manifest {
    pub fn add(&mut self, name: &str, written: Written) {
        self.files.insert(name.to_owned(), FileEntry { bytes: written.bytes, blake3: written.blake3 });
    }

    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Reads the manifest of `folder` and every file it names; the error says what is damaged.
    pub fn verify(folder: &Path, required: &[&str]) -> Result<(), String> {
        let text = fs::read(folder.join(NAME)).map_err(|error| format!("{NAME}: {error}"))?;
        let manifest: Self = serde_json::from_slice(&text).map_err(|error| format!("{NAME}: {error}"))?;
        if let Some(name) = required.iter().find(|name| !manifest.files.contains_key(**name)) {
            return Err(format!("{NAME} does not name {name}"));
        }
        manifest.files.iter().try_for_each(|(name, entry)| {
            let found = FileEntry::of(&folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
            match found {
                found if found.bytes != entry.bytes => {
                    Err(format!("{name} has {} bytes instead of {}", found.bytes, entry.bytes))
                }
                found if found.blake3 != entry.blake3 => Err(format!("{name} has another checksum")),
                _ => Ok(()),
            }
        })
    }
}

impl FileEntry {
    fn of(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        Ok(Self { bytes, blake3: hasher.finalize().to_hex().to_string() })
    }
}
