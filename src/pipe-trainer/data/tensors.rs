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

/// The names of models' inputs.
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

pub struct ReadyRows {
    files: Vec<TensorRows>,
    /// The longest row of ids, and of labels.
    longest: [usize; 2],
}

impl ReadyRows {
    /// A token that the model does not have, or a row that is too long, is named.
    pub fn open(paths: &[String], vocab_size: u64, max_length: u32) -> Result<Self, TrainerError> {
        let mut rows = Self { files: Vec::new(), longest: [0; 2] };
        for path in paths {
            let file = TensorRows::open(&Paths(vec![path.clone()]))?;
            for index in 0..file.len() {
                rows.check(&file, index, vocab_size, max_length).map_err(|message| TrainerError::Data {
                    path: Path::new(path).to_owned(),
                    line: None,
                    message: format!("row {}: {message}", index + 1),
                })?;
            }
            rows.files.push(file);
        }
        Ok(rows)
    }

    /// The longest ids and the longest labels.
    pub fn longest(&self) -> [usize; 2] {
        self.longest
    }

    fn check(&mut self, file: &TensorRows, index: usize, vocab_size: u64, max_length: u32) -> Result<(), String> {
        let sample = file.sample(index).map_err(|error| error.to_string())?.ok_or("cannot be read")?;
        let (ids, labels) = ids_and_labels(sample)?;
        if ids.len() > max_length as usize {
            return Err(format!("ids are {} tokens, the model's max_seq_len is {max_length}", ids.len()));
        }
        let known = |token: &i64| u64::try_from(*token).is_ok_and(|token| token < vocab_size);
        if let Some(token) = ids.iter().find(|token| !known(token)) {
            return Err(format!("ids have the token {token}; allowed: 0 to {}, below vocab_size", vocab_size - 1));
        }
        if let Some(label) = labels.iter().find(|label| !known(label) && **label != IGNORED) {
            return Err(format!("labels have {label}; allowed: 0 to {}, or {IGNORED} for none", vocab_size - 1));
        }
        let [longest_ids, longest_labels] = self.longest;
        self.longest = [longest_ids.max(ids.len()), longest_labels.max(labels.len())];
        Ok(())
    }
}

fn ids_and_labels(sample: Sample) -> Result<(Vec<i64>, Vec<i64>), String> {
    let (mut ids, mut labels) = (None, None);
    for (name, column) in sample.columns {
        match (name, column) {
            ("ids", Column::Tokens(tokens)) => ids = Some(tokens),
            ("labels", Column::Tokens(tokens)) => labels = Some(tokens),
            ("ids" | "labels", _) => return Err(format!("{name} are no whole numbers, one for each position")),
            _ => {}
        }
    }
    let ids = ids.ok_or("no ids")?;
    let labels = labels.unwrap_or_else(|| ids.clone());
    Ok((ids, labels))
}

impl Source for ReadyRows {
    fn len(&self) -> usize {
        self.files.iter().map(Source::len).sum()
    }

    /// A position predicts the label after its own, so the first label is not predicted.
    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let mut index = index;
        let file = self.files.iter().find(|file| {
            let here = index < file.len();
            index -= if here { 0 } else { file.len() };
            here
        });
        let Some(sample) = file.map(|file| file.sample(index)).transpose()?.flatten() else { return Ok(None) };
        let (ids, labels) = ids_and_labels(sample).map_err(|message| TrainerError::Panic { message })?;
        let predicted = labels.iter().skip(1).take(ids.len()).filter(|label| **label != IGNORED).count() as u64;
        Ok(Some(Sample {
            targets: predicted,
            columns: vec![("ids", Column::Tokens(ids)), ("labels", Column::Tokens(labels))],
        }))
    }
}
