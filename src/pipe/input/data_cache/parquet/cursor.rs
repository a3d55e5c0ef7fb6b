//! One leaf column of a row group, read in batches: levels and values, taken one after the other.

use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;

/// The values of a batch that are not null.
pub enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Int96(Vec<Int96>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

pub struct Cursor {
    reader: ColumnReader,
    values: Values,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    /// The definition level of a value that is there.
    present: i16,
    /// Whether the column is in a list, so that its repetition levels say something.
    repeats: bool,
    /// Levels of the batch.
    levels: usize,
    /// The level and the value that come next.
    level: usize,
    value: usize,
}

/// Pages without values that may follow one another.
const MOST_EMPTY_PAGES: usize = 64;

/// The levels of two columns that belong together do not fit each other.
pub struct Exhausted;

macro_rules! with_values {
    ($values:expr, $list:ident => $body:expr) => {
        match $values {
            Values::Bool($list) => $body,
            Values::Int32($list) => $body,
            Values::Int64($list) => $body,
            Values::Int96($list) => $body,
            Values::Float($list) => $body,
            Values::Double($list) => $body,
            Values::Bytes($list) => $body,
            Values::Fixed($list) => $body,
        }
    };
}

impl Cursor {
    pub fn new(reader: ColumnReader, column: &ColumnDescriptor) -> Self {
        let values = match &reader {
            ColumnReader::BoolColumnReader(_) => Values::Bool(Vec::new()),
            ColumnReader::Int32ColumnReader(_) => Values::Int32(Vec::new()),
            ColumnReader::Int64ColumnReader(_) => Values::Int64(Vec::new()),
            ColumnReader::Int96ColumnReader(_) => Values::Int96(Vec::new()),
            ColumnReader::FloatColumnReader(_) => Values::Float(Vec::new()),
            ColumnReader::DoubleColumnReader(_) => Values::Double(Vec::new()),
            ColumnReader::ByteArrayColumnReader(_) => Values::Bytes(Vec::new()),
            ColumnReader::FixedLenByteArrayColumnReader(_) => Values::Fixed(Vec::new()),
        };
        Self {
            reader,
            values,
            definitions: Vec::new(),
            repetitions: Vec::new(),
            present: column.max_def_level(),
            repeats: column.max_rep_level() > 0,
            levels: 0,
            level: 0,
            value: 0,
        }
    }

    /// Reads the next `rows`, and tells how many there were. What was left of the batch before is dropped.
    pub fn fill(&mut self, rows: usize) -> Result<usize, ParquetError> {
        self.clear();
        let (mut read, mut tries) = (0, 0);
        // A page without values ends the reading of the crate, though others may follow.
        while read < rows && tries < MOST_EMPTY_PAGES {
            let (more, levels) = self.read(rows - read)?;
            tries = if levels == 0 { tries + 1 } else { 0 };
            self.levels += levels;
            read += more;
        }
        Ok(read)
    }

    fn clear(&mut self) {
        self.definitions.clear();
        self.repetitions.clear();
        with_values!(&mut self.values, list => list.clear());
        (self.levels, self.level, self.value) = (0, 0, 0);
    }

    /// Reads rows up to the next page without values: how many, and their levels.
    fn read(&mut self, rows: usize) -> Result<(usize, usize), ParquetError> {
        let levels = (Some(&mut self.definitions), Some(&mut self.repetitions));
        macro_rules! read {
            ($($reader:ident $kind:ident),*) => {
                match (&mut self.reader, &mut self.values) {
                    $((ColumnReader::$reader(reader), Values::$kind(list)) => {
                        reader.read_records(rows, levels.0, levels.1, list)
                    })*
                    _ => unreachable!("the values are of the kind that the reader has"),
                }
            };
        }
        let (read, _, levels) = read!(
            BoolColumnReader Bool, Int32ColumnReader Int32, Int64ColumnReader Int64, Int96ColumnReader Int96,
            FloatColumnReader Float, DoubleColumnReader Double, ByteArrayColumnReader Bytes,
            FixedLenByteArrayColumnReader Fixed
        )?;
        Ok((read, levels))
    }

    /// The definition level that comes next.
    pub fn definition(&self) -> Result<i16, Exhausted> {
        match self.level < self.levels {
            true if self.present == 0 => Ok(0),
            true => self.definitions.get(self.level).copied().ok_or(Exhausted),
            false => Err(Exhausted),
        }
    }

    /// The repetition level that comes next; that of a new row at the end of the batch.
    pub fn repetition(&self) -> i16 {
        match self.repeats && self.level < self.levels {
            true => self.repetitions.get(self.level).copied().unwrap_or(0),
            false => 0,
        }
    }

    /// Takes the next level: the index of its value, if there is one.
    pub fn take(&mut self) -> Result<Option<usize>, Exhausted> {
        let is_there = self.definition()? == self.present;
        self.level += 1;
        if !is_there {
            return Ok(None);
        }
        self.value += 1;
        let count = with_values!(&self.values, list => list.len());
        if self.value > count { Err(Exhausted) } else { Ok(Some(self.value - 1)) }
    }

    pub fn values(&self) -> &Values {
        &self.values
    }
}
