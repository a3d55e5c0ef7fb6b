//! The trainer and everything it loads, as they lie in a build context under `pipe/`.
//!
//! `pipe/bin` holds the trainer, `pipe/libtorch/lib` what changes with libtorch, `pipe/system` the system's libraries at the
//! places where the dynamic linker of this system looks for them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::elf::{self, Libraries};
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
    let mut libraries = Libraries::find(&trainer)?.all()?;
    let folder = libraries.get("libtorch_cpu.so").and_then(|path| path.parent()).map(Path::to_owned);
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
    let beside = libraries.get("libtorch_cpu.so").map(|path| path.with_file_name(name)).filter(|path| path.is_file());
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
    fn a_folder_without_the_cuda_part_lacks_it() {
        let missing = cuda_libraries(Path::new("/nowhere")).unwrap().missing;
        assert_eq!(missing.into_keys().collect::<Vec<_>>(), ["libcaffe2_nvrtc.so", "libtorch_cuda.so"]);
    }
}
