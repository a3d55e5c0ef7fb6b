//! The content of images: the files that go in, their hash, the context that is sent. Knows no engine.
//!
//! How the programs of an image are started.
//!
//! Whether the libtorch of a job can use a card, known before anything is started on it.

mod context;
mod elf;
mod stage;
mod unpack;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Image;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::gpu::Card;
use crate::system::digests::Digests;
use crate::system::files;

pub use context::Context;
pub use elf::{architectures, find_library};
pub use stage::{Cuda, Staged, find_trainer, stage};
pub use unpack::unpack;

/// The Dockerfile of the trainer image, used where a pipeline names none.
const TRAINER_DOCKERFILE: &str = include_str!("../../../docker/trainer.Dockerfile");

const MAX_DOCKERFILE_BYTES: u64 = 1 << 20;

/// Where the staged trainer lies in a build context.
const STAGED: &str = "pipe/";

/// Follows the build of an image.
pub trait BuildWatcher {
    /// Bytes of the context that were sent.
    fn sent(&mut self, bytes: u64);
    /// A line of the build's log.
    fn line(&mut self, line: &str);
}

/// An image to be built, under the name that its content gives it.
pub struct ImageBuild {
    pub name: String,
    pub context: Context,
    /// Whether the trainer in it can use a card.
    pub cuda: Cuda,
}

/// The source that `image` is built from; the trainer image when there is none.
pub fn prepare_build(image: Option<&str>) -> Result<ImageBuild, Error> {
    let (stem, dockerfile, folder) = match image {
        None => ("trainer".to_owned(), TRAINER_DOCKERFILE.to_owned(), None),
        Some(path) => {
            let path = Path::new(path);
            let text = read_dockerfile(path)?;
            (stem(path), text, Some(folder(path).to_owned()))
        }
    };
    let mut context = Context::new(&dockerfile);
    // pipe's own Dockerfile uses no other file of its folder.
    if let Some(folder) = folder.filter(|_| dockerfile != TRAINER_DOCKERFILE) {
        context.add_folder(&folder)?;
    }
    // The staged trainer is large: it is part of the context only where the Dockerfile uses it.
    let mut cuda = Cuda::Unknown;
    if dockerfile.contains(STAGED) {
        let staged = stage()?;
        for (name, path) in staged.files {
            context.add(&name, &path)?;
        }
        cuda = staged.cuda;
    }
    let context = context.hashed()?;
    Ok(ImageBuild { name: format!("pipe-{stem}:{}", &context.hash()[..16]), context, cuda })
}

/// The content of the trainer program, as a hash.
pub fn trainer_digest() -> Result<String, Error> {
    let mut digests = Digests::load();
    let digest = digests.hash(&find_trainer()?)?;
    digests.save();
    Ok(digest)
}

/// All that the trainer loads, as one hash; nothing where some of it is not there.
pub fn libraries_digest() -> Option<String> {
    let mut digests = Digests::load();
    let mut hasher = blake3::Hasher::new();
    let files = stage().ok()?.files;
    for (name, path) in files.iter().filter(|(name, _)| !name.starts_with("pipe/bin/")) {
        hasher.update(name.as_bytes()).update(digests.hash(path).ok()?.as_bytes());
    }
    digests.save();
    Some(hasher.finalize().to_hex().to_string())
}

/// libtorch's CUDA part, as a job will load it: nothing where it is not there, or comes with an image that pipe does not
/// stage it for. `contained`: the job runs in an image.
pub fn libtorch_cuda(image: Option<&Image>, contained: bool) -> Option<PathBuf> {
    is_staged(image, contained).then(stage::libtorch_cuda).flatten()
}

/// Whether a job can use a card. Not known of an image that pipe does not stage the trainer for.
pub fn cuda(image: Option<&Image>, contained: bool) -> Result<Cuda, Error> {
    if is_staged(image, contained) { Ok(stage()?.cuda) } else { Ok(Cuda::Unknown) }
}

fn is_staged(image: Option<&Image>, contained: bool) -> bool {
    match image.filter(|_| contained) {
        None => true,
        Some(Image::Dockerfile(path)) => read_dockerfile(Path::new(path)).is_ok_and(|text| text.contains(STAGED)),
        Some(Image::Existing(_)) => false,
    }
}

fn read_dockerfile(path: &Path) -> Result<String, Error> {
    let bytes = files::read(path, MAX_DOCKERFILE_BYTES)?;
    let not_text = |_| std::io::Error::other("it is not text in UTF-8");
    String::from_utf8(bytes).map_err(not_text).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// The Dockerfile that is named by a pipeline, if it is one.
pub fn dockerfile(image: Option<&Image>) -> Option<&str> {
    match image {
        Some(Image::Dockerfile(path)) => Some(path),
        Some(Image::Existing(_)) | None => None,
    }
}

/// The folder that a Dockerfile lies in.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name for the image that a repository can have: `docker/My.Dockerfile` gives `my`.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let name = name.trim_end_matches(".dockerfile").trim_start_matches("dockerfile").trim_matches('.');
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain = plain.trim_matches('-');
    if plain.is_empty() { "image".to_owned() } else { plain.to_owned() }
}

/// The settings that an image gives to its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub work_folder: Option<PathBuf>,
    pub user: Option<String>,
}

/// Refuses cards that the job's libtorch cannot use, or lacks the CUDA libraries for. `contained`: the job runs in an image and
/// not as a process.
pub fn check_cards(image: Option<&Image>, contained: bool, cards: &[Card]) -> Result<(), Error> {
    if let Cuda::Missing { folder, libraries } = cuda(image, contained)? {
        return Err(Error::NoCuda { folder, libraries });
    }
    match libtorch_cuda(image, contained) {
        Some(library) => cards.iter().try_for_each(|card| check_card(card, &library)),
        None => Ok(()),
    }
}

/// Whether `card` can run what is in `library`. Where either is not known nothing is refused.
pub fn check_card(card: &Card, library: &Path) -> Result<(), Error> {
    let built_for = architectures(library);
    match card.capability {
        Some(capability) if !built_for.is_empty() && !built_for.iter().any(|built| built.runs_on(capability)) => {
            let built_for = built_for.iter().map(ToString::to_string).collect();
            Err(Error::Capability { card: card.name.clone(), capability: capability.to_string(), built_for })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders() {
        for (path, want) in [("docker/a.Dockerfile", "docker"), ("Dockerfile", "."), ("./Dockerfile", "."), ("/a", "/")]
        {
            assert_eq!(folder(Path::new(path)), Path::new(want), "{path}");
        }
    }

    #[test]
    fn image_names() {
        for (path, want) in [
            ("docker/trainer.Dockerfile", "trainer"),
            ("Dockerfile", "image"),
            ("Dockerfile.gpu", "gpu"),
            ("x/My Image.Dockerfile", "my-image"),
        ] {
            assert_eq!(stem(Path::new(path)), want, "{path}");
        }
    }
}
