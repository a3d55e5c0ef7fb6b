//! Which shared libraries a program loads, found the way the dynamic linker finds them.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use object::LittleEndian as LE;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

use crate::error::Error;

/// Where the linker looks last, on Debian, Fedora and Arch alike.
const SYSTEM_FOLDERS: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// What one program or library says about itself.
struct Object {
    needed: Vec<String>,
    /// Folders of its own to look in, with `$ORIGIN` already filled in.
    run_path: RunPath,
    interpreter: Option<PathBuf>,
}

#[derive(Clone, Default)]
struct RunPath {
    folders: Vec<PathBuf>,
    /// DT_RUNPATH, which the linker searches after LD_LIBRARY_PATH; DT_RPATH comes before.
    after_library_path: bool,
}

impl RunPath {
    /// The folders in the order in which the linker searches them, those of `LD_LIBRARY_PATH` among them.
    fn search_order(&self) -> Vec<PathBuf> {
        match self.after_library_path {
            true => library_path().into_iter().chain(self.folders.clone()).collect(),
            false => self.folders.iter().cloned().chain(library_path()).collect(),
        }
    }
}

/// The driver's own library: it belongs to the host, never to an image.
const DRIVER: &str = "libcuda.so.1";

/// All that a program or library needs, by name; the program interpreter included, the GPU's driver not.
#[derive(Debug, Default)]
pub struct Libraries {
    pub found: BTreeMap<String, PathBuf>,
    /// By name, with the first library that needs it.
    pub missing: BTreeMap<String, PathBuf>,
}

impl Libraries {
    pub fn find(root: &Path) -> Result<Self, Error> {
        let mut libraries = Self::default();
        // A program's own run path also serves what its libraries need, as the linker's inherited RPATH would.
        let inherited = read(root)?.run_path;
        let mut open = VecDeque::from([root.to_owned()]);
        while let Some(path) = open.pop_front() {
            let object = read(&path)?;
            if let Some(interpreter) = object.interpreter {
                let name = interpreter.file_name().unwrap_or_default().to_string_lossy().into_owned();
                libraries.found.insert(name, interpreter);
            }
            for name in object.needed {
                if name == DRIVER || libraries.found.contains_key(&name) || libraries.missing.contains_key(&name) {
                    continue;
                }
                let folders = object.run_path.search_order().into_iter().chain(inherited.folders.clone());
                match look_in(folders, &name) {
                    Some(library) => {
                        libraries.found.insert(name, library.clone());
                        open.push_back(library);
                    }
                    None => {
                        libraries.missing.insert(name, path.clone());
                    }
                }
            }
        }
        Ok(libraries)
    }

    /// What was found, or the first that was not.
    pub fn all(self) -> Result<BTreeMap<String, PathBuf>, Error> {
        match self.missing.into_iter().next() {
            None => Ok(self.found),
            Some((name, needed_by)) => Err(Error::MissingLibrary { name, needed_by }),
        }
    }
}

/// A library of the system's, or of `LD_LIBRARY_PATH`.
pub fn find_library(name: &str) -> Option<PathBuf> {
    // Folders of the driver that the linker does not search.
    let driver = ["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"].map(PathBuf::from);
    look_in(library_path().into_iter().chain(driver), name)
}

fn look_in(folders: impl Iterator<Item = PathBuf>, name: &str) -> Option<PathBuf> {
    let system = SYSTEM_FOLDERS.iter().map(PathBuf::from);
    folders.chain(system).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn library_path() -> Vec<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty()).collect()
}

fn read(path: &Path) -> Result<Object, Error> {
    let file = std::fs::File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    // SAFETY: the file is only read; a library that shrinks under us at this moment would be fatal to its users too.
    let data = unsafe { memmap2::Mmap::map(&file) }.map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&data, path).map_err(|error| Error::NotElf { path: path.to_owned(), reason: error.to_string() })
}

fn parse(data: &[u8], path: &Path) -> Result<Object, object::read::Error> {
    let header = FileHeader64::<LE>::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    let mut object = Object { needed: Vec::new(), run_path: RunPath::default(), interpreter: None };
    for segment in segments {
        if segment.p_type(endian) == PT_INTERP
            && let Ok(bytes) = segment.data(endian, data)
        {
            let text = String::from_utf8_lossy(bytes);
            object.interpreter = Some(PathBuf::from(text.trim_end_matches('\0')));
        }
    }
    let sections = header.sections(endian, data)?;
    let Some((dynamic, link)) = sections.dynamic(endian, data)? else { return Ok(object) };
    let strings = sections.strings(endian, data, link)?;
    let origin = path.parent().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    for entry in dynamic {
        let tag = entry.tag(endian);
        if ![DT_NEEDED, DT_RUNPATH, DT_RPATH].contains(&tag) {
            continue;
        }
        let text = String::from_utf8_lossy(entry.string(endian, strings)?).into_owned();
        if tag == DT_NEEDED {
            object.needed.push(text);
        } else {
            let folders = text.split(':').filter(|folder| !folder.is_empty());
            let origin = |folder: &str| folder.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin);
            let real = |folder: PathBuf| folder.canonicalize().unwrap_or(folder);
            object.run_path.folders.extend(folders.map(|folder| real(PathBuf::from(origin(folder)))));
            object.run_path.after_library_path |= tag == DT_RUNPATH;
        }
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_program_needs_libc_and_its_interpreter() {
        let found = Libraries::find(&std::env::current_exe().unwrap()).unwrap().all().unwrap();
        assert!(found.contains_key("libc.so.6"), "{found:?}");
        assert!(found.keys().any(|name| name.starts_with("ld-linux")), "{found:?}");
        assert!(found.values().all(|path| path.is_file()));
    }

    #[test]
    fn a_text_is_no_program() {
        let path = std::env::temp_dir().join(format!("pipe-elf-{}", std::process::id()));
        std::fs::write(&path, "hello").unwrap();
        assert!(matches!(Libraries::find(&path), Err(Error::NotElf { .. })));
        std::fs::remove_file(&path).unwrap();
    }
}
