//! A build context: sorted, with fixed times and owners, so that the same files always give the same bytes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::error::Error;
use crate::system::digests::Digests;

#[derive(Clone, Debug)]
pub struct Context {
    dockerfile: String,
    files: BTreeMap<String, File>,
    hash: String,
}

#[derive(Clone, Debug)]
struct File {
    path: PathBuf,
    size: u64,
    executable: bool,
}

type Chunk = Result<Bytes, std::io::Error>;

impl Context {
    /// The name under which the Dockerfile travels; no file of a user's can have it.
    pub const DOCKERFILE: &str = ".pipe.Dockerfile";

    pub fn new(dockerfile: &str) -> Self {
        Self { dockerfile: dockerfile.to_owned(), files: BTreeMap::new(), hash: String::new() }
    }

    pub fn add(&mut self, name: &str, path: &Path) -> Result<(), Error> {
        let meta = std::fs::metadata(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let executable = meta.permissions().mode() & 0o111 != 0;
        self.files.insert(name.to_owned(), File { path: path.to_owned(), size: meta.len(), executable });
        Ok(())
    }

    /// Every file below `folder` but what begins with a dot.
    pub fn add_folder(&mut self, folder: &Path) -> Result<(), Error> {
        self.add_below(folder, "")
    }

    fn add_below(&mut self, folder: &Path, prefix: &str) -> Result<(), Error> {
        let read_error = |source| Error::Read { path: folder.to_owned(), source };
        for entry in std::fs::read_dir(folder).map_err(read_error)? {
            let entry = entry.map_err(read_error)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') {
                continue;
            }
            let path = entry.path();
            if path.is_dir() {
                self.add_below(&path, &format!("{prefix}{name}/"))?;
            } else if path.is_file() {
                self.add(&format!("{prefix}{name}"), &path)?;
            }
        }
        Ok(())
    }

    /// With its hash: over every name, mode and content, and nothing else.
    pub fn hashed(mut self) -> Result<Self, Error> {
        let mut digests = Digests::load();
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(self.dockerfile.as_bytes());
        for (name, file) in &self.files {
            part(name.as_bytes());
            part(&[u8::from(file.executable)]);
            part(digests.hash(&file.path)?.as_bytes());
        }
        digests.save();
        self.hash = hasher.finalize().to_hex().to_string();
        Ok(self)
    }

    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub fn size(&self) -> u64 {
        self.files.values().map(|file| file.size).sum()
    }

    /// Writes the context as a tar archive into `to`, and how much of it into `counter`. Blocks.
    pub fn send(&self, to: mpsc::Sender<Chunk>, counter: mpsc::UnboundedSender<u64>) -> Result<(), Error> {
        let mut archive = tar::Builder::new(ChannelWriter { to, counter });
        let write_error = |source| Error::Write { path: "the build context".into(), source };
        let text = self.dockerfile.as_bytes();
        append(&mut archive, Self::DOCKERFILE, text, text.len() as u64, false).map_err(write_error)?;
        for (name, file) in &self.files {
            let read_error = |source| Error::Read { path: file.path.clone(), source };
            let content = std::fs::File::open(&file.path).map_err(read_error)?;
            append(&mut archive, name, content, file.size, file.executable).map_err(read_error)?;
        }
        archive.finish().map_err(write_error)
    }
}

fn append(
    archive: &mut tar::Builder<impl Write>,
    name: &str,
    content: impl Read,
    size: u64,
    executable: bool,
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(if executable { 0o755 } else { 0o644 });
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    archive.append_data(&mut header, name, content)
}

/// A writer whose bytes go to the HTTP request, in pieces.
struct ChannelWriter {
    to: mpsc::Sender<Chunk>,
    counter: mpsc::UnboundedSender<u64>,
}

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.to
            .blocking_send(Ok(Bytes::copy_from_slice(bytes)))
            .map_err(|_| std::io::Error::new(std::io::ErrorKind::BrokenPipe, "the engine took no more of it"))?;
        self.counter.send(bytes.len() as u64).ok();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(context: &Context) -> Vec<u8> {
        let (to, mut from) = mpsc::channel(1024);
        let (counter, _) = mpsc::unbounded_channel();
        context.send(to, counter).unwrap();
        let mut bytes = Vec::new();
        while let Ok(chunk) = from.try_recv() {
            bytes.extend_from_slice(&chunk.unwrap());
        }
        bytes
    }

    fn of_folder(folder: &Path) -> Context {
        let mut context = Context::new("FROM scratch\n");
        context.add_folder(folder).unwrap();
        context.hashed().unwrap()
    }

    #[test]
    fn the_same_files_give_the_same_bytes_whatever_their_times() {
        let root = std::env::temp_dir().join(format!("pipe-context-{}", std::process::id()));
        for copy in ["a", "b"] {
            std::fs::create_dir_all(root.join(copy).join("sub")).unwrap();
            std::fs::write(root.join(copy).join("sub/one"), "1").unwrap();
            std::fs::write(root.join(copy).join("two"), "2").unwrap();
            std::fs::write(root.join(copy).join(".secret"), copy).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let (a, b) = (of_folder(&root.join("a")), of_folder(&root.join("b")));
        assert_eq!(a.hash(), b.hash());
        assert_eq!(archive(&a), archive(&b));
        std::fs::write(root.join("b/two"), "3").unwrap();
        assert_ne!(a.hash(), of_folder(&root.join("b")).hash());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
