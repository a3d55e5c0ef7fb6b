//! Which shared libraries a program loads, found the way the dynamic linker finds them.
//!
//! Which cards a library's CUDA code was compiled for, read from the library itself.
//!
//! nvcc puts the code of every source file into the section `.nv_fatbin`: a head (magic, version, its own size, size of
//! what follows), then an entry for each architecture (kind, version, size of its head, size of its code, ..., architecture
//! at byte 28, flags at byte 40). Only the heads are read, so that hundreds of megabytes take milliseconds.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use object::LittleEndian as LE;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};

use crate::error::Error;
use crate::gpu::{Architecture, Capability};

/// The folder of libtorch, which the programs of a wheel set where it is not beside them.
const FOLDER_VARIABLE: &str = "PIPE_LIBTORCH";

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Where the linker looks last, on Debian, Fedora and Arch alike.
const SYSTEM_FOLDERS: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// The facts that the headers of one program or library contain.
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
        if self.after_library_path {
            library_path().into_iter().chain(self.folders.clone()).collect()
        } else {
            self.folders.iter().cloned().chain(library_path()).collect()
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

    /// The libraries that were found; an error for the first that was not.
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

/// The folder of a libtorch that the trainer does not find by itself.
fn other_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The variable with which the trainer finds it, and no other program. `own` is a value that the variable has for the trainer.
pub fn trainer_variable(own: Option<&str>) -> Option<(&'static str, OsString)> {
    let own = own.map(OsString::from).or_else(|| std::env::var_os(LIBRARY_PATH)).filter(|path| !path.is_empty());
    let folders = [other_folder()?.into_os_string()].into_iter().chain(own).collect::<Vec<_>>();
    Some((LIBRARY_PATH, folders.join(OsStr::new(":"))))
}

/// The folders of `LD_LIBRARY_PATH` as the trainer has it.
fn library_path() -> Vec<PathBuf> {
    let path = std::env::var_os(LIBRARY_PATH).unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty());
    other_folder().into_iter().chain(folders).collect()
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

const MAGIC: u32 = 0xba55_ed50;
const PTX: u16 = 1;
const MACHINE: u16 = 2;
/// Code for one card and no later one of its generation: sm_90a.
const ARCH_SPECIFIC: u64 = 1 << 20;

/// The architectures of `library`; none where it has no such code or cannot be read.
pub fn architectures(library: &Path) -> Vec<Architecture> {
    let read = || {
        let file = std::fs::File::open(library).ok()?;
        // SAFETY: the file is only read; a library that shrinks under us at this moment would be fatal to its users too.
        let data = unsafe { memmap2::Mmap::map(&file) }.ok()?;
        let header = FileHeader64::<LE>::parse(&*data).ok()?;
        let endian = header.endian().ok()?;
        let (_, section) = header.sections(endian, &*data).ok()?.section_by_name(endian, b".nv_fatbin")?;
        Some(of_most_parts(section.data(endian, &*data).ok()?))
    };
    read().unwrap_or_default()
}

/// The architectures of more than half of the parts: some parts have code for further cards, where it is faster.
fn of_most_parts(section: &[u8]) -> Vec<Architecture> {
    let mut counts: BTreeMap<Architecture, usize> = BTreeMap::new();
    let mut parts = 0;
    let mut at = 0;
    while at + 16 <= section.len() {
        if number::<4>(section, at) != Some(u64::from(MAGIC)) {
            // Between parts there is padding.
            at += 8;
            continue;
        }
        let (Some(head), Some(size)) = (number::<2>(section, at + 6), number::<8>(section, at + 8)) else { break };
        let begin = at.saturating_add(head as usize);
        let end = begin.saturating_add(size as usize).min(section.len());
        let mut found = of_part(section.get(begin..end).unwrap_or_default());
        found.sort();
        found.dedup();
        parts += usize::from(!found.is_empty());
        found.into_iter().for_each(|architecture| *counts.entry(architecture).or_default() += 1);
        at = end.max(at + 16).next_multiple_of(8);
    }
    counts.into_iter().filter(|(_, count)| count * 2 > parts).map(|(architecture, _)| architecture).collect()
}

fn of_part(part: &[u8]) -> Vec<Architecture> {
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(kind), Some(head), Some(size), Some(built), Some(flags)) = (
        number::<2>(part, at),
        number::<4>(part, at + 4),
        number::<8>(part, at + 8),
        number::<4>(part, at + 28),
        number::<8>(part, at + 40),
    ) {
        let capability = Capability::from_number(built as u32);
        match kind as u16 {
            MACHINE if flags & ARCH_SPECIFIC == 0 => found.push(Architecture::Machine(capability)),
            PTX if flags & ARCH_SPECIFIC == 0 => found.push(Architecture::Ptx(capability)),
            _ => {}
        }
        at = at.saturating_add(head.max(1) as usize).saturating_add(size as usize).min(part.len());
    }
    found
}

fn number<const BYTES: usize>(data: &[u8], at: usize) -> Option<u64> {
    let mut whole = [0; 8];
    whole[..BYTES].copy_from_slice(data.get(at..at.checked_add(BYTES)?)?);
    Some(u64::from_le_bytes(whole))
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

#[cfg(test)]
mod fatbin_tests {
    use super::*;

    fn entry(kind: u16, built: u32, flags: u64, size: usize) -> Vec<u8> {
        let mut entry = vec![0; 64 + size];
        entry[..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&64u32.to_le_bytes());
        entry[8..16].copy_from_slice(&(size as u64).to_le_bytes());
        entry[28..32].copy_from_slice(&built.to_le_bytes());
        entry[40..48].copy_from_slice(&flags.to_le_bytes());
        entry
    }

    fn part(entries: &[Vec<u8>]) -> Vec<u8> {
        let code = entries.concat();
        let mut part = [&MAGIC.to_le_bytes()[..], &[1, 0, 16, 0], &(code.len() as u64).to_le_bytes()].concat();
        part.extend(code);
        part.resize(part.len().next_multiple_of(8), 0);
        part
    }

    fn text(section: &[u8]) -> String {
        of_most_parts(section).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_most_parts_were_compiled_for() {
        let plain = || vec![entry(2, 75, 0x11, 24), entry(2, 120, 0x11, 7), entry(1, 120, 0x11, 40)];
        let more = [plain(), vec![entry(2, 103, 0x11, 8), entry(2, 90, 0x0010_0011, 8)]].concat();
        let section = [part(&plain()), vec![0; 16], part(&more), part(&plain())].concat();
        assert_eq!(text(&section), "sm_75 sm_120 compute_120");
    }

    #[test]
    fn code_for_one_card_alone_says_nothing_of_others() {
        assert_eq!(text(&part(&[entry(2, 90, ARCH_SPECIFIC, 8)])), "");
    }

    #[test]
    fn what_is_broken_off_is_read_as_far_as_it_goes() {
        let whole = [part(&[entry(2, 80, 0, 8)]), part(&[entry(2, 80, 0, 8)])].concat();
        for end in 0..whole.len() {
            let words = text(&whole[..end]);
            assert!(words.is_empty() || words == "sm_80", "{end}: {words}");
        }
        let endless = part(&[entry(2, 80, 0, 8)]);
        let mut endless = endless.clone();
        endless[8..16].fill(0xff);
        endless[16 + 8..16 + 16].fill(0xff);
        assert_eq!(self::text(&endless), "sm_80");
    }
}
