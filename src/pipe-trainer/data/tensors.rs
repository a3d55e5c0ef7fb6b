//! Files of tensors: samples that are ready for the model, the first dimension of each tensor being the samples.

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Paths;
use tch::Kind;

use super::{Column, IGNORED, Sample, Source};
use crate::error::TrainerError;
use crate::storage::TensorFiles;

pub struct TensorRows(Vec<Table>);

/// One file.
struct Table {
    len: usize,
    columns: Vec<(&'static str, Values)>,
}

/// A tensor, flat, with the shape of one sample.
enum Values {
    Whole { shape: Vec<i64>, values: Vec<i64> },
    Real { shape: Vec<i64>, values: Vec<f32> },
}

/// What models call their inputs.
const NAMES: &[&str] = &["input_ids", "attention_mask", "token_type_ids", "labels", "pixel_values", "x", "ids"];

impl TensorRows {
    pub fn open(paths: &Paths) -> Result<Self, TrainerError> {
        paths.0.iter().map(|path| Table::open(Path::new(path))).collect::<Result<_, _>>().map(Self)
    }
}

impl Source for TensorRows {
    fn len(&self) -> usize {
        self.0.iter().map(|table| table.len).sum()
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let mut index = index;
        for table in &self.0 {
            if index < table.len {
                return Ok(Some(table.sample(index)));
            }
            index -= table.len;
        }
        panic!("sample {index} lies beyond the data");
    }
}

impl Table {
    fn open(path: &Path) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Data { path: PathBuf::from(path), line: None, message };
        let files = TensorFiles::open_file(path)?;
        let mut columns = Vec::new();
        let mut len = None;
        for name in NAMES.iter().filter(|name| files.contains(name)) {
            let tensor = files.read(name)?;
            let size = tensor.size();
            let Some((rows, shape)) = size.split_first() else {
                return Err(fail(format!("{name} has no samples: it is a single number")));
            };
            if *len.get_or_insert(*rows) != *rows {
                return Err(fail(format!("{name} has {rows} samples, the tensor before it {}", len.unwrap_or(0))));
            }
            let (shape, flat) = (shape.to_vec(), tensor.f_reshape([-1])?);
            let values = if tensor.kind() == Kind::Float || tensor.kind() == Kind::Double {
                Values::Real { shape, values: Vec::<f32>::try_from(flat.f_to_kind(Kind::Float)?)? }
            } else {
                Values::Whole { shape, values: Vec::<i64>::try_from(flat.f_to_kind(Kind::Int64)?)? }
            };
            columns.push((*name, values));
        }
        match len {
            Some(rows) if rows > 0 => Ok(Self { len: rows as usize, columns }),
            _ => Err(fail(format!("no samples; a file of samples holds some of {}", NAMES.join(", ")))),
        }
    }

    fn sample(&self, index: usize) -> Sample {
        let mut targets = 1;
        let mut columns = Vec::with_capacity(self.columns.len());
        for (name, values) in &self.columns {
            let column = values.row(index);
            if let ("labels", Column::Tokens(labels)) = (*name, &column) {
                targets = labels.iter().filter(|label| **label != IGNORED).count() as u64;
            }
            columns.push((*name, column));
        }
        Sample { columns, targets }
    }
}

impl Values {
    fn row(&self, index: usize) -> Column {
        let range = |shape: &[i64]| {
            let size = shape.iter().product::<i64>() as usize;
            index * size..(index + 1) * size
        };
        match self {
            Self::Whole { shape, values } if shape.is_empty() => Column::Whole(values[index]),
            Self::Real { shape, values } if shape.is_empty() => Column::Real(values[index]),
            Self::Whole { shape, values } => Column::Tokens(values[range(shape)].to_vec()),
            Self::Real { shape, values } => {
                Column::Values { shape: shape.clone(), values: values[range(shape)].to_vec() }
            }
        }
    }
}
