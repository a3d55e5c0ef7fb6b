//! Room on the disk that is kept for the end of a run: where the disk is full, it is given up so that `run.json` can say so.

use std::path::{Path, PathBuf};

/// Bytes: many times what `run.json` takes.
const SIZE: usize = 256 << 10;

pub struct Reserve(PathBuf);

impl Reserve {
    /// Where there is no room for it, a run starts without.
    pub fn take(folder: &Path) -> Self {
        let path = folder.join(".reserve");
        if let Err(error) = std::fs::write(&path, vec![1; SIZE]) {
            tracing::debug!("no room could be reserved at {}: {error}", path.display());
            std::fs::remove_file(&path).ok();
        }
        Self(path)
    }

    /// Gives the room up; whether there was any.
    pub fn give_up(&self) -> bool {
        std::fs::remove_file(&self.0).is_ok()
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.give_up();
    }
}
