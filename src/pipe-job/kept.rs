//! Folders of an attempt on a volume, and what the attempt after it begins with.

use std::io;
use std::path::{Path, PathBuf};

/// The folder `name` of this attempt begins as that of the attempt before was left: with the same files by links, which an attempt that
/// still runs somewhere can add nothing to.
pub fn keep(root: &Path, attempt: &str, name: &str) -> io::Result<()> {
    let own = root.join(attempt).join(name);
    std::fs::create_dir_all(&own)?;
    before(&root.join(attempt), name).map_or(Ok(()), |before| link_entries(&before, &own))
}

/// Below the folder of an attempt whose pod was given up: what it had written then. Whatever its container writes later is in no run.
const FROZEN: &str = ".frozen";

/// Keeps what the folders `names` of an attempt have now for the attempt after it. Events are read afterwards, so that there is one for
/// each step of a checkpoint.
pub fn freeze(attempt: &Path, names: &str) -> io::Result<()> {
    for name in names.split(',').filter(|name| attempt.join(name).is_dir()) {
        let frozen = attempt.join(FROZEN).join(name);
        std::fs::create_dir_all(&frozen)?;
        link_entries(&attempt.join(name), &frozen)?;
    }
    Ok(())
}

/// Complete files and folders of one folder also in another one.
fn link_entries(from: &Path, own: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(from)?.flatten() {
        let file_name = entry.file_name();
        let target = own.join(&file_name);
        let is_staged = [".new", ".tmp", ".old"].iter().any(|end| file_name.to_string_lossy().ends_with(end));
        if is_staged || file_name.to_string_lossy().starts_with('.') || target.exists() {
            continue;
        }
        let mut staged = std::ffi::OsString::from(".");
        staged.push(&file_name);
        staged.push(".tmp");
        let staged = own.join(staged);
        let _ = std::fs::remove_dir_all(&staged);
        let _ = std::fs::remove_file(&staged);
        // One that goes away meanwhile was replaced by a newer one.
        match link(&entry.path(), &staged) {
            Ok(()) => std::fs::rename(&staged, target)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(std::fs::remove_dir_all(&staged)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The folder `name` of the last attempt before this one that has it, as it was frozen where that was done.
fn before(attempt: &Path, name: &str) -> Option<PathBuf> {
    let own = attempt.file_name()?;
    let entries = std::fs::read_dir(attempt.parent()?).ok()?.flatten();
    let earlier = entries.filter(|entry| entry.file_name().as_os_str() < own && entry.path().join(name).is_dir());
    let attempt = earlier.max_by_key(std::fs::DirEntry::file_name)?.path();
    let frozen = attempt.join(FROZEN).join(name);
    Some(if frozen.is_dir() { frozen } else { attempt.join(name) })
}

/// A file system without links gets a copy.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    let meta = from.symlink_metadata()?;
    if meta.is_dir() {
        std::fs::create_dir(to)?;
        return std::fs::read_dir(from)?
            .flatten()
            .try_for_each(|entry| link(&entry.path(), &to.join(entry.file_name())));
    }
    if !meta.is_file() || std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    std::fs::copy(from, to)?;
    std::fs::File::options().write(true).open(to)?.set_modified(meta.modified()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lost_container_writes_later_is_not_kept() {
        let root = std::env::temp_dir().join(format!("pipe-job-freeze-{}", std::process::id()));
        let write = |path: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "weights").unwrap();
        };
        write("attempts/01/checkpoints/step-1/model");
        write("attempts/01/checkpoints/.step-2.tmp/model");
        freeze(&root.join("attempts/01"), "checkpoints,model").unwrap();
        write("attempts/01/checkpoints/step-2/model");
        keep(&root, "attempts/02", "checkpoints").unwrap();
        let kept = root.join("attempts/02/checkpoints");
        let names: Vec<_> = std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["step-1"]);
        assert_eq!(std::fs::read(kept.join("step-1/model")).unwrap(), b"weights");
        // Everything is kept of an attempt that was not given up.
        write("attempts/02/checkpoints/step-3/model");
        keep(&root, "attempts/03", "checkpoints").unwrap();
        assert_eq!(std::fs::read_dir(root.join("attempts/03/checkpoints")).unwrap().count(), 2);
        std::fs::remove_dir_all(root).unwrap();
    }
}
