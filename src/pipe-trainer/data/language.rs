//! Data of a language model: texts packed to full rows, or rows of tokens that are ready.
//!
//! A .txt file holds documents with blank lines between them; in .jsonl and .csv every row is one. An end token stands behind
//! each where the tokenizer has one. `labels` are a row's tokens themselves: the model shifts them.
//!
//! The rows that a language model predicts: texts whose tokens are scored, or prompts that are continued. Each by itself, unlike
//! the packed rows of a training.

use std::sync::Arc;

use pipe_data::Rows;
use pipe_model::TaskData;
use pipe_spec::pipeline::{Data, PROMPT, Pad, Paths};
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::Value;

use super::packed::{PackedRows, RowShape};
use super::rows::{Opener, SkippedRows, check_rows, during, no_text, open_documents, open_rows, text_of};
use super::source::Sources;
use super::tensors::ReadyRows;
use super::{Column, IGNORED, Padding, Sample, Source, conversations};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Language { vocab_size, max_length, joins_texts } = *task_data else {
        panic!("not for rows of tokens: {task_data:?}")
    };
    let data = &opener.spec.data;
    if data.is_chat() && joins_texts {
        let message =
            "conversations are for models that talk, such as llama; this one takes texts: {text: COLUMN}".to_owned();
        return Err(TrainerError::Data { path: "data.fields".into(), line: None, message });
    }
    if data.is_chat() {
        return conversations::open(opener, vocab_size, max_length);
    }
    let shape = RowShape {
        length: data.max_length.get().min(max_length) as usize,
        shown: opener.spec.evaluate.max_tokens.get() as usize,
    };
    let ready = |paths: &Paths| paths.0.iter().all(|path| path.ends_with(".safetensors"));
    let all: Vec<&Paths> = std::iter::once(&data.train).chain(&data.eval).collect();
    let tokens = if all.iter().all(|paths| ready(paths)) {
        None
    } else {
        Some(Arc::new(Tokens::whole(opener.tokenizer()?, opener.arch())?.check_vocabulary(vocab_size)?))
    };
    let evaluated = data.eval.as_ref().or((data.eval_share > 0.0).then_some(&data.train));
    let mut longest = [0; 2];
    let mut open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        let (source, [ids, labels]): (Arc<dyn Source>, _) = match &tokens {
            Some(tokens) if !ready(paths) && !joins_texts => {
                let texts = EachText::open(&paths.0, opener, Arc::clone(tokens), shape)?;
                (Arc::new(texts), [shape.length, shape.length + 1])
            }
            Some(tokens) if !ready(paths) => {
                let rows = PackedRows::open(&paths.0, data.field("text"), opener.pool, tokens, shape, data.skip_bad)?;
                (Arc::new(rows), [shape.length, shape.length + 1])
            }
            _ => {
                let rows = ReadyRows::open(&paths.0, vocab_size, max_length)?;
                let longest = rows.longest();
                (Arc::new(rows), longest)
            }
        };
        longest = [longest[0].max(ids), longest[1].max(labels)];
        Ok(source)
    };
    let train = open(&data.train)?;
    let eval = data.eval.as_ref().map(&mut open).transpose()?;
    // Rows are never rounded up beyond the longest: there may be no position for more.
    let whole = joins_texts || data.pad == Pad::Max;
    let padding = |column, with, length| Padding { column, with, length: whole.then_some(length), most: length };
    Ok(Sources {
        train,
        paddings: vec![
            padding("ids", 0, longest[0]),
            padding("labels", IGNORED, longest[1]),
            Padding { length: Some(shape.prompt()), ..padding("prompt", IGNORED, shape.prompt()) },
        ],
        // Rows of tokens say nothing in words.
        tokens: tokens.filter(|_| evaluated.is_some_and(|paths| !ready(paths))),
        eval,
        labels: None,
        classes: None,
        notices: Vec::new(),
    })
}

/// Whether the rows are prompts: where a column for them is named, or the first row has one.
pub fn has_prompts(data: &Data) -> Result<bool, TrainerError> {
    let has_columns = data.train.0.iter().all(|path| path.ends_with(".jsonl") || path.ends_with(".csv"));
    if !has_columns || data.fields.contains_key(PROMPT) {
        return Ok(has_columns);
    }
    Ok(open_rows(&data.train, &[PROMPT])?.values(0)?[0].is_some())
}

/// Texts cut into pieces of tokens that the model can read at once.
pub struct TextPieces {
    /// The tokens of all texts. An end token stands around each where there is one, so that the first token is predicted too.
    stream: Vec<u32>,
    pieces: Vec<Piece>,
    /// Texts in which there is nothing to predict.
    empty: u64,
}

/// How texts are cut into pieces.
#[derive(Clone, Copy)]
pub struct Pieces {
    /// Tokens that a piece reads at most.
    pub longest: usize,
    pub joins_texts: bool,
}

/// The tokens of a text as the model knows texts. Where texts were joined in training, an end token stands around each; otherwise the
/// tokens that its tokenizer puts before a text, and an end token behind it.
fn enclosed(tokens: &Tokens, text: &str, end: Option<u32>, joins_texts: bool) -> Result<Vec<u32>, TrainerError> {
    if joins_texts {
        let plain = tokens.encode_plain(text)?;
        return Ok(end.into_iter().chain(plain).chain(end).collect());
    }
    let mut enclosed: Vec<u32> =
        tokens.encode(text)?.into_iter().filter_map(|token| u32::try_from(token).ok()).collect();
    if enclosed.last() != end.as_ref() {
        enclosed.extend(end);
    }
    Ok(enclosed)
}

/// Texts to train on, each in rows of its own.
struct EachText {
    pieces: TextPieces,
    tokens: Arc<Tokens>,
    shape: RowShape,
}

impl EachText {
    fn open(paths: &[String], opener: &Opener<'_>, tokens: Arc<Tokens>, shape: RowShape) -> Result<Self, TrainerError> {
        let cut = Pieces { longest: shape.length, joins_texts: false };
        let pieces = TextPieces::open(paths, &opener.spec.data, opener.pool, &tokens, cut)?;
        if pieces.len() == 0 {
            let message = "there is no text with two tokens or more".to_owned();
            return Err(TrainerError::Data { path: paths.join(", ").into(), line: None, message });
        }
        Ok(Self { pieces, tokens, shape })
    }

    /// The tokens of a row and the one after them.
    fn row(&self, index: usize) -> Vec<i64> {
        let Piece { start, length, .. } = self.pieces.pieces[index];
        numbers(&self.pieces.stream[start..=start + length])
    }

    /// Tokens of the prompt of a row.
    fn prompt_length(&self, row: &[i64]) -> usize {
        self.shape.prompt().min(row.len() - 1)
    }
}

impl Source for EachText {
    fn len(&self) -> usize {
        self.pieces.len()
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let row = self.row(index);
        let (ids, targets) = (row[..row.len() - 1].to_vec(), row.len() as u64 - 1);
        Ok(Some(Sample { columns: vec![("ids", Column::Tokens(ids)), ("labels", Column::PerToken(row))], targets }))
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        self.pieces.rows(index)
    }

    fn longest(&self) -> Vec<usize> {
        let mut longest: Vec<usize> = (0..self.len()).collect();
        longest.sort_by_key(|index| std::cmp::Reverse(self.pieces.pieces[*index].length));
        longest.truncate(super::source::ROWS_PER_COLUMN);
        longest
    }

    fn prompt(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let row = self.row(index);
        let prompt = row[..self.prompt_length(&row)].to_vec();
        Ok(Some(Sample { columns: vec![("prompt", Column::Tokens(prompt))], targets: 0 }))
    }

    /// The prompt, and what follows it.
    fn reference_texts(&self, index: usize) -> Result<(String, String), TrainerError> {
        let row = self.row(index);
        let (prompt, rest) = row.split_at(self.prompt_length(&row));
        Ok((self.tokens.decode(prompt)?, self.tokens.decode(&rest[..rest.len().min(self.shape.shown)])?))
    }

    fn skipped(&self) -> u64 {
        self.pieces.skipped()
    }
}

/// Reads `length` tokens of the stream from `start` on, and predicts the ones after them.
struct Piece {
    row: usize,
    start: usize,
    length: usize,
}

impl TextPieces {
    /// In pieces of at most `longest` tokens.
    pub fn open(
        paths: &[String],
        data: &Data,
        pool: &ThreadPool,
        tokens: &Tokens,
        Pieces { longest, joins_texts }: Pieces,
    ) -> Result<Self, TrainerError> {
        let end = tokens.end_token();
        let mut opened = Self { stream: Vec::new(), pieces: Vec::new(), empty: 0 };
        let mut row = 0;
        for path in paths {
            let documents = open_documents(path, data.field("text"))?;
            let read = |index| {
                let encode = || {
                    let text = text_of(&documents, index, data.skip_bad)?;
                    enclosed(tokens, &text, end, joins_texts)
                };
                during(documents.place(index), encode)
            };
            let texts: Vec<Result<Vec<u32>, TrainerError>> =
                pool.install(|| (0..documents.len()).into_par_iter().map(read).collect());
            for text in texts {
                opened.add(row, &text?, longest);
                row += 1;
            }
        }
        Ok(opened)
    }

    fn add(&mut self, row: usize, text: &[u32], longest: usize) {
        let first = self.stream.len();
        self.stream.extend(text);
        let predicted = (self.stream.len() - first).saturating_sub(1);
        self.empty += u64::from(predicted == 0);
        for start in (0..predicted).step_by(longest) {
            self.pieces.push(Piece { row, start: first + start, length: longest.min(predicted - start) });
        }
    }
}

impl Source for TextPieces {
    fn len(&self) -> usize {
        self.pieces.len()
    }

    /// `next` is what follows each of `ids`.
    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let Piece { start, length, .. } = self.pieces[index];
        let tokens = |start: usize| numbers(&self.stream[start..start + length]);
        let columns = vec![("ids", Column::Tokens(tokens(start))), ("next", Column::Tokens(tokens(start + 1)))];
        Ok(Some(Sample { columns, targets: length as u64 }))
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.pieces[index].row; 2]
    }

    fn skipped(&self) -> u64 {
        self.empty
    }
}

/// Beginnings of texts.
pub struct Prompts {
    rows: Rows,
    tokens: Arc<Tokens>,
    /// Tokens of a text at most, the prompt included.
    longest: usize,
}

impl Prompts {
    pub fn open(data: &Data, pool: &ThreadPool, tokens: Arc<Tokens>, longest: usize) -> Result<Self, TrainerError> {
        let mut rows = open_rows(&Paths(data.train.0.clone()), &[data.field(PROMPT)])?;
        if data.skip_bad {
            let skipped = SkippedRows::default();
            check_rows(&rows, pool, |index| {
                Ok::<[usize; 0], _>(skipped.look(index, &rows.values(index)?, "a prompt"))
            })?;
            skipped.leave_out(&mut rows)?;
        }
        let prompts = Self { rows, tokens, longest };
        check_rows(&prompts.rows, pool, |index| Ok([prompts.tokens_of(index)?.len()]))?;
        Ok(prompts)
    }

    /// Without any, the end of the text before.
    fn tokens_of(&self, index: usize) -> Result<Vec<i64>, TrainerError> {
        let text = match self.rows.values(index)?.swap_remove(0) {
            Some(Value::String(text)) => text,
            other => return Err(no_text(&self.rows, index, 0, other.as_ref(), true)),
        };
        let mut prompt = numbers(&self.tokens.encode_plain(&text)?);
        if prompt.is_empty() {
            prompt.extend(self.tokens.end_token().map(i64::from));
        }
        match prompt.len() {
            0 => Err(self.rows.fail(index, "the prompt has no tokens; give some text".to_owned()).into()),
            count if count >= self.longest => {
                let message = format!("the prompt has {count} tokens; allowed: fewer than {}", self.longest);
                Err(self.rows.fail(index, message).into())
            }
            _ => Ok(prompt),
        }
    }
}

impl Source for Prompts {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.rows.number(index); 2]
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let prompt = during(self.rows.place(index), || self.tokens_of(index))?;
        Ok(Some(Sample { columns: vec![("prompt", Column::Tokens(prompt))], targets: 0 }))
    }
}

fn numbers(tokens: &[u32]) -> Vec<i64> {
    tokens.iter().map(|token| i64::from(*token)).collect()
}

#[cfg(test)]
mod language_texts_tests {
    use super::*;

    /// The row, what is read and what is predicted.
    type Found = (usize, Vec<i64>, Vec<i64>);

    fn pieces(texts: &[&[u32]], end: Option<u32>, longest: usize) -> (Vec<Found>, u64) {
        let mut all = TextPieces { stream: Vec::new(), pieces: Vec::new(), empty: 0 };
        for (row, text) in texts.iter().enumerate() {
            let text: Vec<u32> = end.into_iter().chain(text.iter().copied()).chain(end).collect();
            all.add(row, &text, longest);
        }
        let piece = |index: usize| {
            let sample = all.sample(index).unwrap().unwrap();
            let [(_, Column::Tokens(ids)), (_, Column::Tokens(next))] = &sample.columns[..] else { panic!() };
            (all.rows(index)[0], ids.clone(), next.clone())
        };
        ((0..all.len()).map(piece).collect(), all.skipped())
    }

    #[test]
    fn every_token_of_a_text_is_predicted_once() {
        let (found, empty) = pieces(&[&[5, 6, 7], &[], &[8]], Some(1), 3);
        let want = vec![
            (0, vec![1, 5, 6], vec![5, 6, 7]),
            (0, vec![7], vec![1]),
            (1, vec![1], vec![1]),
            (2, vec![1, 8], vec![8, 1]),
        ];
        assert_eq!((found, empty), (want, 0));
        let (found, empty) = pieces(&[&[5, 6, 7], &[], &[8]], None, 3);
        assert_eq!((found, empty), (vec![(0, vec![5, 6], vec![6, 7])], 2));
    }
}
