//! The beginning of a data file, whatever its format: what is wrong with it, its first rows with the names of columns, and how
//! many rows there are.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use csv::ByteRecord;
use pipe_spec::pipeline::Task;
use serde_json::{Map, Value};

use crate::columns::ColumnSelection;
use crate::compressed::ReadError;
use crate::conll;
use crate::csv::{CsvRecords, title_note};
use crate::format::{self, Compression, FileSignature, Format, full_ending, guarded};
use crate::parquet::{self, ParquetTable};
use crate::pictures::list_pictures;
use crate::row::LONGEST_ROW;
use crate::tables;

/// Rows whose values are kept to look at, and bytes of them.
const KEPT: usize = 10_000;
const KEPT_BYTES: usize = 64 << 20;

/// How the rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Documents with blank lines between them: one column, `text`.
    Documents,
    JsonLines,
    /// A line of names, then rows; Parquet too.
    Table,
}

#[derive(Clone, Debug)]
pub struct DataTable {
    pub layout: Layout,
    /// In the order of the file.
    pub names: Vec<String>,
    /// As many values as names; a value that a row does not have is `null`.
    pub rows: Vec<Vec<Value>>,
    /// All rows, as far as they were counted.
    pub total: u64,
    /// Whether `total` is all of them.
    pub counted: bool,
    /// The folder of the file, which paths in it start from.
    pub folder: PathBuf,
    /// Columns of lists and objects in Parquet.
    pub nested: Vec<String>,
    /// Rows with more or fewer cells than there are columns, whose values are left out.
    pub uneven: u64,
    /// Sentences about how the file is read.
    pub notes: Vec<String>,
    /// Bytes of the texts in `rows`.
    held: usize,
}

impl DataTable {
    /// The preview of a file, of the files of a folder, or of the folders of pictures in it; nothing where none can be read.
    pub fn read(path: &Path) -> Option<Self> {
        if !path.is_dir() {
            return read_file(path);
        }
        let mut files = data_files(path).into_iter();
        let Some(first) = files.next() else { return classes(path) };
        let mut table = read_file(&first)?;
        for more in files.filter_map(|file| read_file(&file)) {
            if more.names != table.names {
                continue;
            }
            table.total += more.total;
            table.uneven += more.uneven;
            table.counted &= more.counted;
            for row in more.rows {
                if table.has_room() {
                    table.keep(row);
                }
            }
        }
        Some(table)
    }

    pub fn values(&self, column: usize) -> impl Iterator<Item = &Value> {
        self.rows.iter().filter_map(move |row| row.get(column))
    }
}

/// The files of a folder that are read as rows, by name.
fn data_files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_known = |path: &PathBuf| {
        let is_text = path.extension().is_none_or(|ending| ending != "safetensors");
        let takes = |name: &str| [Task::Language, Task::TokenLabels].iter().any(|task| task.takes_in_folder(name));
        // A pipe would be waited for.
        is_text && path.is_file() && path.file_name().is_some_and(|name| takes(&name.to_string_lossy()))
    };
    let mut files: Vec<PathBuf> = files.filter(is_known).collect();
    files.sort();
    files
}

/// The pictures of folders whose names are classes, of which there are two at least.
fn classes(folder: &Path) -> Option<DataTable> {
    let pictures = list_pictures(folder).ok()?;
    let classes: BTreeSet<&String> = pictures.iter().filter_map(|picture| picture.class.as_ref()).collect();
    if classes.len() < 2 {
        return None;
    }
    let mut table = DataTable::new(Layout::JsonLines, ["image", "label"].map(str::to_owned).to_vec());
    table.folder = folder.to_owned();
    pictures.into_iter().for_each(|picture| table.push(|| vec![picture.name.into(), picture.class.into()]));
    Some(table)
}

fn read_file(path: &Path) -> Option<DataTable> {
    let ending = full_ending(path).filter(|_| path.is_file())?.to_ascii_lowercase();
    let mut table = match ending.as_str() {
        "parquet" => parquet(path)?,
        "xlsx" => guarded(|| rows_of_table(path)).ok()??,
        // How a file is compressed says nothing about what is inside.
        ending => match ending.trim_end_matches(".gz").trim_end_matches(".zst") {
            "jsonl" => json_lines(lines(path)?),
            "json" => rows_of_table(path)?,
            "csv" | "tsv" => separated(path)?,
            "txt" if !conll::is_conll(lines(path)?) => documents(lines(path)?),
            "conll" | "bio" | "txt" => sentences(lines(path)?),
            _ => return None,
        },
    };
    table.folder = path.parent().unwrap_or(Path::new("")).to_owned();
    table.counted &= !format::is_longer_than_read(path);
    table.notes = notes(path);
    Some(table)
}

/// Sentences about how a file is read, where that is unusual: its encoding, and a first line without names.
pub fn notes(path: &Path) -> Vec<String> {
    let mut notes = Vec::new();
    if let Format::Encoded(encoding) = Format::of_file(path) {
        notes.push(format!("the file is in {}, not UTF-8: pipe converts it", encoding.name()));
    }
    if matches!(format::text_ending(path), Some("csv" | "tsv"))
        && let Some(start) = format::first_bytes(path)
        && let Ok(records) = CsvRecords::from_stream(path, start, LONGEST_ROW)
    {
        notes.extend(records.first_line_note());
    }
    if Format::from_path(path) == Format::Workbook {
        notes.extend(guarded(|| tables::title(path)).ok().flatten().map(|title| title_note(&title)));
    }
    notes
}

impl DataTable {
    fn new(layout: Layout, names: Vec<String>) -> Self {
        let (rows, nested, notes) = (Vec::new(), Vec::new(), Vec::new());
        Self { layout, names, rows, total: 0, counted: true, folder: PathBuf::new(), nested, uneven: 0, notes, held: 0 }
    }

    fn push_object(&mut self, mut object: Map<String, Value>) {
        let new: Vec<String> = object.keys().filter(|key| !self.names.contains(key)).cloned().collect();
        self.names.extend(new);
        let names = std::mem::take(&mut self.names);
        self.push(|| names.iter().map(|name| object.remove(name).unwrap_or_default()).collect());
        self.names = names;
    }

    /// Rows that came before a new column have none of it.
    fn square(mut self) -> Self {
        let width = self.names.len();
        self.rows.iter_mut().for_each(|row| row.resize(width, Value::Null));
        self
    }

    fn push(&mut self, row: impl FnOnce() -> Vec<Value>) {
        self.total += 1;
        if self.has_room() {
            self.keep(row());
        }
    }

    fn has_room(&self) -> bool {
        self.rows.len() < KEPT && self.held < KEPT_BYTES
    }

    fn keep(&mut self, row: Vec<Value>) {
        self.held += row.iter().map(tables::size).sum::<usize>();
        self.rows.push(row);
    }
}

/// Without the mark that some programs write in front of UTF-8.
fn lines(path: &Path) -> Option<impl Iterator<Item = String>> {
    let reader = BufReader::new(format::first_bytes(path)?);
    let text = |line: Vec<u8>| String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)).into_owned();
    let lines = reader.split(b'\n').map_while(Result::ok).map(text);
    Some(lines.enumerate().map(|(number, line)| match number {
        0 => line.trim_start_matches('\u{feff}').to_owned(),
        _ => line,
    }))
}

fn json_lines(lines: impl Iterator<Item = String>) -> DataTable {
    let mut table = DataTable::new(Layout::JsonLines, Vec::new());
    for line in lines.filter(|line| !line.trim().is_empty()) {
        if !table.has_room() {
            table.total += 1;
            continue;
        }
        table.push_object(serde_json::from_str(&line).unwrap_or_default());
    }
    table.square()
}

/// The rows of a JSON value or of a workbook, whatever can be read of them. Rows without lists and objects are a table.
fn rows_of_table(path: &Path) -> Option<DataTable> {
    let mut table = DataTable::new(Layout::Table, Vec::new());
    let mut push = |row: Map<String, Value>| {
        if row.values().any(|value| value.is_array() || value.is_object()) {
            table.layout = Layout::JsonLines;
        }
        table.push_object(row);
        Ok::<(), ReadError>(())
    };
    let read = match Format::from_path(path) {
        Format::Json => tables::json_rows(format::first_bytes(path)?, &mut push),
        _ => tables::read(path, &|_| (), &mut push),
    };
    if let Err(ReadError::File(message)) = read {
        tracing::debug!("{}: {message}", path.display());
    }
    (table.total > 0).then(|| table.square())
}

fn separated(path: &Path) -> Option<DataTable> {
    let mut records = CsvRecords::from_stream(path, format::first_bytes(path)?, LONGEST_ROW).ok()?;
    let cells = |record: &ByteRecord| -> Vec<String> {
        record.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect()
    };
    let names: Vec<String> =
        records.headers().map_or_else(|_| Vec::new(), |names| names.iter().map(str::to_owned).collect());
    let width = names.len();
    let mut table = DataTable::new(Layout::Table, names.iter().map(|name| name.trim().to_owned()).collect());
    while let Some(Ok(record)) = records.next_bytes() {
        match record.len() == width {
            true => table.push(|| cells(&record).into_iter().map(Value::from).collect()),
            false => (table.total, table.uneven) = (table.total + 1, table.uneven + 1),
        }
    }
    Some(table)
}

fn documents(lines: impl Iterator<Item = String>) -> DataTable {
    let mut table = DataTable::new(Layout::Documents, vec!["text".to_owned()]);
    let mut document = String::new();
    for line in lines.chain([String::new()]) {
        if !line.trim().is_empty() {
            document += &line;
            document.push('\n');
        } else if !document.is_empty() {
            let text = std::mem::take(&mut document);
            table.push(|| vec![Value::from(text)]);
        }
    }
    table
}

/// Sentences of a CoNLL file. One that cannot be read is left out; `pipe check` names it.
fn sentences(lines: impl Iterator<Item = String>) -> DataTable {
    let mut table = DataTable::new(Layout::JsonLines, [conll::TOKENS, conll::TAGS].map(str::to_owned).to_vec());
    let mut sentence: Vec<String> = Vec::new();
    for line in lines.filter(|line| !line.starts_with(conll::DOCUMENT)).chain([String::new()]) {
        if !line.trim().is_empty() {
            sentence.push(line);
            continue;
        }
        if let Ok((tokens, Some(tags))) = conll::sentence(sentence.iter().map(String::as_str))
            && !tokens.is_empty()
        {
            table.push(|| vec![Value::Array(tokens), Value::Array(tags)]);
        }
        sentence.clear();
    }
    table
}

fn parquet(path: &Path) -> Option<DataTable> {
    let preview = guarded(|| parquet::preview(path, KEPT)).ok().flatten()?;
    let mut table = DataTable::new(Layout::Table, preview.names);
    table.rows = preview.rows;
    table.total = preview.total;
    table.nested = preview.nested;
    Some(table)
}

/// Finds faults of a data file in its first bytes, and in the footer of Parquet.
pub fn check(path: &Path, selection: &ColumnSelection) -> Result<(), String> {
    let stored = Format::from_path(path);
    // Numbers at the beginning of tensors may look like anything.
    if path.extension().is_some_and(|ending| ending == "safetensors") {
        return Ok(());
    }
    check_signature(path, stored)?;
    match stored {
        Format::Plain | Format::Encoded(_) | Format::Json => Ok(()),
        Format::Workbook => guarded(|| first_row(path)).unwrap_or_else(Err),
        Format::Compressed(compression) => match decompress_first(path, compression, 1)? {
            0 => Err("it holds nothing".to_owned()),
            _ => Ok(()),
        },
        Format::Parquet => guarded(|| ParquetTable::open(path, selection).map(drop)).unwrap_or_else(Err),
    }
}

/// Whether the first bytes of a file are what its name says.
fn check_signature(path: &Path, stored: Format) -> Result<(), String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let found = FileSignature::read(&mut file).map_err(|error| error.to_string())?;
    format::disagreement(stored, Compression::from_path(path), found).map_or(Ok(()), Err)
}

/// How many bytes come out of a compressed file; no more than `most` are read.
fn decompress_first(path: &Path, compression: Compression, most: u64) -> Result<u64, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = format::decompress(compression, file)
        .and_then(|stream| std::io::copy(&mut stream.take(most), &mut std::io::sink()));
    read.map_err(|error| format::unreadable(&error))
}

/// Why no row of a file can be read, where more is known than that there are none.
pub fn unreadable(path: &Path) -> Option<String> {
    let stored = Format::from_path(path);
    let read = check_signature(path, stored).and_then(|()| match stored {
        Format::Json | Format::Workbook => guarded(|| first_row(path)).unwrap_or_else(Err),
        Format::Compressed(compression) => decompress_first(path, compression, LONGEST_ROW).map(drop),
        Format::Parquet => guarded(|| parquet::open(path).map(drop)).unwrap_or_else(Err),
        Format::Plain | Format::Encoded(_) => Ok(()),
    });
    read.err()
}

/// Whether a JSON value or a workbook has a row.
fn first_row(path: &Path) -> Result<(), String> {
    let mut is_there = false;
    let read = tables::read(path, &|_| (), &mut |_| {
        is_there = true;
        Err(ReadError::Stopped)
    });
    match read {
        Err(ReadError::File(message)) => Err(message),
        _ if is_there => Ok(()),
        _ => Err("it has no rows".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, bytes: &[u8]) -> DataTable {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        DataTable::read(&path).unwrap()
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("b.jsonl");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(DataTable::read(&pipe).is_none() && DataTable::read(folder.path()).is_none());
        std::fs::write(folder.path().join("c.jsonl"), "{\"text\": \"a\"}\n").unwrap();
        assert_eq!(DataTable::read(folder.path()).unwrap().names, ["text"]);
    }

    #[test]
    fn why_nothing_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, b"{\"text\": \"a\"}\n").unwrap();
        let whole = encoder.finish().unwrap();
        for (name, bytes, want) in [
            ("a.jsonl.gz", &whole[..whole.len() / 2], Some("truncated")),
            ("a.jsonl", &whole[..], Some("by its first bytes a gzip file")),
            ("a.parquet", b"PAR1 and no more", Some("")),
            ("b.jsonl.gz", &whole[..], None),
            ("b.jsonl", b"\n", None),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let why = unreadable(&path);
            assert!(why.is_some() == want.is_some() && why.unwrap_or_default().contains(want.unwrap_or("")), "{name}");
        }
    }

    #[test]
    fn every_way_to_write_a_table() {
        let gzip = |text: &str| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let utf_16 = |text: &str| {
            let units = std::iter::once(0xfeff).chain(text.encode_utf16());
            units.flat_map(u16::to_le_bytes).collect::<Vec<u8>>()
        };
        let cases: [(&str, Vec<u8>); 8] = [
            ("a.csv", b"note,kind\r\n\"two\nlines, one cell\",b\r\nc,d\r\n".to_vec()),
            ("a.csv", "\u{feff}note;kind\n\"two\nlines, one cell\";b\nc;d\n".into()),
            ("a.tsv", b"note\tkind\n\"two\nlines, one cell\"\tb\nc\td\n".to_vec()),
            (
                "a.jsonl",
                "\u{feff}{\"note\": \"two\\nlines, one cell\", \"kind\": \"b\"}\n\n{\"kind\": \"d\", \"note\": \"c\"}"
                    .into(),
            ),
            ("a.csv.gz", gzip("note,kind\n\"two\nlines, one cell\",b\nc,d\n")),
            ("a.csv.zst", zstd::encode_all(&b"note,kind\n\"two\nlines, one cell\",b\nc,d\n"[..], 3).unwrap()),
            ("a.json", br#"[{"note": "two\nlines, one cell", "kind": "b"}, {"kind": "d", "note": "c"}]"#.to_vec()),
            ("a.csv", utf_16("note,kind\n\"two\nlines, one cell\",b\nc,d\n")),
        ];
        for (name, bytes) in cases {
            let table = read(name, &bytes);
            assert_eq!(table.names, ["note", "kind"], "{name}");
            assert_eq!(table.rows, [["two\nlines, one cell", "b"], ["c", "d"]], "{name}");
            assert_eq!((table.total, table.counted), (2, true), "{name}");
        }
    }

    #[test]
    fn what_is_unusual_is_said() {
        let table = read("a.csv", b"caf\xe9;kind\nStra\xdfe;b\n");
        assert_eq!(table.rows, [["Stra\u{df}e", "b"]]);
        assert_eq!((table.names[0].as_str(), table.notes.len()), ("caf\u{e9}", 1));
        assert_eq!(table.notes[0], "the file is in windows-1252, not UTF-8: pipe converts it");
        let table = read("a.csv", b"3,2,x,y\n1.5,2,0\n");
        assert_eq!(
            (table.total, table.names.as_slice()),
            (1, &["column1", "column2", "column3"].map(str::to_owned)[..])
        );
        assert_eq!(table.notes.len(), 1);
    }

    #[test]
    fn values_that_a_row_lacks() {
        let table = read("a.jsonl", b"{\"b\": 1}\n{\"a\": \"x\"}\n");
        assert_eq!(table.names, ["b", "a"]);
        assert_eq!(table.rows, [[Value::from(1), Value::Null], [Value::Null, Value::from("x")]]);
        let table = read("a.csv", b"a,b\n1\n1,\n1,2,3\n");
        assert_eq!((table.rows, table.total, table.uneven), (vec![vec![Value::from("1"), Value::from("")]], 3, 2));
    }

    #[test]
    fn documents_are_parted_by_blank_lines() {
        let table = read("a.txt", b"One\ntwo\n\n\nthree");
        assert_eq!((table.total, table.names.as_slice()), (2, &["text".to_owned()][..]));
        assert_eq!(table.rows[0], ["One\ntwo\n"]);
    }

    #[test]
    fn sentences_of_a_conll_file() {
        for name in ["a.conll", "a.txt"] {
            let table = read(name, b"-DOCSTART- O\n\nEU B-ORG\nrejects O\n\nPeter B-PER\n");
            assert_eq!((table.total, table.names.join(" ")), (2, "tokens tags".to_owned()), "{name}");
            assert_eq!(table.rows[0], [serde_json::json!(["EU", "rejects"]), serde_json::json!(["B-ORG", "O"])]);
        }
    }

    #[test]
    fn first_rows_of_a_parquet_file() {
        let fixture = |name: &str| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/data");
            DataTable::read(&folder.join(name)).unwrap()
        };
        let series = fixture("series.parquet");
        assert!(series.total > 3 && series.counted, "{}", series.total);
        assert_eq!(series.names.last().map(String::as_str), Some("label"));
        assert_eq!(series.rows[0].last(), Some(&Value::from("rising")));
        let kinds = fixture("kinds.parquet");
        assert_eq!((kinds.names.len(), kinds.rows.len(), kinds.total), (24, 40, 40));
        let column = kinds.names.iter().position(|name| name == "required").unwrap();
        assert_eq!(kinds.rows[39][column], 39);
        let at = |name: &str| &kinds.rows[2][kinds.names.iter().position(|other| other == name).unwrap()];
        assert_eq!(at("list"), &serde_json::json!([0, null]));
        let turns = serde_json::json!([{"role": "user", "content": "0"}, {"role": "user", "content": "1"}]);
        assert_eq!(at("structs"), &turns);
        assert_eq!(
            (at("decimal"), at("text").as_str().map(|text| text.contains('\n'))),
            (&Value::from(0.5), Some(true))
        );
        assert!(kinds.nested.contains(&"map".to_owned()));
    }
}
