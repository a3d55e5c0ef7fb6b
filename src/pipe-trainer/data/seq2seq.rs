//! Pairs of texts: a source, and a target to be generated.

use std::cell::RefCell;
use std::sync::Arc;

use pipe_data::Rows;
use pipe_model::TaskData;
use pipe_spec::pipeline::{Paths, Task};
use serde_json::Value;

use super::rows::{Opener, during, no_text};
use super::source::Sources;
use super::{Column, IGNORED, Sample, Source, texts};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

pub struct Seq2Seq {
    rows: Rows,
    /// Whether a row holds a conversation instead of two texts.
    is_conversation: bool,
    longest: Vec<usize>,
    source: Arc<Tokens>,
    target: Arc<Tokens>,
    /// Whether rows may have no target.
    predicts: bool,
}

const SOURCE: usize = 0;
const TARGET: usize = 1;
const CONTEXT: usize = 2;

impl Seq2Seq {
    fn open(
        paths: &Paths,
        opener: &Opener<'_>,
        source: Arc<Tokens>,
        target: Arc<Tokens>,
    ) -> Result<(Self, Vec<String>), TrainerError> {
        let data = &opener.spec.data;
        let columns: Vec<&str> = data.roles(Task::Seq2Seq).into_iter().map(|role| data.field(role)).collect();
        let is_conversation = columns.len() == 1;
        let rows = opener.rows(paths, &columns)?;
        let mut opened = Self { longest: Vec::new(), rows, is_conversation, source, target, predicts: opener.predicts };
        // The target may be missing in rows to predict.
        let needed = if is_conversation || opener.predicts { 1 } else { 2 };
        let checked = opener.check_rows(&opened.rows, needed, ("a text", None), |index| {
            let (source, target) = opened.texts(index)?;
            Ok([source.len(), target.map_or(0, |target| target.len())])
        })?;
        let (longest, notices) = checked.leave_out(&mut opened.rows)?;
        Ok((Self { longest, ..opened }, notices))
    }

    /// The source and the target of a row.
    fn texts(&self, index: usize) -> Result<(String, Option<String>), TrainerError> {
        let mut values = self.rows.values(index)?;
        if self.is_conversation {
            return self.turns(index, values.pop().flatten());
        }
        let mut text = |column: usize| match values[column].take() {
            Some(Value::String(text)) => Ok(Some(text)),
            None | Some(Value::Null) if self.predicts && column == TARGET => Ok(None),
            other => Err(no_text(&self.rows, index, column, other.as_ref(), self.predicts)),
        };
        let (mut source, target) = (text(SOURCE)?.unwrap_or_default(), text(TARGET)?);
        match values.get(CONTEXT) {
            None | Some(None | Some(Value::Null)) => {}
            Some(Some(Value::String(context))) if context.trim().is_empty() => {}
            Some(Some(Value::String(context))) => {
                source.push('\n');
                source.push_str(context);
            }
            Some(other) => return Err(no_text(&self.rows, index, CONTEXT, other.as_ref(), self.predicts)),
        }
        Ok((source, target))
    }

    /// The same of a row that holds a conversation. To predict is to write the answer that is not there.
    fn turns(&self, index: usize, value: Option<Value>) -> Result<(String, Option<String>), TrainerError> {
        let Some(value) = value else { return Err(self.rows.problem(index, 0, None, "a conversation").into()) };
        let fail = |why| self.rows.fail(index, format!("field {:?} {why}", self.rows.columns()[0])).into();
        match texts::question(&value).filter(|_| self.predicts) {
            Some(question) => Ok((question, None)),
            None => texts::pair(&value).map(|(source, target)| (source, Some(target))).map_err(fail),
        }
    }
}

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Seq2Seq { vocab_size, pad_token_id, eos_token_id } = *task_data else {
        panic!("not for pairs of texts: {task_data:?}")
    };
    let data = &opener.spec.data;
    let (max_source, max_target) = (data.max_source.get(), data.max_target.get());
    let tokens = |setting: &str, length: u32| -> Result<Arc<Tokens>, TrainerError> {
        let tokens = Tokens::open(opener.tokenizer()?, opener.arch(), setting, length)?;
        let tokens = tokens.check_vocabulary(vocab_size)?.check_padding(pad_token_id)?;
        tokens.check_end(Some(eos_token_id)).map(Arc::new)
    };
    let (source, target) = (tokens("max_source", max_source)?, tokens("max_target", max_target)?);
    let notices = RefCell::new(Vec::new());
    let open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        let (opened, said) = Seq2Seq::open(paths, opener, Arc::clone(&source), Arc::clone(&target))?;
        notices.borrow_mut().extend(said);
        Ok(Arc::new(opened))
    };
    let (train, eval) =
        (opener.part(&data.train, &open)?, data.eval.as_ref().map(|paths| opener.part(paths, &open)).transpose()?);
    Ok(Sources {
        train,
        eval,
        paddings: vec![
            opener.padding("input_ids", pad_token_id, max_source),
            opener.padding("attention_mask", 0, max_source),
            opener.padding("labels", IGNORED, max_target),
        ],
        tokens: Some(target),
        labels: None,
        classes: None,
        notices: notices.take(),
    })
}

impl Source for Seq2Seq {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.rows.number(index); 2]
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (source, target) = during(self.rows.place(index), || {
            let (source, target) = self.texts(index)?;
            let target = target.map_or(Ok(Vec::new()), |target| self.target.encode(&target))?;
            Ok((self.source.encode(&source)?, target))
        })?;
        Ok(Some(Sample {
            targets: target.len() as u64,
            columns: vec![
                ("attention_mask", Column::Tokens(vec![1; source.len()])),
                ("input_ids", Column::Tokens(source)),
                ("labels", Column::Tokens(target)),
            ],
        }))
    }

    fn longest(&self) -> Vec<usize> {
        self.longest.clone()
    }

    fn reference_texts(&self, index: usize) -> Result<(String, String), TrainerError> {
        self.texts(index).map(|(source, target)| (source, target.unwrap_or_default()))
    }
}
