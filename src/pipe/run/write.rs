//! A file is written whole or not at all.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::error::Error;

/// Writes under a temporary name, syncs, renames: a reader sees the old content or the new, never a part.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    });
    written.map_err(|source| {
        std::fs::remove_file(&temporary).ok();
        Error::Write { path: path.to_owned(), source }
    })
}
