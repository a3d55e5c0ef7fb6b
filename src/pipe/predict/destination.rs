//! Where predictions go: a file that is there whole or not at all, or stdout.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::Error;
use crate::files::absolute;

/// How the folder of a job begins.
pub const WORK_FOLDER: &str = ".pipe-predict-";

pub enum Destination {
    Stdout,
    /// A file that is there or not; the output is moved there.
    File(PathBuf),
    /// A pipe or a device; the output is copied there.
    Stream(PathBuf),
}

impl Destination {
    /// Without a path stdout.
    pub fn find(out: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = out else { return Ok(Self::Stdout) };
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Err(Error::NotAFile { path: path.to_owned(), what: "a folder" }),
            Ok(meta) if !meta.is_file() => Ok(Self::Stream(path.to_owned())),
            _ => Ok(Self::File(path.to_owned())),
        }
    }

    /// Takes the complete output.
    pub fn take(&self, output: &Path) -> Result<(), Error> {
        let read = |source| Error::Read { path: output.to_owned(), source };
        // The job wrote it: nothing there is followed elsewhere.
        if !std::fs::symlink_metadata(output).map_err(read)?.is_file() {
            return Err(Error::NotAFile { path: output.to_owned(), what: "something else" });
        }
        let copy = |mut to: Box<dyn Write>| {
            let mut from = File::open(output)?;
            std::io::copy(&mut from, &mut to).and_then(|_| to.flush())
        };
        let (done, path) = match self {
            Self::File(path) => (std::fs::rename(output, path), path.as_path()),
            Self::Stream(path) => {
                (File::options().write(true).open(path).and_then(|to| copy(Box::new(to))), path.as_path())
            }
            Self::Stdout => (copy(Box::new(std::io::stdout().lock())), Path::new("stdout")),
        };
        match done {
            // A reader that has read enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done.map_err(|source| Error::Output { path: path.to_owned(), source }),
        }
    }

    /// For a line about what was written.
    pub fn suffix(&self) -> String {
        match self {
            Self::Stdout => String::new(),
            Self::File(path) | Self::Stream(path) => format!(": {}", path.display()),
        }
    }
}

/// A folder for the job that goes away with this process: beside the file, so that the output can be moved.
pub fn work_folder(destination: &Destination) -> Result<TempDir, Error> {
    let parent = match destination {
        Destination::File(path) => absolute(path).parent().unwrap_or(Path::new("/")).to_owned(),
        Destination::Stdout | Destination::Stream(_) => absolute(&std::env::temp_dir()),
    };
    let made = tempfile::Builder::new().prefix(WORK_FOLDER).tempdir_in(&parent);
    made.map_err(|source| Error::Output { path: parent, source })
}
