//! Reads a whole file that should be small, and refuses one that is not before its content is in memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pipe_spec::text::human_bytes;

/// A config.json, or another file of settings.
pub const LARGEST_CONFIG: u64 = 16 << 20;
/// A tokenizer.json or a vocabulary. The largest that there are have some 30 MB.
pub const LARGEST_TOKENIZER: u64 = 256 << 20;

/// An index of the files of a model's weights, which names every tensor.
pub const LARGEST_INDEX: u64 = 64 << 20;

/// Refuses a file that has more than `most` bytes, for readers of their own.
pub fn check_size(path: &Path, most: u64) -> io::Result<()> {
    check(path.metadata()?.len(), most)
}

/// The bytes of the file at `path`, at most `most`.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    check(file.metadata()?.len(), most)?;
    let mut bytes = Vec::new();
    // A pipe, or a file that grows, does not say how much it will give.
    file.take(most + 1).read_to_end(&mut bytes)?;
    check(bytes.len() as u64, most)?;
    Ok(bytes)
}

fn check(found: u64, most: u64) -> io::Result<()> {
    if found <= most {
        return Ok(());
    }
    let (found, most) = (human_bytes(found), human_bytes(most));
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("the file has {found}; allowed: at most {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_refused_before_it_is_read() {
        let path = std::env::temp_dir().join(format!("pipe-bounded-{}", std::process::id()));
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().to_string(), "the file has 5 B; allowed: at most 4 B");
        // Sparse: it takes no room, and must not be brought into memory.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read(&path, LARGEST_TOKENIZER).unwrap_err().to_string().contains("the file has 1.0 TiB"));
        assert!(read(Path::new("/dev/zero"), 1 << 20).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
