//! The trainer and all that it loads, as a folder that every node sees: the root of a container without an image format, and a program
//! that runs as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::image;
use crate::system::digests::cache_folder;
use crate::system::files::inside;

/// Where a Dockerfile of the trainer puts what is staged under these names.
const PLACES: [(&str, &str); 3] =
    [("pipe/bin", "opt/pipe/bin"), ("pipe/libtorch", "opt/pipe/libtorch"), ("pipe/system", "")];

/// Folders that runtimes mount over, or expect to be there.
const FOLDERS: [&str; 11] = ["dev", "proc", "sys", "tmp", "etc", "run", "root", "home", "var/tmp", "mnt", "usr/bin"];
const FILES: [&str; 5] = ["etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "etc/nsswitch.conf"];

/// The trainer in such a folder.
pub const TRAINER: &str = "opt/pipe/bin/pipe-trainer";

/// The folder for the trainer of this machine, under the hash of its content; it is made where it is not there.
pub fn ensure(trainer: &str, libraries: Option<&str>) -> Result<PathBuf, Error> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(trainer.as_bytes()).update(libraries.unwrap_or_default().as_bytes());
    let name = hasher.finalize().to_hex()[..16].to_owned();
    let all = cache_folder().ok_or(Error::NoCache)?.join("trainers");
    let folder = all.join(&name);
    if folder.join(TRAINER).is_file() {
        return Ok(folder);
    }
    // Whole, or not at all: others may make it at the same time.
    let own = all.join(unique(&name));
    let failed = |source| Error::Write { path: own.clone(), source };
    let made = fill(&own).and_then(|()| match fs::rename(&own, &folder) {
        Err(_) if folder.join(TRAINER).is_file() => Ok(()),
        renamed => renamed.map_err(failed),
    });
    fs::remove_dir_all(&own).ok();
    made.map(|()| folder)
}

/// A name that no other process uses, on this machine or another.
pub fn unique(name: &str) -> String {
    let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    format!("{name}.{}-{time}", std::process::id())
}

/// The same as one file, beside the folder.
pub fn archive(folder: &Path) -> Result<PathBuf, Error> {
    let file = archive_path(folder);
    if file.is_file() {
        return Ok(file);
    }
    let own = folder.with_extension(unique("new"));
    let spawn_error = |source| Error::Spawn { program: "mksquashfs".into(), source };
    let output =
        Command::new("mksquashfs").args([folder, &own]).args(["-noappend", "-quiet"]).output().map_err(spawn_error)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::ImageBuild { step: Some("mksquashfs".to_owned()), message });
    }
    fs::rename(&own, &file).map_err(|source| Error::Write { path: file.clone(), source })?;
    Ok(file)
}

/// Where that file is.
pub fn archive_path(folder: &Path) -> PathBuf {
    folder.with_extension("sqsh")
}

fn fill(root: &Path) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Write { path, source }
    };
    fs::create_dir_all(root.join("opt/pipe/driver")).map_err(failed(root))?;
    add_runtime_files(root)?;
    for (name, source) in image::stage()?.files {
        let Some(place) = PLACES.iter().find_map(|(staged, place)| Some((place, name.strip_prefix(staged)?))) else {
            continue;
        };
        let to = root.join(place.0).join(place.1.trim_start_matches('/'));
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(failed(&to))?;
        }
        fs::copy(&source, &to).map_err(failed(&to))?;
    }
    Ok(())
}

/// Makes what runtimes mount over, where it is not there.
pub fn add_runtime_files(root: &Path) -> Result<(), Error> {
    FOLDERS.iter().try_for_each(|folder| make_path(root, Path::new(folder), true).map(drop))?;
    FILES.iter().try_for_each(|file| make_path(root, Path::new(file), false).map(drop))
}

/// Where something is mounted in a folder, there must be something to mount over. Returns where that is for the job, behind the
/// links that lead there.
pub fn make_mount_point(root: &Path, host: &Path, mounted: &Path) -> Result<PathBuf, Error> {
    let place = make_path(root, mounted, host.is_dir())?;
    Ok(Path::new("/").join(place.strip_prefix(root).unwrap_or(&place)))
}

fn make_path(root: &Path, path: &Path, is_folder: bool) -> Result<PathBuf, Error> {
    let failed = |source| Error::Write { path: root.join(path.strip_prefix("/").unwrap_or(path)), source };
    let place = inside(root, path).map_err(failed)?;
    if is_folder {
        fs::create_dir_all(&place).map_err(failed)?;
    } else if !place.exists() {
        place.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        fs::write(&place, "").map_err(failed)?;
    }
    Ok(place)
}
