//! Parquet files as rows: the requested columns, as JSON lines or as CSV. The crate's record reader puts the values of each
//! column together, a batch of rows at a time.
//!
//! Memory holds a page of each column and a batch of values, whatever the size of the file. Files are not
//! trusted: what the `parquet` crate or this module panics on is caught by the caller (`guarded`).

mod column;
mod pages;
mod value;

use std::collections::HashMap;
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::record::Field;
use serde_json::Value;

use column::{Cells, Column, Picture, Shape, key};
use pages::ParquetFile;
use value::{Kind, Style};

use crate::columns::ColumnSelection;
use crate::compressed::{self, ReadError, RowSink};
use crate::row::{LONGEST_ROW, too_long};

/// Bytes of values in a batch, and rows at most.
const BATCH_BYTES: u64 = 8 << 20;
const BATCH_ROWS: u64 = 4096;
/// Bytes of cells that a look at the first rows may gather.
const SAMPLE_BYTES: usize = 64 << 20;

pub struct ParquetTable {
    file: ParquetFile,
    columns: Vec<Column>,
    rows: u64,
    style: Style,
    /// The column with pictures.
    pictures: Option<String>,
}

impl ParquetTable {
    /// Opens a file for what is `selection` of it; or says why it cannot be used.
    pub fn open(path: &Path, selection: &ColumnSelection) -> Result<Self, String> {
        let file = open(path)?;
        let names = names(&file);
        let there: Vec<&str> = names.iter().map(String::as_str).collect();
        if let Some(missing) = selection.missing(&there) {
            return Err(missing);
        }
        let columns = columns(&file, |name| selection.reads(name))?;
        for column in &columns {
            let nested = !matches!(column.shape, Shape::Value(_));
            if nested && selection.as_csv() {
                return Err(format!("the column {:?} is nested; a time series has plain columns", column.name));
            }
            if selection.pictures.as_ref() == Some(&column.name) {
                column.check_pictures().map_err(|message| format!("the column {:?} {message}", column.name))?;
            }
        }
        let rows = rows_of(&file)?;
        if rows == 0 {
            return Err("it has no rows".to_owned());
        }
        let style = if selection.as_csv() { Style::Csv } else { Style::Json };
        Ok(Self { file, columns, rows, style, pictures: selection.pictures.clone() })
    }

    /// About how many bytes its rows will have: what the columns hold, and the names in each row.
    pub fn bytes(&self) -> u64 {
        let names: u64 = self.columns.iter().map(|column| column.name.len() as u64 + 4).sum();
        self.sizes().sum::<u64>() + self.rows * names
    }

    /// Bytes of the largest row group, as far as it is read.
    pub fn largest_group(&self) -> u64 {
        self.sizes().max().unwrap_or(0)
    }

    /// Bytes of the columns of each row group, decompressed.
    fn sizes(&self) -> impl Iterator<Item = u64> {
        (0..self.groups()).map(|group| self.size(group))
    }

    fn size(&self, group: usize) -> u64 {
        let group = self.file.metadata.row_group(group);
        let leaves = self.columns.iter().flat_map(|column| column.leaves.clone());
        leaves.map(|leaf| u64::try_from(group.column(leaf).uncompressed_size()).unwrap_or(0)).sum()
    }

    /// Row groups, which can be read independently of each other.
    pub fn groups(&self) -> usize {
        self.file.metadata.num_row_groups()
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn rows_in(&self, group: usize) -> u64 {
        u64::try_from(self.file.metadata.row_group(group).num_rows()).unwrap_or(0)
    }

    /// Writes the rows of a row group. Paths of pictures begin in `folder`.
    pub fn read(&self, group: usize, folder: &Path, sink: &mut dyn RowSink) -> Result<(), ReadError> {
        if group == 0 && self.style == Style::Csv {
            self.header(sink.buffer());
        }
        let before: u64 = (0..group).map(|group| self.rows_in(group)).sum();
        let mut cells = self.cells(group).map_err(|error| ReadError::File(in_group(group, &error)))?;
        for row in 0..self.rows_in(group) {
            let number = before + row + 1;
            let begins = sink.buffer().len();
            for (index, (column, cells)) in self.columns.iter().zip(&mut cells).enumerate() {
                self.begin(sink.buffer(), index);
                let field = cells
                    .next()
                    .map_err(|failure| ReadError::File(self.failure(group, column, number, row, &failure)))?;
                let is_picture = self.pictures.as_ref() == Some(&column.name);
                let written = match is_picture.then(|| column::picture(&field, folder)) {
                    Some(Ok(Picture::Inside(bytes))) => {
                        let (folder, name) = compressed::file_of(number, bytes);
                        let written = value::text(sink.buffer(), &format!("{folder}/{name}"), Style::Json);
                        sink.file(folder, name, bytes.to_vec())?;
                        written
                    }
                    Some(Ok(Picture::Path(path))) => value::text(sink.buffer(), &path, Style::Json),
                    Some(Ok(Picture::None)) => Shape::Value(Kind::Bytes).write(sink.buffer(), &Field::Null, self.style),
                    Some(Err(found)) => Err(found),
                    None => column.shape.write(sink.buffer(), &field, self.style),
                };
                let wrong = |found: String| format!("row {number}: the column {:?} holds {found}", column.name);
                written.map_err(|found| ReadError::File(wrong(found)))?;
                if (sink.buffer().len() - begins) as u64 > LONGEST_ROW {
                    return Err(ReadError::File(format!("row {number}: {}", too_long(LONGEST_ROW))));
                }
            }
            sink.buffer().extend_from_slice(if self.style == Style::Json { b"}\n" } else { b"\n" });
            sink.row_done()?;
        }
        Ok(())
    }

    /// The cells of each column of a row group.
    fn cells(&self, group: usize) -> Result<Vec<Cells>, ParquetError> {
        let rows = self.file.group(group);
        let row = (self.size(group) / self.rows_in(group).max(1)).max(1);
        let batch = (BATCH_BYTES / row).clamp(1, BATCH_ROWS) as usize;
        self.columns.iter().map(|column| Cells::open(column, &rows, batch)).collect()
    }

    /// The first line of a CSV.
    fn header(&self, out: &mut Vec<u8>) {
        for (index, column) in self.columns.iter().enumerate() {
            self.begin(out, index);
            value::cell(out, &column.name.replace(['\n', '\r'], " "));
        }
        out.push(b'\n');
    }

    /// The text before the value of a column.
    fn begin(&self, out: &mut Vec<u8>, index: usize) {
        match self.style {
            Style::Csv if index == 0 => {}
            Style::Csv => out.push(b','),
            Style::Json => {
                if index == 0 {
                    out.push(b'{');
                }
                key(out, index, &self.columns[index].name);
            }
        }
    }

    fn failure(&self, group: usize, column: &Column, number: u64, row: u64, failure: &column::Failure) -> String {
        let name = &column.name;
        match failure {
            column::Failure::Ended => {
                let total = self.rows_in(group);
                format!("row group {}: the column {name:?} ends after {row} of {total} rows", group + 1)
            }
            column::Failure::NoText => {
                format!("row {number}: the column {name:?} holds bytes that are no text in UTF-8")
            }
            column::Failure::Value(found) => format!("row {number}: the column {name:?} holds {found}"),
            column::Failure::Parquet(error) => in_group(group, error),
        }
    }
}

fn in_group(group: usize, error: &ParquetError) -> String {
    let (group, text) = (group + 1, describe(error));
    match text.starts_with(pages::LARGE_PAGE) {
        true => format!("row group {group}: {text}"),
        false => format!("row group {group}: {text}; it is damaged, or its columns are encrypted"),
    }
}

/// The first bytes of a file.
pub struct Preview {
    pub names: Vec<String>,
    /// As they are in JSON lines. Columns that hold bytes are not read.
    pub rows: Vec<Vec<Value>>,
    /// Rows of the whole file.
    pub total: u64,
    /// The columns of lists and objects.
    pub nested: Vec<String>,
}

/// The columns of a file and its first rows.
pub fn preview(path: &Path, rows: usize) -> Option<Preview> {
    let file = open(path).ok()?;
    let (names, total) = (names(&file), rows_of(&file).ok()?);
    let mut columns = columns(&file, |_| true).ok()?;
    let is_nested = |column: &&Column| !matches!(column.shape, Shape::Value(_));
    let nested = columns.iter().filter(is_nested).map(|column| column.name.clone()).collect();
    columns.retain(|column| !column.shape.holds_bytes());
    let places: Vec<usize> =
        columns.iter().filter_map(|column| names.iter().position(|name| *name == column.name)).collect();
    let table = ParquetTable { file, columns, rows: total, style: Style::Json, pictures: None };
    let (mut found, mut bytes) = (Vec::new(), 0);
    'groups: for group in 0..table.groups() {
        let Ok(mut cells) = table.cells(group) else { break };
        for _ in 0..table.rows_in(group) {
            if found.len() >= rows || bytes > SAMPLE_BYTES {
                break 'groups;
            }
            let mut row = vec![Value::Null; names.len()];
            for ((place, column), cells) in places.iter().zip(&table.columns).zip(&mut cells) {
                let mut out = Vec::new();
                match cells.next() {
                    Ok(field) => {
                        let is_written = column.shape.write(&mut out, &field, table.style).is_ok();
                        row[*place] = serde_json::from_slice(&out).ok().filter(|_| is_written).unwrap_or_default();
                    }
                    Err(column::Failure::NoText | column::Failure::Value(_)) => {}
                    Err(_) => break 'groups,
                }
                bytes += out.len();
            }
            found.push(row);
        }
    }
    Some(Preview { names, rows: found, total, nested })
}

/// Opens a file; or says why that is impossible.
pub fn open(path: &Path) -> Result<ParquetFile, String> {
    ParquetFile::open(path).map_err(|error| match error.to_string().contains("encrypt") {
        true => "it is encrypted, and pipe has no keys; write it without encryption".to_owned(),
        false => format!("not a Parquet file that can be read: {}", describe(&error)),
    })
}

/// The columns that are read, with the names of classes that the file has.
fn columns(file: &ParquetFile, reads: impl Fn(&str) -> bool) -> Result<Vec<Column>, String> {
    let columns = Column::find(file.metadata.file_metadata().schema_descr(), reads)?;
    let mut names = class_names(file);
    let with_names = |mut column: Column| {
        if let Some(names) = names.remove(&column.name) {
            column.shape = column.shape.with_names(names);
        }
        column
    };
    Ok(columns.into_iter().map(with_names).collect())
}

/// The names of the classes that lists hold by number, as the `datasets` library describes them in the metadata of a file.
fn class_names(file: &ParquetFile) -> HashMap<String, Vec<String>> {
    let entries = file.metadata.file_metadata().key_value_metadata();
    let described = entries.and_then(|entries| entries.iter().find(|entry| entry.key == "huggingface")?.value.as_ref());
    let described: Value = described.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let names = |feature: &Value| -> Option<Vec<String>> {
        let item = feature.get("feature").filter(|item| item.get("_type").is_some_and(|kind| kind == "ClassLabel"))?;
        item.get("names")?.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let features = described.pointer("/info/features").and_then(Value::as_object);
    let named = features.into_iter().flatten().filter_map(|(column, feature)| Some((column.clone(), names(feature)?)));
    named.collect()
}

fn rows_of(file: &ParquetFile) -> Result<u64, String> {
    let mut all = 0u64;
    for group in file.metadata.row_groups() {
        let rows =
            u64::try_from(group.num_rows()).map_err(|_| "a row group with a negative number of rows".to_owned())?;
        all = all.checked_add(rows).ok_or("more rows than can be counted")?;
    }
    Ok(all)
}

fn names(file: &ParquetFile) -> Vec<String> {
    let fields = file.metadata.file_metadata().schema().get_fields();
    fields.iter().map(|field| field.name().to_owned()).collect()
}

/// An error of the crate without the name of its kind.
fn describe(error: &ParquetError) -> String {
    let text = error.to_string();
    let text = text.trim_start_matches("Parquet error: ").trim_start_matches("EOF: ").trim_start_matches("External: ");
    match matches!(error, ParquetError::EOF(_)) {
        true => format!("it ends too early: {text}"),
        false => text.to_owned(),
    }
}
