//! Words of texts with a label for each. Of the tokens of a word the first has its label, as in the examples of transformers.
//!
//! Rows to predict may be plain texts, which are split into words. One that has more tokens than the model can read at once is read
//! in pieces.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use pipe_data::Rows;
use pipe_model::{Labels, TaskData};
use pipe_spec::pipeline::Paths;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::Value;

use super::labelling::NoticedLabels;
use super::rows::{Opener, check_rows, collect_names, during, file_and_line, holds_tensors};
use super::source::Sources;
use super::words::{self, Words};
use super::{Column, IGNORED, Sample, Source};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

const TOKENS: usize = 0;
const TAGS: usize = 1;
const TEXT: usize = 2;

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::TokenLabels { vocab_size, pad_token_id, max_length, token_types, names } = task_data else {
        panic!("not for labels of tokens: {task_data:?}")
    };
    let data = &opener.spec.data;
    let length = data.max_length.get().min(*max_length);
    let tokens = Tokens::open(opener.tokenizer()?, opener.arch(), "max_length", length)?;
    let tokens = tokens.check_vocabulary(*vocab_size)?.check_padding(*pad_token_id)?.for_words()?;
    let decided = match names {
        Some(names) => names.clone(),
        None => decide(opener, &data.train)?,
    };
    let shared =
        Arc::new(Shared { tokens, names: decided.clone(), token_types: *token_types, length: length as usize });
    let notices = RefCell::new(Vec::new());
    let open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        let (opened, said) = LabelledWords::open(opener, paths, Arc::clone(&shared))?;
        notices.borrow_mut().extend(said);
        Ok(Arc::new(opened))
    };
    let padding = |column, with| opener.padding(column, with, length);
    let (train, eval) = (open(&data.train)?, data.eval.as_ref().map(open).transpose()?);
    Ok(Sources {
        train,
        eval,
        paddings: vec![
            padding("input_ids", *pad_token_id),
            padding("attention_mask", 0),
            padding("token_type_ids", 0),
            padding("labels", IGNORED),
            padding("words", IGNORED),
        ],
        tokens: None,
        labels: names.is_none().then_some(Labels::Classes(decided)),
        classes: None,
        notices: notices.take(),
    })
}

/// Shared by the training and the evaluation data.
struct Shared {
    tokens: Tokens,
    names: Vec<String>,
    token_types: bool,
    /// Tokens of a sample at most.
    length: usize,
}

struct LabelledWords {
    rows: Rows,
    longest: Vec<usize>,
    shared: Arc<Shared>,
    predicts: bool,
    /// Where rows are predicted, the words of a row that are read at once.
    pieces: Option<Vec<(usize, Range<usize>)>>,
}

fn rows(opener: &Opener<'_>, paths: &Paths) -> Result<Rows, TrainerError> {
    if holds_tensors(paths) {
        let message = "files of tensors are not for labels of tokens; give tokens and tags".to_owned();
        return Err(TrainerError::Data { path: paths.0.join(", ").into(), line: None, message });
    }
    opener.rows(paths, &["tokens", "tags", "text"].map(|role| opener.spec.data.field(role)))
}

/// The labels of the training data.
fn decide(opener: &Opener<'_>, paths: &Paths) -> Result<Vec<String>, TrainerError> {
    let rows = rows(opener, paths)?;
    let read = |row: usize| -> Result<BTreeSet<String>, TrainerError> {
        Ok(words_of(&rows, row, false)?.tags.unwrap_or_default().into_iter().collect())
    };
    let names = collect_names(&rows, opener.pool, read)?;
    match names.len() {
        0 | 1 => Err(rows.fail(0, "every token has the same label: there is nothing to learn".to_owned()).into()),
        _ => {
            let mut names: Vec<String> = names.into_iter().collect();
            // Where all are numbers, by size.
            if let Some(mut numbers) = names.iter().map(|name| name.parse::<i64>().ok()).collect::<Option<Vec<i64>>>() {
                numbers.sort_unstable();
                names = numbers.into_iter().map(|number| number.to_string()).collect();
            }
            Ok(names)
        }
    }
}

/// The words of a row, and their labels, which may be missing in a row to predict.
fn words_of(rows: &Rows, row: usize, predicts: bool) -> Result<Words, TrainerError> {
    let mut values = rows.values(row)?;
    let (tokens, tags, text) = (values[TOKENS].take(), values[TAGS].take(), values[TEXT].take());
    if let (true, None, Some(Value::String(text))) = (predicts, &tokens, &text) {
        return Ok(Words::of_text(text));
    }
    let list = |column: usize, value: Option<Value>| match words::list(value.as_ref()) {
        Some(list) => Ok(list),
        None => Err(rows.problem(row, column, value.as_ref(), "a list of texts")),
    };
    let words = list(TOKENS, tokens)?;
    let tags = match tags {
        None | Some(Value::Null) if predicts => None,
        tags => Some(list(TAGS, tags)?),
    };
    if words.is_empty() {
        return Err(rows.fail(row, "the list of tokens is empty".to_owned()).into());
    }
    if let Some(tags) = tags.as_ref().filter(|tags| tags.len() != words.len()) {
        let message = format!("{} tokens and {} tags; every token needs one", words.len(), tags.len());
        return Err(rows.fail(row, message).into());
    }
    Ok(Words { tags, ..Words::joined(words) })
}

impl LabelledWords {
    /// And what is to be said about the labels.
    fn open(opener: &Opener<'_>, paths: &Paths, shared: Arc<Shared>) -> Result<(Self, Option<String>), TrainerError> {
        let (rows, predicts) = (rows(opener, paths)?, opener.predicts);
        let mut opened = Self { rows, longest: Vec::new(), shared, predicts, pieces: None };
        let unknown = NoticedLabels::default();
        let longest = check_rows(&opened.rows, opener.pool, |row| {
            let Words { words, tags, .. } = words_of(&opened.rows, row, predicts)?;
            let numbers = opened.numbers(row, tags.as_deref())?;
            for (tag, number) in tags.iter().flatten().zip(numbers.iter().flatten()) {
                if *number == IGNORED {
                    unknown.see(row, tag);
                }
            }
            Ok([words.iter().map(|word| word.len() + 1).sum()])
        })?;
        opened.longest = longest.rows();
        if opener.predicts {
            opened.pieces = Some(opened.cut(opener.pool)?);
        }
        let notice = unknown.unknown(|row| file_and_line(&opened.rows, row));
        Ok((opened, notice))
    }

    /// The numbers of labels. In rows to predict, one that the model does not know does not count.
    fn numbers(&self, row: usize, tags: Option<&[String]>) -> Result<Option<Vec<i64>>, TrainerError> {
        let names = &self.shared.names;
        let number = |tag: &String| {
            let known = names.iter().position(|name| name == tag).map(|number| number as i64);
            known.or(self.predicts.then_some(IGNORED)).ok_or_else(|| {
                let message = format!("the tag {tag:?} is no label of the model; allowed: {}", names.join(", "));
                self.rows.fail(row, message).into()
            })
        };
        tags.map(|tags| tags.iter().map(number).collect()).transpose()
    }

    /// Cuts rows into pieces that the model can read at once, between words.
    fn cut(&self, pool: &ThreadPool) -> Result<Vec<(usize, Range<usize>)>, TrainerError> {
        let room = self.shared.length - self.shared.tokens.encode("")?.len();
        let cut = |row: usize| -> Result<Vec<(usize, Range<usize>)>, TrainerError> {
            let words = words_of(&self.rows, row, true)?.words;
            let counts = during(self.rows.place(row), || {
                words
                    .iter()
                    .map(|word| Ok(self.shared.tokens.encode_plain(word)?.len()))
                    .collect::<Result<Vec<_>, TrainerError>>()
            })?;
            Ok(words::pieces(&counts, room).into_iter().map(|piece| (row, piece)).collect())
        };
        let all: Result<Vec<Vec<_>>, TrainerError> =
            pool.install(|| (0..self.rows.len()).into_par_iter().map(cut).collect());
        Ok(all?.concat())
    }

    /// The row of a sample, and those of its words that it has.
    fn words(&self, index: usize) -> Result<(usize, Words), TrainerError> {
        let Some(pieces) = &self.pieces else { return Ok((index, words_of(&self.rows, index, false)?)) };
        let (row, range) = pieces[index].clone();
        let whole = words_of(&self.rows, row, true)?;
        let words = Words {
            words: whole.words[range.clone()].to_vec(),
            tags: whole.tags.map(|tags| tags[range.clone()].to_vec()),
            places: whole.places[range].to_vec(),
            ..whole
        };
        Ok((row, words))
    }
}

impl Source for LabelledWords {
    fn len(&self) -> usize {
        self.pieces.as_ref().map_or_else(|| self.rows.len(), Vec::len)
    }

    fn longest(&self) -> Vec<usize> {
        self.longest.clone()
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.pieces.as_ref().map_or(index, |pieces| pieces[index].0); 2]
    }

    fn sentence(&self, index: usize) -> Result<Option<Words>, TrainerError> {
        self.words(index).map(|(_, words)| Some(words))
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (row, Words { words, tags, .. }) = self.words(index)?;
        let numbers = self.numbers(row, tags.as_deref())?;
        let (ids, words) = during(self.rows.place(row), || self.shared.tokens.encode_split(&words))?;
        let mut before = None;
        let mut first = |word: &Option<usize>| {
            let is_first = word.is_some() && *word != before;
            before = *word;
            word.filter(|_| is_first)
        };
        let firsts: Vec<Option<usize>> = words.iter().map(&mut first).collect();
        let label = |word: &Option<usize>| match (word, &numbers) {
            (Some(word), Some(numbers)) => numbers[*word],
            _ => IGNORED,
        };
        let labels: Vec<i64> = firsts.iter().map(label).collect();
        let targets = labels.iter().filter(|label| **label != IGNORED).count() as u64;
        let mut columns =
            vec![("attention_mask", Column::Tokens(vec![1; ids.len()])), ("labels", Column::PerToken(labels))];
        if self.shared.token_types {
            columns.push(("token_type_ids", Column::Tokens(vec![0; ids.len()])));
        }
        if self.pieces.is_some() {
            // The word that a token is the first of.
            let words = firsts.iter().map(|word| word.map_or(IGNORED, |word| word as i64)).collect();
            columns.push(("words", Column::PerToken(words)));
        }
        columns.push(("input_ids", Column::Tokens(ids)));
        Ok(Some(Sample { columns, targets }))
    }
}
