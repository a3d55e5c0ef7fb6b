//! Tables that are not written row by row: a JSON value that holds the rows, and Excel workbooks. Their rows are written as JSON
//! lines, or as CSV where a task wants that. One row is held in memory, and of a workbook the texts that its cells share.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use calamine::{DataRef, Reader, Xlsx, XlsxError, open_workbook_from_rs};
use pipe_spec::text::human_bytes;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::columns::ColumnSelection;
use crate::compressed::{self, PictureRef, ReadError, RowSink, picture_ref, whole_path, write_record};
use crate::first_line::title_rows;
use crate::format::{CHUNK, Format};
use crate::row::{LONGEST_ROW, kind, too_long};

/// A row, by the names of its columns in their order.
pub type Row = Map<String, Value>;
type Each<'a> = &'a mut dyn FnMut(Row) -> Result<(), ReadError>;

/// Writes the rows of a table; `progress` is told how many bytes of the file are read. Paths of pictures begin in `folder`.
pub fn write(
    path: &Path,
    selection: &ColumnSelection,
    folder: &Path,
    progress: &dyn Fn(u64),
    sink: &mut dyn RowSink,
) -> Result<(), ReadError> {
    let mut writer = RowWriter { sink, selection, folder, names: Vec::new(), number: 0 };
    read(path, progress, &mut |row| writer.row(row))?;
    match writer.number {
        0 => Err(ReadError::File("it has no rows".to_owned())),
        _ => Ok(()),
    }
}

/// Every row of a table, in order.
pub fn read(path: &Path, progress: &dyn Fn(u64), each: Each<'_>) -> Result<(), ReadError> {
    match Format::from_path(path) {
        Format::Workbook => workbook_rows(path, &mut None, each),
        _ => json_rows(compressed::open(path, progress)?, each),
    }
}

struct RowWriter<'a> {
    sink: &'a mut dyn RowSink,
    selection: &'a ColumnSelection,
    folder: &'a Path,
    /// The columns of a CSV, which are those of the first row.
    names: Vec<String>,
    number: u64,
}

impl RowWriter<'_> {
    fn row(&mut self, mut row: Row) -> Result<(), ReadError> {
        self.number += 1;
        if let Some(column) = &self.selection.pictures {
            match row.get_mut(column) {
                Some(Value::String(path)) if picture_ref(path) == PictureRef::Path => {
                    *path = whole_path(self.folder, path);
                }
                Some(Value::Number(_) | Value::String(_)) => return Err(compressed::by_number(self.number)),
                _ => {}
            }
        }
        if self.selection.as_csv() {
            return self.record(&row);
        }
        serde_json::to_writer(self.sink.buffer(), &row).expect("a row that was read can be written");
        self.sink.buffer().push(b'\n');
        Ok(self.sink.row_done()?)
    }

    fn record(&mut self, row: &Row) -> Result<(), ReadError> {
        let fail = |message: String| Err(ReadError::File(format!("row {}: {message}", self.number)));
        if self.number == 1 {
            self.names = row.keys().cloned().collect();
            write_record(self.sink, b',', self.names.iter().map(String::as_str))?;
        }
        if let Some(new) = row.keys().find(|name| !self.names.contains(name)) {
            return fail(format!("it has {new:?}, which the first row does not have"));
        }
        let mut cells = Vec::with_capacity(self.names.len());
        for name in &self.names {
            cells.push(match row.get(name) {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                Some(nested) => return fail(format!("{name:?} holds {}; a table has plain columns", kind(nested))),
            });
        }
        write_record(self.sink, b',', cells.iter().map(String::as_str))
    }
}

/// Bytes of a file that tell whether it holds one value or one on each line.
const LOOKED_AT: u64 = 1 << 20;

/// The objects of a JSON array; those of the first array of objects in a JSON object; or those of JSON lines.
pub fn json_rows(mut stream: impl Read, each: Each<'_>) -> Result<(), ReadError> {
    let mut start = Vec::new();
    stream.by_ref().take(LOOKED_AT).read_to_end(&mut start)?;
    let lines = are_lines(&start);
    let left = Rc::new(Cell::new(0));
    let bounded = Bounded { stream: io::Cursor::new(start).chain(stream), left: Rc::clone(&left) };
    let mut rows = Rows { each, left, count: 0, stopped: None };
    rows.allow();
    let mut parser = serde_json::Deserializer::from_reader(BufReader::with_capacity(CHUNK, bounded));
    let parsed = match lines {
        true => parser.into_iter().try_for_each(|value| rows.take(value?)),
        false => TopLevel(&mut rows).deserialize(&mut parser).and_then(|()| parser.end()),
    };
    match (rows.stopped, parsed) {
        (Some(stopped), _) => Err(stopped),
        (None, Ok(())) if rows.count > 0 => Ok(()),
        (None, Ok(())) => Err(ReadError::File(
            "it holds no list of rows; write it as [{...}, {...}], in pandas `to_json(orient=\"records\")`".to_owned(),
        )),
        (None, Err(error)) if error.io_error_kind() == Some(io::ErrorKind::InvalidData) => {
            Err(ReadError::File(format!("row {}: {}", rows.count + 1, too_long(LONGEST_ROW))))
        }
        (None, Err(error)) => Err(ReadError::File(format!("not JSON: {error}"))),
    }
}

/// Whether the first line is an object of its own, and more follows it.
fn are_lines(start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let Some(end) = start.iter().position(|byte| *byte == b'\n') else { return false };
    let is_object = |line: &[u8]| serde_json::from_slice::<Map<String, Value>>(line).is_ok();
    start[end..].trim_ascii_start().starts_with(b"{") && is_object(&start[..end])
}

/// A stream that ends in an error where a row takes more than what is left.
struct Bounded<R> {
    stream: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = self.stream.read(&mut buffer[..room])?;
        self.left.set(left - count as u64);
        Ok(count)
    }
}

struct Rows<'a> {
    each: Each<'a>,
    left: Rc<Cell<u64>>,
    count: u64,
    /// Why no more rows are wanted.
    stopped: Option<ReadError>,
}

impl Rows<'_> {
    /// Lets the stream be read for one more row.
    fn allow(&self) {
        self.left.set(LONGEST_ROW + CHUNK as u64);
    }

    fn take(&mut self, value: Value) -> Result<(), serde_json::Error> {
        self.count += 1;
        self.allow();
        let taken = match value {
            Value::Object(row) => (self.each)(row),
            other => Err(ReadError::File(format!("row {}: found {}; a row is an object", self.count, kind(&other)))),
        };
        taken.map_err(|stopped| {
            self.stopped = Some(stopped);
            serde_json::Error::custom("stopped")
        })
    }
}

/// The value that a whole file holds.
struct TopLevel<'a, 'b>(&'a mut Rows<'b>);

impl<'de> DeserializeSeed<'de> for TopLevel<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TopLevel<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(row) = rows.next_element()? {
            self.0.take(row).map_err(A::Error::custom)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            match self.0.count {
                0 => map.next_value_seed(Member(&mut *self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
            self.0.allow();
        }
        Ok(())
    }
}

/// A value of the object that a file holds: its rows where it is a list of objects, otherwise nothing.
struct Member<'a, 'b>(&'a mut Rows<'b>);

impl<'de> DeserializeSeed<'de> for Member<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Member<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(row) = rows.next_element::<Value>()? {
            if self.0.count == 0 && !row.is_object() {
                while rows.next_element::<IgnoredAny>()?.is_some() {
                    self.0.allow();
                }
                return Ok(());
            }
            self.0.take(row).map_err(A::Error::custom)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            self.0.allow();
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

/// A workbook has no more bytes: the texts of its cells are held in memory.
const LARGEST_WORKBOOK: u64 = 256 << 20;

/// Columns that Excel allows.
const MOST_COLUMNS: usize = 16_384;

/// Bytes that a value holds.
pub fn size(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(size).sum(),
            Value::Object(items) => items.iter().map(|(name, value)| name.len() + size(value)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// Bytes of a workbook besides its sheets, unpacked: the texts of its cells above all, which are held.
const LARGEST_TEXTS: u64 = 512 << 20;

/// A small archive can unpack to any size: what calamine holds in memory is unpacked once before, and thrown away.
fn check_texts(file: &File, largest: u64) -> Result<(), ReadError> {
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| unreadable(error.into()))?;
    let mut left = largest;
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(|error| unreadable(error.into()))?;
        let name = entry.name().map_or_else(|_| String::new(), |name| name.to_ascii_lowercase());
        if name.starts_with("xl/worksheets/") {
            check_cells(entry)?;
            continue;
        }
        let mut texts = entry.take(left + 1);
        let mut start = Vec::new();
        let mut size = (&mut texts).take(FIRST_BYTES).read_to_end(&mut start)? as u64;
        size += io::copy(&mut texts, &mut io::sink())?;
        // calamine makes room for as many texts as the file says that there are.
        if name == "xl/sharedstrings.xml" && unique_count(&start).is_some_and(|count| count > size) {
            return Err(ReadError::File(
                "not an Excel workbook that can be read: it has fewer texts than it says".to_owned(),
            ));
        }
        left = left.saturating_sub(size);
        if left == 0 {
            let message = format!("its texts take more than {}; save its sheet as .csv", human_bytes(largest));
            return Err(ReadError::File(message));
        }
    }
    Ok(())
}

/// Bytes that come out of a byte of a zip archive at most.
const MOST_UNPACKED: u64 = 1032;

/// calamine reads a cell as a whole, however long it is.
fn check_cells(mut sheet: zip::read::ZipFile<'_, impl Read>) -> Result<(), ReadError> {
    if sheet.compressed_size() * MOST_UNPACKED < LONGEST_ROW {
        return Ok(());
    }
    let mut piece = vec![0; 1 << 16];
    let mut length = 0;
    loop {
        let count = sheet.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        for part in piece[..count].split_inclusive(|byte| *byte == b'<') {
            length += part.len() as u64;
            if length > LONGEST_ROW {
                return Err(ReadError::File(format!("a cell of it: {}", too_long(LONGEST_ROW))));
            }
            if part.ends_with(b"<") {
                length = 0;
            }
        }
    }
}

/// Bytes at the beginning of the shared texts, which say how many there are.
const FIRST_BYTES: u64 = 4 << 10;

fn unique_count(start: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(start);
    let (_, rest) = text.split_once("uniqueCount=")?;
    let number = rest.trim_start_matches(['"', '\'']).split(|c: char| !c.is_ascii_digit()).next()?;
    // One that is too large for a number is too large for a file.
    (!number.is_empty()).then(|| number.parse().unwrap_or(u64::MAX))
}

fn open_workbook(path: &Path) -> Result<Xlsx<BufReader<File>>, ReadError> {
    let file = File::open(path)?;
    if file.metadata()?.len() > LARGEST_WORKBOOK {
        return Err(ReadError::File("it is too large for a workbook; save its sheet as .csv".to_owned()));
    }
    check_texts(&file, LARGEST_TEXTS)?;
    open_workbook_from_rs(BufReader::new(file)).map_err(unreadable)
}

fn unreadable(error: XlsxError) -> ReadError {
    ReadError::File(format!("not an Excel workbook that can be read: {error}"))
}

/// The rows of the first sheet that has any, behind the row of names. `title` is what stands above it.
fn workbook_rows(path: &Path, title: &mut Option<String>, each: Each<'_>) -> Result<(), ReadError> {
    let mut workbook = open_workbook(path)?;
    for sheet in workbook.sheet_names() {
        let mut cells = match workbook.worksheet_cells_reader(&sheet) {
            Ok(cells) => cells,
            // A sheet of charts.
            Err(XlsxError::NotAWorksheet(_)) => continue,
            Err(error) => return Err(unreadable(error)),
        };
        let mut rows = SheetRows { names: None, first: Vec::new(), title: &mut *title, each: &mut *each };
        let (mut row, mut number, mut held) = (Vec::new(), 0, 0);
        while let Some(cell) = cells.next_cell().map_err(unreadable)? {
            let (line, column) = cell.get_position();
            if line != number {
                rows.row(std::mem::take(&mut row))?;
                (number, held) = (line, 0);
            }
            let column = column as usize;
            if column >= MOST_COLUMNS {
                return Err(ReadError::File(format!("row {}: more than {MOST_COLUMNS} columns", line + 1)));
            }
            if row.len() <= column {
                row.resize(column + 1, Value::Null);
            }
            row[column] = cell_value(cell.get_value());
            // A small file can have the same long text in each of its cells.
            held += size(&row[column]);
            if held as u64 > LONGEST_ROW {
                return Err(ReadError::File(format!("row {}: {}", line + 1, too_long(LONGEST_ROW))));
            }
        }
        rows.row(row)?;
        if rows.finish()? {
            return Ok(());
        }
    }
    Ok(())
}

/// Rows that are looked at before it is known which of them has the names.
const FIRST_ROWS: usize = 20;

/// The rows of a sheet. The first that is not empty and no title has the names.
struct SheetRows<'a> {
    names: Option<Vec<String>>,
    first: Vec<Vec<Value>>,
    title: &'a mut Option<String>,
    each: Each<'a>,
}

impl SheetRows<'_> {
    fn row(&mut self, row: Vec<Value>) -> Result<(), ReadError> {
        if row.iter().all(Value::is_null) {
            return Ok(());
        }
        if let Some(names) = &self.names {
            let cells = row.into_iter().chain(std::iter::repeat(Value::Null));
            return (self.each)(names.iter().cloned().zip(cells).collect());
        }
        self.first.push(row);
        if self.first.len() < FIRST_ROWS { Ok(()) } else { self.decide() }
    }

    /// The names and the rows behind them, of the first rows.
    fn decide(&mut self) -> Result<(), ReadError> {
        let text = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
        let texts: Vec<Vec<String>> = self.first.iter().map(|row| row.iter().map(text).collect()).collect();
        let above = title_rows(&texts);
        *self.title = texts[..above].iter().flatten().find(|cell| !cell.is_empty()).cloned();
        let mut rows = std::mem::take(&mut self.first).into_iter().skip(above);
        let name = |(index, value): (usize, &Value)| match text(value) {
            name if !name.is_empty() => name,
            _ => format!("column{}", index + 1),
        };
        self.names = rows.next().map(|row| row.iter().enumerate().map(name).collect());
        rows.try_for_each(|row| self.row(row))
    }

    /// Whether the sheet has names.
    fn finish(&mut self) -> Result<bool, ReadError> {
        if self.names.is_none() {
            self.decide()?;
        }
        Ok(self.names.is_some())
    }
}

/// The title above the names of a workbook.
pub fn title(path: &Path) -> Option<String> {
    let mut title = None;
    // The first row comes when the title is known.
    let _ = workbook_rows(path, &mut title, &mut |_| Err(ReadError::Stopped));
    title
}

/// As a CSV would have it: every value is a text, and what is missing is absent.
fn cell_value(cell: &DataRef<'_>) -> Value {
    let text = match cell {
        DataRef::Empty | DataRef::Error(_) => return Value::Null,
        DataRef::SharedString(text) => (*text).to_owned(),
        DataRef::String(text) | DataRef::DateTimeIso(text) | DataRef::DurationIso(text) => text.clone(),
        DataRef::Int(number) => number.to_string(),
        DataRef::Float(number) => number.to_string(),
        DataRef::Bool(truth) => truth.to_string(),
        DataRef::DateTime(time) if time.is_datetime() => {
            let (year, month, day, hour, minute, second, _) = time.to_ymd_hms_milli();
            let date = format!("{year:04}-{month:02}-{day:02}");
            match (hour, minute, second) {
                (0, 0, 0) => date,
                _ => format!("{date} {hour:02}:{minute:02}:{second:02}"),
            }
        }
        DataRef::DateTime(duration) => duration.as_f64().to_string(),
    };
    if text.trim().is_empty() { Value::Null } else { Value::String(text) }
}

#[cfg(test)]
mod workbook_tests {
    use std::io::Write;

    use super::*;

    /// A workbook of one sheet with these rows; an empty cell is none.
    fn workbook(path: &Path, rows: &[&[&str]]) {
        let mut archive = zip::ZipWriter::new(File::create(path).unwrap());
        let cell = |row: usize, (column, text): (u8, &&str)| {
            let place = format!("{}{}", char::from(b'A' + column), row + 1);
            match text.parse::<f64>() {
                _ if text.is_empty() => String::new(),
                Ok(number) => format!("<c r=\"{place}\"><v>{number}</v></c>"),
                Err(_) => format!("<c r=\"{place}\" t=\"inlineStr\"><is><t>{text}</t></is></c>"),
            }
        };
        let row = |(number, cells): (usize, &&[&str])| {
            let cells: String = (0..).zip(cells.iter()).map(|one| cell(number, one)).collect();
            format!("<row r=\"{}\">{cells}</row>", number + 1)
        };
        let rows: String = rows.iter().enumerate().map(row).collect();
        let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
        let relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
        let package = "http://schemas.openxmlformats.org/package/2006/relationships";
        let relations = |kind: &str, target: &str| {
            let one = format!("<Relationship Id=\"r1\" Type=\"{relation}/{kind}\" Target=\"{target}\"/>");
            format!("<Relationships xmlns=\"{package}\">{one}</Relationships>")
        };
        let files = [
            ("_rels/.rels", relations("officeDocument", "xl/workbook.xml")),
            ("xl/_rels/workbook.xml.rels", relations("worksheet", "worksheets/sheet1.xml")),
            (
                "xl/workbook.xml",
                format!(
                    "<workbook xmlns=\"{main}\" xmlns:r=\"{relation}\"><sheets>\
                     <sheet name=\"a\" sheetId=\"1\" r:id=\"r1\"/></sheets></workbook>"
                ),
            ),
            (
                "xl/worksheets/sheet1.xml",
                format!("<worksheet xmlns=\"{main}\"><sheetData>{rows}</sheetData></worksheet>"),
            ),
        ];
        for (name, text) in files {
            archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(text.as_bytes()).unwrap();
        }
        archive.finish().unwrap();
    }

    #[test]
    fn a_title_above_the_names_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.xlsx");
        let read = |rows: &[&[&str]]| {
            workbook(&path, rows);
            let mut found = Vec::new();
            super::read(&path, &|_| (), &mut |row| {
                found.push(Value::Object(row).to_string());
                Ok(())
            })
            .unwrap();
            (found.join(" "), title(&path))
        };
        let want = r#"{"item":"bolt","price":"3"} {"item":"nut","price":"4.5"}"#.to_owned();
        let plain: [&[&str]; 3] = [&["item", "price"], &["bolt", "3"], &["nut", "4.5"]];
        assert_eq!(read(&plain), (want.clone(), None));
        let mut titled: Vec<&[&str]> = vec![&["Sales of May"], &[]];
        titled.extend(plain);
        assert_eq!(read(&titled), (want, Some("Sales of May".to_owned())));
        let notes = crate::notes(&path);
        assert_eq!(notes, ["a title stands above the names of columns, and is skipped: \"Sales of May\""]);
    }

    #[test]
    fn texts_that_unpack_to_too_much_are_refused() {
        let mut file = tempfile::tempfile().unwrap();
        let mut archive = zip::ZipWriter::new(&file);
        let options = zip::write::SimpleFileOptions::default();
        for (name, bytes) in [("xl/worksheets/sheet1.xml", 4 << 20), ("xl/sharedStrings.xml", 1 << 20)] {
            archive.start_file(name, options).unwrap();
            archive.write_all(&vec![b' '; bytes]).unwrap();
        }
        archive.finish().unwrap();
        file.flush().unwrap();
        assert!(check_texts(&file, 2 << 20).is_ok());
        let Err(ReadError::File(message)) = check_texts(&file, 1 << 19) else { panic!("it is read") };
        assert!(message.starts_with("its texts take more than 512.0 KiB"), "{message}");
    }

    fn refused(name: &str, content: &[u8]) -> Option<String> {
        let mut file = tempfile::tempfile().unwrap();
        let mut archive = zip::ZipWriter::new(&mut file);
        archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(content).unwrap();
        archive.finish().unwrap();
        match check_texts(&file, LARGEST_TEXTS) {
            Ok(()) => None,
            Err(ReadError::File(message)) => Some(message),
            Err(ReadError::Stopped) => panic!("nobody stops"),
        }
    }

    #[test]
    fn a_workbook_that_promises_too_many_texts_is_refused() {
        let texts = |count: u64| {
            refused("xl/sharedStrings.xml", format!("<sst uniqueCount=\"{count}\"><si/></sst>").as_bytes())
        };
        assert_eq!(texts(1), None);
        assert!(texts(4_000_000_000).unwrap().contains("fewer texts than it says"));
    }

    #[test]
    fn a_cell_that_unpacks_to_too_much_is_refused() {
        let half = vec![b' '; LONGEST_ROW as usize / 2 + 1];
        assert_eq!(refused("xl/worksheets/sheet1.xml", &[&half[..], b"<c>", &half].concat()), None);
        assert!(refused("xl/worksheets/sheet1.xml", &[&half[..], &half].concat()).unwrap().starts_with("a cell of it"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        let read = json_rows(text.as_bytes(), &mut |row| {
            found.push(Value::Object(row).to_string());
            Ok(())
        });
        match read {
            Ok(()) => Ok(found),
            Err(ReadError::File(message)) => Err(message),
            Err(ReadError::Stopped) => panic!("nobody stops"),
        }
    }

    #[test]
    fn rows_of_json_however_they_are_held() {
        let want: Vec<String> = [r#"{"b":1,"a":"x\ny"}"#, r#"{"a":null}"#].map(str::to_owned).to_vec();
        let list = r#"[{"b": 1, "a": "x\ny"}, {"a": null}]"#;
        for text in [
            list.to_owned(),
            format!("\n {list}\n"),
            format!(
                r#"{{"version": "1.0", "names": ["a"], "of": {{"a": [{{}}]}}, "data": {list}, "more": [{{"c": 1}}]}}"#
            ),
            "{\"b\": 1, \"a\": \"x\\ny\"}\n\n{\"a\": null}\n".to_owned(),
        ] {
            assert_eq!(rows(&text).as_ref(), Ok(&want), "{text}");
        }
    }

    #[test]
    fn json_without_rows_says_why() {
        for (text, want) in [
            (r#"{"a": {"0": 1}, "b": {"0": 2}}"#, "it holds no list of rows"),
            (r#"{"a": [1, 2], "b": [3, 4]}"#, "it holds no list of rows"),
            ("[]", "it holds no list of rows"),
            ("[1]", "row 1: found a number; a row is an object"),
            (r#"[{"a": 1}, [2]]"#, "row 2: found a list; a row is an object"),
            (r#"[{"a": 1}, {"a""#, "not JSON: "),
            ("", "not JSON: "),
        ] {
            let message = rows(text).unwrap_err();
            assert!(message.starts_with(want), "{text}: {message}");
        }
    }

    #[test]
    fn a_row_that_never_ends_is_refused() {
        let endless = io::Cursor::new(b"[{\"a\": 1}, {\"a\": \"").chain(io::repeat(b'x'));
        let Err(ReadError::File(message)) = json_rows(endless, &mut |_| Ok(())) else { panic!("it has an end") };
        assert_eq!(message, "row 2: the row has more than 64.0 MiB, the most that is allowed");
    }

    #[test]
    fn cells_are_texts() {
        for (cell, want) in [
            (DataRef::Float(3.0), Value::from("3")),
            (DataRef::Float(2.5), Value::from("2.5")),
            (DataRef::Int(7), Value::from("7")),
            (DataRef::Bool(true), Value::from("true")),
            (DataRef::SharedString("a b"), Value::from("a b")),
            (DataRef::String("  ".to_owned()), Value::Null),
            (DataRef::Empty, Value::Null),
        ] {
            assert_eq!(cell_value(&cell), want, "{cell:?}");
        }
    }
}
