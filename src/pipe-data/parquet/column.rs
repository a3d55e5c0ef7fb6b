//! The columns of a table: where they stand in the schema, their cells row by row, and the pictures in them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{Int96, Int96Type};
use parquet::errors::ParquetError;
use parquet::file::reader::RowGroupReader;
use parquet::record::Field;
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};

use super::shape::Shape;
use super::value::{self, Kind};
use crate::compressed::{self, PictureRef};

/// A top-level column that is read.
pub struct Column {
    pub name: String,
    pub shape: Shape,
    /// Its leaves in the file.
    pub leaves: Range<usize>,
    /// A schema of this column alone.
    schema: SchemaDescPtr,
}

impl Column {
    /// The columns that are read.
    pub fn find(schema: &SchemaDescriptor, reads: impl Fn(&str) -> bool) -> Result<Vec<Self>, String> {
        let mut columns: Vec<Self> = Vec::new();
        let mut first = 0;
        for (index, field) in schema.root_schema().get_fields().iter().enumerate() {
            let own = (first..schema.num_columns()).take_while(|leaf| schema.get_column_root_idx(*leaf) == index);
            let leaves = first..first + own.count();
            first = leaves.end;
            if !reads(field.name()) {
                continue;
            }
            if columns.iter().any(|column| column.name == field.name()) {
                return Err(format!("two columns are called {:?}", field.name()));
            }
            let wrong = |why: String| format!("the column {:?}: {why}", field.name());
            let shape = Shape::from_column(field).map_err(wrong)?;
            let alone = Type::group_type_builder("schema").with_fields(vec![Arc::clone(field)]).build();
            let schema = Arc::new(SchemaDescriptor::new(Arc::new(alone.map_err(|error| wrong(error.to_string()))?)));
            columns.push(Self { name: field.name().to_owned(), shape, leaves, schema });
        }
        Ok(columns)
    }

    /// Whether its cells can be pictures; or what it holds instead.
    pub fn check_pictures(&self) -> Result<(), &'static str> {
        match &self.shape {
            Shape::Value(Kind::Text | Kind::Bytes) => Ok(()),
            Shape::Value(Kind::Signed | Kind::Unsigned) => {
                Err("holds numbers; images.safetensors is found only beside a plain .jsonl or .csv file")
            }
            // As the `datasets` library writes pictures: bytes, and a path in their place.
            Shape::Group(fields) if fields.iter().all(|field| matches!(field, Shape::Value(_))) => {
                let names = self.schema.root_schema().get_fields()[0].get_fields();
                let is_bytes = |(name, field): (&Arc<Type>, &Shape)| {
                    name.name() == "bytes" && matches!(field, Shape::Value(Kind::Text | Kind::Bytes))
                };
                match names.iter().zip(fields).any(is_bytes) {
                    true => Ok(()),
                    false => Err("is a group without `bytes`; pictures are {bytes, path}, bytes, or paths"),
                }
            }
            _ => Err("holds no pictures: these are {bytes, path}, bytes, or paths"),
        }
    }
}

/// Why there is no next cell.
pub enum Failure {
    /// The column has fewer rows than the row group.
    Ended,
    NoText,
    Value(String),
    Parquet(ParquetError),
}

/// The error of the crate's reader for a column without a next value, and for bytes that are no text.
const ENDED: &str = "Unexpected end of column data";
const NO_TEXT: &str = "Error reading BYTE_ARRAY as String";

impl From<ParquetError> for Failure {
    fn from(error: ParquetError) -> Self {
        match &error {
            ParquetError::General(message) if message.starts_with(ENDED) => Self::Ended,
            ParquetError::General(message) if message.starts_with(NO_TEXT) => Self::NoText,
            _ => Self::Parquet(error),
        }
    }
}

/// The cells of a column in one row group.
pub enum Cells {
    Records(Box<ReaderIter>),
    Int96(Box<Int96Cells>),
}

impl Cells {
    /// `batch` rows are decoded at once.
    pub fn open(column: &Column, group: &dyn RowGroupReader, batch: usize) -> Result<Self, ParquetError> {
        let leaf = column.leaves.start;
        let descriptor = group.metadata().column(leaf).column_descr_ptr();
        if matches!(column.shape, Shape::Value(_)) && descriptor.physical_type() == Physical::INT96 {
            let reader = get_typed_column_reader(group.get_column_reader(leaf)?);
            let is_optional = descriptor.max_def_level() > 0;
            let (values, levels) = (Vec::new(), Vec::new());
            return Ok(Self::Int96(Box::new(Int96Cells { reader, batch, values, levels, next: 0, is_optional })));
        }
        let records = TreeBuilder::new().with_batch_size(batch).as_iter(Arc::clone(&column.schema), group)?;
        Ok(Self::Records(Box::new(records)))
    }

    pub fn next(&mut self) -> Result<Field, Failure> {
        match self {
            Self::Int96(cells) => cells.next(),
            Self::Records(records) => {
                let row = records.next().ok_or(Failure::Ended)??;
                row.into_columns().pop().map(|(_, field)| field).ok_or(Failure::Ended)
            }
        }
    }
}

/// Times with nanoseconds, of which the crate's record reader keeps milliseconds only.
pub struct Int96Cells {
    reader: ColumnReaderImpl<Int96Type>,
    batch: usize,
    /// The values of a batch, the last first.
    values: Vec<Int96>,
    /// Whether each row of a batch has a value.
    levels: Vec<i16>,
    next: usize,
    is_optional: bool,
}

impl Int96Cells {
    fn next(&mut self) -> Result<Field, Failure> {
        if self.next == self.levels.len() {
            self.next = 0;
            self.levels.clear();
            self.values.clear();
            let (rows, ..) = self.reader.read_records(self.batch, Some(&mut self.levels), None, &mut self.values)?;
            self.values.reverse();
            if !self.is_optional {
                self.levels.resize(rows, 1);
            }
        }
        let level = *self.levels.get(self.next).ok_or(Failure::Ended)?;
        self.next += 1;
        if level == 0 {
            return Ok(Field::Null);
        }
        let value = self.values.pop().ok_or(Failure::Ended)?;
        let data = value.data();
        let nanos = i64::from(data[0]) | i64::from(data[1]) << 32;
        value::julian(nanos, data[2]).map(Field::Str).map_err(Failure::Value)
    }
}

/// The picture of a row.
pub enum Picture<'a> {
    /// The bytes of a picture file.
    Inside(&'a [u8]),
    Path(String),
    None,
}

/// The picture in a cell, whose path begins in `folder`; or what the cell holds instead.
pub fn picture<'a>(field: &'a Field, folder: &Path) -> Result<Picture<'a>, String> {
    let path = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).map_err(|_| "a path that is no text in UTF-8".to_owned())?;
        match compressed::picture_ref(text) {
            PictureRef::Path => Ok(Picture::Path(compressed::whole_path(folder, text))),
            PictureRef::Number => {
                Err("the number of a picture; images.safetensors is found only beside plain files".to_owned())
            }
        }
    };
    match field {
        Field::Null => Ok(Picture::None),
        Field::Str(text) => path(text.as_bytes()),
        Field::Bytes(bytes) if compressed::ending(bytes.data()).is_some() => Ok(Picture::Inside(bytes.data())),
        Field::Bytes(bytes) if std::str::from_utf8(bytes.data()).is_err() => {
            Err("bytes that are neither a picture nor a path".to_owned())
        }
        Field::Bytes(bytes) => path(bytes.data()),
        Field::Group(row) => {
            let data = |role: &str| {
                let (_, field) = row.get_column_iter().find(|(name, _)| *name == role)?;
                match field {
                    Field::Bytes(bytes) => Some(bytes.data()),
                    Field::Str(text) => Some(text.as_bytes()),
                    _ => None,
                }
                .filter(|data| !data.is_empty())
            };
            match (data("bytes"), data("path")) {
                (Some(picture), _) => Ok(Picture::Inside(picture)),
                (None, Some(name)) => path(name),
                (None, None) => Ok(Picture::None),
            }
        }
        other => Err(format!("{other}, which is no picture")),
    }
}
