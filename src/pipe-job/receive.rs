//! The files that a pod gets before its job starts: `pipe-job await` is the process that waits for it, and `pipe-job receive`, which `pipe`
//! starts beside it, takes the files from stdin.
//!
//! `receive --root FOLDER --attempt FOLDER --keep NAMES --ready FILE`: both folders of `--keep`, with commas between them, begin with
//! what the attempt before left in them.

use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::frames::{Frame, Kind, changed, files_below};
use super::options::Flags;
use super::send::{heed_requests, is_asked_to_end};

/// Between two looks for the file that says that all is there.
const INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the file is there.
pub fn wait(flags: &Flags) -> io::Result<()> {
    let ready = flags.path("--ready")?;
    heed_requests();
    while !ready.exists() {
        if is_asked_to_end() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

pub fn receive(flags: &Flags) -> io::Result<()> {
    let (root, attempt) = (flags.path("--root")?, flags.text("--attempt")?);
    std::fs::create_dir_all(root.join(attempt))?;
    for name in flags.text("--keep")?.split(',').filter(|name| !name.is_empty()) {
        keep(&root, attempt, name)?;
    }
    let (mut input, mut output) = (BufReader::with_capacity(1 << 16, io::stdin().lock()), io::stdout().lock());
    let mut have = Vec::new();
    for folder in ["inputs", attempt] {
        files_below(&root, folder, &mut |path, meta| {
            have.push(Frame { size: meta.len(), changed: changed(&meta), ..Frame::of(Kind::Have, &path) });
        });
    }
    have.iter().try_for_each(|frame| frame.write(&mut output))?;
    Frame::of(Kind::End, "").write(&mut output)?;
    output.flush()?;
    loop {
        let frame = Frame::read(&mut input)?;
        let path = root.join(&frame.path);
        match frame.kind {
            Kind::End => break,
            Kind::Alive => continue,
            _ if !frame.is_inside() => return Err(io::ErrorKind::InvalidInput.into()),
            Kind::Folder => std::fs::create_dir_all(path)?,
            Kind::File | Kind::Program => {
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                frame.take_file(&mut input, &path)?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    std::fs::write(flags.path("--ready")?, "")?;
    Frame::of(Kind::End, "").write(&mut output)?;
    output.flush()
}

/// The folder `name` of this attempt begins as that of the attempt before was left: with the same files by links, which an attempt that
/// still runs somewhere can add nothing to.
fn keep(root: &Path, attempt: &str, name: &str) -> io::Result<()> {
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
        // Of an attempt that was not given up everything is kept.
        write("attempts/02/checkpoints/step-3/model");
        keep(&root, "attempts/03", "checkpoints").unwrap();
        assert_eq!(std::fs::read_dir(root.join("attempts/03/checkpoints")).unwrap().count(), 2);
        std::fs::remove_dir_all(root).unwrap();
    }
}
