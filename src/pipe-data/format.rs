//! How a data file is stored: what its name says, whether its first bytes agree, how it is decompressed, and in which encoding
//! its text is. A reader that panics on a damaged file runs on a thread of its own (`guarded`), so that the panic becomes an
//! error of the file.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;
use std::thread::{self, Builder};

use encoding_rs::{Encoding, UTF_16BE, UTF_16LE, WINDOWS_1252};
use encoding_rs_io::DecodeReaderBytesBuilder;
use memmap2::Mmap;

/// How a file has to be prepared for the trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The trainer reads it as it is.
    Plain,
    Compressed(Compression),
    Parquet,
    /// A text in another encoding than UTF-8.
    Encoded(&'static Encoding),
    /// One JSON value that holds the rows, or JSON lines under that name; it may be compressed.
    Json,
    /// An Excel workbook.
    Workbook,
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
    /// By its name.
    pub fn from_path(path: &Path) -> Self {
        match (text_ending(path), Compression::from_path(path)) {
            (Some("json"), _) => Self::Json,
            (_, Some(compression)) => Self::Compressed(compression),
            (Some("parquet"), None) => Self::Parquet,
            (Some("xlsx"), None) => Self::Workbook,
            (_, None) => Self::Plain,
        }
    }

    /// By its name, and of a plain text by its bytes.
    pub fn of_file(path: &Path) -> Self {
        match Self::from_path(path) {
            Self::Plain if matches!(text_ending(path), Some("csv" | "tsv" | "jsonl" | "txt")) => {
                file_encoding(path).map_or(Self::Plain, Self::Encoded)
            }
            by_name => by_name,
        }
    }
}

impl Compression {
    pub fn from_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "gz" => Some(Self::Gzip),
            "zst" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// The ending without that of a compression: `jsonl` of `train.jsonl` and of `train.jsonl.gz`.
pub fn text_ending(path: &Path) -> Option<&str> {
    match Compression::from_path(path) {
        Some(_) => inner_ending(path),
        None => path.extension()?.to_str(),
    }
}

/// The ending of a file with that of its compression: `jsonl.gz`.
pub fn full_ending(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_str()?;
    match Compression::from_path(path) {
        Some(_) => Some(format!("{}.{ending}", inner_ending(path)?)),
        None => Some(ending.to_owned()),
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

/// Why what was found is not what the name says. `compression` is that of a JSON file.
pub fn disagreement(format: Format, compression: Option<Compression>, found: FileSignature) -> Option<String> {
    let format = match (format, compression) {
        (Format::Json, Some(compression)) => Format::Compressed(compression),
        (Format::Json | Format::Encoded(_), None) => Format::Plain,
        (format, _) => format,
    };
    let expected = match (format, found) {
        (Format::Plain, FileSignature::Other | FileSignature::EncryptedParquet)
        | (Format::Compressed(Compression::Gzip), FileSignature::Gzip)
        | (Format::Compressed(Compression::Zstd), FileSignature::Zstd)
        | (Format::Workbook, FileSignature::Zip)
        | (Format::Parquet, FileSignature::Parquet) => return None,
        (Format::Parquet, FileSignature::EncryptedParquet) => {
            return Some("it is encrypted, and pipe has no keys; write it without encryption".to_owned());
        }
        (Format::Plain | Format::Encoded(_) | Format::Json, _) => "plain text",
        (Format::Workbook, _) => "an Excel workbook",
        (Format::Compressed(Compression::Gzip), _) => FileSignature::Gzip.name(),
        (Format::Compressed(Compression::Zstd), _) => FileSignature::Zstd.name(),
        (Format::Parquet, _) => FileSignature::Parquet.name(),
    };
    let ending = match found {
        FileSignature::Gzip => "; its name would end in .gz",
        FileSignature::Zstd => "; its name would end in .zst",
        FileSignature::Parquet | FileSignature::EncryptedParquet => "; its name would end in .parquet",
        FileSignature::Zip => "; unpack it, or, if it is an Excel workbook, call it .xlsx",
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

/// The text with which a file begins, decompressed and decoded where need be.
pub fn first_bytes(path: &Path) -> Option<Box<dyn Read>> {
    let file = File::open(path).ok()?;
    let stream: Box<dyn Read> = match Compression::from_path(path) {
        Some(compression) => Box::new(decompress(compression, file).ok()?.take(LOOKED_AT)),
        None => match Format::of_file(path) {
            Format::Encoded(encoding) => return Some(decoder(encoding, file.take(LOOKED_AT))),
            _ => Box::new(file.take(LOOKED_AT)),
        },
    };
    decode(stream).ok()
}

/// Whether `first_bytes` leaves out the end of a file. Of a compressed file its own size is compared.
pub fn is_longer_than_read(path: &Path) -> bool {
    let is_text = !matches!(Format::from_path(path), Format::Parquet | Format::Workbook);
    is_text && path.metadata().is_ok_and(|meta| meta.len() > LOOKED_AT)
}

/// Bytes of a stream that tell its encoding.
const ENCODING_BYTES: u64 = 1 << 20;

/// A text in UTF-8, whatever its encoding is by its first bytes.
pub fn decode<'a>(mut stream: Box<dyn Read + 'a>) -> std::io::Result<Box<dyn Read + 'a>> {
    let mut start = Vec::new();
    stream.by_ref().take(ENCODING_BYTES).read_to_end(&mut start)?;
    let encoding = encoding_of(&start);
    let whole = Cursor::new(start).chain(stream);
    Ok(match encoding {
        Some(encoding) => decoder(encoding, whole),
        None => Box::new(whole),
    })
}

pub fn decoder<'a>(encoding: &'static Encoding, stream: impl Read + 'a) -> Box<dyn Read + 'a> {
    Box::new(DecodeReaderBytesBuilder::new().encoding(Some(encoding)).build(stream))
}

/// The encoding of a text file, where it is not UTF-8 and can be told.
fn file_encoding(path: &Path) -> Option<&'static Encoding> {
    let file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    if length == 0 {
        return None;
    }
    // SAFETY: a data set that another program shortens while it is read ends the process, as losing it would.
    let bytes = unsafe { Mmap::map(&file) }.ok()?;
    encoding_of(&bytes[..length.min(LOOKED_AT) as usize])
}

/// Bytes that mean nothing in windows-1252.
const UNDEFINED: [u8; 5] = [0x81, 0x8d, 0x8f, 0x90, 0x9d];

/// The encoding of a text that begins with `start`; nothing for UTF-8, and for what is damaged or unknown. UTF-16 is told by its
/// byte order mark.
fn encoding_of(start: &[u8]) -> Option<&'static Encoding> {
    match start {
        [0xff, 0xfe, ..] => return Some(UTF_16LE),
        [0xfe, 0xff, ..] => return Some(UTF_16BE),
        _ => {}
    }
    let valid = std::str::from_utf8(start).map_or_else(|error| error.valid_up_to(), str::len);
    // The last character may be cut.
    if start.len() - valid < 4 && start.len() as u64 >= ENCODING_BYTES || valid == start.len() {
        return None;
    }
    let (mut multibyte, mut invalid) = (0, 0);
    for chunk in start.utf8_chunks() {
        multibyte += chunk.valid().chars().filter(|letter| !letter.is_ascii()).count();
        invalid += usize::from(!chunk.invalid().is_empty());
    }
    let is_defined = || !start.iter().any(|byte| *byte == 0 || UNDEFINED.contains(byte));
    // A text in UTF-8 with a few damaged bytes stays one.
    (invalid > multibyte && is_defined()).then_some(WINDOWS_1252)
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
            ("a.json", Format::Json, Some("json"), None),
            ("a.json.gz", Format::Json, Some("json.gz"), Some("json")),
            ("a.xlsx", Format::Workbook, Some("xlsx"), None),
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
            (
                gzip,
                b"PK\x03\x04",
                Some(
                    "by its name a gzip file, by its first bytes a zip archive; unpack it, or, if it is an Excel workbook, \
                     call it .xlsx",
                ),
            ),
            (Format::Workbook, b"PK\x03\x04", None),
            (Format::Json, b"[{\"a\"", None),
            (Format::Encoded(UTF_16LE), b"\xff\xfea\0", None),
            (
                Format::Workbook,
                b"\xd0\xcf\x11\xe0",
                Some("by its name an Excel workbook, by its first bytes something else"),
            ),
        ] {
            let found = disagreement(format, None, FileSignature::from_bytes(first));
            assert_eq!(found.as_deref(), want, "{format:?} {first:?}");
        }
    }

    #[test]
    fn encodings_are_told_by_the_bytes() {
        let cases: [(&[u8], Option<&'static Encoding>); 9] = [
            (b"plain", None),
            ("Stra\u{df}e, caf\u{e9}".as_bytes(), None),
            ("\u{feff}caf\u{e9}".as_bytes(), None),
            (b"Stra\xdfe, caf\xe9", Some(WINDOWS_1252)),
            (b"\x93quoted\x94", Some(WINDOWS_1252)),
            (b"\xff\xfea\0", Some(UTF_16LE)),
            (b"\xfe\xff\0a", Some(UTF_16BE)),
            // Damaged UTF-8, and what is no text at all.
            ("caf\u{e9} na\u{ef}ve ".as_bytes(), None),
            (b"\xe9\0\x81", None),
        ];
        for (bytes, want) in cases {
            assert_eq!(encoding_of(bytes), want, "{bytes:?}");
        }
        assert_eq!(encoding_of(&["caf\u{e9} na\u{ef}ve ".as_bytes(), b"\xff"].concat()), None);
        let mut text = String::new();
        decode(Box::new(&b"\xff\xfeh\0\xe9\0"[..])).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "h\u{e9}");
    }

    #[test]
    fn panics_become_errors() {
        assert_eq!(guarded(|| 3), Ok(3));
        assert_eq!(guarded(|| -> u8 { panic!("page {}", 7) }), Err("it is damaged: page 7".to_owned()));
    }
}
