//! Files and folders, and tensors in them: read within bounds, and written whole or not at all.

mod pickle;
pub mod tensor_files;

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pipe_spec::model_folder::CONFIG;
use pipe_spec::text::human_bytes;

pub use tensor_files::TensorFiles;

/// Writes under a temporary name, waits for the disk, and renames: a reader sees the old content or the new one. The name is a
/// random one that did not exist, so that two writers never share a file and a link is never written through.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (temporary, mut file) = create_temporary(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.and_then(|()| sync_parent(path))
}

fn create_temporary(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    loop {
        let random = RandomState::new().hash_one(std::process::id());
        let temporary = path.with_file_name(format!(".{name}.{random:016x}.tmp"));
        match File::create_new(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes a file and waits for the disk.
pub fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Copies a file and waits for the disk.
pub fn copy_synced(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut File::create(to)?)?;
    File::open(to)?.sync_all()
}

/// Removes a folder with all that is in it. One that is not there is fine.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Waits until the disk knows what was renamed in the folder around `path`.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// A folder that appears under its name only when everything in it is written.
pub struct StagedFolder {
    target: PathBuf,
    temporary: PathBuf,
}

impl StagedFolder {
    pub fn create(target: &Path) -> io::Result<Self> {
        let staged = Self { target: target.to_owned(), temporary: temporary_name(target, "tmp") };
        remove_folder(&staged.temporary)?;
        fs::create_dir_all(&staged.temporary)?;
        Ok(staged)
    }

    /// Where the file `name` is to be written.
    pub fn path(&self, name: &str) -> PathBuf {
        self.temporary.join(name)
    }

    /// Puts the folder in its place, instead of one that may be there.
    pub fn commit(self) -> io::Result<()> {
        File::open(&self.temporary)?.sync_all()?;
        let old = temporary_name(&self.target, "old");
        remove_folder(&old)?;
        if self.target.exists() {
            fs::rename(&self.target, &old)?;
        }
        fs::rename(&self.temporary, &self.target)?;
        sync_parent(&self.target)?;
        remove_folder(&old)
    }
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        let _ = remove_folder(&self.temporary);
    }
}

/// Whether `name` is one that a staged folder had when its program was killed.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && (name.ends_with(".tmp") || name.ends_with(".old"))
}

fn temporary_name(target: &Path, ending: &str) -> PathBuf {
    target.with_file_name(format!(".{}.{ending}", target.file_name().unwrap_or_default().to_string_lossy()))
}

/// Where the files lie until all are written.
const STAGED: &str = ".new";

/// The folder of an exported model. In a container it is a mount of its own and cannot be renamed, so files are written to
/// a folder inside it and then renamed one by one, `config.json` last: a folder without it is not complete.
pub struct ExportedFolder {
    target: PathBuf,
    staged: PathBuf,
}

impl ExportedFolder {
    pub fn create(target: &Path) -> io::Result<Self> {
        let staged = target.join(STAGED);
        remove_folder(&staged)?;
        fs::create_dir_all(&staged)?;
        Ok(Self { target: target.to_owned(), staged })
    }

    /// Where the file `name` is to be written.
    pub fn path(&self, name: &str) -> PathBuf {
        self.staged.join(name)
    }

    /// Puts the files in their places, instead of those that may be there.
    pub fn commit(self) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.staged)? {
            names.push(entry?.file_name());
        }
        match fs::remove_file(self.target.join(CONFIG)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => File::open(&self.target)?.sync_all()?,
        }
        names.sort_by_key(|name| name == CONFIG);
        for name in names {
            if name == CONFIG {
                File::open(&self.target)?.sync_all()?;
            }
            fs::rename(self.staged.join(&name), self.target.join(&name))?;
        }
        File::open(&self.target)?.sync_all()?;
        // In a container the folder around it is not to be written.
        let _ = sync_parent(&self.target);
        Ok(())
    }
}

impl Drop for ExportedFolder {
    fn drop(&mut self) {
        let _ = remove_folder(&self.staged);
        // An empty folder would look like a model.
        let _ = fs::remove_dir(&self.target);
    }
}

/// A config.json, or another file of settings.
pub const LARGEST_CONFIG: u64 = 16 << 20;
/// A tokenizer.json or a vocabulary. The largest that there are have some 30 MB.
pub const LARGEST_TOKENIZER: u64 = 256 << 20;

/// An index of the files of a model's weights, which names every tensor.
pub const LARGEST_INDEX: u64 = 64 << 20;

/// Refuses a file that has more than `most` bytes, for readers of their own.
pub fn check_size(path: &Path, most: u64) -> io::Result<()> {
    check(path.metadata()?.len(), most)
}

/// Opens a file of a model, which may come from anywhere: a pipe would be waited for, and a device may have no end.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// The bytes of the file at `path`, at most `most`.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    check(file.metadata()?.len(), most)?;
    let mut bytes = Vec::new();
    // A file that grows does not say how much it will give.
    file.take(most + 1).read_to_end(&mut bytes)?;
    check(bytes.len() as u64, most)?;
    Ok(bytes)
}

fn check(found: u64, most: u64) -> io::Result<()> {
    if found <= most {
        return Ok(());
    }
    let (found, most) = (human_bytes(found), human_bytes(most));
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("the file has {found}; allowed: at most {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_share_no_file_and_write_through_no_link() {
        let folder = std::env::temp_dir().join(format!("pipe-whole-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("victim"), "victim").unwrap();
        for name in ["a.json", ".a.json.tmp"] {
            std::os::unix::fs::symlink(folder.join("victim"), folder.join(name)).unwrap();
        }
        let path = folder.join("a.json");
        let texts: Vec<String> = (0..8).map(|number| number.to_string().repeat(10_000)).collect();
        std::thread::scope(|scope| {
            for text in &texts {
                scope.spawn(|| (0..20).for_each(|_| write_whole(&path, text.as_bytes()).unwrap()));
            }
        });
        let found = fs::read_to_string(&path).unwrap();
        assert!(texts.contains(&found), "{} bytes of several writers", found.len());
        assert_eq!(fs::read_to_string(folder.join("victim")).unwrap(), "victim");
        assert!(write_whole(&folder.join("missing/a.json"), b"x").is_err());
        // The victim, the file and the planted link: nothing temporary stays.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_is_complete_or_absent() {
        let root = std::env::temp_dir().join(format!("pipe-staged-{}", std::process::id()));
        let target = root.join("result");
        let abandoned = StagedFolder::create(&target).unwrap();
        fs::write(abandoned.path("a"), "1").unwrap();
        drop(abandoned);
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        for content in ["first", "second"] {
            let staged = StagedFolder::create(&target).unwrap();
            fs::write(staged.path("a"), content).unwrap();
            staged.commit().unwrap();
            assert_eq!(fs::read_to_string(target.join("a")).unwrap(), content);
        }
        assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_model_is_complete_or_has_no_config() {
        let root = std::env::temp_dir().join(format!("pipe-exported-{}", std::process::id()));
        let target = root.join("model");
        let abandoned = ExportedFolder::create(&target).unwrap();
        fs::write(abandoned.path(CONFIG), "1").unwrap();
        drop(abandoned);
        assert!(!target.exists());
        for content in ["first", "second"] {
            let exported = ExportedFolder::create(&target).unwrap();
            fs::write(exported.path("model.safetensors"), content).unwrap();
            fs::write(exported.path(CONFIG), content).unwrap();
            exported.commit().unwrap();
            assert_eq!(fs::read_to_string(target.join(CONFIG)).unwrap(), content);
            assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
        }
        // Weights that cannot be put in place: the older config does not stand for them.
        let broken = ExportedFolder::create(&target).unwrap();
        fs::write(broken.path(CONFIG), "third").unwrap();
        fs::write(broken.path("model.safetensors"), "third").unwrap();
        fs::remove_file(target.join("model.safetensors")).unwrap();
        fs::create_dir_all(target.join("model.safetensors/in the way")).unwrap();
        assert!(broken.commit().is_err());
        assert!(!target.join(CONFIG).exists());
        fs::remove_dir_all(root).unwrap();
    }
}

#[cfg(test)]
mod bounded_file_tests {
    use super::*;

    #[test]
    fn a_large_file_is_refused_before_it_is_read() {
        let path = std::env::temp_dir().join(format!("pipe-bounded-{}", std::process::id()));
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().to_string(), "the file has 5 B; allowed: at most 4 B");
        // Sparse: it takes no room, and must not be brought into memory.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read(&path, LARGEST_TOKENIZER).unwrap_err().to_string().contains("the file has 1.0 TiB"));
        assert_eq!(read(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string(), "not a regular file");
        std::fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(read(&path, 5).unwrap_err().to_string(), "not a regular file");
        std::fs::remove_file(path).unwrap();
    }
}
