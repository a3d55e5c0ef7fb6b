//! Compressed files: written out as they are, or, where rows name pictures beside the file, with the whole paths of these.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use pipe_spec::separator;

use super::format::{self, CHUNK, Compression};
use super::output::Conversion;
use super::pictures::{self, PictureRef};
use super::pieces::Pieces;
use crate::error::Error;

/// The longest row of a compressed file whose rows are looked into.
const LONGEST_ROW: u64 = 256 << 20;

/// What `job`'s file holds.
pub fn decompress(job: Conversion<'_>, compression: Compression, pieces: &mut Pieces) -> Result<(), Error> {
    let mut stream = open(job, compression)?;
    loop {
        let read = stream.by_ref().take(CHUNK as u64).read_to_end(pieces.buffer());
        match read.map_err(|error| job.fail(format::unreadable(&error)))? {
            0 => return Ok(()),
            _ => pieces.row_done()?,
        }
    }
}

/// The same for rows that name pictures in `column`, relative to `folder`.
pub fn with_pictures(
    job: Conversion<'_>,
    compression: Compression,
    pieces: &mut Pieces,
    column: &str,
    folder: &Path,
) -> Result<(), Error> {
    let stream = open(job, compression)?;
    match format::inner_ending(job.host) {
        Some("csv" | "tsv") => csv_rows(job, stream, pieces, column, folder),
        _ => json_rows(job, stream, pieces, column, folder),
    }
}

fn open<'a>(job: Conversion<'a>, compression: Compression) -> Result<Box<dyn Read + 'a>, Error> {
    let file = File::open(job.host).map_err(|error| job.fail(error.to_string()))?;
    let counted = Counted { file, job, bytes: 0 };
    format::decompress(compression, counted).map_err(|error| job.fail(format::unreadable(&error)))
}

fn json_rows(
    job: Conversion<'_>,
    stream: impl Read,
    pieces: &mut Pieces,
    column: &str,
    folder: &Path,
) -> Result<(), Error> {
    let mut lines = BufReader::with_capacity(CHUNK, stream);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = lines.by_ref().take(LONGEST_ROW).read_until(b'\n', &mut line);
        match read.map_err(|error| job.fail(format::unreadable(&error)))? as u64 {
            0 => break,
            LONGEST_ROW => return Err(too_long(job, number)),
            _ => {}
        }
        // What is no row is for the trainer to name, as in a plain file.
        match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&line) {
            Err(_) => pieces.buffer().extend_from_slice(&line),
            Ok(mut row) => {
                match row.get_mut(column) {
                    Some(serde_json::Value::String(path)) => *path = pictures::whole_path(folder, path),
                    Some(serde_json::Value::Number(_)) => return Err(by_number(job, number)),
                    _ => {}
                }
                serde_json::to_writer(pieces.buffer(), &row).expect("a row that was read can be written");
                pieces.buffer().push(b'\n');
            }
        }
        pieces.row_done()?;
    }
    Ok(())
}

fn csv_rows(
    job: Conversion<'_>,
    stream: impl Read,
    pieces: &mut Pieces,
    column: &str,
    folder: &Path,
) -> Result<(), Error> {
    let left = std::cell::Cell::new(LONGEST_ROW);
    let mut stream = BufReader::with_capacity(CHUNK, Limited { stream, left: &left });
    let start = stream.fill_buf().map_err(|error| job.fail(format::unreadable(&error)))?;
    let separator = separator::find(job.host, start);
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(stream);
    let (mut row, mut index) = (csv::StringRecord::new(), None);
    let mut number = 0;
    loop {
        let read = reader.read_record(&mut row).map_err(|error| match error.kind() {
            csv::ErrorKind::Io(_) if left.get() == 0 => too_long(job, number + 1),
            csv::ErrorKind::Io(error) => job.fail(format::unreadable(error)),
            _ => job.fail(error.to_string()),
        })?;
        if !read {
            return Ok(());
        }
        left.set(LONGEST_ROW);
        number += 1;
        if number == 1 {
            index = row.iter().position(|name| name.trim() == column);
        } else if let Some(path) = index.and_then(|index| row.get(index)) {
            if pictures::picture_ref(path) == PictureRef::Number {
                return Err(by_number(job, number));
            }
            let whole = pictures::whole_path(folder, path);
            row = row.iter().enumerate().map(|(at, cell)| if Some(at) == index { &whole } else { cell }).collect();
        }
        let mut writer =
            csv::WriterBuilder::new().flexible(true).delimiter(separator).from_writer(&mut *pieces.buffer());
        writer.write_record(&row).and_then(|()| Ok(writer.flush()?)).map_err(|error| job.fail(error.to_string()))?;
        drop(writer);
        pieces.row_done()?;
    }
}

fn by_number(job: Conversion<'_>, line: u64) -> Error {
    job.fail(format!(
        "line {line}: a picture by its number; images.safetensors is found only beside a plain .jsonl or .csv file"
    ))
}

fn too_long(job: Conversion<'_>, line: u64) -> Error {
    job.fail(format!("line {line}: longer than {} MiB", LONGEST_ROW >> 20))
}

/// A source file that tells how much of it was read.
struct Counted<'a> {
    file: File,
    job: Conversion<'a>,
    bytes: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes += count as u64;
        self.job.set_done(self.bytes);
        Ok(count)
    }
}

/// Fails when more than `left` bytes are read; `left` is reset for each row.
struct Limited<'a, R> {
    stream: R,
    left: &'a std::cell::Cell<u64>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(count as u64));
        if self.left.get() == 0 { Err(io::Error::other("too long")) } else { Ok(count) }
    }
}
