//! Small files that people name: read whole, but only regular files and only up to a bound.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::Error;

/// The content of the file. A device, a pipe or a folder is an error at once, and so is more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    // Opening a pipe must not wait for its other end.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(read_error)?;
    let meta = file.metadata().map_err(read_error)?;
    if !meta.is_file() {
        let kind = meta.file_type();
        let what = match () {
            () if kind.is_dir() => "a folder",
            () if kind.is_fifo() => "a pipe",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        return Err(Error::NotAFile { path: path.to_owned(), what });
    }
    let too_large = |size| Error::TooLarge { path: path.to_owned(), size, limit };
    if meta.len() > limit {
        return Err(too_large(meta.len()));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(limit + 1).read_to_end(&mut bytes).map_err(read_error)?;
    // Some files, such as those of /proc, have no size.
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_bound() {
        let folder = std::env::temp_dir().join(format!("pipe-bounded-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), "12345").unwrap();
        assert_eq!(read(&folder.join("file"), 5).unwrap(), b"12345");
        assert!(matches!(read(&folder.join("file"), 4), Err(Error::TooLarge { size: 5, .. })));
        std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap();
        let what = |path: &Path| match read(path, 5) {
            Err(Error::NotAFile { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(&folder.join("pipe")), "a pipe");
        assert_eq!(what(&folder), "a folder");
        assert_eq!(what(Path::new("/dev/zero")), "a device");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
