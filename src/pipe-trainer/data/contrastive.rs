//! Pictures with texts. A picture is a path relative to the folder of the data file, or a number in `images.safetensors` there.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pipe_model::TaskData;
use pipe_spec::pipeline::{Data, Paths};
use rayon::ThreadPool;
use serde_json::Value;

use super::opener::Opener;
use super::picture_table::PictureTable;
use super::pictures::Preparation;
use super::rows::Rows;
use super::sources::Sources;
use super::{Column, Padding, Sample, Source, Tokens};
use crate::error::TrainerError;

pub struct Pairs {
    rows: Rows,
    longest: Vec<usize>,
    tokens: Arc<Tokens>,
    preparation: Arc<Preparation>,
    /// By folder.
    tables: HashMap<PathBuf, PictureTable>,
    skip_bad: bool,
    /// Rows whose picture could not be read, each once however often it is asked for.
    bad: Mutex<HashSet<usize>>,
}

/// What a row says about its picture.
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
        Ok(Arc::new(Pairs::open(paths, data, opener.pool, tokens, preparation, &shape)?))
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
        paddings: vec![Padding { column: "input_ids", with: pad_token_id, length: opener.fixed(max_length) }],
        tokens: None,
        labels: None,
        classes: None,
        notices: Vec::new(),
    })
}

impl Pairs {
    fn open(
        paths: &Paths,
        data: &Data,
        pool: &ThreadPool,
        tokens: Tokens,
        preparation: Preparation,
        shape: &[i64],
    ) -> Result<Self, TrainerError> {
        let rows = Rows::open(paths, &[data.field("image"), data.field("text")])?;
        let mut tables = HashMap::new();
        for folder in paths.0.iter().filter_map(|path| Path::new(path).parent()) {
            let table = folder.join("images.safetensors");
            if table.is_file() && !tables.contains_key(folder) {
                tables.insert(folder.to_owned(), PictureTable::open(&table, shape)?);
            }
        }
        let (tokens, preparation) = (Arc::new(tokens), Arc::new(preparation));
        let skip_bad = data.skip_bad;
        let longest = Vec::new();
        let mut pairs = Self { rows, longest, tokens, preparation, tables, skip_bad, bad: Mutex::default() };
        pairs.longest = pairs.rows.check(pool, |index| pairs.check(index))?.rows();
        Ok(pairs)
    }

    /// That a row is whole and its picture there; whether it can be decoded is seen when it is.
    fn check(&self, index: usize) -> Result<[usize; 1], TrainerError> {
        let (picture, text) = self.row(index)?;
        let found = match &picture {
            Picture::Number(table, number) => table.check(*number),
            Picture::File(path) => path.metadata().map(drop).map_err(|error| error.to_string()),
        };
        match found {
            Err(message) if !self.skip_bad => Err(self.unreadable(index, &picture, &message)),
            _ => Ok([text.len()]),
        }
    }

    fn row(&self, index: usize) -> Result<(Picture<'_>, String), TrainerError> {
        let mut values = self.rows.values(index)?;
        let text = match values[TEXT].take() {
            Some(Value::String(text)) => text,
            other => return Err(self.rows.not_a_text(index, TEXT, other.as_ref())),
        };
        let folder = self.rows.path(index).parent().unwrap_or(Path::new(""));
        let table = self.tables.get(folder);
        let picture = match (&values[IMAGE], table) {
            (Some(Value::Number(number)), Some(table)) if number.is_u64() => number_of(table, &number.to_string()),
            (Some(Value::Number(_)), None) => {
                let message = format!("a picture by its number, and no images.safetensors in {}", folder.display());
                return Err(self.rows.fail(index, message));
            }
            // In CSV a number is a text.
            (Some(Value::String(text)), Some(table)) if is_number(text) => number_of(table, text),
            (Some(Value::String(path)), _) => Picture::File(folder.join(path)),
            (other, _) => {
                return Err(self.rows.problem(index, IMAGE, other.as_ref(), "a path or the number of a picture"));
            }
        };
        Ok((picture, text))
    }

    fn unreadable(&self, index: usize, picture: &Picture<'_>, message: &str) -> TrainerError {
        let name = match picture {
            Picture::File(path) => path.display().to_string(),
            Picture::Number(_, number) => number.to_string(),
        };
        self.rows.fail(index, format!("the picture {name}: {message}"))
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
        self.rows.during(index, || self.read(index))
    }

    fn skipped(&self) -> u64 {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

impl Pairs {
    fn read(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (picture, text) = self.row(index)?;
        let values = match &picture {
            Picture::File(path) => self.preparation.read(path),
            Picture::Number(table, number) => table.read(*number),
        };
        let values = match values {
            Ok(values) => values,
            Err(_) if self.skip_bad => return Ok(None),
            Err(message) => return Err(self.unreadable(index, &picture, &message)),
        };
        let pixels = Column::Values { shape: self.preparation.shape().to_vec(), values };
        let ids = Column::Tokens(self.tokens.encode(&text)?);
        Ok(Some(Sample { columns: vec![("input_ids", ids), ("pixel_values", pixels)], targets: 1 }))
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
