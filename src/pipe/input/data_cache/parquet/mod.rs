//! Parquet files as rows: the requested columns, a batch of rows at a time, as JSON lines or as CSV.
//!
//! What is held in memory is a page of each column and a batch of values, whatever the size of the file. Files are not
//! trusted: what the `parquet` crate or this module panics on is caught by the caller (`guarded`).

mod calendar;
mod cursor;
mod file;
mod rows;
mod tree;
mod value;

use std::fs::File;
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::Type;

use super::columns::ColumnSelection;
use super::output::Conversion;
use super::pieces::Pieces;
use crate::error::Error;
use file::SharedFile;
use rows::Picked;
use tree::{Builder, Node};
use value::{Kind, Style};

/// Bytes of values in a batch, and rows at most.
const BATCH_BYTES: u64 = 8 << 20;
const BATCH_ROWS: u64 = 4096;
/// What a look at the first rows may read.
const SAMPLE_BYTES: u64 = 64 << 20;

pub struct Table {
    reader: SerializedFileReader<SharedFile>,
    columns: Vec<Column>,
    rows: u64,
}

/// A top-level column that is read.
struct Column {
    name: String,
    node: Node,
    /// Its first leaf in the file, and how many it has.
    leaves: std::ops::Range<usize>,
}

impl Table {
    /// Opens a file for what is `selection` of it; or says why it cannot be used.
    pub fn open(path: &Path, selection: &ColumnSelection) -> Result<Self, String> {
        let reader = open(path)?;
        let names = names(&reader);
        let there: Vec<&str> = names.iter().map(String::as_str).collect();
        if let Some(missing) = selection.missing(&there) {
            return Err(missing);
        }
        let columns = columns(&reader, |name| selection.reads(name))?;
        for column in &columns {
            let nested = !matches!(column.node, Node::Value { .. });
            if nested && selection.as_csv() {
                return Err(format!("the column {:?} is nested; a time series has plain columns", column.name));
            }
            if selection.pictures.as_ref() == Some(&column.name) {
                rows::picture_parts(&column.node)
                    .map_err(|message| format!("the column {:?} {message}", column.name))?;
            }
        }
        let rows = rows_of(&reader)?;
        if rows == 0 {
            return Err("it has no rows".to_owned());
        }
        Ok(Self { reader, columns, rows })
    }

    /// About how many bytes its rows will have: what the columns hold, and the names in each row.
    pub fn bytes(&self) -> u64 {
        let names: u64 = self.columns.iter().map(|column| column.name.len() as u64 + 4).sum();
        self.sizes().sum::<u64>() + self.rows * names
    }

    /// Bytes of the largest row group, as far as it is read.
    pub fn largest_part(&self) -> u64 {
        self.sizes().max().unwrap_or(0)
    }

    /// Bytes of the columns of each row group, decompressed.
    fn sizes(&self) -> impl Iterator<Item = u64> {
        self.reader.metadata().row_groups().iter().map(|group| {
            let leaves = self.columns.iter().flat_map(|column| column.leaves.clone());
            leaves.map(|leaf| u64::try_from(group.column(leaf).uncompressed_size()).unwrap_or(0)).sum()
        })
    }

    /// Row groups, which can be read independently of each other.
    pub fn parts(&self) -> usize {
        self.reader.num_row_groups()
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Reads the row group `part`. Paths of pictures begin in `folder`.
    pub fn read(
        &self,
        part: usize,
        job: Conversion<'_>,
        selection: &ColumnSelection,
        folder: &Path,
        pieces: &mut Pieces,
    ) -> Result<(), Error> {
        let style = if selection.as_csv() { Style::Csv } else { Style::Json };
        let pictures = selection.pictures.as_deref().map(|column| (column, folder));
        let mut picked = Picked::new(&self.columns, style, pictures);
        if part == 0 {
            picked.header(pieces.buffer());
        }
        let groups = &self.reader.metadata().row_groups()[..part];
        let mut number: u64 = groups.iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0)).sum();
        let read = self.each_batch(part, &mut picked, |picked, rows| {
            (0..rows).try_for_each(|_| {
                number += 1;
                picked.row(number, job, pieces)
            })
        });
        read.map_err(|failure| failure.in_group(job, part))
    }

    /// Reads a row group in batches, and lets `write` take the rows of each.
    fn each_batch(
        &self,
        group: usize,
        picked: &mut Picked<'_>,
        mut write: impl FnMut(&mut Picked<'_>, u64) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        let rows = self.reader.get_row_group(group)?;
        let total = u64::try_from(rows.metadata().num_rows()).unwrap_or(0);
        let mut bytes = 0;
        let (mut cursors, mut paths) = (Vec::new(), Vec::new());
        for leaf in self.columns.iter().flat_map(|column| column.leaves.clone()) {
            let meta = rows.metadata().column(leaf);
            bytes += u64::try_from(meta.uncompressed_size()).unwrap_or(0);
            paths.push(meta.column_path().string());
            cursors.push(cursor::Cursor::new(rows.get_column_reader(leaf)?, &meta.column_descr_ptr()));
        }
        picked.set_cursors(cursors);
        let batch = (BATCH_BYTES / (bytes / total.max(1)).max(1)).clamp(1, BATCH_ROWS);
        let mut left = total;
        while left > 0 {
            let count = left.min(batch);
            for (index, read) in picked.fill(count as usize)?.into_iter().enumerate() {
                if read as u64 != count {
                    let column = paths[index].clone();
                    return Err(Failure::Short { column, rows: total - left + read as u64, of: total });
                }
            }
            write(picked, count)?;
            left -= count;
        }
        Ok(())
    }
}

/// Why a row group could not be read.
enum Failure {
    Parquet(ParquetError),
    /// A column has fewer rows than the row group.
    Short {
        column: String,
        rows: u64,
        of: u64,
    },
    Other(Error),
}

impl From<ParquetError> for Failure {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl Failure {
    fn in_group(self, job: Conversion<'_>, group: usize) -> Error {
        let group = group + 1;
        match self {
            Self::Parquet(error) => job
                .fail(format!("row group {group}: {}; it is damaged, or its columns are encrypted", describe(&error))),
            Self::Short { column, rows, of } => {
                job.fail(format!("row group {group}: the column {column:?} ends after {rows} of {of} rows"))
            }
            Self::Other(error) => error,
        }
    }
}

/// What a file begins with.
pub struct Preview {
    pub names: Vec<String>,
    /// The cells of columns that are plain; those of the others are empty.
    pub rows: Vec<Vec<String>>,
    /// Rows of the whole file.
    pub total: u64,
}

/// The columns of a file and the first cells of those that are plain.
pub fn preview(path: &Path, rows: usize) -> Option<Preview> {
    let reader = open(path).ok()?;
    let names = names(&reader);
    let total = rows_of(&reader).ok()?;
    let columns = columns(&reader, |_| true).ok()?;
    let shown: Vec<usize> = (0..columns.len())
        .filter(|index| matches!(columns[*index].node, Node::Value { kind, .. } if kind != Kind::Bytes))
        .collect();
    let mut number = 0..shown.len();
    let picked: Vec<Column> = columns
        .into_iter()
        .filter(|column| matches!(column.node, Node::Value { kind, .. } if kind != Kind::Bytes))
        .map(|mut column| {
            if let Node::Value { leaf, .. } = &mut column.node {
                *leaf = number.next().unwrap_or(0);
            }
            column
        })
        .collect();
    let table = Table { reader, columns: picked, rows: total };
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    'groups: for group in 0..table.reader.num_row_groups() {
        let mut cells = Picked::new(&table.columns, Style::Csv, None);
        let read = table.each_batch(group, &mut cells, |cells, count| {
            for _ in 0..count.min((rows - found.len()) as u64) {
                let mut row = vec![String::new(); names.len()];
                for (index, cell) in shown.iter().zip(cells.cells()) {
                    bytes += cell.len() as u64;
                    row[*index] = cell;
                }
                found.push(row);
            }
            // Enough is no error, but ends the reading.
            if found.len() >= rows || bytes > SAMPLE_BYTES { Err(Error::Interrupted) } else { Ok(()) }
        });
        if read.is_err() {
            break 'groups;
        }
    }
    Some(Preview { names, rows: found, total })
}

fn open(path: &Path) -> Result<SerializedFileReader<SharedFile>, String> {
    let file = File::open(path).and_then(SharedFile::new).map_err(|error| error.to_string())?;
    SerializedFileReader::new(file).map_err(|error| match error.to_string().contains("encrypt") {
        true => "it is encrypted, and pipe has no keys; write it without encryption".to_owned(),
        false => format!("not a Parquet file that can be read: {}", describe(&error)),
    })
}

fn rows_of(reader: &SerializedFileReader<SharedFile>) -> Result<u64, String> {
    let mut all = 0u64;
    for group in reader.metadata().row_groups() {
        let rows =
            u64::try_from(group.num_rows()).map_err(|_| "a row group with a negative number of rows".to_owned())?;
        all = all.checked_add(rows).ok_or("more rows than can be counted")?;
    }
    Ok(all)
}

fn fields(reader: &SerializedFileReader<SharedFile>) -> &[std::sync::Arc<Type>] {
    reader.metadata().file_metadata().schema().get_fields()
}

fn names(reader: &SerializedFileReader<SharedFile>) -> Vec<String> {
    fields(reader).iter().map(|field| field.name().to_owned()).collect()
}

/// The columns that are read, their leaves numbered one after the other.
fn columns(reader: &SerializedFileReader<SharedFile>, reads: impl Fn(&str) -> bool) -> Result<Vec<Column>, String> {
    let schema = reader.metadata().file_metadata().schema_descr();
    let mut columns: Vec<Column> = Vec::new();
    let mut first = 0;
    let mut next = 0;
    for (index, field) in fields(reader).iter().enumerate() {
        let count = (first..schema.num_columns()).take_while(|leaf| schema.get_column_root_idx(*leaf) == index).count();
        let leaves = first..first + count;
        first += count;
        if !reads(field.name()) {
            continue;
        }
        if columns.iter().any(|column| column.name == field.name()) {
            return Err(format!("two columns are called {:?}", field.name()));
        }
        let node = Builder::new(next).column(field).map_err(|why| format!("the column {:?}: {why}", field.name()))?;
        next += count;
        columns.push(Column { name: field.name().to_owned(), node, leaves });
    }
    Ok(columns)
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
