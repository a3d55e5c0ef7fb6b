//! Pictures with texts. A picture is a path relative to the folder of the data file, or a number in `images.safetensors` there.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use image::RgbImage;
use memmap2::Mmap;
use pipe_data::Rows;
use pipe_model::TaskData;
use pipe_spec::pipeline::Paths;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::pictures::Preparation;
use super::rows::{Opener, check_rows, during, open_rows};
use super::source::Sources;
use super::{Column, Sample, Source};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

pub struct Pairs {
    rows: Rows,
    longest: Vec<usize>,
    tokens: Arc<Tokens>,
    preparation: Arc<Preparation>,
    /// By folder.
    tables: HashMap<PathBuf, PictureTable>,
    skip_bad: bool,
    /// Whether rows may have a picture or a text alone.
    predicts: bool,
    /// Rows whose picture could not be read, each once however often it is asked for.
    bad: Mutex<HashSet<usize>>,
}

/// The picture that a row names.
enum Picture<'a> {
    File(PathBuf),
    Number(&'a PictureTable, usize),
}

const IMAGE: usize = 0;
const TEXT: usize = 1;

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Contrastive { vocab_size, pad_token_id, eos_token_id, max_length, num_channels, image_size } =
        *task_data
    else {
        panic!("not for pictures: {task_data:?}")
    };
    let data = &opener.spec.data;
    let max_length = data.max_length.get().min(max_length);
    let shape = [num_channels, image_size, image_size];
    let open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        if num_channels != 3 {
            let message = format!("found {num_channels}; allowed where pictures are read: 3");
            return Err(TrainerError::config("vision_config.num_channels", message));
        }
        let tokens = Tokens::open(opener.tokenizer()?, opener.arch(), "max_length", max_length)?;
        let tokens = tokens.check_vocabulary(vocab_size)?.check_end(eos_token_id)?;
        let model = opener.spec.model.from.as_deref().map(Path::new);
        let preparation = Preparation::open(image_size as u32, model)?;
        Ok(Arc::new(Pairs::open(paths, opener, tokens, preparation, &shape)?))
    };
    let part = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        let source = opener.part(paths, &open)?;
        check_shapes(source.as_ref(), paths, max_length, &shape)?;
        Ok(source)
    };
    Ok(Sources {
        train: part(&data.train)?,
        eval: data.eval.as_ref().map(part).transpose()?,
        // No mask: padding is behind each text, where causal attention never looks.
        paddings: vec![opener.padding("input_ids", pad_token_id, max_length)],
        tokens: None,
        labels: None,
        classes: None,
        notices: Vec::new(),
    })
}

impl Pairs {
    fn open(
        paths: &Paths,
        opener: &Opener<'_>,
        tokens: Tokens,
        preparation: Preparation,
        shape: &[i64],
    ) -> Result<Self, TrainerError> {
        let data = &opener.spec.data;
        let rows = open_rows(paths, &[data.field("image"), data.field("text")])?;
        let mut tables = HashMap::new();
        for folder in paths.0.iter().filter_map(|path| Path::new(path).parent()) {
            let table = folder.join("images.safetensors");
            if table.is_file() && !tables.contains_key(folder) {
                tables.insert(folder.to_owned(), PictureTable::open(&table, shape)?);
            }
        }
        let (tokens, preparation) = (Arc::new(tokens), Arc::new(preparation));
        let (skip_bad, predicts) = (data.skip_bad, opener.predicts);
        let (longest, bad) = (Vec::new(), Mutex::default());
        let mut pairs = Self { rows, longest, tokens, preparation, tables, skip_bad, predicts, bad };
        pairs.longest = check_rows(&pairs.rows, opener.pool, |index| pairs.check(index))?.rows();
        Ok(pairs)
    }

    /// That a row is whole and its picture there; whether it can be decoded is seen when it is.
    fn check(&self, index: usize) -> Result<[usize; 1], TrainerError> {
        let (picture, text) = self.row(index)?;
        let found = match &picture {
            Some(Picture::Number(table, number)) => table.check(*number),
            Some(Picture::File(path)) => path.metadata().map(drop).map_err(|error| error.to_string()),
            None => Ok(()),
        };
        match (found, &picture) {
            (Err(message), Some(picture)) if !self.skip_bad => Err(self.unreadable(index, picture, &message)),
            _ => Ok([text.map_or(0, |text| text.len())]),
        }
    }

    /// The picture and the text of a row. One of the two may be missing where that is allowed.
    fn row(&self, index: usize) -> Result<(Option<Picture<'_>>, Option<String>), TrainerError> {
        let mut values = self.rows.values(index)?;
        if self.predicts {
            // In CSV what is missing is empty.
            let is_missing = |value: &Value| value.is_null() || value.as_str() == Some("");
            values.iter_mut().for_each(|value| drop(value.take_if(|value| is_missing(value))));
        }
        let text = match values[TEXT].take() {
            Some(Value::String(text)) => Some(text),
            None if self.predicts && values[IMAGE].is_some() => None,
            other => return Err(self.rows.not_a_text(index, TEXT, other.as_ref()).into()),
        };
        match self.predicts && values[IMAGE].is_none() {
            true => Ok((None, text)),
            false => Ok((Some(self.picture(index, values[IMAGE].as_ref())?), text)),
        }
    }

    fn picture(&self, index: usize, value: Option<&Value>) -> Result<Picture<'_>, TrainerError> {
        let folder = self.rows.path(index).parent().unwrap_or(Path::new(""));
        let table = self.tables.get(folder);
        Ok(match (value, table) {
            (Some(Value::Number(number)), Some(table)) if number.is_u64() => number_of(table, &number.to_string()),
            (Some(Value::Number(_)), None) => {
                let message = format!("a picture by its number, and no images.safetensors in {}", folder.display());
                return Err(self.rows.fail(index, message).into());
            }
            // In CSV a number is a text.
            (Some(Value::String(text)), Some(table)) if is_number(text) => number_of(table, text),
            (Some(Value::String(path)), _) => Picture::File(folder.join(path)),
            (other, _) => {
                return Err(self.rows.problem(index, IMAGE, other, "a path or the number of a picture").into());
            }
        })
    }

    fn unreadable(&self, index: usize, picture: &Picture<'_>, message: &str) -> TrainerError {
        let name = match picture {
            Picture::File(path) => path.display().to_string(),
            Picture::Number(_, number) => number.to_string(),
        };
        self.rows.fail(index, format!("the picture {name}: {message}")).into()
    }
}

impl Source for Pairs {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn longest(&self) -> Vec<usize> {
        self.longest.clone()
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let sample = self.peek(index)?;
        if sample.is_none() {
            self.bad.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
        }
        Ok(sample)
    }

    fn peek(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        during(self.rows.place(index), || self.read(index))
    }

    fn caption(&self, index: usize) -> Result<Option<String>, TrainerError> {
        self.row(index).map(|(_, text)| text)
    }

    fn thumbnail(&self, index: usize, edge: u32) -> Result<Option<RgbImage>, TrainerError> {
        let (picture, _) = self.row(index)?;
        let values = picture.and_then(|picture| self.values(&picture).ok());
        Ok(values.map(|values| self.preparation.thumbnail(&values, edge)))
    }

    fn skipped(&self) -> u64 {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

impl Pairs {
    /// The values of a picture for the model, or why it cannot be read.
    fn values(&self, picture: &Picture<'_>) -> Result<Vec<f32>, String> {
        match picture {
            Picture::File(path) => self.preparation.read(path),
            Picture::Number(table, number) => table.read(*number),
        }
    }

    fn read(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (picture, text) = self.row(index)?;
        let mut columns = Vec::with_capacity(2);
        if let Some(text) = text {
            columns.push(("input_ids", Column::Tokens(self.tokens.encode(&text)?)));
        }
        if let Some(picture) = picture {
            let values = match self.values(&picture) {
                Ok(values) => values,
                Err(_) if self.skip_bad => return Ok(None),
                Err(message) => return Err(self.unreadable(index, &picture, &message)),
            };
            columns.push(("pixel_values", Column::Values { shape: self.preparation.shape().to_vec(), values }));
        }
        Ok(Some(Sample { columns, targets: 1 }))
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A number too large for the machine is beyond every table.
fn number_of<'a>(table: &'a PictureTable, digits: &str) -> Picture<'a> {
    Picture::Number(table, digits.parse().unwrap_or(usize::MAX))
}

/// Files of tensors are not trusted: their first and last sample must fit the model.
fn check_shapes(source: &dyn Source, paths: &Paths, max_length: u32, shape: &[i64]) -> Result<(), TrainerError> {
    if paths.0.iter().any(|path| !path.ends_with(".safetensors")) {
        return Ok(());
    }
    for (index, path) in [(0, paths.0.first()), (source.len() - 1, paths.0.last())] {
        let fail = |message: String| {
            let path = path.map(PathBuf::from).unwrap_or_default();
            Err(TrainerError::Data { path, line: None, message })
        };
        let Some(sample) = source.sample(index)? else { continue };
        let column = |name: &str| sample.columns.iter().find(|(column, _)| *column == name).map(|(_, values)| values);
        match column("input_ids") {
            Some(Column::Tokens(tokens)) if tokens.len() <= max_length as usize => {}
            Some(Column::Tokens(tokens)) => {
                return fail(format!("input_ids has {} tokens a text; allowed: at most {max_length}", tokens.len()));
            }
            _ => return fail("it has no input_ids of whole numbers [samples, tokens]".to_owned()),
        }
        match column("pixel_values") {
            Some(Column::Values { shape: found, .. }) if found == shape => {}
            Some(Column::Values { shape: found, .. }) => {
                return fail(format!("pixel_values has pictures of {found:?}; the model wants {shape:?}"));
            }
            _ => return fail("it has no pixel_values [samples, channels, height, width]".to_owned()),
        }
    }
    Ok(())
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
    pub fn open(path: &Path, shape: &[i64]) -> Result<Self, TrainerError> {
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
    pub fn check(&self, number: usize) -> Result<(), String> {
        if number < self.len {
            return Ok(());
        }
        Err(format!("{} has {} pictures, counted from 0", self.path.display(), self.len))
    }

    pub fn read(&self, number: usize) -> Result<Vec<f32>, String> {
        self.check(number)?;
        let bytes = self.values * size_of::<f32>();
        let start = self.start + number * bytes;
        let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(self.map[start..start + bytes].chunks_exact(size_of::<f32>()).map(value).collect())
    }
}
