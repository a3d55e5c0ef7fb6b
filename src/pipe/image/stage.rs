//! The trainer and everything it loads, as they lie in a build context under `pipe/`.
//!
//! `pipe/bin` holds the trainer, `pipe/libtorch/lib` what changes with libtorch, `pipe/system` the system's libraries at the
//! places where the dynamic linker of this system looks for them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::elf;
use crate::error::Error;

/// The trainer: `PIPE_TRAINER`, or the program beside this one.
pub fn find_trainer() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("PIPE_TRAINER").map(PathBuf::from) {
        return if path.is_file() { Ok(path) } else { Err(Error::NoTrainer { looked: vec![path] }) };
    }
    let own = std::env::current_exe().map_err(|source| Error::Read { path: "this program".into(), source })?;
    // Beside the real file, should this one have been reached through a link.
    let looked: Vec<PathBuf> = [own.clone(), own.canonicalize().unwrap_or(own)]
        .iter()
        .filter_map(|program| Some(program.parent()?.join("pipe-trainer")))
        .collect();
    looked.iter().find(|path| path.is_file()).cloned().ok_or(Error::NoTrainer { looked })
}

/// Path in the context and path on the host of every file.
pub fn files() -> Result<BTreeMap<String, PathBuf>, Error> {
    let trainer = find_trainer()?;
    let mut libraries = elf::libraries(&trainer)?;
    if let Some(torch) = libraries.get("libtorch_cpu.so").and_then(|path| path.parent()).map(Path::to_owned) {
        add_cuda(&torch, &mut libraries);
    }
    let mut files = BTreeMap::from([("pipe/bin/pipe-trainer".to_owned(), trainer)]);
    for (name, path) in libraries {
        let place = match system_folder(&path) {
            Some(folder) => format!("pipe/system{}/{name}", folder.display()),
            None => format!("pipe/libtorch/lib/{name}"),
        };
        files.insert(place, path);
    }
    Ok(files)
}

/// libtorch's CUDA part, which the trainer loads when it is there: taken along when all that it needs is.
fn add_cuda(torch: &Path, libraries: &mut BTreeMap<String, PathBuf>) {
    for name in ["libtorch_cuda.so", "libtorch_cuda_linalg.so"] {
        let path = torch.join(name);
        if !path.is_file() {
            return;
        }
        match elf::libraries(&path) {
            Ok(needed) => {
                // The driver's own library belongs to the host, never to an image.
                libraries.extend(needed.into_iter().filter(|(name, _)| name != "libcuda.so.1"));
                libraries.insert(name.to_owned(), path);
            }
            Err(error) => return tracing::debug!("an image for the CPU alone: {error}"),
        }
    }
}

/// The folder of a library that belongs to the system.
fn system_folder(path: &Path) -> Option<&Path> {
    let folder = path.parent()?;
    let system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"].iter().any(|root| folder.starts_with(root));
    system.then_some(folder)
}
