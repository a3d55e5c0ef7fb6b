//! Files that a job may have written. No link in them is followed, nothing but a regular file is opened, and no more is read
//! than a bound: what a job puts there can neither show `pipe` a file of the host nor make it wait or run out of memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

/// Opens `name` in `folder`. The folder itself is the runner's; `name` is one name, or several with slashes between them.
pub fn open(folder: &Path, name: &str) -> io::Result<File> {
    let base = OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut at = rustix::fs::openat(CWD, folder, base | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = name.split('/').peekable();
    while let Some(part) = names.next() {
        if matches!(part, "" | "." | "..") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a name inside a folder")));
        }
        let kind = if names.peek().is_some() { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
        at = rustix::fs::openat(&at, part, base | OFlags::RDONLY | kind, Mode::empty())?;
    }
    let file = File::from(at);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(file)
}

/// All of a file that is no larger than `limit` bytes.
pub fn read(folder: &Path, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(folder, name)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// The names of the regular files in a folder, at most `limit` of them, sorted. Links are none.
pub fn names(folder: &Path, limit: usize) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(limit) {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_inside_are_read() {
        let root = std::env::temp_dir().join(format!("pipe-job-file-{}", std::process::id()));
        let folder = root.join("job");
        std::fs::create_dir_all(folder.join("deep")).unwrap();
        std::fs::write(root.join("secret"), "secret").unwrap();
        std::fs::write(folder.join("plain"), "plain").unwrap();
        std::fs::write(folder.join("deep/plain"), "deeper").unwrap();
        symlink(root.join("secret"), folder.join("link")).unwrap();
        symlink(&root, folder.join("up")).unwrap();
        symlink("plain", folder.join("near")).unwrap();
        let fifo = folder.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();

        assert_eq!(read(&folder, "plain", 5).unwrap(), b"plain");
        assert_eq!(read(&folder, "deep/plain", 100).unwrap(), b"deeper");
        assert_eq!(read(&folder, "plain", 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        for name in ["link", "up/secret", "near", "fifo", "deep", "../secret", "", "deep//plain"] {
            assert!(read(&folder, name, 100).is_err(), "{name} was read");
        }
        assert_eq!(names(&folder, 100).unwrap(), ["plain"]);

        // Nor is the folder itself followed where it has become a link.
        symlink(&folder, root.join("job-link")).unwrap();
        assert!(read(&root.join("job-link"), "plain", 5).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}
