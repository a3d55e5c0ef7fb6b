//! Where jobs get `container.image` from: the container engine of this machine, which builds and exports it, or a registry that the
//! nodes pull from.
//!
//! An image as a folder that every node sees: `images/HASH` in the cache, with its files in `root` and how they are started in
//! `image.json`. HASH is the beginning of the image id.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pipe_spec::lock::Program;
use pipe_spec::pipeline::Image;
use serde::{Deserialize, Serialize};

use super::section::ContainerRuntime;
use super::trainer_folder;
use crate::engine::{ConnectImages, Engine, ImageStore, Progress};
use crate::error::Error;
use crate::image::{self, ImageBuild, ImageConfig};
use crate::system::digests::cache_folder;
use crate::system::files::{self, inside, write_json};
use crate::system::interrupt;

/// An image that jobs can have.
pub struct ReadyImage {
    pub name: String,
    pub id: Option<String>,
    /// Absent where the nodes pull it.
    pub folder: Option<ImageFolder>,
}

/// Refuses an image that jobs cannot get. Builds nothing.
pub async fn check(images: ConnectImages, runtime: ContainerRuntime, image: Option<&Image>) -> Result<(), Error> {
    let Some(image) = image else { return Ok(()) };
    if runtime == ContainerRuntime::None {
        return refuse(runtime, image, false, None);
    }
    let engine = connect(images).await?;
    let can_be_had = match (&engine, image) {
        (Ok(_), Image::Dockerfile(_)) => true,
        (Ok(engine), Image::Existing(name)) => store(engine.as_ref())?.image_id(name).await?.is_some(),
        (Err(_), image) => exported(image).await?.is_some(),
    };
    refuse(runtime, image, can_be_had, engine.err().as_deref())
}

/// The name of an image, and its id where it is there. Builds nothing.
pub async fn identify(images: ConnectImages, image: &Image) -> Result<(String, Option<String>), Error> {
    let name = name(image).await?;
    let id = match connect(images).await? {
        Ok(engine) => store(engine.as_ref())?.image_id(&name).await?,
        Err(_) => exported(image).await?.and_then(|image| image.id),
    };
    Ok((name, id))
}

/// Builds and exports an image, as far as that is needed. `first` is what earlier attempts of the run had, which it keeps.
pub async fn prepare(
    images: ConnectImages,
    runtime: ContainerRuntime,
    image: &Image,
    first: Option<&Program>,
    progress: &mut dyn Progress,
) -> Result<ReadyImage, Error> {
    let has_containers = runtime != ContainerRuntime::None;
    if has_containers
        && let Some(Program { image: Some(name), image_id: Some(id), .. }) = first
        && let Some(folder) = find(id)?
    {
        return Ok(ReadyImage { name: name.clone(), id: Some(id.clone()), folder: Some(folder) });
    }
    check(images, runtime, Some(image)).await?;
    let pulled = |name: String| ReadyImage { name, id: None, folder: None };
    let Ok(engine) = connect(images).await? else {
        return match exported(image).await? {
            Some(exported) => Ok(exported),
            None => Ok(pulled(name(image).await?)),
        };
    };
    let store = store(engine.as_ref())?;
    let name = match image {
        Image::Existing(name) => name.clone(),
        Image::Dockerfile(path) => {
            let build = prepare_build(path).await?;
            store.ensure(&build, progress).await?;
            build.name
        }
    };
    let Some(id) = store.image_id(&name).await? else { return Ok(pulled(name)) };
    let folder = ensure(store, &name, &id, progress).await?;
    Ok(ReadyImage { name, id: Some(id), folder: Some(folder) })
}

/// The image of a Dockerfile, where it was exported before: its name is a hash of its content.
async fn exported(image: &Image) -> Result<Option<ReadyImage>, Error> {
    let Image::Dockerfile(_) = image else { return Ok(None) };
    let name = name(image).await?;
    let found = find_named(&name)?;
    Ok(found.map(|(id, folder)| ReadyImage { name, id: Some(id), folder: Some(folder) }))
}

async fn name(image: &Image) -> Result<String, Error> {
    match image {
        Image::Existing(name) => Ok(name.clone()),
        Image::Dockerfile(path) => Ok(prepare_build(path).await?.name),
    }
}

/// The engine of this machine that has images, or why there is none.
async fn connect(images: ConnectImages) -> Result<Result<Box<dyn Engine>, String>, Error> {
    match images().await {
        Ok(engine) => Ok(Ok(engine)),
        Err(Error::NoEngine { reason, .. }) => Ok(Err(reason)),
        Err(error) => Err(error),
    }
}

fn store(engine: &dyn Engine) -> Result<&dyn ImageStore, Error> {
    let reason = || format!("the engine {} has no images", engine.name());
    engine.images().ok_or_else(|| Error::NoEngine { reason: reason(), hint: String::new() })
}

/// Runs in a thread of its own, so that signals are heard.
async fn prepare_build(dockerfile: &str) -> Result<ImageBuild, Error> {
    let path = dockerfile.to_owned();
    interrupt::run(move || image::prepare_build(Some(&path))).await
}

/// `missing`: why no container engine answers on this machine, if none does.
fn refuse(runtime: ContainerRuntime, image: &Image, can_be_had: bool, missing: Option<&str>) -> Result<(), Error> {
    let missing = missing.map(|reason| format!("no container engine answers here ({reason})"));
    let (said, hint) = match (runtime, image) {
        (ContainerRuntime::None, _) => (
            format!("container.image cannot be used with slurm.containers: {}", runtime.name()),
            "leave it out: the trainer runs as it is, and so does a command",
        ),
        _ if can_be_had => return Ok(()),
        (_, Image::Dockerfile(path)) => (
            format!("{path} cannot be built: {}", missing.unwrap_or_default()),
            "start Docker or Podman here; or run pipe once where there is one, with the same PIPE_CACHE: jobs use the folder that it \
             leaves there; or push the image, and give its name with a tag that the nodes can pull (apptainer, pyxis)",
        ),
        (ContainerRuntime::Pyxis | ContainerRuntime::Apptainer, Image::Existing(_)) => return Ok(()),
        (ContainerRuntime::Charliecloud, Image::Existing(name)) => (
            format!(
                "Charliecloud pulls no images, and {}",
                missing.unwrap_or_else(|| format!("the container engine of this machine does not have {name}"))
            ),
            "pull it here first with Docker or Podman, or let the nodes pull it: --set slurm.containers=apptainer, where they have \
             Apptainer",
        ),
    };
    Err(Error::JobRefused { engine: super::NAME, said, hint: hint.to_owned() })
}

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
    let bytes = files::read(&path, MAX_RECORD_BYTES)?;
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
    progress: &mut dyn Progress,
) -> Result<ImageFolder, Error> {
    let all = images_folder()?;
    let folder = all.join(file_name(id));
    if let Some(found) = find(id)? {
        progress.note(&format!("image folder: {} (unchanged)", folder.display()));
        return Ok(found);
    }
    progress.note(&format!("image folder: exporting {name}"));
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
    progress.note(&format!("image folder: {} (exported)", folder.display()));
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
    fn an_image_that_jobs_cannot_get_is_refused() {
        use ContainerRuntime::{Apptainer, Charliecloud, None as NoRuntime, Pyxis};
        let (file, name) = (Image::Dockerfile("x/Dockerfile".to_owned()), Image::Existing("x:1".to_owned()));
        let absent = Some("no socket");
        for (runtime, image, can_be_had, missing, want) in [
            (Charliecloud, &file, true, None, Ok(())),
            (Apptainer, &file, true, absent, Ok(())),
            (Charliecloud, &name, true, None, Ok(())),
            (Apptainer, &name, false, absent, Ok(())),
            (Pyxis, &name, false, None, Ok(())),
            (NoRuntime, &file, true, None, Err("slurm.containers: none")),
            (NoRuntime, &name, false, absent, Err("slurm.containers: none")),
            (
                Pyxis,
                &file,
                false,
                absent,
                Err("x/Dockerfile cannot be built: no container engine answers here (no socket)"),
            ),
            (Charliecloud, &name, false, None, Err("does not have x:1")),
            (Charliecloud, &name, false, absent, Err("no container engine answers here (no socket)")),
        ] {
            let got = refuse(runtime, image, can_be_had, missing);
            match (&got, want) {
                (Ok(()), Ok(())) => {}
                (Err(Error::JobRefused { said, .. }), Err(want)) => assert!(said.contains(want), "{said}"),
                _ => panic!("{} {image:?}: {got:?}", runtime.name()),
            }
        }
    }
}

#[cfg(test)]
mod image_folder_tests {
    use super::*;

    #[test]
    fn folders_are_named_by_the_id() {
        for id in ["sha256:0123456789abcdef0123", "0123456789abcdef0123", "sha256:../0123456789abcdef0123"] {
            assert_eq!(file_name(id), "0123456789abcdef", "{id}");
        }
    }
}
