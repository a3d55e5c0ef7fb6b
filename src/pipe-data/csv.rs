//! Tables (.csv with commas, semicolons, tabs or bars, .tsv): their records one at a time, or a whole file. A record that never
//! ends (a quote that is not closed) is refused instead of being gathered in memory.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

pub use csv::StringRecord;
use csv::{ByteRecord, ErrorKind, Position, ReaderBuilder, Trim};
use pipe_spec::text::{count, human_bytes};
use serde_json::Value;

use crate::first_line::FirstLine;
use crate::row::{BYTE_ORDER_MARK, DataError, LONGEST_ROW};

pub const NOT_UTF_8: &str = "not UTF-8; convert the file with `iconv -f ENCODING -t UTF-8 FILE > NEW`";

/// The most that the reader may hold beyond the record that it is in.
const READ_AHEAD: u64 = 1 << 16;

pub struct CsvRecords<'a> {
    path: Arc<Path>,
    reader: csv::Reader<BoundedStream<'a>>,
    /// Up to which byte the stream may be read for the next record.
    allowed: Rc<Cell<u64>>,
    /// A record has no more bytes.
    longest: u64,
    /// Whether the file itself holds the records, so that the line of one can be looked up.
    is_file: bool,
    rows: usize,
    separator: u8,
    /// The names of columns that a file without names gets.
    generated: Option<StringRecord>,
    /// The first lines, where they hold neither names nor values.
    skipped: Skipped,
}

/// Lines above the names and the values, which are not read.
#[derive(Default)]
struct Skipped {
    bytes: u64,
    lines: u64,
    title: Option<String>,
}

impl Skipped {
    fn new(bytes: &[u8], title: Option<String>) -> Self {
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        Self { bytes: bytes.len() as u64, lines, title }
    }
}

/// A sentence about a title above the names.
pub fn title_note(title: &str) -> String {
    let title: String = title.chars().take(SHOWN_TITLE).collect();
    format!("a title stands above the names of columns, and is skipped: {title:?}")
}

/// A row with too few or too many cells, of which one has more lines, has a quote that is not closed.
const LINES_OF_A_CELL: usize = 100;

fn lines(cell: &[u8]) -> usize {
    cell.iter().filter(|byte| **byte == b'\n').count()
}

/// Characters of a title in a message.
const SHOWN_TITLE: usize = 60;

struct BoundedStream<'a> {
    stream: Box<dyn Read + 'a>,
    read: u64,
    allowed: Rc<Cell<u64>>,
}

impl Read for BoundedStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.allowed.get() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let count = self.stream.read(buffer)?;
        self.read += count as u64;
        Ok(count)
    }
}

impl<'a> CsvRecords<'a> {
    /// Records with any number of cells.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        Self::open_with(path, ReaderBuilder::new().flexible(true))
    }

    /// The same without the space around cells.
    pub fn open_trimmed(path: &Path) -> Result<Self, DataError> {
        Self::open_with(path, ReaderBuilder::new().trim(Trim::All).flexible(true))
    }

    fn open_with(path: &Path, builder: &mut ReaderBuilder) -> Result<Self, DataError> {
        let file = File::open(path).map_err(|error| DataError::new(path, None, error))?;
        Ok(Self { is_file: true, ..Self::new(path, file, LONGEST_ROW, builder)? })
    }

    /// The records of `stream`, which comes out of the file at `path`; each of at most `longest` bytes, with any number of cells.
    /// Errors give the number of a record as its line.
    pub fn from_stream(path: &Path, stream: impl Read + 'a, longest: u64) -> Result<Self, DataError> {
        Self::new(path, stream, longest, ReaderBuilder::new().flexible(true))
    }

    fn new(
        path: &Path,
        mut stream: impl Read + 'a,
        longest: u64,
        builder: &mut ReaderBuilder,
    ) -> Result<Self, DataError> {
        let mut start = Vec::new();
        let read = stream.by_ref().take(LOOKED_AT).read_to_end(&mut start);
        read.map_err(|error| DataError::new(path, None, error))?;
        // The reader would skip the mark too, without counting its bytes.
        if start.starts_with(BYTE_ORDER_MARK) {
            start.drain(..BYTE_ORDER_MARK.len());
        }
        let separator = find_separator(path, &start);
        let first = FirstLine::of(&start, separator);
        let generated = first.names();
        let skipped = match first {
            FirstLine::Counts { bytes, .. } => Skipped::new(&start[..bytes], None),
            FirstLine::Title { bytes, title } => Skipped::new(&start[..bytes], Some(title)),
            FirstLine::Names | FirstLine::Values { .. } => Skipped::default(),
        };
        start.drain(..skipped.bytes as usize);
        builder.has_headers(generated.is_none());
        let allowed = Rc::new(Cell::new(longest + READ_AHEAD));
        let stream = Box::new(Cursor::new(start).chain(stream));
        let bounded = BoundedStream { stream, read: 0, allowed: Rc::clone(&allowed) };
        let reader = builder.delimiter(separator).from_reader(bounded);
        Ok(Self { path: path.into(), reader, allowed, longest, is_file: false, rows: 0, separator, generated, skipped })
    }

    /// The character between the cells.
    pub fn separator(&self) -> u8 {
        self.separator
    }

    pub fn path(&self) -> Arc<Path> {
        Arc::clone(&self.path)
    }

    /// The number of the record that comes next, counted from 1 behind the headers.
    pub fn number(&self) -> usize {
        self.rows + 1
    }

    /// The names of the columns, made up where the file has none.
    pub fn headers(&mut self) -> Result<StringRecord, DataError> {
        if let Some(names) = &self.generated {
            return Ok(names.clone());
        }
        let position = self.reader.position().clone();
        match self.reader.headers() {
            Ok(headers) => Ok(headers.clone()),
            Err(error) => Err(self.wrong(&error, &position)),
        }
    }

    /// A sentence about a first line that has no names; nothing where it has.
    pub fn first_line_note(&self) -> Option<String> {
        if let Some(title) = &self.skipped.title {
            return Some(title_note(title));
        }
        let count = self.generated.as_ref()?.len();
        let what = match self.skipped.bytes {
            0 => "its first line holds values and no names of columns",
            _ => "its first line holds counts and no names of columns, and is skipped",
        };
        Some(format!("{what}: the columns are called column1 to column{count}"))
    }

    /// The next record, whatever its encoding.
    pub fn next_bytes(&mut self) -> Option<Result<ByteRecord, DataError>> {
        let mut record = ByteRecord::new();
        let read = self.read(|reader| {
            let is_there = reader.read_byte_record(&mut record)?;
            Ok(is_there.then(|| (record.len(), record.iter().map(lines).max())))
        });
        read.map(|read| read.map(|()| record))
    }

    /// Where something stands in the file, of which a line may have been skipped.
    fn in_file(&self, position: &Position) -> Position {
        let mut position = position.clone();
        let (byte, line) = (position.byte() + self.skipped.bytes, position.line() + self.skipped.lines);
        position.set_byte(byte).set_line(line);
        position
    }

    fn read(
        &mut self,
        read: impl FnOnce(&mut csv::Reader<BoundedStream<'a>>) -> csv::Result<Option<(usize, Option<usize>)>>,
    ) -> Option<Result<(), DataError>> {
        let position = self.reader.position().clone();
        self.allowed.set(position.byte() + self.longest + READ_AHEAD);
        self.rows += 1;
        match read(&mut self.reader) {
            Err(error) => Some(Err(self.wrong(&error, &position))),
            Ok(None) => None,
            Ok(Some((cells, Some(lines)))) if lines > LINES_OF_A_CELL && self.columns() != Some(cells) => {
                let position = self.in_file(&position);
                let line = if self.is_file { line_at(&self.path, &position) } else { self.rows as u64 };
                let message =
                    format!("{}, one of them of {lines} lines; is a quote not closed?", count(cells, "value"));
                Some(Err(DataError::new(&self.path, Some(line), message)))
            }
            Ok(Some(_)) => Some(Ok(())),
        }
    }

    /// How many columns there are, once their names were read.
    fn columns(&mut self) -> Option<usize> {
        match &self.generated {
            Some(names) => Some(names.len()),
            None => self.reader.byte_headers().ok().map(ByteRecord::len),
        }
    }

    /// `position` is where the record was expected.
    fn wrong(&self, error: &csv::Error, position: &Position) -> DataError {
        let position = self.in_file(error.position().unwrap_or(position));
        let line = Some(if self.is_file { line_at(&self.path, &position) } else { self.rows as u64 });
        let (line, message) = match error.kind() {
            ErrorKind::Io(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                let most = human_bytes(self.longest);
                (line, format!("the row has more than {most}; is a quote not closed?"))
            }
            ErrorKind::Utf8 { .. } => (line, NOT_UTF_8.to_owned()),
            _ => (None, error.to_string()),
        };
        DataError::new(&self.path, line, message)
    }
}

impl Iterator for CsvRecords<'_> {
    type Item = Result<StringRecord, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = StringRecord::new();
        let read = self.read(|reader| {
            let is_there = reader.read_record(&mut record)?;
            Ok(is_there.then(|| (record.len(), record.iter().map(|cell| lines(cell.as_bytes())).max())))
        })?;
        let position = record.position().filter(|_| self.skipped.bytes > 0).map(|position| self.in_file(position));
        if position.is_some() {
            record.set_position(position);
        }
        Some(read.map(|()| record))
    }
}

/// The line on which a record of the file at `path` begins, counted from 1.
pub fn line_of(path: &Path, record: &StringRecord) -> u64 {
    record.position().map_or(1, |position| line_at(path, position))
}

/// The line of the record that begins at `position` or behind it: the reader only knows where the record before has ended, and
/// the end of its line or blank lines may follow.
fn line_at(path: &Path, position: &Position) -> u64 {
    let before = || -> io::Result<u64> {
        let mut file = File::open(path)?;
        let mut first = Vec::new();
        file.by_ref().take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut first)?;
        let mark = if first == BYTE_ORDER_MARK { first.len() as u64 } else { 0 };
        file.seek(SeekFrom::Start(mark + position.byte()))?;
        let mut lines = 0;
        for byte in BufReader::new(file).bytes() {
            match byte? {
                b'\n' => lines += 1,
                b'\r' => {}
                _ => break,
            }
        }
        Ok(lines)
    };
    position.line() + before().unwrap_or(0)
}

/// One table with a line of names, read whole; numbers in it stay texts until they are parsed.
pub struct CsvFile {
    path: PathBuf,
    names: Vec<String>,
    /// The index of each column that is used.
    places: Vec<Option<usize>>,
    rows: Vec<StringRecord>,
    separator: u8,
}

impl CsvFile {
    pub fn open<E: From<DataError>>(
        path: &Path,
        columns: &[String],
        next: impl Fn(&mut CsvRecords<'_>) -> Option<Result<StringRecord, E>>,
    ) -> Result<Self, E> {
        let mut records = CsvRecords::open(path)?;
        let header = records.headers()?;
        let names: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
        let is_double = |column: &&String| names.iter().filter(|name| name == column).count() > 1;
        if let Some(double) = columns.iter().find(is_double) {
            let message = format!("two columns are called {double:?}; rename or remove one of them");
            return Err(DataError::new(path, Some(line_of(path, &header)), message).into());
        }
        let rows = std::iter::from_fn(|| next(&mut records)).collect::<Result<Vec<_>, _>>()?;
        if rows.is_empty() {
            return Err(DataError::new(path, None, "the file has no rows").into());
        }
        let places = columns.iter().map(|column| names.iter().position(|name| name == column)).collect();
        Ok(Self { path: path.to_owned(), names, places, rows, separator: records.separator() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether a comma may stand in a number: not where commas stand between the cells.
    pub fn has_decimal_commas(&self) -> bool {
        self.separator == b';'
    }

    pub fn row(&self, index: usize) -> Result<Vec<Option<Value>>, DataError> {
        let row = &self.rows[index];
        if self.is_uneven(index) {
            let message = uneven(row.len(), self.names.len());
            return Err(DataError::new(&self.path, Some(self.line_number(index)), message));
        }
        let value =
            |place: &Option<usize>| place.and_then(|place| row.get(place)).map(|text| Value::String(text.to_owned()));
        Ok(self.places.iter().map(value).collect())
    }

    /// Whether a row has more or fewer cells than there are columns.
    pub fn is_uneven(&self, index: usize) -> bool {
        self.rows[index].len() != self.names.len()
    }

    pub fn line_number(&self, index: usize) -> u64 {
        line_of(&self.path, &self.rows[index])
    }
}

/// The fault of a row that has more or fewer values than there are columns.
pub fn uneven(values: usize, columns: usize) -> String {
    let noun = if values == 1 { "value" } else { "values" };
    format!("{values} {noun} for {columns} columns")
}

/// Bytes of a file that are looked at.
const LOOKED_AT: u64 = 1 << 16;

/// In `.tsv` a tab. In `.csv` what is most often in the first line, outside of quotes; a comma where there is none. Where the first line is a
/// title, what the lines below it have.
fn find_separator(path: &Path, start: &[u8]) -> u8 {
    const SEPARATORS: [u8; 4] = [b'|', b'\t', b';', b','];
    if is_tsv(path) {
        return b'\t';
    }
    let count = |separator: u8| first_line(start).filter(|byte| *byte == separator).count();
    if SEPARATORS.iter().all(|separator| count(*separator) == 0) {
        let is_below = |separator: &u8| matches!(FirstLine::of(start, *separator), FirstLine::Title { .. });
        return SEPARATORS.into_iter().rev().find(is_below).unwrap_or(b',');
    }
    // The last of equal ones is taken.
    SEPARATORS.into_iter().max_by_key(|separator| count(*separator)).unwrap_or(b',')
}

/// `train.tsv`, `train.tsv.gz`.
fn is_tsv(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    name.trim_end_matches(".gz").trim_end_matches(".zst").ends_with(".tsv")
}

/// The bytes of the first line that is not blank, without what is in quotes.
fn first_line(start: &[u8]) -> impl Iterator<Item = u8> {
    let mut quoted = false;
    let start = start.trim_ascii_start().iter().copied();
    start.take_while(|byte| *byte != b'\n').filter(move |byte| {
        quoted ^= *byte == b'"';
        !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the records of a text; of an error its message.
    fn lines(name: &str, text: &[u8]) -> Vec<Result<u64, String>> {
        let path = std::env::temp_dir().join(format!("pipe-lines-{name}-{}.csv", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let mut records = CsvRecords::open(&path).unwrap();
        let header = records.headers().map(|header| line_of(&path, &header));
        let rows: Vec<_> = records.map(|record| record.map(|record| line_of(&path, &record))).collect();
        let place = format!("{} ", path.display());
        let shown = |error: DataError| error.to_string().replace(&place, "");
        let lines = std::iter::once(header).chain(rows).map(|line| line.map_err(shown)).collect();
        std::fs::remove_file(path).unwrap();
        lines
    }

    #[test]
    fn every_record_has_the_line_it_begins_on() {
        let texts: [(&str, &str, &[u64]); 5] = [
            ("plain", "a,b\n1,2\n3,4", &[1, 2, 3]),
            ("quoted", "a,b\n\"1\n\n\",2\n3,4\n\"5\n\",6\n7,8\n", &[1, 2, 5, 6, 8]),
            ("blank", "\n\na,b\n\n1,2\n\n\n3,4\n", &[3, 5, 8]),
            ("quoted-header", "\"a\nb\",c\n1,2\n", &[1, 3]),
            ("quoted-and-blank", "a,b\n\n\"1\n\",2\n\n3,4\n", &[1, 3, 6]),
        ];
        for (name, text, want) in texts {
            for (ending, text) in [("lf", text.to_owned()), ("crlf", text.replace('\n', "\r\n"))] {
                for mark in [&b""[..], b"\xef\xbb\xbf"] {
                    let got = lines(name, &[mark, text.as_bytes()].concat());
                    let want: Vec<_> = want.iter().map(|line| Ok(*line)).collect();
                    assert_eq!(got, want, "{name} {ending} {mark:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_record_is_named_with_its_line() {
        let text = b"a,b\r\n\"1\r\n\",2\r\n\xe4,4\r\n";
        let want = "line 4: not UTF-8; convert the file with `iconv -f ENCODING -t UTF-8 FILE > NEW`";
        assert_eq!(lines("latin", text).pop(), Some(Err(want.to_owned())));
    }

    #[test]
    fn a_quote_that_is_not_closed_is_no_row_to_skip() {
        let rest = "5,6\n".repeat(200);
        for (text, want) in [
            (format!("a,b\n1,2\n\"3,4\n{rest}"), "line 3: 1 value, one of them of 201 lines; is a quote not closed?"),
            (
                format!("a,b\n1,2\n3,\"4,5\n{rest}\",6\n7,8\n"),
                "line 3: 3 values, one of them of 201 lines; is a quote not closed?",
            ),
        ] {
            let path = std::env::temp_dir().join(format!("pipe-quote-{}.csv", std::process::id()));
            std::fs::write(&path, text).unwrap();
            let mut records = CsvRecords::open(&path).unwrap();
            records.headers().unwrap();
            records.next().unwrap().unwrap();
            let error = records.next().unwrap().unwrap_err().to_string();
            assert!(error.ends_with(want), "{error}");
            std::fs::remove_file(path).unwrap();
        }
        // A long text is none.
        let path = Path::new("t.csv");
        let text = format!("a,b\n1,\"{rest}\"\n");
        let mut records = CsvRecords::from_stream(path, text.as_bytes(), 1 << 20).unwrap();
        records.headers().unwrap();
        assert_eq!(records.next().unwrap().unwrap().len(), 2);
    }

    #[test]
    fn a_quote_that_is_not_closed_is_named_with_its_line() {
        let path = std::env::temp_dir().join(format!("pipe-records-{}.csv", std::process::id()));
        std::fs::write(&path, "a,b\n1,2\n3,\"4\n").unwrap();
        // The rest of the file is a hole, which reads as zeros and takes no room.
        File::options().write(true).open(&path).unwrap().set_len(1 << 34).unwrap();
        let mut records = CsvRecords::open(&path).unwrap();
        assert_eq!(records.headers().unwrap(), StringRecord::from(vec!["a", "b"]));
        assert_eq!(records.next().unwrap().unwrap(), StringRecord::from(vec!["1", "2"]));
        let error = records.next().unwrap().unwrap_err().to_string();
        assert!(error.ends_with("line 3: the row has more than 64.0 MiB; is a quote not closed?"), "{error}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn rows_of_a_file_without_names_keep_their_lines() {
        let path = std::env::temp_dir().join(format!("pipe-names-{}.csv", std::process::id()));
        let read = |text: &str| -> Result<Vec<(Option<Value>, u64)>, DataError> {
            std::fs::write(&path, text).unwrap();
            let columns = ["column2".to_owned()];
            let next = |records: &mut CsvRecords<'_>| records.next();
            let file = CsvFile::open::<DataError>(&path, &columns, next)?;
            (0..file.len()).map(|row| Ok((file.row(row)?[0].clone(), file.line_number(row)))).collect()
        };
        let value = |text: &str| Some(Value::from(text));
        let found: Vec<(Option<Value>, u64)> = read("150,2,setosa,virginica\n5.1,3.5,0\n4.9,3.0,1\n").unwrap();
        assert_eq!(found, [(value("3.5"), 2), (value("3.0"), 3)]);
        let found = read("150,2,setosa,virginica\r\n5.1,3.5,0\r\n4.9,3.0,1\r\n").unwrap();
        assert_eq!(found, [(value("3.5"), 2), (value("3.0"), 3)]);
        assert_eq!(read("5.1,3.5,a\n4.9,3.0,b\n").unwrap(), [(value("3.5"), 1), (value("3.0"), 2)]);
        let titled = "Petals of\n\ncolumn1,column2\nx,3.5\ny,3.0\n";
        assert_eq!(read(titled).unwrap(), [(value("3.5"), 4), (value("3.0"), 5)]);
        assert_eq!(read(&titled.replace('\n', "\r\n")).unwrap(), [(value("3.5"), 4), (value("3.0"), 5)]);
        let error = read("150,2,setosa,virginica\n5.1,3.5,0\n4.9,3.0\n").unwrap_err().to_string();
        assert!(error.contains("line 3: 2 values for 3 columns"), "{error}");
        let error = read("column1,column2\n1,2\n\n3\n").unwrap_err().to_string();
        assert!(error.contains("line 4: 1 value for 2 columns"), "{error}");
        let error = read("\u{feff}column1,column2\r\n1,2\r\n3,4,5\r\n").unwrap_err().to_string();
        assert!(error.contains("line 3: 3 values for 2 columns"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[cfg(test)]
mod separator_tests {
    use super::*;

    #[test]
    fn separators() {
        for (name, start, want) in [
            ("a.csv", "text,label\n1;2;3,x\n", b','),
            ("a.csv", "text;label\n\"a, b, c\";x\n", b';'),
            ("a.csv", "\"one, two, three\";label\n", b';'),
            ("a.csv", "\u{feff}text;label\r\n", b';'),
            ("a.csv", "\n\ntext\tlabel\n", b'\t'),
            ("a.csv", "a|b|c\n", b'|'),
            ("a.csv", "a,b;c\n", b','),
            ("a.csv", "text\n", b','),
            ("a.csv", "Umsatz 2024\n\nname;preis\nNuss, M3;3,5\n", b';'),
            ("a.csv", "text\nGood; both\nBad; bad\n", b','),
            ("a.csv", "", b','),
            ("a.tsv", "one, two\tlabel\n", b'\t'),
            ("a.TSV.gz", "one, two", b'\t'),
        ] {
            assert_eq!(find_separator(Path::new(name), start.as_bytes()), want, "{name} {start:?}");
        }
    }
}
