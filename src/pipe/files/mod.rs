//! Files and folders: written whole, read within bounds, hashed. Knows nothing of runs, engines or training.

pub mod bounded;
pub mod digests;
pub mod disk;
pub mod model_files;
pub mod rooted;
pub mod tree;
mod whole;

use std::path::{Path, PathBuf};

pub use whole::{write_json, write_whole};

pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
