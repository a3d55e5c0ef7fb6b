//! Folders of an attempt on a volume, and what the attempt after it begins with.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::frames::{Folder, next_piece};

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
    let from = Folder::open(from)?;
    for entry in from.entries()?.flatten() {
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
        match link(&from, &file_name, &staged, 0) {
            // A link or a pipe leaves nothing behind.
            Ok(()) if !staged.exists() => {}
            Ok(()) => std::fs::rename(&staged, target)?,
            // One that goes away meanwhile was replaced by a newer one.
            Err(error) if is_changed(&error) => drop(std::fs::remove_dir_all(&staged)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether something else is now where a file or folder was.
fn is_changed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ELOOP | libc::ENOTDIR))
}

/// The folder `name` of the last attempt before this one that has it, as it was frozen where that was done.
fn before(attempt: &Path, name: &str) -> Option<PathBuf> {
    let number = |name: &OsStr| name.to_str()?.parse::<u32>().ok();
    let own = number(attempt.file_name()?)?;
    let entries = std::fs::read_dir(attempt.parent()?).ok()?.flatten();
    let numbered = entries.filter_map(|entry| Some((number(&entry.file_name())?, entry.path())));
    let (_, attempt) = numbered.filter(|(number, path)| *number < own && path.join(name).is_dir()).max()?;
    let frozen = attempt.join(FROZEN).join(name);
    Some(if frozen.is_dir() { frozen } else { attempt.join(name) })
}

/// Folders in folders that are kept.
const MAX_DEPTH: usize = 64;

/// Nothing but regular files and folders is kept: the job of a lost node may still put links in their place. A file system without
/// hard links gets a copy.
fn link(from: &Folder, name: &OsStr, to: &Path, depth: usize) -> io::Result<()> {
    let meta = from.path_of(name).symlink_metadata()?;
    if meta.is_dir() {
        std::fs::create_dir(to)?;
        let folder = from.folder(name)?;
        let entries = folder.entries()?.flatten().filter(|_| depth < MAX_DEPTH);
        return entries
            .map(|entry| entry.file_name())
            .try_for_each(|name| link(&folder, &name, &to.join(&name), depth + 1));
    }
    if !meta.is_file() || std::fs::hard_link(from.path_of(name), to).is_ok() {
        return Ok(());
    }
    let (file, mut copy) = (from.file(name)?, File::create_new(to)?);
    copy_pieces(&file, &mut copy, meta.len())?;
    copy.set_modified(meta.modified()?)
}

/// Copies a file without its holes.
fn copy_pieces(mut from: &File, to: &mut File, size: u64) -> io::Result<()> {
    let mut at = 0;
    while let Some((offset, length)) = next_piece(from, at, size) {
        from.seek(SeekFrom::Start(offset))?;
        to.seek(SeekFrom::Start(offset))?;
        io::copy(&mut io::Read::take(from, length), to)?;
        at = offset + length;
    }
    to.set_len(size)
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

    #[test]
    fn links_and_pipes_are_not_kept_and_attempt_100_comes_after_99() {
        let root = std::env::temp_dir().join(format!("pipe-job-keep-{}", std::process::id()));
        for (attempt, step) in [("99", "step-99"), ("100", "step-100")] {
            std::fs::create_dir_all(root.join("attempts").join(attempt).join("checkpoints").join(step)).unwrap();
        }
        let last = root.join("attempts/100/checkpoints");
        std::os::unix::fs::symlink("step-100", last.join("latest")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", last.join("step-100/planted")).unwrap();
        let pipe = std::ffi::CString::new(last.join("pipe").to_str().unwrap()).unwrap();
        // SAFETY: the path ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        keep(&root, "attempts/101", "checkpoints").unwrap();
        let kept = root.join("attempts/101/checkpoints");
        let names: Vec<_> = std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["step-100"]);
        assert_eq!(std::fs::read_dir(kept.join("step-100")).unwrap().count(), 0);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_copy_has_the_holes_of_its_file() {
        let path = |name: &str| std::env::temp_dir().join(format!("pipe-job-copy-{}-{name}", std::process::id()));
        let mut file = File::create_new(path("a")).unwrap();
        io::Write::write_all(&mut file, b"begin").unwrap();
        file.set_len(1 << 40).unwrap();
        let mut copy = File::create_new(path("b")).unwrap();
        copy_pieces(&File::open(path("a")).unwrap(), &mut copy, 1 << 40).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), 1 << 40);
        for name in ["a", "b"] {
            std::fs::remove_file(path(name)).unwrap();
        }
    }
}
