//! A build context: sorted, with fixed times and owners, so that the same files always give the same bytes.
//!
//! The trainer and everything it loads, as they lie in a build context under `pipe/`.
//!
//! `pipe/bin` holds the trainer, `pipe/libtorch/lib` what changes with libtorch, `pipe/system` the system's libraries at the
//! places where the dynamic linker of this system looks for them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pipe_spec::RunFolder;
use tokio::sync::mpsc;

use super::MAX_DOCKERFILE_BYTES;
use super::elf::{self, Libraries};
use super::libtorch::{self, MAIN_LIBRARY};
use crate::error::Error;
use crate::system::digests::Digests;
use crate::system::files::{self, Pattern};

#[derive(Clone, Debug)]
pub struct Context {
    dockerfile: String,
    files: BTreeMap<String, Source>,
    hash: String,
}

#[derive(Clone, Debug)]
struct Source {
    path: PathBuf,
    executable: bool,
    /// Its size and content when it was hashed.
    size: u64,
    digest: String,
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
        let source = Source { path: path.to_owned(), executable, size: meta.len(), digest: String::new() };
        self.files.insert(name.to_owned(), source);
        Ok(())
    }

    /// Every file below `folder` but what begins with a dot, what its `.dockerignore` names, links that lead out of it, and runs of
    /// pipe.
    pub fn add_folder(&mut self, folder: &Path) -> Result<(), Error> {
        let ignored = Ignored::read(folder)?;
        let root = folder.canonicalize().map_err(|source| Error::Read { path: folder.to_owned(), source })?;
        self.add_below(folder, "", &ignored, &mut vec![root])
    }

    /// `above`: this folder and those that it is in, which a link in it may lead back to.
    fn add_below(
        &mut self,
        folder: &Path,
        prefix: &str,
        ignored: &Ignored,
        above: &mut Vec<PathBuf>,
    ) -> Result<(), Error> {
        let read_error = |source| Error::Read { path: folder.to_owned(), source };
        for entry in std::fs::read_dir(folder).map_err(read_error)? {
            let entry = entry.map_err(read_error)?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let path = entry.path();
            let real = path.canonicalize();
            let is_outside = real.as_ref().is_ok_and(|real| !real.starts_with(&above[0]));
            if entry.file_name().as_bytes().starts_with(b".") || is_outside {
                continue;
            }
            if path.is_dir() {
                let real = real.map_err(read_error)?;
                let is_above = above.contains(&real);
                let run = RunFolder::new(&path);
                let is_run = run.state().is_file() && run.owner().is_file();
                if !is_run && !is_above && !ignored.has_all_of(&name) {
                    above.push(real);
                    self.add_below(&path, &format!("{name}/"), ignored, above)?;
                    above.pop();
                }
            } else if path.is_file() && !ignored.has(&name) {
                self.add(&name, &path)?;
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
        for (name, file) in &mut self.files {
            let (digest, stamp) = digests.stamped(&file.path)?;
            part(name.as_bytes());
            part(&[u8::from(file.executable)]);
            part(digest.as_bytes());
            (file.digest, file.size) = (digest, stamp.size);
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

    /// Writes the context as a tar archive into `to`, and how much of it into `counter`. Blocks. Where a file is no longer what was
    /// hashed, the archive is broken off: no image gets the name of another content.
    pub fn send(&self, to: mpsc::Sender<Chunk>, counter: mpsc::UnboundedSender<u64>) -> Result<(), Error> {
        let mut archive = tar::Builder::new(ChannelWriter { to: to.clone(), counter });
        let sent = self.write(&mut archive);
        if sent.is_err() {
            // Before the archive is dropped, which would end it as a whole one.
            to.blocking_send(Err(std::io::Error::other("the build context was broken off"))).ok();
        }
        sent
    }

    fn write(&self, archive: &mut tar::Builder<ChannelWriter>) -> Result<(), Error> {
        let write_error = |source| Error::Write { path: "the build context".into(), source };
        let text = self.dockerfile.as_bytes();
        archive.append_data(&mut header(text.len() as u64, false), Self::DOCKERFILE, text).map_err(write_error)?;
        for (name, file) in &self.files {
            let read_error = |source| Error::Read { path: file.path.clone(), source };
            let mut content = Hashing { from: files::open(&file.path)?.take(file.size), hasher: blake3::Hasher::new() };
            let mut header = header(file.size, file.executable);
            archive.append_data(&mut header, name, &mut content).map_err(read_error)?;
            if content.hasher.finalize().to_hex().as_str() != file.digest {
                return Err(Error::ContextChanged { path: file.path.clone() });
            }
        }
        archive.finish().map_err(write_error)
    }
}

fn header(size: u64, executable: bool) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(if executable { 0o755 } else { 0o644 });
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// A reader that hashes what it reads.
struct Hashing<R> {
    from: R,
    hasher: blake3::Hasher,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.from.read(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }
}

/// The `.dockerignore` of a folder: patterns of paths that are left out, a line each. One that begins with `!` takes them in again, and
/// the last one that matches decides.
struct Ignored(Vec<(bool, Pattern)>);

impl Ignored {
    fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(".dockerignore");
        if !path.is_file() {
            return Ok(Self(Vec::new()));
        }
        let text = files::read(&path, MAX_DOCKERFILE_BYTES)?;
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let parse = |line: &str| {
            let (taken_in, path) = line.strip_prefix('!').map_or((false, line), |path| (true, path.trim_start()));
            (taken_in, Pattern::new(path.trim_start_matches("./").trim_matches('/')))
        };
        Ok(Self(lines.map(parse).collect()))
    }

    /// Whether a file is left out, by its own name or that of a folder that it is in.
    fn has(&self, name: &str) -> bool {
        let parents = || name.match_indices('/').map(|(end, _)| &name[..end]).chain([name]);
        let last = self.0.iter().rev().find(|(_, pattern)| parents().any(|path| pattern.matches(path)));
        last.is_some_and(|(taken_in, _)| !taken_in)
    }

    /// Whether nothing of a folder can be taken in again.
    fn has_all_of(&self, folder: &str) -> bool {
        self.has(folder) && !self.0.iter().any(|(taken_in, _)| *taken_in)
    }
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

/// The trainer: `PIPE_TRAINER`, or the program beside this one.
pub fn find_trainer() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("PIPE_TRAINER").map(PathBuf::from) {
        return if path.is_file() { Ok(path) } else { Err(Error::NoTrainer { looked: vec![path] }) };
    }
    let own = std::env::current_exe().map_err(|source| Error::Read { path: "this program".into(), source })?;
    // Beside the real file, should this one have been reached through a link.
    let mut looked: Vec<PathBuf> = [own.clone(), own.canonicalize().unwrap_or(own)]
        .iter()
        .filter_map(|program| Some(program.parent()?.join("pipe-trainer")))
        .collect();
    looked.dedup();
    looked.iter().find(|path| path.is_file()).cloned().ok_or(Error::NoTrainer { looked })
}

/// Refuses a torch that the trainer cannot use. A trainer that is not there is an error of its own.
pub fn check_libtorch() -> Result<(), Error> {
    find_trainer().map_or(Ok(()), |trainer| libtorch::check(&trainer))
}

/// The files of the trainer in a build context.
pub struct Staged {
    /// Path in the context and path on the host of every file.
    pub files: BTreeMap<String, PathBuf>,
    pub cuda: Cuda,
}

/// Whether the trainer can use a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cuda {
    /// It is no trainer with libtorch.
    Unknown,
    /// With every library that libtorch needs for it.
    Ready,
    /// These are not in `folder`, where libtorch lies.
    Missing { folder: PathBuf, libraries: Vec<String> },
}

pub fn stage() -> Result<Staged, Error> {
    let trainer = find_trainer()?;
    libtorch::check(&trainer)?;
    let mut libraries = Libraries::find(&trainer)?.all()?;
    let folder = libraries.get(MAIN_LIBRARY).and_then(|path| path.parent()).map(Path::to_owned);
    let cuda = match folder {
        None => Cuda::Unknown,
        Some(folder) => {
            let Libraries { mut found, missing } = cuda_libraries(&folder)?;
            if missing.is_empty() {
                libraries.append(&mut found);
                Cuda::Ready
            } else {
                Cuda::Missing { folder, libraries: missing.into_keys().collect() }
            }
        }
    };
    let mut files = BTreeMap::from([("pipe/bin/pipe-trainer".to_owned(), trainer)]);
    for (name, path) in libraries {
        let in_image = match system_folder(&path) {
            Some(folder) => format!("pipe/system{}/{name}", folder.display()),
            None => format!("pipe/libtorch/lib/{name}"),
        };
        files.insert(in_image, path);
    }
    Ok(Staged { files, cuda })
}

/// libtorch's CUDA part: beside the rest of libtorch, or where the trainer would find it by its name.
pub fn libtorch_cuda() -> Option<PathBuf> {
    let name = CUDA_PARTS[0];
    let libraries = Libraries::find(&find_trainer().ok()?).ok()?.found;
    let beside = libraries.get(MAIN_LIBRARY).map(|path| path.with_file_name(name)).filter(|path| path.is_file());
    beside.or_else(|| elf::find_library(name))
}

/// libtorch's CUDA part, which the trainer loads at run time.
const CUDA_PARTS: [&str; 2] = ["libtorch_cuda.so", "libcaffe2_nvrtc.so"];

/// Linear algebra, which no training uses: taken along where it is there.
const LINEAR_ALGEBRA: &str = "libtorch_cuda_linalg.so";

/// Libraries that open others by name, which lie beside them and which no library lists as needed.
const OPENED_BY_NAME: [(&str, &[&str]); 2] = [
    ("libnvrtc.so.", &["libnvrtc-builtins.so."]),
    (
        "libcudnn.so.",
        &[
            "libcudnn_adv.so.",
            "libcudnn_cnn.so.",
            "libcudnn_engines_precompiled.so.",
            "libcudnn_engines_runtime_compiled.so.",
            "libcudnn_graph.so.",
            "libcudnn_heuristic.so.",
            "libcudnn_ops.so.",
        ],
    ),
];

/// All that libtorch in `folder` loads for a card.
fn cuda_libraries(folder: &Path) -> Result<Libraries, Error> {
    let mut libraries = Libraries::default();
    for name in CUDA_PARTS {
        let path = folder.join(name);
        if path.is_file() {
            add(&path, &mut libraries)?;
        } else {
            libraries.missing.insert(name.to_owned(), folder.to_owned());
        }
    }
    if folder.join(LINEAR_ALGEBRA).is_file() {
        add(&folder.join(LINEAR_ALGEBRA), &mut libraries)?;
    }
    let openers = OPENED_BY_NAME.iter().filter_map(|(opener, parts)| {
        let path = libraries.found.iter().find(|(name, _)| name.starts_with(opener))?.1;
        Some((path.clone(), *parts))
    });
    for (opener, parts) in openers.collect::<Vec<_>>() {
        for part in parts {
            match beside(&opener, part) {
                Some(path) => add(&path, &mut libraries)?,
                None => drop(libraries.missing.insert(part.trim_end_matches('.').to_owned(), opener.clone())),
            }
        }
    }
    Ok(libraries)
}

fn add(path: &Path, libraries: &mut Libraries) -> Result<(), Error> {
    let Libraries { mut found, mut missing } = Libraries::find(path)?;
    libraries.found.append(&mut found);
    libraries.missing.append(&mut missing);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    libraries.found.insert(name, path.to_owned());
    Ok(())
}

/// The library in the folder of `opener` whose name begins with `prefix`.
fn beside(opener: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(opener.parent()?).ok()?.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix)))
        .collect();
    found.sort();
    found.into_iter().next()
}

/// The folder of a library that belongs to the system, and not to a package of its Python.
fn system_folder(path: &Path) -> Option<&Path> {
    let folder = path.parent()?;
    if folder.iter().any(|name| name == "site-packages" || name == "dist-packages") {
        return None;
    }
    let system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"].iter().any(|root| folder.starts_with(root));
    system.then_some(folder)
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

    #[test]
    fn a_file_that_changes_breaks_the_archive_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.py");
        std::fs::write(&path, "1").unwrap();
        let context = of_folder(folder.path());
        std::fs::write(&path, "12").unwrap();
        assert!(!archive(&context).is_empty(), "what was appended is no part of it");
        for change in [&|path: &Path| std::fs::write(path, "2"), &|path: &Path| std::fs::remove_file(path)]
            as [&dyn Fn(&Path) -> std::io::Result<()>; 2]
        {
            change(&path).unwrap();
            let (to, mut from) = mpsc::channel(1024);
            let (counter, _) = mpsc::unbounded_channel();
            context.send(to, counter).unwrap_err();
            let mut chunks = std::iter::from_fn(|| from.try_recv().ok());
            assert!(chunks.any(|chunk| chunk.is_err()), "an archive that looks whole");
        }
    }

    #[test]
    fn what_is_no_part_of_a_context() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in [
            "a.py",
            "b.log",
            "keep.log",
            "data/x.csv",
            "data/sub/y.csv",
            "src/data/z",
            "run-1/run.json",
            "run-1/.owner",
        ] {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(root, root.join("src/loop")).unwrap();
        for (target, link) in [("/etc", "folder"), ("/etc/passwd", "file"), ("a.py", "b.py")] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        let names = || of_folder(root).files.into_keys().collect::<Vec<_>>();
        assert_eq!(names(), ["a.py", "b.log", "b.py", "data/sub/y.csv", "data/x.csv", "keep.log", "src/data/z"]);
        std::fs::write(root.join(".dockerignore"), "# logs\n*.log\n!keep.log\n\n/data/\n").unwrap();
        assert_eq!(names(), ["a.py", "b.py", "keep.log", "src/data/z"]);
        std::fs::write(root.join(".dockerignore"), "*\n!data/sub\n").unwrap();
        assert_eq!(names(), ["data/sub/y.csv"]);
        std::fs::write(root.join(".dockerignore"), "**/data\n").unwrap();
        assert_eq!(names(), ["a.py", "b.log", "b.py", "keep.log"]);
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

    #[test]
    fn what_a_library_opens_lies_beside_it() {
        let folder = std::env::temp_dir().join(format!("pipe-stage-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let opener = folder.join("libnvrtc.so.13");
        assert_eq!(beside(&opener, "libnvrtc-builtins.so."), Some(folder.join("libnvrtc-builtins.so.13.0")));
        assert_eq!(beside(&opener, "libcudnn_ops.so."), None);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn packages_of_the_systems_python_are_no_system_libraries() {
        for (path, want) in [
            ("/usr/lib/x86_64-linux-gnu/libm.so.6", Some("/usr/lib/x86_64-linux-gnu")),
            ("/usr/lib/python3/dist-packages/torch/lib/libc10.so", None),
            ("/usr/lib64/python3.12/site-packages/torch/lib/libc10.so", None),
            ("/opt/pipe/lib/pipe/libc10.so", None),
        ] {
            assert_eq!(system_folder(Path::new(path)), want.map(Path::new), "{path}");
        }
    }

    #[test]
    fn a_folder_without_the_cuda_part_lacks_it() {
        let missing = cuda_libraries(Path::new("/nowhere")).unwrap().missing;
        assert_eq!(missing.into_keys().collect::<Vec<_>>(), ["libcaffe2_nvrtc.so", "libtorch_cuda.so"]);
    }
}
