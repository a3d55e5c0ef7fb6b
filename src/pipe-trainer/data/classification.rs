//! Texts, or pairs of them, with a class, several labels or a number.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use pipe_data::Rows;
use pipe_model::{Labels, TaskData};
use pipe_spec::pipeline::Paths;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::Value;

use super::labelling::{Labelling, NoticedLabels, Seen, labels_of, names_of};
use super::rows::{
    Opener, SkippedRows, check_rows, collect_names, during, file_and_line, holds_tensors, is_lacking, no_text,
    skip_hint,
};
use super::source::Sources;
use super::tensors::TensorRows;
use super::{Column, Sample, Source};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

const TEXT: usize = 0;
const TEXT_PAIR: usize = 1;
const LABEL: usize = 2;

/// The value that a row must have as its label, in words.
const A_LABEL: &str = "a class or a number";

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Classification { vocab_size, pad_token_id, max_length, token_types, labels } = task_data else {
        panic!("not for classes: {task_data:?}")
    };
    let data = &opener.spec.data;
    let length = data.max_length.get().min(*max_length);
    let decided = match labels {
        Some(labels) if opener.predicts || !labels.are_unnamed() || holds_tensors(&data.train) => labels.clone(),
        Some(unnamed) => named_by_data(opener, unnamed)?.unwrap_or_else(|| unnamed.clone()),
        None => decide(opener)?,
    };
    if let (Some(_), Labels::Classes(_) | Labels::Number) = (&data.label_separator, &decided) {
        let message = "the model predicts one label a text, and its config.json says which; leave label_separator out, or \
                       num_labels and id2label";
        return Err(TrainerError::config("data.label_separator", message.to_owned()));
    }
    let all = || std::iter::once(&data.train).chain(&data.eval);
    let tokens = if all().all(holds_tensors) {
        None
    } else {
        let tokens = Tokens::open(opener.tokenizer()?, opener.arch(), "max_length", length)?;
        Some(Arc::new(tokens.check_vocabulary(*vocab_size)?.check_padding(*pad_token_id)?))
    };
    let labelling = Arc::new(Labelling::new(decided.clone(), data.label_separator.as_deref()));
    let notices = RefCell::new(Vec::new());
    let open_rows = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        let tokens = tokens.clone().unwrap_or_else(|| panic!("rows without a tokenizer"));
        let mut classes = Classes {
            rows: rows(opener, paths)?,
            longest: Vec::new(),
            tokens,
            labelling: Arc::clone(&labelling),
            token_types: *token_types,
            skip_bad: data.skip_bad,
            predicts: opener.predicts,
        };
        notices.borrow_mut().extend(classes.check(opener.pool, data.fields.contains_key("text_pair"))?);
        Ok(Arc::new(classes))
    };
    let open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        let source = opener.part(paths, &open_rows)?;
        if holds_tensors(paths) {
            check_tensors(paths, source.as_ref(), &decided, length)?;
        }
        Ok(source)
    };
    let padding = |column, with| opener.padding(column, with, length);
    let (train, eval) = (open(&data.train)?, data.eval.as_ref().map(open).transpose()?);
    Ok(Sources {
        train,
        eval,
        paddings: vec![padding("input_ids", *pad_token_id), padding("attention_mask", 0), padding("token_type_ids", 0)],
        tokens: None,
        classes: match &decided {
            Labels::Classes(names) => Some(names.len()),
            Labels::Number | Labels::Several(_) => None,
        },
        labels: (labels.as_ref() != Some(&decided)).then_some(decided),
        notices: notices.take(),
    })
}

struct Classes {
    rows: Rows,
    longest: Vec<usize>,
    tokens: Arc<Tokens>,
    labelling: Arc<Labelling>,
    token_types: bool,
    skip_bad: bool,
    /// Whether rows may have no label.
    predicts: bool,
}

fn rows(opener: &Opener<'_>, paths: &Paths) -> Result<Rows, TrainerError> {
    opener.rows(paths, &["text", "text_pair", "label"].map(|role| opener.spec.data.field(role)))
}

/// The values of a row.
struct Row {
    text: String,
    text_pair: Option<String>,
    label: Column,
}

impl Classes {
    /// Reads every row once. Where the pipeline names a column for it, the second text must be there. Returns what is to be
    /// said about the rows.
    fn check(&mut self, pool: &ThreadPool, pairs: bool) -> Result<Vec<String>, TrainerError> {
        let (trimmed, unknown) = (NoticedLabels::default(), NoticedLabels::default());
        let skipped = SkippedRows::default();
        let needed = if pairs { TEXT..=TEXT_PAIR } else { TEXT..=TEXT };
        let longest = check_rows(&self.rows, pool, |row| {
            let mut values = self.rows.values(row)?;
            if self.skip_bad && values[needed.clone()].iter().any(|value| is_lacking(value.as_ref())) {
                skipped.add(row, "a text");
                return Ok([0]);
            }
            match self.label(row, values[LABEL].as_ref(), self.skip_bad)? {
                None if !self.predicts => {
                    skipped.add(row, "a label");
                    return Ok([0]);
                }
                Some(label) if self.labelling.column(label).is_err() && self.predicts => {
                    unknown.see(row, label.as_str().unwrap_or(&label.to_string()));
                }
                Some(label) if self.labelling.lacks_number(label) && self.skip_bad => {
                    skipped.add(row, "a number as label");
                    return Ok([0]);
                }
                Some(label @ Value::String(text)) if self.labelling.trims(label) => trimmed.see(row, text),
                _ => {}
            }
            match self.read(row, &mut values)? {
                Row { text_pair: None, .. } if pairs => Err(no_text(&self.rows, row, TEXT_PAIR, None, self.predicts)),
                Row { text, text_pair, .. } => Ok([text.len() + text_pair.map_or(0, |text| text.len())]),
            }
        })?;
        let mut notices: Vec<String> = trimmed.trimmed(|row| file_and_line(&self.rows, row)).into_iter().collect();
        notices.extend(unknown.unknown(|row| file_and_line(&self.rows, row)));
        notices.extend(skipped.leave_out(&mut self.rows)?);
        self.longest = longest.rows().into_iter().filter_map(|row| self.rows.index_of(row)).collect();
        Ok(notices)
    }

    fn read(&self, row: usize, values: &mut [Option<Value>]) -> Result<Row, TrainerError> {
        let (text, pair, label) = (values[TEXT].take(), values[TEXT_PAIR].take(), values[LABEL].take());
        Ok(Row {
            text: match text {
                Some(Value::String(text)) => text,
                other => return Err(no_text(&self.rows, row, TEXT, other.as_ref(), self.predicts)),
            },
            text_pair: match pair {
                Some(Value::String(text)) => Some(text),
                None | Some(Value::Null) => None,
                other => return Err(self.rows.not_a_text(row, TEXT_PAIR, other.as_ref()).into()),
            },
            label: match self.label(row, label.as_ref(), false)? {
                Some(label) => match self.labelling.column(label) {
                    Ok(column) => column,
                    Err(_) if self.predicts => self.labelling.unknown(),
                    Err(message) => return Err(self.rows.fail(row, message).into()),
                },
                None if self.predicts => self.labelling.unknown(),
                None => return Err(no_label(&self.rows, row)),
            },
        })
    }

    /// The label of a row; nothing where it has none and may have none.
    fn label<'a>(
        &self,
        row: usize,
        label: Option<&'a Value>,
        skip_bad: bool,
    ) -> Result<Option<&'a Value>, TrainerError> {
        match label {
            None if self.predicts => Ok(None),
            // No label is an answer too.
            Some(label) if self.labelling.is_several() => Ok(Some(label)),
            // A label of another kind does not count.
            _ if self.predicts => Ok(label_of(&self.rows, row, LABEL, label, true).unwrap_or_default()),
            _ => label_of(&self.rows, row, LABEL, label, skip_bad),
        }
    }
}

impl Source for Classes {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.rows.number(index); 2]
    }

    fn longest(&self) -> Vec<usize> {
        self.longest.clone()
    }

    fn caption(&self, index: usize) -> Result<Option<String>, TrainerError> {
        let read = || self.read(index, &mut self.rows.values(index)?);
        let Row { text, text_pair, .. } = during(self.rows.place(index), read)?;
        Ok(Some(text_pair.map_or(text.clone(), |pair| format!("{text}\n{pair}"))))
    }

    fn class_of(&self, index: usize) -> Result<Option<i64>, TrainerError> {
        let Row { label, .. } = during(self.rows.place(index), || self.read(index, &mut self.rows.values(index)?))?;
        Ok(if let Column::Whole(class) = label { Some(class) } else { None })
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (ids, types, label) = during(self.rows.place(index), || {
            let Row { text, text_pair, label } = self.read(index, &mut self.rows.values(index)?)?;
            let (ids, types) = match text_pair {
                Some(pair) => self.tokens.encode_pair(&text, &pair)?,
                None => {
                    let ids = self.tokens.encode(&text)?;
                    let types = vec![0; ids.len()];
                    (ids, types)
                }
            };
            Ok((ids, types, label))
        })?;
        let mut columns = vec![
            ("attention_mask", Column::Tokens(vec![1; ids.len()])),
            ("input_ids", Column::Tokens(ids)),
            ("labels", label),
        ];
        if self.token_types {
            columns.push(("token_type_ids", Column::Tokens(types)));
        }
        Ok(Some(Sample { columns, targets: 1 }))
    }
}

/// The label of a row; nothing where it is empty and such rows are left out.
pub fn label_of<'a>(
    rows: &Rows,
    row: usize,
    column: usize,
    label: Option<&'a Value>,
    skip_bad: bool,
) -> Result<Option<&'a Value>, TrainerError> {
    match label {
        Some(Value::String(name)) if name.trim().is_empty() && !skip_bad => Err(no_label(rows, row)),
        Some(Value::String(name)) if name.trim().is_empty() => Ok(None),
        Some(Value::Null) if skip_bad => Ok(None),
        Some(value @ (Value::String(_) | Value::Number(_) | Value::Bool(_))) => Ok(Some(value)),
        other => Err(rows.problem(row, column, other, A_LABEL).into()),
    }
}

pub fn no_label(rows: &Rows, row: usize) -> TrainerError {
    rows.fail(row, format!("the label is empty{}", skip_hint(false))).into()
}

/// The labels of the training data.
pub fn decide(opener: &Opener<'_>) -> Result<Labels, TrainerError> {
    let data = &opener.spec.data;
    if holds_tensors(&data.train) {
        return decide_tensors(&data.train);
    }
    let (rows, separator) = (opener.rows(&data.train, &[data.field("label")])?, data.label_separator.as_deref());
    if has_several(&rows, separator)? {
        return decide_several(&rows, opener.pool, separator);
    }
    let (rows, seen) = seen(opener, rows)?;
    seen.decide().map_err(|(row, message)| rows.fail(row, message).into())
}

/// The labels of a model that has a number of classes and no names for them, where the data has as many.
fn named_by_data(opener: &Opener<'_>, unnamed: &Labels) -> Result<Option<Labels>, TrainerError> {
    let data = &opener.spec.data;
    let rows = opener.rows(&data.train, &[data.field("label")])?;
    if has_several(&rows, data.label_separator.as_deref())? {
        return Ok(None);
    }
    Ok(seen(opener, rows)?.1.names(unnamed.count() as usize))
}

/// All labels of the training data.
fn seen(opener: &Opener<'_>, rows: Rows) -> Result<(Rows, Seen), TrainerError> {
    let data = &opener.spec.data;
    let read = |index: usize| -> Result<Seen, TrainerError> {
        let label = rows.values(index)?.swap_remove(0);
        let label = label_of(&rows, index, 0, label.as_ref(), data.skip_bad)?;
        Ok(label.map_or_else(Seen::default, |label| Seen::of(index, label)))
    };
    check_rows(&rows, opener.pool, |index| read(index).map(|_| []))?;
    let all = (0..rows.len()).into_par_iter().map(read);
    let seen = opener.pool.install(|| all.try_reduce(Seen::default, |a, b| Ok(a.and(b))))?;
    Ok((rows, seen))
}

/// Whether a text can have several labels: the pipeline names a separator, or the first label is a list.
fn has_several(rows: &Rows, separator: Option<&str>) -> Result<bool, TrainerError> {
    for row in 0..rows.len() {
        match rows.values(row)?.swap_remove(0) {
            _ if separator.is_some() => return Ok(true),
            None | Some(Value::Null) => {}
            Some(value) => return Ok(value.is_array()),
        }
    }
    Ok(false)
}

fn decide_several(rows: &Rows, pool: &ThreadPool, separator: Option<&str>) -> Result<Labels, TrainerError> {
    let read = |row: usize| -> Result<BTreeSet<String>, TrainerError> {
        match rows.values(row)?.swap_remove(0) {
            None => Err(rows.problem(row, 0, None, A_LABEL).into()),
            Some(value) => {
                let labels = labels_of(&value, separator).map_err(|message| rows.fail(row, message))?;
                Ok(names_of(&labels).collect())
            }
        }
    };
    let names = collect_names(rows, pool, read)?;
    match names.is_empty() {
        true => Err(rows.fail(0, "no row has a label".to_owned()).into()),
        false => Ok(Labels::Several(names.into_iter().collect())),
    }
}

fn decide_tensors(paths: &Paths) -> Result<Labels, TrainerError> {
    let source = TensorRows::open(paths)?;
    let mut seen = Seen::default();
    for index in 0..source.len() {
        let label = match label(paths, &source, index)? {
            Column::Real(number) => Value::from(f64::from(number)),
            Column::Whole(class) => Value::from(class),
            Column::Tokens(_) | Column::PerToken(_) | Column::Values { .. } => {
                return Err(fail(paths, index, "labels are no classes".into()));
            }
        };
        seen = seen.and(Seen::of(index, &label));
    }
    seen.decide().map_err(|(row, message)| fail(paths, row, message))
}

/// A class or a position beyond those of the model would be an index out of bounds.
pub fn check_tensors(paths: &Paths, source: &dyn Source, labels: &Labels, max_length: u32) -> Result<(), TrainerError> {
    for index in 0..source.len() {
        let length = source.sample(index)?.map_or(0, |sample| sample.length());
        if length > max_length as usize {
            return Err(fail(paths, index, format!("it has {length} tokens; allowed: {max_length}")));
        }
        match (label(paths, source, index)?, labels) {
            (Column::Whole(class), _) if (0..labels.count()).contains(&class) => {}
            (Column::Whole(_) | Column::Real(_), Labels::Number) => {}
            (Column::Whole(class), Labels::Classes(_)) => {
                return Err(fail(paths, index, format!("its label is {class}; allowed: 0 to {}", labels.count() - 1)));
            }
            _ => return Err(fail(paths, index, "its label is no class of the model".to_owned())),
        }
    }
    Ok(())
}

fn label(paths: &Paths, source: &dyn Source, index: usize) -> Result<Column, TrainerError> {
    let columns = source.sample(index)?.map_or(Vec::new(), |sample| sample.columns);
    let label = columns.into_iter().find(|(name, _)| *name == "labels").map(|(_, column)| column);
    label.ok_or_else(|| fail(paths, index, "it has no labels".to_owned()))
}

fn fail(paths: &Paths, index: usize, message: String) -> TrainerError {
    TrainerError::Data {
        path: PathBuf::from(paths.0.join(", ")),
        line: None,
        message: format!("sample {index}: {message}"),
    }
}
