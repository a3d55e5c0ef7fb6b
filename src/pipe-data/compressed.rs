//! Compressed files, and texts in other encodings, as plain ones in UTF-8: as they are, or, where rows name pictures beside the
//! file, with the whole paths of these.
//! Where pictures lie that rows name, and files for those that came inside the data.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

use crate::csv::CsvRecords;
use crate::format::{self, CHUNK, Compression, Format};
use crate::row::{DataError, LONGEST_ROW, too_long};
use crate::rows::LONGEST_DOCUMENT;

/// Where rows are written to. No type parameter: what reads is compiled in this crate, and optimised with it.
pub trait RowSink {
    /// Where rows are appended.
    fn buffer(&mut self) -> &mut Vec<u8>;

    /// Follows every row.
    fn row_done(&mut self) -> Result<(), Stopped>;

    /// A file beside the rows.
    fn file(&mut self, folder: String, name: String, bytes: Vec<u8>) -> Result<(), Stopped>;
}

/// A sink takes no more, and knows why.
#[derive(Debug)]
pub struct Stopped;

/// Why not all of a file was written.
#[derive(Debug)]
pub enum ReadError {
    /// Something wrong with the file.
    File(String),
    Stopped,
}

impl From<Stopped> for ReadError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::File(error.to_string())
    }
}

/// Writes the text that a file holds; `progress` is told how many bytes of the file are read.
pub fn copy(path: &Path, progress: &dyn Fn(u64), sink: &mut dyn RowSink) -> Result<(), ReadError> {
    let mut stream = open(path, progress)?;
    // A row has at least one line: what is too long for a row is not written at all.
    let longest = if format::text_ending(path) == Some("txt") { LONGEST_DOCUMENT as u64 } else { LONGEST_ROW };
    let (mut line, mut length) = (1, 0);
    loop {
        let before = sink.buffer().len();
        if stream.by_ref().take(CHUNK as u64).read_to_end(sink.buffer())? == 0 {
            return Ok(());
        }
        let chunk = &sink.buffer()[before..];
        let rest = chunk.iter().rposition(|byte| *byte == b'\n').map(|last| chunk.len() - last - 1);
        length += chunk.iter().position(|byte| *byte == b'\n').unwrap_or(chunk.len()) as u64;
        if length > longest {
            return Err(ReadError::File(format!("line {line}: {}", too_long(longest))));
        }
        line += chunk.iter().filter(|byte| **byte == b'\n').count();
        length = rest.map_or(length, |rest| rest as u64);
        sink.row_done()?;
    }
}

/// The same for rows that name pictures in `column`, relative to `folder`.
pub fn copy_with_pictures(
    path: &Path,
    progress: &dyn Fn(u64),
    sink: &mut dyn RowSink,
    (column, folder): (&str, &Path),
) -> Result<(), ReadError> {
    let stream = open(path, progress)?;
    match format::text_ending(path) {
        Some("csv" | "tsv") => csv_rows(path, stream, sink, column, folder),
        _ => json_rows(stream, sink, column, folder),
    }
}

fn json_rows(stream: impl Read, sink: &mut dyn RowSink, column: &str, folder: &Path) -> Result<(), ReadError> {
    let mut lines = BufReader::with_capacity(CHUNK, stream);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        match lines.by_ref().take(LONGEST_ROW).read_until(b'\n', &mut line)? as u64 {
            0 => break,
            LONGEST_ROW => return Err(ReadError::File(format!("line {number}: {}", too_long(LONGEST_ROW)))),
            _ => {}
        }
        // A line that is no row is for the trainer to name, as in a plain file.
        match serde_json::from_slice::<Map<String, Value>>(&line) {
            Err(_) => sink.buffer().extend_from_slice(&line),
            Ok(mut row) => {
                match row.get_mut(column) {
                    Some(Value::String(path)) => *path = whole_path(folder, path),
                    Some(Value::Number(_)) => return Err(by_number(number)),
                    _ => {}
                }
                serde_json::to_writer(sink.buffer(), &row).expect("a row that was read can be written");
                sink.buffer().push(b'\n');
            }
        }
        sink.row_done()?;
    }
    Ok(())
}

fn csv_rows(
    path: &Path,
    stream: impl Read,
    sink: &mut dyn RowSink,
    column: &str,
    folder: &Path,
) -> Result<(), ReadError> {
    let wrong = |error: DataError| ReadError::File(error.in_file());
    let mut records = CsvRecords::from_stream(path, stream, LONGEST_ROW).map_err(wrong)?;
    let (separator, names) = (records.separator(), records.headers().map_err(wrong)?);
    let index = names.iter().position(|name| name.trim() == column);
    write_record(sink, separator, names.iter())?;
    for (number, row) in (2..).zip(records) {
        let mut row = row.map_err(wrong)?;
        if let Some(path) = index.and_then(|index| row.get(index)) {
            if picture_ref(path) == PictureRef::Number {
                return Err(by_number(number));
            }
            let whole = whole_path(folder, path);
            row = row.iter().enumerate().map(|(at, cell)| if Some(at) == index { &whole } else { cell }).collect();
        }
        write_record(sink, separator, row.iter())?;
    }
    Ok(())
}

/// Writes a row of a CSV.
pub fn write_record<'a>(
    sink: &mut dyn RowSink,
    separator: u8,
    cells: impl Iterator<Item = &'a str>,
) -> Result<(), ReadError> {
    let mut writer = csv::WriterBuilder::new().flexible(true).delimiter(separator).from_writer(sink.buffer());
    let written = writer.write_record(cells).and_then(|()| Ok(writer.flush()?));
    drop(writer);
    written.map_err(|error| ReadError::File(error.to_string()))?;
    Ok(sink.row_done()?)
}

pub fn by_number(line: u64) -> ReadError {
    ReadError::File(format!(
        "line {line}: a picture by its number; images.safetensors is found only beside a plain .jsonl or .csv file"
    ))
}

/// The text of a file, decompressed and in UTF-8.
pub fn open<'a>(path: &Path, progress: &'a dyn Fn(u64)) -> io::Result<Box<dyn Read + 'a>> {
    let counted = Counted { file: File::open(path)?, bytes: 0, progress };
    match (Compression::from_path(path), Format::of_file(path)) {
        (Some(compression), _) => {
            format::decode(Box::new(Described(format::decompress(compression, counted).map_err(describe)?)))
        }
        (None, Format::Encoded(encoding)) => Ok(format::decoder(encoding, BufReader::with_capacity(CHUNK, counted))),
        (None, _) => format::decode(Box::new(BufReader::with_capacity(CHUNK, counted))),
    }
}

/// A source file that tells how much of it was read.
struct Counted<'a> {
    file: File,
    bytes: u64,
    progress: &'a dyn Fn(u64),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes += count as u64;
        (self.progress)(self.bytes);
        Ok(count)
    }
}

/// A decompressed stream whose errors say what is wrong with the file.
struct Described<R>(R);

impl<R: Read> Read for Described<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            _ => describe(error),
        })
    }
}

fn describe(error: io::Error) -> io::Error {
    io::Error::other(format::unreadable(&error))
}

/// Files in one folder at most.
const FILES_PER_FOLDER: u64 = 10_000;

/// The meaning of a text in the column of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureRef {
    Path,
    /// The number of a picture in `images.safetensors`.
    Number,
}

pub fn picture_ref(text: &str) -> PictureRef {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { PictureRef::Number } else { PictureRef::Path }
}

/// The path of a picture that a file in `folder` names.
pub fn whole_path(folder: &Path, path: &str) -> String {
    match path.is_empty() {
        true => String::new(),
        false => folder.join(path).to_string_lossy().into_owned(),
    }
}

/// The folder and the name of the file for the picture of row `number`.
pub fn file_of(number: u64, bytes: &[u8]) -> (String, String) {
    (format!("pictures/{:04}", number / FILES_PER_FOLDER), format!("{number:08}.{}", ending(bytes).unwrap_or("bin")))
}

/// The ending that the first bytes of a picture call for.
pub fn ending(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xd8, 0xff, ..] => Some("jpg"),
        [0x89, b'P', b'N', b'G', ..] => Some("png"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("webp"),
        [b'G', b'I', b'F', b'8', ..] => Some("gif"),
        [b'B', b'M', ..] if bytes.len() > 26 => Some("bmp"),
        [b'I', b'I', 0x2a, 0, ..] | [b'M', b'M', 0, 0x2a, ..] => Some("tiff"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_row_and_content() {
        assert_eq!(file_of(17, b"\xff\xd8\xff\xe0..."), ("pictures/0000".to_owned(), "00000017.jpg".to_owned()));
        assert_eq!(file_of(20_001, b"RIFF....WEBPVP8 "), ("pictures/0002".to_owned(), "00020001.webp".to_owned()));
        assert_eq!(file_of(3, b"nothing known").1, "00000003.bin");
    }

    #[test]
    fn paths_begin_in_the_folder_of_the_source() {
        let folder = Path::new("/data");
        for (path, want) in [("a/b.png", "/data/a/b.png"), ("/x/y.png", "/x/y.png"), ("", "")] {
            assert_eq!(whole_path(folder, path), want);
        }
        assert_eq!(
            (picture_ref("12"), picture_ref("12.png"), picture_ref("")),
            (PictureRef::Number, PictureRef::Path, PictureRef::Path)
        );
    }
}
