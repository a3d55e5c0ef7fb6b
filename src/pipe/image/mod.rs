//! The content of images: the files that go in, their hash, the context that is sent. Knows no engine.
//!
//! How the programs of an image are started.
//!
//! Whether the libtorch of a job can use a card, known before anything is started on it.
//!
//! The files of an image, from an archive into a folder that belongs to the user.

mod context;
mod elf;
mod libtorch;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use pipe_spec::pipeline::Image;
use serde::{Deserialize, Serialize};
use tar::{Archive, Entry, EntryType};

use crate::error::Error;
use crate::gpu::Card;
use crate::system::digests::Digests;
use crate::system::files::{self, inside};

pub use context::{Context, Cuda, Staged, check_libtorch, find_trainer, stage};
pub use elf::{architectures, find_library, trainer_variable};
pub use libtorch::{fetch_cuda, version as libtorch_version};

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

/// The name of an image in a repository, where that has no tag or digest of its own.
pub fn name_in(repository: &str, image: &str) -> String {
    if has_tag(repository) {
        return repository.to_owned();
    }
    let tag = image.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    format!("{repository}:{tag}")
}

/// Whether a name has a tag or a digest. A colon before a slash is that of a port.
pub fn has_tag(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or_default();
    name.contains('@') || last.contains(':')
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
    is_staged(image, contained).then(context::libtorch_cuda).flatten()
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
        let fetch = fetch_cuda(&folder);
        return Err(Error::NoCuda { folder, libraries, fetch });
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

/// Writes the files of a tar archive into `folder`, and nothing beside it.
pub fn unpack(archive: impl Read, folder: &Path) -> io::Result<()> {
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        // Only root can make devices, and what runs a container gives it its own.
        if kind.is_block_special() || kind.is_character_special() || kind.is_fifo() {
            continue;
        }
        if kind.is_hard_link() && unpack_linked_link(&entry, folder)? {
            continue;
        }
        let path = entry.path()?.into_owned();
        if !entry.unpack_in(folder)? {
            return Err(io::Error::other(format!("{} leads out of the image", path.display())));
        }
        // The owner is the user and no longer root: he must be able to read all of it, and to remove it.
        match kind {
            EntryType::Directory => allow(&below(folder, &path), 0o700)?,
            EntryType::Regular => allow(&below(folder, &path), 0o400)?,
            _ => {}
        }
    }
    Ok(())
}

/// A second name for a symbolic link. `tar` would follow the link to see whether it stays in the folder.
fn unpack_linked_link(entry: &Entry<'_, impl Read>, folder: &Path) -> io::Result<bool> {
    let Some(first) = entry.link_name()? else { return Ok(false) };
    let Ok(target) = fs::read_link(unresolved(folder, &first)?) else { return Ok(false) };
    let link = unresolved(folder, &entry.path()?)?;
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent)?;
    }
    symlink(target, link).map(|()| true)
}

/// Where a file lies in the folder, which may be a link itself.
fn unresolved(folder: &Path, path: &Path) -> io::Result<PathBuf> {
    let parent = inside(folder, path.parent().unwrap_or(Path::new("")))?;
    Ok(parent.join(path.file_name().unwrap_or_default()))
}

fn below(folder: &Path, path: &Path) -> PathBuf {
    let named = path.components().filter(|part| matches!(part, Component::Normal(_)));
    folder.join(named.collect::<PathBuf>())
}

fn allow(path: &Path, bits: u32) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & bits == bits { Ok(()) } else { fs::set_permissions(path, Permissions::from_mode(mode | bits)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_repository() {
        for (repository, want) in [
            ("registry.lab/pipe", "registry.lab/pipe:1"),
            ("registry.lab:5000/pipe", "registry.lab:5000/pipe:1"),
            ("registry.lab:5000/pipe:2", "registry.lab:5000/pipe:2"),
            ("pipe@sha256:0", "pipe@sha256:0"),
        ] {
            assert_eq!(name_in(repository, "pipe-trainer:1"), want);
        }
    }

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

    /// An archive of entries: kind, name, target of a link.
    fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (kind, name, target) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o050);
            let content: &[u8] = if *kind == EntryType::Regular { b"content" } else { b"" };
            header.set_size(content.len() as u64);
            // As they are written: `set_path` and `set_link_name` refuse what leads out.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
            header.set_cksum();
            archive.append(&header, content).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn unpacked(entries: &[(EntryType, &str, &str)]) -> (tempfile::TempDir, io::Result<()>) {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        let result = unpack(&archive(entries)[..], &root);
        (outer, result)
    }

    #[test]
    fn links_are_kept_and_devices_left_out() {
        let (outer, result) = unpacked(&[
            (EntryType::Directory, "bin/", ""),
            (EntryType::Regular, "bin/tool", ""),
            (EntryType::Link, "bin/same", "bin/tool"),
            (EntryType::Symlink, "bin/link", "/etc/not/there"),
            (EntryType::Link, "more/link", "bin/link"),
            (EntryType::Char, "dev/null", ""),
            (EntryType::Block, "dev/sda", ""),
            (EntryType::Fifo, "fifo", ""),
        ]);
        result.unwrap();
        let root = outer.path().join("root");
        assert_eq!(fs::read_to_string(root.join("bin/same")).unwrap(), "content");
        for link in ["bin/link", "more/link"] {
            assert_eq!(fs::read_link(root.join(link)).unwrap(), Path::new("/etc/not/there"), "{link}");
        }
        assert!(!root.join("dev/null").exists() && !root.join("dev/sda").exists() && !root.join("fifo").exists());
        let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("bin"), mode("bin/tool")), (0o750, 0o450));
    }

    #[test]
    fn nothing_is_written_beside_the_folder() {
        for entries in [
            &[(EntryType::Regular, "../beside", "")][..],
            &[(EntryType::Symlink, "out", ".."), (EntryType::Regular, "out/beside", "")],
            &[(EntryType::Symlink, "out", "/proc/self/cwd"), (EntryType::Regular, "out/beside", "")],
            &[(EntryType::Link, "passwd", "/etc/passwd")],
            &[(EntryType::Link, "passwd", "../../../../../etc/passwd")],
        ] {
            let (outer, result) = unpacked(entries);
            assert!(result.is_err(), "{entries:?}");
            assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "{entries:?}");
            assert!(!outer.path().join("root/passwd").exists(), "{entries:?}");
        }
    }
}
