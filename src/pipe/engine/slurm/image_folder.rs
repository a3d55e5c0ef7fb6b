//! An image as a folder that every node sees: `images/HASH` in the cache, with its files in `root` and how they are started in
//! `image.json`. HASH is the beginning of the image id.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::trainer_folder;
use crate::engine::ImageStore;
use crate::error::Error;
use crate::files::digests::cache_folder;
use crate::files::rooted::inside;
use crate::files::{bounded, write_json};
use crate::image::ImageConfig;
use crate::report::Reporter;

const ROOT: &str = "root";
const RECORD: &str = "image.json";
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Characters of the image id that name a folder.
const NAME_LENGTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFolder {
    pub root: PathBuf,
    pub config: ImageConfig,
}

#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    id: String,
    config: ImageConfig,
}

/// The folder of the image with this id, where it was exported.
pub fn find(id: &str) -> Result<Option<ImageFolder>, Error> {
    Ok(read(&images_folder()?.join(file_name(id)))?.map(|(_, folder)| folder))
}

/// The id and the folder of an image that was exported under this name.
pub fn find_named(name: &str) -> Result<Option<(String, ImageFolder)>, Error> {
    let Ok(entries) = fs::read_dir(images_folder()?) else { return Ok(None) };
    for entry in entries.flatten() {
        if let Some((record, folder)) = read(&entry.path())?
            && record.name == name
            // One that is being made has a longer name.
            && entry.file_name() == file_name(&record.id).as_str()
        {
            return Ok(Some((record.id, folder)));
        }
    }
    Ok(None)
}

fn read(folder: &Path) -> Result<Option<(Record, ImageFolder)>, Error> {
    let path = folder.join(RECORD);
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = bounded::read(&path, MAX_RECORD_BYTES)?;
    let read_error = |error: serde_json::Error| Error::Read { path, source: error.into() };
    let record: Record = serde_json::from_slice(&bytes).map_err(read_error)?;
    let config = record.config.clone();
    Ok(Some((record, ImageFolder { root: folder.join(ROOT), config })))
}

/// The folder of an image that the store has; it is made where it is not there.
pub async fn ensure(
    images: &dyn ImageStore,
    name: &str,
    id: &str,
    reporter: &mut Reporter,
) -> Result<ImageFolder, Error> {
    let all = images_folder()?;
    let folder = all.join(file_name(id));
    if let Some(found) = find(id)? {
        reporter.note(&format!("image folder: {} (unchanged)", folder.display()));
        return Ok(found);
    }
    reporter.note(&format!("image folder: exporting {name}"));
    // Whole, or not at all: others may make it at the same time. As any folder is made: the umask says who may read it.
    let failed = |source| Error::Write { path: folder.clone(), source };
    fs::create_dir_all(&all).map_err(failed)?;
    let prefix = format!("{}.", file_name(id));
    let own = tempfile::Builder::new().prefix(&prefix).permissions(Permissions::from_mode(0o777)).tempdir_in(&all);
    let own = own.map_err(failed)?;
    let root = own.path().join(ROOT);
    fs::create_dir(&root).map_err(failed)?;
    let config = images.export(id, &root).await?;
    trainer_folder::add_runtime_files(&root)?;
    if let Some(work) = &config.work_folder {
        inside(&root, work).and_then(fs::create_dir_all).map_err(failed)?;
    }
    let record = Record { name: name.to_owned(), id: id.to_owned(), config };
    write_json(&own.path().join(RECORD), &record)?;
    match fs::rename(own.path(), &folder) {
        Err(source) if find(id)?.is_none() => return Err(failed(source)),
        _ => {}
    }
    reporter.note(&format!("image folder: {} (exported)", folder.display()));
    Ok(ImageFolder { root: folder.join(ROOT), config: record.config })
}

/// The same as one file, with the variables of the image where enroot looks for them.
pub fn archive(image: &ImageFolder) -> Result<PathBuf, Error> {
    if !trainer_folder::archive_path(&image.root).is_file() {
        let failed = |source| Error::Write { path: image.root.join("etc/environment"), source };
        let one_line = image.config.env.iter().filter(|(_, value)| !value.contains('\n'));
        let text: String = one_line.map(|(name, value)| format!("{name}={value}\n")).collect();
        let path = inside(&image.root, Path::new("etc/environment")).map_err(failed)?;
        fs::write(path, text).map_err(failed)?;
    }
    trainer_folder::archive(&image.root)
}

fn images_folder() -> Result<PathBuf, Error> {
    Ok(cache_folder().ok_or(Error::NoCache)?.join("images"))
}

fn file_name(id: &str) -> String {
    let hash = id.rsplit(':').next().unwrap_or_default();
    hash.chars().filter(char::is_ascii_alphanumeric).take(NAME_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_named_by_the_id() {
        for id in ["sha256:0123456789abcdef0123", "0123456789abcdef0123", "sha256:../0123456789abcdef0123"] {
            assert_eq!(file_name(id), "0123456789abcdef", "{id}");
        }
    }
}
