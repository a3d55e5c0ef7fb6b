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

/// libtorch's CUDA part: beside the rest of libtorch, or where the trainer would find it by its name.
pub fn libtorch_cuda() -> Option<PathBuf> {
    let name = "libtorch_cuda.so";
    let libraries = elf::libraries(&find_trainer().ok()?).ok()?;
    let beside = libraries.get("libtorch_cpu.so").map(|path| path.with_file_name(name)).filter(|path| path.is_file());
    beside.or_else(|| elf::find_library(name))
}

/// libtorch's CUDA part, which the trainer loads when it is there: taken along when all that it needs is.
fn add_cuda(torch: &Path, libraries: &mut BTreeMap<String, PathBuf>) {
    let mut cuda = BTreeMap::new();
    for name in ["libtorch_cuda.so", "libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so"] {
        let path = torch.join(name);
        if !path.is_file() {
            return;
        }
        if let Err(error) = add(&path, &mut cuda) {
            return tracing::debug!("an image for the CPU alone: {error}");
        }
    }
    for path in opened_at_run_time(&cuda) {
        if let Err(error) = add(&path, &mut cuda) {
            return tracing::debug!("an image for the CPU alone: {error}");
        }
    }
    libraries.append(&mut cuda);
}

fn add(path: &Path, libraries: &mut BTreeMap<String, PathBuf>) -> Result<(), Error> {
    libraries.extend(elf::libraries(path)?);
    libraries.insert(path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path.to_owned());
    Ok(())
}

/// What no library says that it needs: NVRTC and cuDNN open their other parts by name, and these lie beside them.
fn opened_at_run_time(libraries: &BTreeMap<String, PathBuf>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (opener, part) in [("libnvrtc.so.", "libnvrtc-builtins.so."), ("libcudnn.so.", "libcudnn_")] {
        let folders =
            libraries.iter().filter(|(name, _)| name.starts_with(opener)).filter_map(|(_, path)| path.parent());
        for folder in folders {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let named = |path: &PathBuf| {
                path.file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(|name| name.starts_with(part) && name.contains(".so."))
            };
            found.extend(entries.filter(named));
        }
    }
    found
}

/// The folder of a library that belongs to the system.
fn system_folder(path: &Path) -> Option<&Path> {
    let folder = path.parent()?;
    let system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"].iter().any(|root| folder.starts_with(root));
    system.then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_opened_by_name_are_taken_along() {
        let folder = std::env::temp_dir().join(format!("pipe-stage-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let names = [
            "libcudnn.so.9",
            "libcudnn_adv.so.9",
            "libcudnn_ops.so.9",
            "libnvrtc.so.13",
            "libnvrtc-builtins.so.13.0",
            "libother.so.1",
        ];
        names.iter().for_each(|name| std::fs::write(folder.join(name), "").unwrap());
        let needed =
            ["libcudnn.so.9", "libnvrtc.so.13", "libother.so.1"].map(|name| (name.to_owned(), folder.join(name)));
        let mut opened = opened_at_run_time(&needed.into());
        opened.sort();
        let want =
            ["libcudnn_adv.so.9", "libcudnn_ops.so.9", "libnvrtc-builtins.so.13.0"].map(|name| folder.join(name));
        assert_eq!(opened, want);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
