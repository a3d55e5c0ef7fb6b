//! Pictures with a class: rows that name a picture and its label, or folders of pictures whose names are the classes. In training
//! each epoch sees another view of a picture, if the pipeline says so.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pipe_data::{ListedPicture, Rows, open_pictures};
use pipe_model::{Labels, TaskData};
use pipe_spec::pipeline::{Augment, Paths};
use serde_json::Value;

use super::classification::{check_tensors, decide, label_of, no_label};
use super::labelling::{Labelling, NoticedLabels};
use super::pictures::{Picture, PictureColumn};
use super::pictures::{Preparation, View};
use super::preprocessor::Preprocessor;
use super::rows::{Opener, SkippedRows, check_rows, during, file_and_line, holds_tensors};
use super::source::Sources;
use super::{Column, Sample, Source};
use crate::error::TrainerError;

const IMAGE: usize = 0;
const LABEL: usize = 1;

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::PictureClasses { num_channels, labels: known, .. } = task_data else {
        panic!("not for classes of pictures: {task_data:?}")
    };
    let data = &opener.spec.data;
    let settings = Preprocessor::find(task_data, opener.spec.model.from.as_deref().map(Path::new))?;
    let settings = settings.expect("the task has pictures");
    let (labels, mut notices) = choose_labels(opener, known.as_ref())?;
    let labelling = Arc::new(Labelling::new(labels.clone(), None));
    let mut open = |paths: &Paths, augment: Option<Augment>| -> Result<Arc<dyn Source>, TrainerError> {
        if holds_tensors(paths) {
            let source = opener.part(paths, &|_| unreachable!("a file of tensors"))?;
            check_shapes(source.as_ref(), paths, &[*num_channels, i64::from(settings.size), i64::from(settings.size)])?;
            check_tensors(paths, source.as_ref(), &labels, u32::MAX)?;
            return Ok(source);
        }
        if *num_channels != 3 {
            let message = format!("found {num_channels}; allowed where pictures are read: 3");
            return Err(TrainerError::config("num_channels", message));
        }
        let mut source = PictureClasses {
            listing: Listing::open(opener, paths)?,
            kept: None,
            pictures: PictureColumn::open(paths, IMAGE, Preparation::new(settings))?,
            labelling: Arc::clone(&labelling),
            skip_bad: data.skip_bad,
            predicts: opener.predicts,
            augment: augment
                .filter(|augment| *augment != Augment::None)
                .map(|augment| (augment, opener.spec.train.seed)),
            bad: Mutex::default(),
        };
        notices.extend(source.check(opener)?);
        Ok(Arc::new(source))
    };
    let (train, eval) =
        (open(&data.train, data.augment)?, data.eval.as_ref().map(|eval| open(eval, None)).transpose()?);
    Ok(Sources {
        train,
        eval,
        paddings: Vec::new(),
        tokens: None,
        classes: Some(labels.count() as usize),
        labels: (known.as_ref() != Some(&labels)).then_some(labels),
        notices,
    })
}

/// The classes, and what is to be said of them: those of the trained head where the data has no others.
fn choose_labels(opener: &Opener<'_>, known: Option<&Labels>) -> Result<(Labels, Vec<String>), TrainerError> {
    if opener.predicts {
        return Ok((known.cloned().unwrap_or_default(), Vec::new()));
    }
    let train = &opener.spec.data.train;
    let found = match open_pictures(train)? {
        Some(pictures) => decide_by_folder(train, pictures)?,
        None => decide(opener)?,
    };
    let Labels::Classes(names) = &found else {
        let message = "the labels are numbers with decimals; classes are names, or numbers from 0".to_owned();
        return Err(fail(train, message));
    };
    let Some(Labels::Classes(known)) = known else { return Ok((found, Vec::new())) };
    let are_numbers = found == Labels::numbered(names.len()) && names.len() == known.len();
    if are_numbers || names.iter().all(|name| known.contains(name)) {
        return Ok((Labels::Classes(known.clone()), Vec::new()));
    }
    let count = (known.len(), names.len());
    match opener.spec.model.from {
        Some(_) => {
            let notice = format!(
                "the {} classes of the trained model are not those of the data: a new head is trained for {} classes",
                count.0, count.1
            );
            Ok((found, vec![notice]))
        }
        // The config has no names for them.
        None if count.0 == count.1 && Labels::numbered(count.0) == Labels::Classes(known.clone()) => {
            Ok((found, Vec::new()))
        }
        None => Ok((Labels::Classes(known.clone()), Vec::new())),
    }
}

/// The names of the folders that pictures lie in; by number, where they all are numbers.
fn decide_by_folder(train: &Paths, pictures: Vec<ListedPicture>) -> Result<Labels, TrainerError> {
    let names: BTreeSet<String> = pictures.into_iter().filter_map(|picture| picture.class).collect();
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_by_key(|name| name.parse::<u64>().unwrap_or(u64::MAX));
    match names.as_slice() {
        [] => Err(fail(train, "no picture lies in the folder of a class".to_owned())),
        [one] => Err(fail(train, format!("every picture is in the folder {one:?}; a classifier needs two classes"))),
        _ => Ok(Labels::Classes(names)),
    }
}

fn fail(paths: &Paths, message: String) -> TrainerError {
    TrainerError::Data { path: PathBuf::from(paths.0.join(", ")), line: None, message }
}

enum Listing {
    Rows(Rows),
    Pictures(Vec<ListedPicture>),
}

impl Listing {
    fn open(opener: &Opener<'_>, paths: &Paths) -> Result<Self, TrainerError> {
        match open_pictures(paths)? {
            Some(pictures) => Ok(Self::Pictures(pictures)),
            None => opener.rows(paths, &["image", "label"].map(|role| opener.spec.data.field(role))).map(Self::Rows),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.len(),
            Self::Pictures(pictures) => pictures.len(),
        }
    }

    /// An error of this row.
    fn fail(&self, row: usize, message: String) -> TrainerError {
        match self {
            Self::Rows(rows) => rows.fail(row, message).into(),
            Self::Pictures(pictures) => TrainerError::Data { path: pictures[row].path.clone(), line: None, message },
        }
    }
}

struct PictureClasses {
    listing: Listing,
    /// The rows that have a label, where some have none and are left out.
    kept: Option<Vec<usize>>,
    pictures: PictureColumn,
    labelling: Arc<Labelling>,
    skip_bad: bool,
    /// Whether rows may have no label.
    predicts: bool,
    /// How pictures change in training, and by which seed.
    augment: Option<(Augment, u64)>,
    /// Samples whose picture could not be read, each once however often it is asked for.
    bad: Mutex<HashSet<usize>>,
}

impl PictureClasses {
    /// Reads every row once, but decodes no picture. Returns what is to be said about the labels.
    fn check(&mut self, opener: &Opener<'_>) -> Result<Vec<String>, TrainerError> {
        let (trimmed, skipped) = (NoticedLabels::default(), SkippedRows::default());
        let check = |row: usize| {
            if let Listing::Rows(rows) = &self.listing
                && let Some(label @ Value::String(text)) = &rows.values(row)?[LABEL]
                && self.labelling.trims(label)
            {
                trimmed.see(row, text);
            }
            let (picture, label) = self.row(row)?;
            match (picture.check(), label) {
                (Err(message), _) if !self.skip_bad => {
                    Err(self.listing.fail(row, picture.unreadable(&message, self.predicts)))
                }
                (_, None) if !self.predicts => {
                    skipped.add(row, "a label");
                    Ok([])
                }
                _ => Ok([]),
            }
        };
        match &self.listing {
            Listing::Rows(rows) => drop(check_rows(rows, opener.pool, check)?),
            Listing::Pictures(pictures) => (0..pictures.len()).try_for_each(|row| check(row).map(drop))?,
        }
        let name = |row: usize| match &self.listing {
            Listing::Rows(rows) => file_and_line(rows, row),
            Listing::Pictures(pictures) => pictures[row].path.display().to_string(),
        };
        let mut notices: Vec<String> = trimmed.trimmed(name).into_iter().collect();
        let (empty, said) = skipped.finish(name);
        notices.extend(said);
        if !empty.is_empty() {
            let kept: Vec<usize> = (0..self.listing.len()).filter(|row| empty.binary_search(row).is_err()).collect();
            if kept.is_empty() {
                return Err(self.listing.fail(0, "it has no label, nor has any other".to_owned()));
            }
            self.kept = Some(kept);
        }
        Ok(notices)
    }

    /// The row of a sample.
    fn row_of(&self, index: usize) -> usize {
        self.kept.as_ref().map_or(index, |kept| kept[index])
    }

    /// The picture and the class of a row; no class where it has none and may have none.
    fn row(&self, row: usize) -> Result<(Picture<'_>, Option<Column>), TrainerError> {
        let column = |label: &Value| self.labelling.column(label).map_err(|message| self.listing.fail(row, message));
        match &self.listing {
            Listing::Rows(rows) => {
                let values = rows.values(row)?;
                let picture = self.pictures.find(rows, row, values[IMAGE].as_ref())?;
                let label = match (&values[LABEL], self.predicts) {
                    // A label that the model does not know does not count.
                    (Some(label), true) => self.labelling.column(label).ok(),
                    (None, true) => None,
                    (label, false) => {
                        label_of(rows, row, LABEL, label.as_ref(), self.skip_bad)?.map(column).transpose()?
                    }
                };
                Ok((picture, label))
            }
            Listing::Pictures(pictures) => {
                let ListedPicture { path, class, .. } = &pictures[row];
                let label = class.as_ref().map(|class| column(&Value::from(class.as_str()))).transpose();
                let label = match label {
                    // A folder that is no class may have any name.
                    Err(_) if self.predicts => None,
                    Ok(None) if !self.predicts && !self.skip_bad => {
                        let message = "it lies in the folder of no class; data.skip_bad: true skips such pictures";
                        return Err(self.listing.fail(row, message.to_owned()));
                    }
                    label => label?,
                };
                Ok((Picture::File(path.clone()), label))
            }
        }
    }

    fn read(&self, index: usize, view: Option<View>) -> Result<Option<Sample>, TrainerError> {
        let row = self.row_of(index);
        let read = || {
            let (picture, label) = self.row(row)?;
            let label = match (label, &self.listing) {
                (Some(label), _) => label,
                (None, Listing::Rows(rows)) if !self.predicts => return Err(no_label(rows, row)),
                (None, _) => self.labelling.unknown(),
            };
            match self.pictures.values(&picture, view) {
                Ok(values) => {
                    let columns = vec![("pixel_values", values), ("labels", label)];
                    Ok(Some(Sample { columns, targets: 1 }))
                }
                Err(_) if self.skip_bad => Ok(None),
                Err(message) => Err(self.listing.fail(row, picture.unreadable(&message, self.predicts))),
            }
        };
        match &self.listing {
            Listing::Rows(rows) => during(rows.place(row), read),
            Listing::Pictures(_) => read(),
        }
    }

    fn counted(&self, index: usize, sample: Option<Sample>) -> Option<Sample> {
        if sample.is_none() {
            self.bad.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
        }
        sample
    }
}

impl Source for PictureClasses {
    fn len(&self) -> usize {
        self.kept.as_ref().map_or_else(|| self.listing.len(), Vec::len)
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.read(index, None).map(|sample| self.counted(index, sample))
    }

    fn sample_in_epoch(&self, index: usize, epoch: u64) -> Result<Option<Sample>, TrainerError> {
        let view = self.augment.map(|(augment, seed)| View::new(augment, seed, epoch, self.row_of(index)));
        self.read(index, view).map(|sample| self.counted(index, sample))
    }

    fn peek(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.read(index, None)
    }

    fn class_of(&self, index: usize) -> Result<Option<i64>, TrainerError> {
        let (_, label) = self.row(self.row_of(index))?;
        Ok(if let Some(Column::Whole(class)) = label { Some(class) } else { None })
    }

    fn skipped(&self) -> u64 {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

/// Files of tensors are not trusted: their first and last sample must fit the model.
fn check_shapes(source: &dyn Source, paths: &Paths, shape: &[i64]) -> Result<(), TrainerError> {
    for index in [0, source.len() - 1] {
        let Some(sample) = source.sample(index)? else { continue };
        match sample.column("pixel_values") {
            Some(Column::Values { shape: found, .. }) if found == shape => {}
            Some(Column::Values { shape: found, .. }) => {
                return Err(fail(paths, format!("pixel_values has pictures of {found:?}; the model wants {shape:?}")));
            }
            _ => return Err(fail(paths, "it has no pixel_values [samples, channels, height, width]".to_owned())),
        }
    }
    Ok(())
}
