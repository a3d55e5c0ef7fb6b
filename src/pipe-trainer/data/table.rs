//! Tables: rows of numbers and categories, with a class or a number.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use pipe_data::{Rows, is_missing_number};
use pipe_model::{Feature, LabelUnit, Labels, TableColumns, TaskData};
use pipe_spec::pipeline::{Data, Paths};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde_json::{Map, Value};

use super::features::{Cell, FeatureEncoder, FeatureSurvey};
use super::labelling::{NoticedLabels, are_mostly_numbers};
use super::rows::{Opener, SkippedRows, choose_held_out, during, file_and_line, open_rows, skip_hint};
use super::source::Sources;
use super::{Column, IGNORED, Sample, Source};
use crate::error::TrainerError;

/// Whole numbers are classes where there are no more of them, and each is in this many rows on average.
const MOST_NUMBERED_CLASSES: usize = 20;
const ROWS_PER_CLASS: usize = 3;
/// Names that a message lists at most.
const LISTED: usize = 20;

const ONE_LABEL: &str = "every row has this label; there is nothing to learn";

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Table { columns, labels } = task_data else { panic!("not for tables: {task_data:?}") };
    let data = &opener.spec.data;
    let names = match columns {
        Some(columns) => columns.features.iter().map(|feature| feature.name.clone()).collect(),
        None => candidates(data)?,
    };
    let mut all = TableRows::open(opener, &data.train, &names)?;
    let labels = all.decide_labels(labels.as_ref(), columns.is_some())?;
    let targets = all.targets(opener, &labels)?;
    let (train, held_out) = split(opener, &targets)?;
    let columns = match columns {
        Some(columns) => columns.clone(),
        None => all.decide_columns(&labels, &targets, &train)?,
    };
    all.use_columns_of(&columns.features);
    let encoder = FeatureEncoder::new(columns.features.clone());
    let mut notices = Vec::new();
    let mut part =
        |rows: &mut TableRows, targets: &[Column], kept: &[usize]| -> Result<Arc<dyn Source>, TrainerError> {
            let (inputs, strays) = rows.encode(opener, &encoder, kept)?;
            notices.extend(rows.notices.drain(..).chain(strays));
            let targets = kept.iter().map(|index| targets[*index].clone()).collect();
            let numbers = kept.iter().map(|index| rows.number(*index)).collect();
            Ok(Arc::new(Table { inputs, targets, numbers, keys: columns.export() }))
        };
    let train = part(&mut all, &targets, &train)?;
    let eval = match &data.eval {
        _ if opener.predicts => None,
        None if held_out.is_empty() => None,
        None => Some(part(&mut all, &targets, &held_out)?),
        Some(paths) => {
            let names: Vec<String> = columns.features.iter().map(|feature| feature.name.clone()).collect();
            let mut rows = TableRows::open(opener, paths, &names)?;
            let targets = rows.targets(opener, &labels)?;
            Some(part(&mut rows, &targets, &(0..targets.len()).collect::<Vec<_>>())?)
        }
    };
    Ok(Sources {
        train,
        eval,
        paddings: Vec::new(),
        tokens: None,
        classes: if let Labels::Classes(names) = &labels { Some(names.len()) } else { None },
        labels: Some(labels),
        notices,
    })
}

/// The columns that may be features: all but the label, and those that are to be ignored.
fn candidates(data: &Data) -> Result<Vec<String>, TrainerError> {
    let mut names = open_rows(&data.train, &[])?.all_names();
    let ignored = data.ignored_columns();
    let is_there = |name: &str| names.iter().any(|there| there == name);
    // A single name may have a comma.
    let wanted = if ignored.first().is_some_and(|name| is_there(name)) {
        &ignored[..1]
    } else {
        ignored.get(1..).unwrap_or(&[])
    };
    if let Some(missing) = wanted.iter().find(|name| !is_there(name)) {
        let message = format!("no column {missing:?}; there are: {}", listed(&names));
        return Err(TrainerError::Data { path: PathBuf::from("data.fields.ignore"), line: None, message });
    }
    let label = data.field("label");
    names.retain(|name| name != label && !wanted.contains(&name.as_str()));
    Ok(names)
}

/// The rows to train on, and those that are held out for evaluation: of every class the same share.
fn split(opener: &Opener<'_>, targets: &[Column]) -> Result<(Vec<usize>, Vec<usize>), TrainerError> {
    let data = &opener.spec.data;
    if opener.predicts || data.eval_share == 0.0 {
        return Ok(((0..targets.len()).collect(), Vec::new()));
    }
    let classes: Vec<Option<i64>> = targets.iter().map(class).collect();
    let held_out = choose_held_out(&classes, data.eval_share, opener.spec.train.seed)?;
    let train = (0..targets.len()).filter(|row| held_out.binary_search(row).is_err()).collect();
    Ok((train, held_out))
}

fn class(target: &Column) -> Option<i64> {
    if let Column::Whole(class) = target { Some(*class) } else { None }
}

/// The rows of some files that have a label, and the cells of columns.
struct TableRows {
    rows: Rows,
    /// The row of each sample, and its label as it is written.
    labelled: Vec<(usize, Option<Cell>)>,
    /// Which of the columns behind the label are features; without it, all of them.
    used: Option<Vec<usize>>,
    notices: Vec<String>,
}

impl TableRows {
    /// The row of a sample, counted from 0 over all files.
    fn number(&self, sample: usize) -> usize {
        self.rows.number(self.labelled[sample].0)
    }

    fn open(opener: &Opener<'_>, paths: &Paths, names: &[String]) -> Result<Self, TrainerError> {
        let data = &opener.spec.data;
        let label = data.field("label");
        let columns: Vec<&str> = std::iter::once(label).chain(names.iter().map(String::as_str)).collect();
        let rows = opener.rows(paths, &columns)?;
        let there = rows.all_names();
        let needed = columns.iter().skip(usize::from(opener.predicts));
        if let Some(missing) = needed.copied().find(|name| !there.iter().any(|there| there == name)) {
            let message = format!("no column {missing:?}; it has: {}", listed(&there));
            return Err(TrainerError::Data { path: rows.path(0).to_owned(), line: None, message });
        }
        let (skipped, mut labelled) = (SkippedRows::default(), Vec::with_capacity(rows.len()));
        for row in 0..rows.len() {
            let label = during(rows.place(row), || Ok(rows.values(row)?.swap_remove(0)))?;
            let is_empty = |text: &str| text.trim().is_empty() || text.trim().eq_ignore_ascii_case("nan");
            let label = label.filter(|value| !value.is_null() && !value.as_str().is_some_and(is_empty));
            match label.map(|label| label_cell(label, rows.has_decimal_commas(row))) {
                Some(Cell::Nested) => return Err(rows.fail(row, "the label is a list or an object".to_owned()).into()),
                None if !opener.predicts && data.skip_bad => skipped.add(row, "a label"),
                None if !opener.predicts => {
                    return Err(rows.fail(row, format!("the label is empty{}", skip_hint(false))).into());
                }
                label => labelled.push((row, label)),
            }
        }
        if labelled.is_empty() {
            return Err(rows.fail(0, "the label is empty, and so is that of every other row".to_owned()).into());
        }
        let (_, notices) = skipped.finish(|row| file_and_line(&rows, row));
        Ok(Self { rows, labelled, used: None, notices })
    }

    /// From now on a sample has only the cells of these columns, in their order.
    fn use_columns_of(&mut self, features: &[Feature]) {
        let names = &self.rows.columns()[1..];
        let place = |feature: &Feature| names.iter().position(|name| *name == feature.name);
        self.used = Some(features.iter().filter_map(place).collect());
    }

    /// The cells of a sample, without its label.
    fn cells(&self, index: usize) -> Result<Vec<Cell>, TrainerError> {
        let row = self.labelled[index].0;
        let comma = self.rows.has_decimal_commas(row);
        during(self.rows.place(row), || {
            let mut values: Vec<Option<Value>> = self.rows.values(row)?.into_iter().skip(1).collect();
            if let Some(used) = &self.used {
                values = used.iter().map(|place| values[*place].take()).collect();
            }
            Ok(values.into_iter().map(|value| Cell::of(value, comma)).collect())
        })
    }

    fn fail(&self, index: usize, message: String) -> TrainerError {
        self.rows.fail(self.labelled[index].0, message).into()
    }

    /// The labels: those of a trained model, those that the config asks for, or what the data has.
    fn decide_labels(&self, given: Option<&Labels>, is_trained: bool) -> Result<Labels, TrainerError> {
        let found = || SeenLabels::of(self.labelled.iter().filter_map(|(_, label)| label.as_ref()));
        match given {
            Some(labels) if is_trained => Ok(labels.clone()),
            Some(Labels::Number) => Ok(Labels::Number),
            // Only their number is given.
            Some(labels @ Labels::Classes(names)) if *labels == Labels::numbered(names.len()) => {
                let found = found().classes();
                let message = || format!("found {}; the data has {}: {}", names.len(), found.len(), listed(&found));
                match found.len() == names.len() {
                    true => Ok(Labels::Classes(found)),
                    false => Err(TrainerError::config("num_labels", message())),
                }
            }
            Some(labels) => Ok(labels.clone()),
            None => found().decide().map_err(|message| self.fail(0, message)),
        }
    }

    /// The target of each sample. A label that the model does not know does not count in a row to predict.
    fn targets(&mut self, opener: &Opener<'_>, labels: &Labels) -> Result<Vec<Column>, TrainerError> {
        if *labels == Labels::Number && opener.spec.data.skip_bad && !opener.predicts {
            self.skip_words()?;
        }
        let numbers: HashMap<&str, i64> = match labels {
            Labels::Classes(names) => names.iter().map(String::as_str).zip(0..).collect(),
            Labels::Number | Labels::Several(_) => HashMap::new(),
        };
        let nothing = match labels {
            Labels::Number => Column::Real(f32::NAN),
            Labels::Classes(_) | Labels::Several(_) => Column::Whole(IGNORED),
        };
        let target = |label: &Cell| match (labels, label) {
            (Labels::Several(_), _) => Err("a row of a table has one label".to_owned()),
            (Labels::Number, Cell::Number(number)) if !(*number as f32).is_finite() => {
                Err(format!("the label {number:e} is too large: divide all labels by the same number"))
            }
            (Labels::Number, Cell::Number(number)) => Ok(Column::Real(*number as f32)),
            (Labels::Number, label) => {
                let (label, hint) = (name(label), skip_hint(false));
                Err(format!("the label {label:?} is not a number, and a number is to be predicted{hint}"))
            }
            (Labels::Classes(names), label) => {
                let message = || format!("the label {:?} is no class; allowed: {}", name(label), listed(names));
                numbers.get(name(label).as_str()).copied().map(Column::Whole).ok_or_else(message)
            }
        };
        let (unknown, mut targets) = (NoticedLabels::default(), Vec::with_capacity(self.labelled.len()));
        for (index, (row, label)) in self.labelled.iter().enumerate() {
            targets.push(match label.as_ref().map(|label| (label, target(label))) {
                // Only in rows to predict.
                None => nothing.clone(),
                Some((_, Ok(target))) => target,
                Some((label, Err(_))) if opener.predicts => {
                    unknown.see(*row, &name(label));
                    nothing.clone()
                }
                Some((_, Err(message))) => return Err(self.fail(index, message)),
            });
        }
        self.notices.extend(unknown.unknown(|row| file_and_line(&self.rows, row)));
        Ok(targets)
    }

    /// Leaves out rows whose label is a word where a number is predicted.
    fn skip_words(&mut self) -> Result<(), TrainerError> {
        let is_word = |label: &Option<Cell>| matches!(label, Some(Cell::Text(_)));
        let skipped = SkippedRows::default();
        self.labelled
            .iter()
            .filter(|(_, label)| is_word(label))
            .for_each(|(row, _)| skipped.add(*row, "a number as label"));
        if self.labelled.iter().all(|(_, label)| is_word(label)) {
            return Err(self.fail(0, "its label is no number, nor is that of any other row".to_owned()));
        }
        self.labelled.retain(|(_, label)| !is_word(label));
        self.notices.extend(skipped.finish(|row| file_and_line(&self.rows, row)).1);
        Ok(())
    }

    /// The features, by all rows; their statistics and the unit of the label, by those that are trained on.
    fn decide_columns(
        &mut self,
        labels: &Labels,
        targets: &[Column],
        train: &[usize],
    ) -> Result<TableColumns, TrainerError> {
        let mut survey = FeatureSurvey::new(&self.rows.columns()[1..]);
        for index in 0..self.labelled.len() {
            survey.see(&self.cells(index)?);
        }
        for index in train {
            survey.count(&self.cells(*index)?);
        }
        let (features, others) = survey.decide();
        if features.is_empty() {
            let why = others.unwrap_or_else(|| "there is none beside the label".to_owned());
            return Err(self.fail(0, format!("no column to learn from: {why}")));
        }
        self.notices.extend(others);
        let number = |index: &usize| match (&targets[*index], &self.labelled[*index].1) {
            (Column::Real(_), Some(Cell::Number(number))) => Some(*number),
            _ => None,
        };
        let unit = match labels {
            Labels::Classes(_) | Labels::Several(_) => LabelUnit::default(),
            Labels::Number => {
                unit(&train.iter().filter_map(number).collect::<Vec<_>>()).map_err(|message| self.fail(0, message))?
            }
        };
        Ok(TableColumns { features, unit })
    }

    /// Some of the samples as a model takes them, and a sentence about words where there should be numbers.
    fn encode(
        &self,
        opener: &Opener<'_>,
        encoder: &FeatureEncoder,
        kept: &[usize],
    ) -> Result<(Vec<Vec<f32>>, Option<String>), TrainerError> {
        let encode = |index: &usize| {
            let cells = self.cells(*index)?;
            let place = || self.rows.place(self.labelled[*index].0);
            let stray =
                encoder.stray(&cells).map(|(column, word)| format!("{word:?} in column {column} of {}", place()));
            Ok((encoder.encode(&cells), stray))
        };
        let encoded = opener.pool.install(|| kept.par_iter().map(encode).collect::<Result<Vec<_>, TrainerError>>())?;
        let (inputs, strays): (Vec<_>, Vec<_>) = encoded.into_iter().unzip();
        let strays: Vec<String> = strays.into_iter().flatten().collect();
        let rows = if strays.len() == 1 { "1 row has".to_owned() } else { format!("{} rows have", strays.len()) };
        let sentence = |first| format!("{rows} a word instead of a number, read as no value; the first: {first}");
        Ok((inputs, strays.first().map(sentence)))
    }
}

/// A label as a cell. Words such as "none" are classes.
fn label_cell(label: Value, comma: bool) -> Cell {
    match (Cell::of(Some(label.clone()), comma), label) {
        (Cell::Missing, Value::String(text)) => Cell::Text(text.trim().to_owned()),
        (cell, _) => cell,
    }
}

/// The name of a class.
fn name(label: &Cell) -> String {
    label.category().unwrap_or_default()
}

/// The different labels of all rows.
struct SeenLabels {
    rows: usize,
    /// Rows whose label is a number, and rows with a word that does not say that there is none.
    with_number: usize,
    with_word: usize,
    words: BTreeSet<String>,
    /// By size.
    numbers: Vec<f64>,
}

impl SeenLabels {
    fn of<'a>(labels: impl Iterator<Item = &'a Cell>) -> Self {
        let mut seen = Self { rows: 0, with_number: 0, with_word: 0, words: BTreeSet::new(), numbers: Vec::new() };
        for label in labels {
            seen.rows += 1;
            match label {
                Cell::Number(number) => {
                    seen.with_number += 1;
                    seen.numbers.push(*number);
                }
                label => {
                    let word = name(label);
                    seen.with_word += usize::from(!is_missing_number(&word));
                    seen.words.insert(word);
                }
            }
        }
        seen.numbers.sort_by(f64::total_cmp);
        seen.numbers.dedup();
        seen
    }

    /// Their names: numbers by size, then words by the alphabet.
    fn classes(&self) -> Vec<String> {
        let numbers = self.numbers.iter().map(|number| name(&Cell::Number(*number)));
        numbers.chain(self.words.iter().cloned()).collect()
    }

    fn decide(&self) -> Result<Labels, String> {
        let classes = self.words.len() + self.numbers.len();
        let are_few = classes <= MOST_NUMBERED_CLASSES && classes * ROWS_PER_CLASS <= self.rows;
        let are_whole = self.numbers.iter().all(|number| number.fract() == 0.0);
        match () {
            () if classes < 2 => Err(ONE_LABEL.to_owned()),
            () if self.words.is_empty() && !(are_few && are_whole) => Ok(Labels::Number),
            () if are_mostly_numbers(self.with_number, self.with_word, self.numbers.len()) => Ok(Labels::Number),
            () if classes == self.rows => {
                Err("every row has another label; which column is to be predicted?".to_owned())
            }
            () => Ok(Labels::Classes(self.classes())),
        }
    }
}

/// Mean and standard deviation.
fn unit(numbers: &[f64]) -> Result<LabelUnit, String> {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let std = (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count).sqrt();
    if numbers.iter().all(|number| *number == numbers[0]) {
        return Err(ONE_LABEL.to_owned());
    }
    // Labels are numbers of 32 bits to the model.
    if std < mean.abs() * SMALLEST_SPREAD {
        return Err(format!(
            "the labels are about {mean:e} and differ by about {std:e}, too little for their size: subtract the same \
             number from all of them"
        ));
    }
    Ok(LabelUnit { mean, std })
}

/// The least spread of labels, beside their mean: sixteen steps from one number of 32 bits to the next.
const SMALLEST_SPREAD: f64 = 16.0 * f32::EPSILON as f64;

fn listed(names: &[String]) -> String {
    let more = if names.len() > LISTED { format!(" and {} more", names.len() - LISTED) } else { String::new() };
    names[..names.len().min(LISTED)].join(", ") + &more
}

struct Table {
    inputs: Vec<Vec<f32>>,
    targets: Vec<Column>,
    /// The row of each sample in the data.
    numbers: Vec<usize>,
    /// Keys of config.json.
    keys: Map<String, Value>,
}

impl Source for Table {
    fn len(&self) -> usize {
        self.inputs.len()
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.numbers[index]; 2]
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let values = self.inputs[index].clone();
        let inputs = Column::Values { shape: vec![values.len() as i64], values };
        Ok(Some(Sample { columns: vec![("x", inputs), ("labels", self.targets[index].clone())], targets: 1 }))
    }

    fn class_of(&self, index: usize) -> Result<Option<i64>, TrainerError> {
        Ok(class(&self.targets[index]))
    }

    fn config_keys(&self) -> Map<String, Value> {
        self.keys.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_that_numbers_of_32_bits_cannot_tell_apart_are_named() {
        assert_eq!(unit(&[7.0, 7.0]).unwrap_err(), ONE_LABEL);
        let seconds: Vec<f64> = (0..60).map(|second| 1.7e9 + f64::from(second)).collect();
        assert!(unit(&seconds).unwrap_err().contains("subtract the same number"), "{:?}", unit(&seconds));
        assert!(unit(&[1.7e9, 1.7e9 + 86400.0]).is_ok() && unit(&[2020.0, 2021.0]).is_ok());
    }

    #[test]
    fn the_labels_decide_what_is_predicted() {
        let decide = |labels: &[Value]| {
            let cells: Vec<Cell> = labels.iter().map(|label| label_cell(label.clone(), false)).collect();
            SeenLabels::of(cells.iter()).decide()
        };
        let classes = |names: &[&str]| Ok(Labels::Classes(names.iter().map(|name| (*name).to_owned()).collect()));
        let often = |labels: &[Value]| labels.iter().cycle().take(labels.len() * 3).cloned().collect::<Vec<_>>();
        assert_eq!(decide(&[json!("none"), json!("some "), json!("none")]), classes(&["none", "some"]));
        assert_eq!(decide(&often(&[json!("10"), json!(2), json!("2.0")])), classes(&["2", "10"]));
        assert_eq!(decide(&often(&[json!(true), json!(false)])), classes(&["false", "true"]));
        // Whole numbers that hardly repeat, and others, are amounts.
        assert_eq!(decide(&[json!(10), json!(20), json!(30)]), Ok(Labels::Number));
        assert_eq!(decide(&often(&[json!(1.5), json!(2)])), Ok(Labels::Number));
        let prices: Vec<Value> = (0..40).map(|row| json!(row * 7)).collect();
        assert_eq!(decide(&[prices.clone(), vec![json!("on request"); 4]].concat()), Ok(Labels::Number));
        assert_eq!(decide(&[prices.clone(), vec![json!("n/a"); 20]].concat()), Ok(Labels::Number));
        assert!(matches!(decide(&[prices, vec![json!("cheap"); 20]].concat()), Ok(Labels::Classes(_))));
        assert_eq!(decide(&[json!("u"), json!("u")]), Err(ONE_LABEL.to_owned()));
        assert!(decide(&[json!("u"), json!("v")]).unwrap_err().starts_with("every row has another label"));
    }
}
