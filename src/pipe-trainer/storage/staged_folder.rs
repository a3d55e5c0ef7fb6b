//! A folder that appears under its name only when everything in it is written.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::durable;

pub struct StagedFolder {
    target: PathBuf,
    temporary: PathBuf,
}

impl StagedFolder {
    pub fn create(target: &Path) -> io::Result<Self> {
        let staged = Self { target: target.to_owned(), temporary: temporary_name(target, "tmp") };
        durable::remove_folder(&staged.temporary)?;
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
        durable::remove_folder(&old)?;
        if self.target.exists() {
            fs::rename(&self.target, &old)?;
        }
        fs::rename(&self.temporary, &self.target)?;
        durable::sync_parent(&self.target)?;
        durable::remove_folder(&old)
    }
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        let _ = durable::remove_folder(&self.temporary);
    }
}

/// Whether `name` is one that a staged folder had when its program was killed.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && (name.ends_with(".tmp") || name.ends_with(".old"))
}

fn temporary_name(target: &Path, ending: &str) -> PathBuf {
    target.with_file_name(format!(".{}.{ending}", target.file_name().unwrap_or_default().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
