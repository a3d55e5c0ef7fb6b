//! The columns of a table: where they stand in the schema, their cells row by row, and the pictures in them.
//!
//! The schema of a column as a tree of kinds, and the records that the crate's reader makes of it as JSON or cells of a CSV.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{Int96, Int96Type};
use parquet::errors::ParquetError;
use parquet::file::reader::RowGroupReader;
use parquet::record::Field;
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};

use super::value::{self, Kind, Style};
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

/// Deeper schemas are refused.
const MAX_DEPTH: usize = 32;

#[derive(Debug)]
pub enum Shape {
    Value(Kind),
    Group(Vec<Shape>),
    List(Box<Shape>),
    Map(Box<[Shape; 2]>),
    /// Numbers of classes, which are written as the names that they have.
    Class(Vec<String>),
}

impl Shape {
    /// The tree of a top-level column; or why it cannot be read.
    pub fn from_column(field: &Type) -> Result<Self, String> {
        Self::field(field, 0)
    }

    fn field(field: &Type, depth: usize) -> Result<Self, String> {
        let content = Self::content(field, depth + 1)?;
        // Outside of a list that says so, a field that repeats is a list of its own.
        Ok(if repeats(field) { Self::List(Box::new(content)) } else { content })
    }

    fn content(field: &Type, depth: usize) -> Result<Self, String> {
        if depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        if field.is_primitive() {
            return Ok(Self::Value(Kind::from_type(field)?));
        }
        let fields = field.get_fields();
        match (annotation(field), fields) {
            (Annotation::List, [repeated]) if repeats(repeated) => {
                let item = match element(repeated) {
                    Some(element) => Self::field(element, depth),
                    None => Self::content(repeated, depth),
                };
                Ok(Self::List(Box::new(item?)))
            }
            (Annotation::Map, [entry]) if repeats(entry) && entry.is_group() => match entry.get_fields() {
                [key] => Ok(Self::List(Box::new(Self::field(key, depth)?))),
                [key, value] => Ok(Self::Map(Box::new([Self::field(key, depth)?, Self::field(value, depth)?]))),
                more => Err(format!("its map {:?} has entries of {} fields", field.name(), more.len())),
            },
            (Annotation::List | Annotation::Map, _) => {
                Err(format!("its {:?} is called a list or a map, and does not repeat one field", field.name()))
            }
            (Annotation::None, []) => Err(format!("the group {:?} has no columns", field.name())),
            (Annotation::None, fields) => {
                Ok(Self::Group(fields.iter().map(|child| Self::field(child, depth)).collect::<Result<_, _>>()?))
            }
        }
    }

    /// A list of whole numbers as one of classes with these names; any other shape as it is.
    pub fn with_names(self, names: Vec<String>) -> Self {
        match self {
            Self::List(item) if matches!(*item, Self::Value(Kind::Signed | Kind::Unsigned)) => {
                Self::List(Box::new(Self::Class(names)))
            }
            other => other,
        }
    }

    /// Whether there are bytes that are no text anywhere in it.
    pub fn holds_bytes(&self) -> bool {
        match self {
            Self::Value(kind) => *kind == Kind::Bytes,
            Self::Class(_) => false,
            Self::Group(shapes) => shapes.iter().any(Self::holds_bytes),
            Self::List(item) => item.holds_bytes(),
            Self::Map(shapes) => shapes.iter().any(Self::holds_bytes),
        }
    }

    /// Writes what a row has; or says why that cannot be done.
    pub fn write(&self, out: &mut Vec<u8>, field: &Field, style: Style) -> Result<(), String> {
        match (self, field) {
            (_, Field::Null) => out.extend_from_slice(if style == Style::Json { b"null" } else { b"" }),
            (Self::Value(kind), field) => kind.write(out, field, style)?,
            (Self::Class(names), field) => {
                let name = value::whole(field).and_then(|number| names.get(usize::try_from(number).ok()?));
                match name {
                    Some(name) => value::text(out, name, style)?,
                    None => Kind::Signed.write(out, field, style)?,
                }
            }
            (Self::Group(shapes), Field::Group(row)) => {
                out.push(b'{');
                for (index, (shape, (name, field))) in shapes.iter().zip(row.get_column_iter()).enumerate() {
                    key(out, index, name);
                    shape.write(out, field, style)?;
                }
                out.push(b'}');
            }
            (Self::List(item), Field::ListInternal(list)) => {
                out.push(b'[');
                item.write_items(out, list.elements(), style, true)?;
                out.push(b']');
            }
            (Self::Map(shapes), Field::MapInternal(map)) => {
                let [keys, values] = shapes.as_ref();
                out.push(b'{');
                for (index, (key, value)) in map.entries().iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    let mut name = Vec::new();
                    keys.write(&mut name, key, style)?;
                    // The names of an object are texts, whatever the keys of a map are.
                    match name.first() {
                        Some(b'"') => out.extend_from_slice(&name),
                        _ => value::text(out, &String::from_utf8_lossy(&name), Style::Json)?,
                    }
                    out.push(b':');
                    values.write(out, value, style)?;
                }
                out.push(b'}');
            }
            (shape, field) => return Err(format!("{field}, which is not of the kind {shape:?}")),
        }
        Ok(())
    }

    /// The items of a list. The crate's reader puts those of lists without a group for the element into a list once more
    /// (<https://github.com/apache/arrow-rs/issues/2394>).
    fn write_items(&self, out: &mut Vec<u8>, items: &[Field], style: Style, first: bool) -> Result<(), String> {
        let mut first = first;
        for item in items {
            match (self, item) {
                (Self::List(_), _) => {}
                (_, Field::ListInternal(inner)) => {
                    self.write_items(out, inner.elements(), style, first)?;
                    first = false;
                    continue;
                }
                _ => {}
            }
            if !first {
                out.push(b',');
            }
            first = false;
            self.write(out, item, style)?;
        }
        Ok(())
    }
}

enum Annotation {
    List,
    Map,
    None,
}

fn annotation(field: &Type) -> Annotation {
    let info = field.get_basic_info();
    match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::List), _) | (_, ConvertedType::LIST) => Annotation::List,
        (Some(LogicalType::Map), _) | (_, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => Annotation::Map,
        _ => Annotation::None,
    }
}

fn repeats(field: &Type) -> bool {
    field.get_basic_info().has_repetition() && field.get_basic_info().repetition() == Repetition::REPEATED
}

/// The element of a list, unless the field that repeats is the element itself, as older writers have it. The crate's reader
/// follows the same rules.
/// <https://github.com/apache/parquet-format/blob/master/LogicalTypes.md#lists>
fn element(repeated: &Type) -> Option<&Type> {
    let is_old = |name: &str| name == "array" || name.ends_with("_tuple");
    match repeated.is_group() && !is_old(repeated.name()) {
        true if repeated.get_fields().len() == 1 => Some(&repeated.get_fields()[0]),
        _ => None,
    }
}

/// The name of a field of an object, with what stands around it.
pub fn key(out: &mut Vec<u8>, index: usize, name: &str) {
    if index > 0 {
        out.push(b',');
    }
    serde_json::to_writer(&mut *out, name).expect("memory takes everything");
    out.push(b':');
}
