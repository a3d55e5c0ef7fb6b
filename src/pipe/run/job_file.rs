//! Files that a job may have written. No link in them is followed, nothing but a regular file is opened, and no more is read
//! than a bound: what a job puts there can neither show `pipe` a file of the host nor make it wait or run out of memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

/// Bytes that are read at once from a file which grows.
const PIECE: u64 = 1 << 20;

/// So many zeros in a row are no text: the job made a hole, which may be larger than any disk.
const HOLE: usize = 64 << 10;

/// Opens `name` in `folder`. The folder itself is the runner's; `name` is one name, or several with slashes between them.
pub fn open(folder: &Path, name: &str) -> io::Result<File> {
    let base = OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut at = rustix::fs::openat(CWD, folder, base | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = name.split('/').peekable();
    while let Some(part) = names.next() {
        if matches!(part, "" | "." | "..") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a name inside a folder")));
        }
        let kind = if names.peek().is_some() { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
        at = rustix::fs::openat(&at, part, base | OFlags::RDONLY | kind, Mode::empty())?;
    }
    let file = File::from(at);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(file)
}

/// All of a file that is no larger than `limit` bytes.
pub fn read(folder: &Path, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(folder, name)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// The next part of a file that grows.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Bytes(Vec<u8>),
    /// Zeros up to this byte, which are not read.
    Hole {
        end: u64,
    },
    /// Nothing was added.
    End,
}

/// Reads on after `offset`. Holes are skipped without reading them, where the file system knows them.
pub fn next_piece(mut file: &File, offset: u64) -> io::Result<Piece> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(PIECE).read_to_end(&mut bytes)?;
    Ok(match find_hole(&bytes) {
        _ if bytes.is_empty() => Piece::End,
        None => Piece::Bytes(bytes),
        Some(hole) if hole.start > 0 => {
            bytes.truncate(hole.start);
            Piece::Bytes(bytes)
        }
        Some(hole) => {
            let read = offset + hole.end as u64;
            let end = if hole.end == bytes.len() { next_data(file, read)? } else { read };
            Piece::Hole { end: end.max(read) }
        }
    })
}

/// The first zeros that belong to a hole: many of them, or fewer at the end of a piece after which more may come.
fn find_hole(bytes: &[u8]) -> Option<Range<usize>> {
    let mut from = 0;
    while let Some(start) = bytes[from..].iter().position(|byte| *byte == 0).map(|at| from + at) {
        let end = bytes[start..].iter().position(|byte| *byte != 0).map_or(bytes.len(), |at| start + at);
        let may_continue = start > 0 && end == bytes.len() && bytes.len() as u64 == PIECE;
        if end - start >= HOLE || may_continue {
            return Some(start..end);
        }
        from = end;
    }
    None
}

/// Where data begins again in a hole at `offset`: at the end of the file if none does. A file system that does not know its holes names
/// `offset`.
fn next_data(file: &File, offset: u64) -> io::Result<u64> {
    // After the zeros were read, so that it is the size of a file that has them; before the search, so that what is added meanwhile is found.
    let size = file.metadata()?.len();
    Ok(match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(data) => data,
        Err(rustix::io::Errno::NXIO) => size,
        Err(_) => offset,
    })
}

/// The names of the regular files in a folder, at most `limit` of them, sorted. Links are none.
pub fn names(folder: &Path, limit: usize) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(limit) {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The pieces of a file.
    fn pieces(file: &File) -> Vec<Piece> {
        let (mut offset, mut found) = (0, Vec::new());
        loop {
            let piece = next_piece(file, offset).unwrap();
            match &piece {
                Piece::Bytes(bytes) => offset += bytes.len() as u64,
                Piece::Hole { end } => offset = *end,
                Piece::End => return found,
            }
            found.push(piece);
        }
    }

    #[test]
    fn holes_are_skipped_and_text_is_not() {
        let file = tempfile::tempfile().unwrap();
        let bytes = |text: &[u8]| Piece::Bytes(text.to_vec());
        let write = |text: &[u8], at: u64| std::os::unix::fs::FileExt::write_all_at(&file, text, at).unwrap();
        write(b"one\n", 0);
        write(b"a\0b\n", 4);
        assert_eq!(pieces(&file), [bytes(b"one\na\0b\n")]);
        let far = 4 << 40;
        write(b"two\n", far);
        assert_eq!(pieces(&file), [bytes(b"one\na\0b\n"), Piece::Hole { end: far }, bytes(b"two\n")]);
        // A hole at the end, too.
        file.set_len(2 * far).unwrap();
        assert_eq!(pieces(&file)[3..], [Piece::Hole { end: 2 * far }]);
        // Zeros that were written are read, and are no text either.
        file.set_len(8).unwrap();
        write(&vec![0; 3 << 20], 8);
        write(b"end\n", 8 + (3 << 20));
        let holes = pieces(&file).iter().filter(|piece| matches!(piece, Piece::Hole { .. })).count();
        assert!(holes >= 1);
        let text: Vec<u8> = pieces(&file)
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Bytes(bytes) => Some(bytes),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(text, b"one\na\0b\nend\n");
    }

    #[test]
    fn only_regular_files_inside_are_read() {
        let root = std::env::temp_dir().join(format!("pipe-job-file-{}", std::process::id()));
        let folder = root.join("job");
        std::fs::create_dir_all(folder.join("deep")).unwrap();
        std::fs::write(root.join("secret"), "secret").unwrap();
        std::fs::write(folder.join("plain"), "plain").unwrap();
        std::fs::write(folder.join("deep/plain"), "deeper").unwrap();
        symlink(root.join("secret"), folder.join("link")).unwrap();
        symlink(&root, folder.join("up")).unwrap();
        symlink("plain", folder.join("near")).unwrap();
        let fifo = folder.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();

        assert_eq!(read(&folder, "plain", 5).unwrap(), b"plain");
        assert_eq!(read(&folder, "deep/plain", 100).unwrap(), b"deeper");
        assert_eq!(read(&folder, "plain", 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        for name in ["link", "up/secret", "near", "fifo", "deep", "../secret", "", "deep//plain"] {
            assert!(read(&folder, name, 100).is_err(), "{name} was read");
        }
        assert_eq!(names(&folder, 100).unwrap(), ["plain"]);

        // Nor is the folder itself followed where it has become a link.
        symlink(&folder, root.join("job-link")).unwrap();
        assert!(read(&root.join("job-link"), "plain", 5).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}
