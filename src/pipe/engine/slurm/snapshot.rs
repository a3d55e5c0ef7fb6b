//! All jobs of this user at one moment. The `pipe` processes of a user share it, so that two hundred runs ask the controller as often as
//! one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::programs::{self, Failure, SeenJob};
use crate::files::digests::cache_folder;
use crate::files::write_whole;

/// The jobs as they were at most so long ago.
pub fn jobs(cluster: &str, oldest: Duration) -> Result<Vec<SeenJob>, Failure> {
    let name: String = cluster.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    // Two clusters may have one name.
    let conf = std::env::var_os("SLURM_CONF").unwrap_or_default();
    let name = format!("{name}-{}-{}", programs::user(), &blake3::hash(conf.as_encoded_bytes()).to_hex()[..8]);
    let shared = cache_folder().map(|folder| folder.join("cluster").join(name));
    let text = match shared.and_then(|folder| Shared::open(&folder)) {
        Some(shared) => shared.read(oldest)?,
        // Without a folder for it everyone asks for himself.
        None => programs::squeue()?,
    };
    Ok(programs::read_squeue(&text))
}

/// What `squeue` has printed. Who finds it too old asks again, and the others wait for that.
struct Shared {
    file: PathBuf,
    _locked: File,
}

impl Shared {
    fn open(folder: &Path) -> Option<Self> {
        std::fs::create_dir_all(folder).ok()?;
        let locked = File::options().create(true).truncate(false).write(true).open(folder.join("squeue.lock")).ok()?;
        locked.lock().ok()?;
        Some(Self { file: folder.join("squeue"), _locked: locked })
    }

    fn read(&self, oldest: Duration) -> Result<String, Failure> {
        let age =
            std::fs::metadata(&self.file).and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
        if let Some(text) = age.filter(|age| *age <= oldest).and_then(|_| std::fs::read_to_string(&self.file).ok()) {
            return Ok(text);
        }
        let text = programs::squeue()?;
        write_whole(&self.file, text.as_bytes()).ok();
        Ok(text)
    }
}
