//! Data of a language model: texts packed to full rows, or rows of tokens that are ready.
//!
//! A .txt file holds documents with blank lines between them; in .jsonl and .csv every row is one. An end token stands behind
//! each where the tokenizer has one. `labels` are a row's tokens themselves: the model shifts them.

use std::sync::Arc;

use pipe_model::TaskData;
use pipe_spec::pipeline::Paths;

use super::opener::Opener;
use super::packed::{PackedRows, RowShape};
use super::ready::ReadyRows;
use super::sources::Sources;
use super::{IGNORED, Padding, Source, Tokens};
use crate::error::TrainerError;

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Language { vocab_size, max_length } = *task_data else {
        panic!("not for rows of tokens: {task_data:?}")
    };
    let data = &opener.spec.data;
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
            Some(tokens) if !ready(paths) => {
                let rows = Packedopen_rows(&paths.0, data.field("text"), opener.pool, tokens, shape)?;
                (Arc::new(rows), [shape.length, shape.length + 1])
            }
            _ => {
                let rows = Readyopen_rows(&paths.0, vocab_size, max_length)?;
                let longest = rows.longest();
                (Arc::new(rows), longest)
            }
        };
        longest = [longest[0].max(ids), longest[1].max(labels)];
        Ok(source)
    };
    let train = open(&data.train)?;
    let eval = data.eval.as_ref().map(&mut open).transpose()?;
    // Rows are never rounded up: there may be no position for more.
    let padding = |column, with, length| Padding { column, with, length: Some(length), most: length };
    Ok(Sources {
        train,
        paddings: vec![
            padding("ids", 0, longest[0]),
            padding("labels", IGNORED, longest[1]),
            padding("prompt", 0, shape.prompt()),
        ],
        // Rows of tokens say nothing in words.
        tokens: tokens.filter(|_| evaluated.is_some_and(|paths| !ready(paths))),
        eval,
        labels: None,
        classes: None,
        notices: Vec::new(),
    })
}
