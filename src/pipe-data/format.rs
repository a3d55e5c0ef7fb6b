//! How a data file is stored: what its name says, whether its first bytes agree, and how it is decompressed. A reader that
//! panics on a damaged file runs on a thread of its own (`guarded`), so that the panic becomes an error of the file.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::thread::{self, Builder};

/// How a file has to be prepared for the trainer, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The trainer reads it as it is.
    Plain,
    Compressed(Compression),
    Parquet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstd,
}

/// The window of frames that `zstd --long=31` writes, the largest there is.
const ZSTD_WINDOW: u32 = 31;

/// Bytes read and written at once.
pub const CHUNK: usize = 1 << 18;

impl Format {
    pub fn from_path(path: &Path) -> Self {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("parquet") => Self::Parquet,
            Some("gz") => Self::Compressed(Compression::Gzip),
            Some("zst") => Self::Compressed(Compression::Zstd),
            _ => Self::Plain,
        }
    }
}

/// The ending of a file with that of its compression: `jsonl.gz`.
pub fn full_ending(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_str()?;
    match Format::from_path(path) {
        Format::Compressed(_) => Some(format!("{}.{ending}", Path::new(path.file_stem()?).extension()?.to_str()?)),
        Format::Plain | Format::Parquet => Some(ending.to_owned()),
    }
}

/// The ending of what a compressed file holds: `jsonl` of `train.jsonl.gz`.
pub fn inner_ending(path: &Path) -> Option<&str> {
    Path::new(path.file_stem()?).extension()?.to_str()
}

/// The format that the first bytes of a file show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSignature {
    Gzip,
    Zstd,
    Parquet,
    EncryptedParquet,
    Zip,
    Other,
}

impl FileSignature {
    pub fn read(file: &mut File) -> std::io::Result<Self> {
        let mut first = Vec::new();
        file.take(4).read_to_end(&mut first)?;
        Ok(Self::from_bytes(&first))
    }

    fn from_bytes(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Self::Zstd,
            b"PAR1" => Self::Parquet,
            b"PARE" => Self::EncryptedParquet,
            [b'P', b'K', 3, 4] => Self::Zip,
            _ => Self::Other,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "a gzip file",
            Self::Zstd => "a zstd file",
            Self::Parquet => "a Parquet file",
            Self::EncryptedParquet => "an encrypted Parquet file",
            Self::Zip => "a zip archive",
            Self::Other => "something else",
        }
    }
}

/// Why what was found is not what the name says.
pub fn disagreement(format: Format, found: FileSignature) -> Option<String> {
    let expected = match (format, found) {
        (Format::Plain, FileSignature::Other | FileSignature::EncryptedParquet)
        | (Format::Compressed(Compression::Gzip), FileSignature::Gzip)
        | (Format::Compressed(Compression::Zstd), FileSignature::Zstd)
        | (Format::Parquet, FileSignature::Parquet) => return None,
        (Format::Parquet, FileSignature::EncryptedParquet) => {
            return Some("it is encrypted, and pipe has no keys; write it without encryption".to_owned());
        }
        (Format::Plain, _) => "plain text",
        (Format::Compressed(Compression::Gzip), _) => FileSignature::Gzip.name(),
        (Format::Compressed(Compression::Zstd), _) => FileSignature::Zstd.name(),
        (Format::Parquet, _) => FileSignature::Parquet.name(),
    };
    let ending = match found {
        FileSignature::Gzip => "; its name would end in .gz",
        FileSignature::Zstd => "; its name would end in .zst",
        FileSignature::Parquet | FileSignature::EncryptedParquet => "; its name would end in .parquet",
        FileSignature::Zip => "; unpack it",
        FileSignature::Other => "",
    };
    Some(format!("by its name {expected}, by its first bytes {}{ending}", found.name()))
}

/// Decompresses everything in the file, however many members or frames it has.
pub fn decompress<'a>(compression: Compression, file: impl Read + 'a) -> std::io::Result<Box<dyn Read + 'a>> {
    let file = BufReader::with_capacity(CHUNK, file);
    Ok(match compression {
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(file)?;
            decoder.window_log_max(ZSTD_WINDOW)?;
            Box::new(decoder)
        }
    })
}

/// The message for an error of a decompressor.
pub fn unreadable(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "it ends in the middle of its compressed data: it is truncated".to_owned(),
        _ => format!("its compressed data is damaged: {error}"),
    }
}

/// How many bytes come out of a zstd file, where its first frame tells and is the whole file for all that is known.
pub fn content_size(path: &Path) -> Option<u64> {
    let mut first = Vec::new();
    File::open(path).ok()?.take(18).read_to_end(&mut first).ok()?;
    zstd::zstd_safe::get_frame_content_size(&first).ok().flatten()
}

/// Bytes that are read of a file for a look at its rows: one endless line must not fill the memory.
const LOOKED_AT: u64 = 64 << 20;

/// The bytes with which a text file begins, decompressed where need be.
pub fn first_bytes(path: &Path) -> Option<Box<dyn Read>> {
    let file = File::open(path).ok()?;
    match Format::from_path(path) {
        Format::Plain => Some(Box::new(file.take(LOOKED_AT))),
        Format::Compressed(compression) => Some(Box::new(decompress(compression, file).ok()?.take(LOOKED_AT))),
        Format::Parquet => None,
    }
}

/// Whether `first_bytes` leaves out the end of a file. Of a compressed file its own size is compared.
pub fn is_longer_than_read(path: &Path) -> bool {
    Format::from_path(path) != Format::Parquet && path.metadata().is_ok_and(|meta| meta.len() > LOOKED_AT)
}

/// The name of threads that read untrusted files.
const THREAD: &str = "data file";
/// Schemas can be nested.
const STACK: usize = 64 << 20;

/// A thread whose panics are errors of the file that it reads.
pub fn reader_thread() -> Builder {
    silence_panics();
    Builder::new().name(THREAD.to_owned()).stack_size(STACK)
}

/// Does something that may panic on a bad file, and says so where it did.
pub fn guarded<T: Send>(read: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = reader_thread().spawn_scoped(scope, read);
        let ended = thread.map_err(|error| error.to_string())?.join();
        ended.map_err(|panic| panic_message(panic.as_ref()))
    })
}

/// The message of a reader that panicked over its file.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("it is damaged: {}", text.unwrap_or("its reader gave up"))
}

/// A panic on such a thread becomes an error of the file.
fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if thread::current().name() == Some(THREAD) {
                tracing::debug!("{info}");
            } else {
                before(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, format, ending, inner) in [
            ("a/train.jsonl", Format::Plain, Some("jsonl"), None),
            ("train.jsonl.gz", Format::Compressed(Compression::Gzip), Some("jsonl.gz"), Some("jsonl")),
            ("x.y.csv.zst", Format::Compressed(Compression::Zstd), Some("csv.zst"), Some("csv")),
            ("part-0.parquet", Format::Parquet, Some("parquet"), None),
            ("archive.gz", Format::Compressed(Compression::Gzip), None, None),
            ("noending", Format::Plain, None, None),
        ] {
            let path = Path::new(name);
            assert_eq!(Format::from_path(path), format, "{name}");
            assert_eq!(full_ending(path).as_deref(), ending, "{name}");
            assert_eq!(inner_ending(path), inner, "{name}");
        }
    }

    #[test]
    fn first_bytes_that_disagree_with_the_name() {
        let gzip = Format::Compressed(Compression::Gzip);
        for (format, first, want) in [
            (Format::Plain, &b"{\"a\""[..], None),
            (Format::Plain, b"", None),
            (gzip, &[0x1f, 0x8b, 8, 0], None),
            (Format::Compressed(Compression::Zstd), &[0x28, 0xb5, 0x2f, 0xfd], None),
            (Format::Compressed(Compression::Zstd), &[0x50, 0x2a, 0x4d, 0x18], None),
            (Format::Parquet, b"PAR1", None),
            (
                Format::Plain,
                &[0x1f, 0x8b, 8, 0],
                Some("by its name plain text, by its first bytes a gzip file; its name would end in .gz"),
            ),
            (gzip, b"{\"a\"", Some("by its name a gzip file, by its first bytes something else")),
            (Format::Parquet, b"PARE", Some("it is encrypted, and pipe has no keys; write it without encryption")),
            (gzip, b"PK\x03\x04", Some("by its name a gzip file, by its first bytes a zip archive; unpack it")),
        ] {
            assert_eq!(disagreement(format, FileSignature::from_bytes(first)).as_deref(), want, "{format:?} {first:?}");
        }
    }

    #[test]
    fn panics_become_errors() {
        assert_eq!(guarded(|| 3), Ok(3));
        assert_eq!(guarded(|| -> u8 { panic!("page {}", 7) }), Err("it is damaged: page 7".to_owned()));
    }
}
