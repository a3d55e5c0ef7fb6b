//! A file is written whole or not at all.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::error::Error;

/// Writes under a random temporary name, syncs, renames, syncs the folder: a reader sees the old content
/// or the new, never a part, also after a crash of the machine.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        // As any file is made: the user's umask says who may read it.
        let mode = Permissions::from_mode(0o666);
        let prefix = format!(".{name}.");
        let mut file = tempfile::Builder::new().prefix(&prefix).suffix(".tmp").permissions(mode).tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|source: std::io::Error| Error::Write { path: path.to_owned(), source })
}

/// Writes a JSON file, whole.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Write { path: path.to_owned(), source: error.into() })?;
    text.push('\n');
    write_whole(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_planted_is_written_through() {
        let folder = std::env::temp_dir().join(format!("pipe-write-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("victim"), "victim").unwrap();
        for name in ["run.json".to_owned(), format!(".run.json.{}.tmp", std::process::id())] {
            std::os::unix::fs::symlink(folder.join("victim"), folder.join(name)).unwrap();
        }
        write_whole(&folder.join("run.json"), b"new").unwrap();
        assert_eq!(std::fs::read(folder.join("victim")).unwrap(), b"victim");
        assert_eq!(std::fs::read(folder.join("run.json")).unwrap(), b"new");
        assert!(!folder.join("run.json").is_symlink());
        let mode = std::fs::metadata(folder.join("run.json")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o600, 0o600);
        assert!(write_whole(&folder.join("missing/run.json"), b"x").is_err());
        // Nothing temporary stays.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
