//! The pictures that rows name: paths relative to the folder of the data file, or numbers in `images.safetensors` there.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use image::RgbImage;
use memmap2::Mmap;
use pipe_data::Rows;
use pipe_spec::pipeline::Paths;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Column;
use super::pictures::{Preparation, View};
use crate::error::TrainerError;

pub struct PictureColumn {
    /// Which column of the rows it is.
    column: usize,
    preparation: Preparation,
    /// By folder.
    tables: HashMap<PathBuf, PictureTable>,
}

/// The picture that a row names.
pub enum Picture<'a> {
    File(PathBuf),
    Number(&'a PictureTable, usize),
}

impl Picture<'_> {
    /// Whether it is there; or else why not. Whether it can be decoded is seen when it is.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::File(path) => path.metadata().map(drop).map_err(|error| error.to_string()),
            Self::Number(table, number) => table.check(*number),
        }
    }

    /// The message for a picture that cannot be read.
    pub fn unreadable(&self, message: &str, predicts: bool) -> String {
        let name = match self {
            Self::File(path) => path.display().to_string(),
            Self::Number(_, number) => number.to_string(),
        };
        let how = if predicts { "--skip-bad" } else { "data.skip_bad: true" };
        format!("the picture {name}: {message}; {how} skips such pictures")
    }
}

impl PictureColumn {
    pub fn open(paths: &Paths, column: usize, preparation: Preparation) -> Result<Self, TrainerError> {
        let mut tables = HashMap::new();
        let files = paths.0.iter().map(Path::new).filter(|path| path.is_file());
        for folder in files.filter_map(Path::parent) {
            let table = folder.join("images.safetensors");
            if table.is_file() && !tables.contains_key(folder) {
                tables.insert(folder.to_owned(), PictureTable::open(&table, &preparation.shape())?);
            }
        }
        Ok(Self { column, preparation, tables })
    }

    /// The picture that a row names with `value`.
    pub fn find(&self, rows: &Rows, index: usize, value: Option<&Value>) -> Result<Picture<'_>, TrainerError> {
        let folder = rows.path(index).parent().unwrap_or(Path::new(""));
        let table = self.tables.get(folder);
        Ok(match (value, table) {
            (Some(Value::Number(number)), Some(table)) if number.is_u64() => number_of(table, &number.to_string()),
            (Some(Value::Number(_)), None) => {
                let message = format!("a picture by its number, and no images.safetensors in {}", folder.display());
                return Err(rows.fail(index, message).into());
            }
            // In CSV a number is a text.
            (Some(Value::String(text)), Some(table)) if is_number(text) => number_of(table, text),
            (Some(Value::String(path)), _) => Picture::File(folder.join(path)),
            (other, _) => {
                return Err(rows.problem(index, self.column, other, "a path or the number of a picture").into());
            }
        })
    }

    /// The values of a picture for the model, or why it cannot be read. Those of a table are used as they are, without a `view`.
    pub fn values(&self, picture: &Picture<'_>, view: Option<View>) -> Result<Column, String> {
        let values = match picture {
            Picture::File(path) => self.preparation.read(path, view),
            Picture::Number(table, number) => table.read(*number),
        };
        values.map(|values| Column::Values { shape: self.preparation.shape().to_vec(), values })
    }

    /// Nothing where it cannot be read.
    pub fn thumbnail(&self, picture: &Picture<'_>, edge: u32) -> Option<RgbImage> {
        match self.values(picture, None) {
            Ok(Column::Values { values, .. }) => Some(self.preparation.thumbnail(&values, edge)),
            _ => None,
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A number too large for the machine is beyond every table.
fn number_of<'a>(table: &'a PictureTable, digits: &str) -> Picture<'a> {
    Picture::Number(table, digits.parse().unwrap_or(usize::MAX))
}

pub struct PictureTable {
    path: PathBuf,
    map: Mmap,
    /// Where the first picture begins.
    start: usize,
    len: usize,
    /// Values of one picture.
    values: usize,
}

impl PictureTable {
    /// The tensor `pixel_values`, whose pictures must have `shape`.
    fn open(path: &Path, shape: &[i64]) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Data { path: path.to_owned(), line: None, message };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        // SAFETY: a data set that another program shortens while it is trained on ends the process, as losing it would.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let parsed = SafeTensors::deserialize(&map).map_err(|error| fail(format!("not safetensors: {error}")))?;
        let view = parsed.tensor("pixel_values").map_err(|_| fail("it has no tensor pixel_values".to_owned()))?;
        let found: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
        if view.dtype() != Dtype::F32 || found.get(1..) != Some(shape) {
            let wanted: Vec<String> = shape.iter().map(i64::to_string).collect();
            let message = format!(
                "pixel_values is {:?} {found:?}; the model wants F32 [pictures, {}]",
                view.dtype(),
                wanted.join(", ")
            );
            return Err(fail(message));
        }
        let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
        let (len, values) = (view.shape()[0], view.shape()[1..].iter().product());
        Ok(Self { path: path.to_owned(), map, start, len, values })
    }

    /// Whether there is a picture of that number; or else why not.
    fn check(&self, number: usize) -> Result<(), String> {
        if number < self.len {
            return Ok(());
        }
        Err(format!("{} has {} pictures, counted from 0", self.path.display(), self.len))
    }

    fn read(&self, number: usize) -> Result<Vec<f32>, String> {
        self.check(number)?;
        let bytes = self.values * size_of::<f32>();
        let start = self.start + number * bytes;
        let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(self.map[start..start + bytes].chunks_exact(size_of::<f32>()).map(value).collect())
    }
}
