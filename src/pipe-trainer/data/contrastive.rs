//! Pictures with texts.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use image::RgbImage;
use pipe_data::Rows;
use pipe_model::TaskData;
use pipe_spec::pipeline::Paths;
use serde_json::Value;

use super::pictures::Preparation;
use super::pictures::{Picture, PictureColumn};
use super::preprocessor::Preprocessor;
use super::rows::{Opener, SkippedRows, check_rows, during, is_lacking, no_text};
use super::source::Sources;
use super::{Column, Sample, Source};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

pub struct Pairs {
    rows: Rows,
    longest: Vec<usize>,
    tokens: Arc<Tokens>,
    pictures: PictureColumn,
    skip_bad: bool,
    /// Whether rows may have a picture or a text alone.
    predicts: bool,
    /// Rows whose picture could not be read, each once however often it is asked for.
    bad: Mutex<HashSet<usize>>,
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
    let notices = RefCell::new(Vec::new());
    let open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        if num_channels != 3 {
            let message = format!("found {num_channels}; allowed where pictures are read: 3");
            return Err(TrainerError::config("vision_config.num_channels", message));
        }
        let tokens = Tokens::open(opener.tokenizer()?, opener.arch(), "max_length", max_length)?;
        let tokens = tokens.check_vocabulary(vocab_size)?.check_end(eos_token_id)?;
        let model = opener.spec.model.from.as_deref().map(Path::new);
        let settings = Preprocessor::find(task_data, model)?.expect("the task has pictures");
        let pictures = PictureColumn::open(paths, IMAGE, Preparation::new(settings))?;
        let (pairs, said) = Pairs::open(paths, opener, tokens, pictures)?;
        notices.borrow_mut().extend(said);
        Ok(Arc::new(pairs))
    };
    let part = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        let source = opener.part(paths, &open)?;
        check_shapes(source.as_ref(), paths, max_length, &shape)?;
        Ok(source)
    };
    let (train, eval) = (part(&data.train)?, data.eval.as_ref().map(part).transpose()?);
    Ok(Sources {
        train,
        eval,
        // No mask: padding is behind each text, where causal attention never looks.
        paddings: vec![opener.padding("input_ids", pad_token_id, max_length)],
        tokens: None,
        labels: None,
        classes: None,
        notices: notices.take(),
    })
}

impl Pairs {
    fn open(
        paths: &Paths,
        opener: &Opener<'_>,
        tokens: Tokens,
        pictures: PictureColumn,
    ) -> Result<(Self, Vec<String>), TrainerError> {
        let data = &opener.spec.data;
        let rows = opener.rows(paths, &[data.field("image"), data.field("text")])?;
        let (skip_bad, predicts) = (data.skip_bad, opener.predicts);
        let (longest, bad) = (Vec::new(), Mutex::default());
        let mut pairs = Self { rows, longest, tokens: Arc::new(tokens), pictures, skip_bad, predicts, bad };
        let skipped = SkippedRows::default();
        let longest = check_rows(&pairs.rows, opener.pool, |index| match pairs.lacks(index)? {
            Some(lacks) => {
                skipped.add(index, lacks);
                Ok([0])
            }
            None => pairs.check(index),
        })?;
        let notices = skipped.leave_out(&mut pairs.rows)?;
        pairs.longest = longest.rows().into_iter().filter_map(|row| pairs.rows.index_of(row)).collect();
        Ok((pairs, notices))
    }

    /// Says what a row that is skipped lacks. To predict, a picture or a text is enough.
    fn lacks(&self, index: usize) -> Result<Option<&'static str>, TrainerError> {
        if !self.skip_bad {
            return Ok(None);
        }
        let values = self.rows.values(index)?;
        let [image, text] = [IMAGE, TEXT].map(|column| is_lacking(values[column].as_ref()));
        Ok(match (image, text) {
            (true, true) => Some("a picture and a text"),
            (true, false) if !self.predicts => Some("a picture"),
            (false, true) if !self.predicts => Some("a text"),
            _ => None,
        })
    }

    /// That a row is whole and its picture there; whether it can be decoded is seen when it is.
    fn check(&self, index: usize) -> Result<[usize; 1], TrainerError> {
        let (picture, text) = self.row(index)?;
        match picture.map(|picture| (picture.check(), picture)) {
            Some((Err(message), picture)) if !self.skip_bad => {
                Err(self.rows.fail(index, picture.unreadable(&message, self.predicts)).into())
            }
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
            other => return Err(no_text(&self.rows, index, TEXT, other.as_ref(), self.predicts)),
        };
        match self.predicts && values[IMAGE].is_none() {
            true => Ok((None, text)),
            false => Ok((Some(self.pictures.find(&self.rows, index, values[IMAGE].as_ref())?), text)),
        }
    }
}

impl Source for Pairs {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn longest(&self) -> Vec<usize> {
        self.longest.clone()
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.rows.number(index); 2]
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
        Ok(picture.and_then(|picture| self.pictures.thumbnail(&picture, edge)))
    }

    fn skipped(&self) -> u64 {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

impl Pairs {
    fn read(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (picture, text) = self.row(index)?;
        let mut columns = Vec::with_capacity(2);
        if let Some(text) = text {
            columns.push(("input_ids", Column::Tokens(self.tokens.encode(&text)?)));
        }
        if let Some(picture) = picture {
            match self.pictures.values(&picture, None) {
                Ok(values) => columns.push(("pixel_values", values)),
                Err(_) if self.skip_bad => return Ok(None),
                Err(message) => return Err(self.rows.fail(index, picture.unreadable(&message, self.predicts)).into()),
            }
        }
        Ok(Some(Sample { columns, targets: 1 }))
    }
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
