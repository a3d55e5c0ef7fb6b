//! Conversations that a language model learns to continue: rows of messages, or of a question and its answer. They are written with the
//! chat template of the model, and the loss counts what the assistant says.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pipe_data::Rows;
use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::{COMPLETION, CONTEXT, CONVERSATION, Data, LossOn, PROMPT, Paths, Task};
use pipe_spec::text::count;
use rayon::ThreadPool;
use serde_json::{Map, Value};

use super::rows::{CheckedRows, Opener, during};
use super::source::Sources;
use super::{Column, IGNORED, Padding, Sample, Source};
use crate::chat::{CHAT_ML, ChatError, ChatTemplate, Columns, Conversation, Encoded, Rendered};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

pub fn open(opener: &Opener<'_>, vocab_size: u64, max_length: u32) -> Result<Sources, TrainerError> {
    let data = &opener.spec.data;
    let tokens = Arc::new(Tokens::whole(opener.tokenizer()?, opener.arch())?.check_vocabulary(vocab_size)?);
    let longest = data.max_length.get().min(max_length) as usize;
    let (format, mut notices) = ChatFormat::open(opener.tokenizer()?)?;
    let format = Arc::new(format);
    let mut open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        opener.part(paths, &|paths| {
            Ok(Arc::new(Conversations::open(paths, opener, &format, &tokens, longest)?) as Arc<dyn Source>)
        })
    };
    let train = open(&data.train)?;
    let eval = data.eval.as_ref().map(&mut open).transpose()?;
    notices.extend(format.notices());
    Ok(Sources {
        train,
        eval,
        paddings: vec![
            opener.padding("ids", 0, longest as u32),
            opener.padding("labels", IGNORED, longest as u32),
            Padding { column: PROMPT, with: IGNORED, length: None, most: longest },
        ],
        tokens: Some(tokens),
        labels: None,
        classes: None,
        notices,
    })
}

/// Conversations that wait for their answer, and what is to be said about them.
pub fn open_questions(
    spec: &TrainerSpec,
    pool: &ThreadPool,
    tokens: &Arc<Tokens>,
    longest: usize,
) -> Result<(Arc<dyn Source>, Vec<String>), TrainerError> {
    let opener = Opener { spec, pool, predicts: true, uneven: Mutex::default() };
    let (format, mut notices) = ChatFormat::open(opener.tokenizer()?)?;
    let format = Arc::new(format);
    let rows = Conversations::open(&spec.data.train, &opener, &format, tokens, longest)?;
    notices.extend(format.notices());
    notices.extend(opener.uneven.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok((Arc::new(Questions(rows)), notices))
}

/// The chat template, and counts of the rows that it was used for.
pub struct ChatFormat {
    pub template: ChatTemplate,
    /// Rows for which the template does not say what the assistant wrote: the loss counts all of each.
    unmarked: AtomicU64,
    /// Rows that were cut.
    pub cut: AtomicU64,
    /// Rows in which nothing is left to learn.
    pub without_targets: AtomicU64,
    /// Pairs whose answers are the same as far as they are read.
    pub alike: AtomicU64,
    /// Sentences about rows that are skipped.
    skipped: Mutex<Vec<String>>,
}

impl ChatFormat {
    /// The template beside the tokenizer. A model from scratch has none, and gets a plain one.
    pub fn open(tokenizer: &Path) -> Result<(Self, Vec<String>), TrainerError> {
        let folder = tokenizer.parent().unwrap_or(Path::new(""));
        let (template, notices) = match ChatTemplate::read(folder) {
            Err(ChatError::NoTemplate { .. }) => {
                let notice = "the tokenizer has no chat template: conversations are written in ChatML".to_owned();
                (ChatTemplate::new("ChatML", CHAT_ML, []).map_err(|error| fail(tokenizer, &error))?, vec![notice])
            }
            template => (template.map_err(|error| fail(tokenizer, &error))?, Vec::new()),
        };
        let zero = AtomicU64::default;
        Ok((
            Self {
                template,
                unmarked: zero(),
                cut: zero(),
                without_targets: zero(),
                alike: zero(),
                skipped: Mutex::default(),
            },
            notices,
        ))
    }

    /// All of a conversation, with what the assistant says; without that where the template does not tell.
    pub fn render_spoken(&self, conversation: &Conversation) -> Result<Rendered, ChatError> {
        match self.template.render_spoken(conversation) {
            Err(ChatError::Unmarked { .. }) => self.template.render(conversation, false),
            rendered => rendered,
        }
    }

    /// Leaves bad rows out of `rows`. Returns the longest of those that are left.
    pub fn leave_out(&self, rows: &mut Rows, checked: CheckedRows) -> Result<Vec<usize>, TrainerError> {
        let (longest, notices) = checked.leave_out(rows)?;
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).extend(notices);
        Ok(longest)
    }

    pub fn notices(&self) -> Vec<String> {
        let rows = |number: &AtomicU64| {
            let rows = number.load(Ordering::Relaxed);
            (rows > 0).then(|| count(rows as usize, "row"))
        };
        let unmarked = rows(&self.unmarked).map(|rows| {
            format!("{rows}: the chat template does not tell what the assistant says, so the loss counts all of each")
        });
        let cut = rows(&self.cut).map(|rows| format!("{rows} longer than data.max_length: cut at their end"));
        let without_targets = rows(&self.without_targets)
            .map(|rows| format!("{rows} left out: the assistant says nothing within data.max_length"));
        let alike =
            rows(&self.alike).map(|rows| format!("{rows} left out: both answers are the same within data.max_length"));
        let skipped = std::mem::take(&mut *self.skipped.lock().unwrap_or_else(PoisonError::into_inner));
        skipped.into_iter().chain([unmarked, cut, without_targets, alike].into_iter().flatten()).collect()
    }
}

fn fail(path: &Path, error: &ChatError) -> TrainerError {
    TrainerError::Data { path: path.to_owned(), line: None, message: error.to_string() }
}

/// Which columns of the rows make a conversation.
#[derive(Clone, Debug)]
enum Form {
    Messages(String),
    Answers { prompt: String, completion: String, context: Option<String> },
}

impl Form {
    fn of(data: &Data) -> Self {
        let field = |role| data.field(role).to_owned();
        match data.fields.contains_key(CONVERSATION) {
            true => Self::Messages(field(CONVERSATION)),
            false => Self::Answers {
                prompt: field(PROMPT),
                completion: field(COMPLETION),
                context: data.fields.get(CONTEXT).cloned(),
            },
        }
    }

    fn columns<'a>(&'a self, row: &Map<String, Value>) -> Columns<'a> {
        match self {
            Self::Messages(name) if row.get(name).is_some_and(|turns| turns[0].get("from").is_some()) => {
                Columns::ShareGpt { conversations: name, system: "system", tools: "tools" }
            }
            Self::Messages(name) => Columns::Messages { messages: name, tools: "tools" },
            Self::Answers { prompt, completion, context: None } => {
                Columns::Completion { prompt, completion, tools: "tools" }
            }
            Self::Answers { prompt, completion, context: Some(context) } => {
                Columns::Alpaca { instruction: prompt, input: context, output: completion, system: "system" }
            }
        }
    }
}

struct Conversations {
    rows: Rows,
    form: Form,
    format: Arc<ChatFormat>,
    tokens: Arc<Tokens>,
    /// Tokens of a row at most.
    longest: usize,
    counts_all: bool,
    predicts: bool,
    longest_rows: Vec<usize>,
}

impl Conversations {
    fn open(
        paths: &Paths,
        opener: &Opener<'_>,
        format: &Arc<ChatFormat>,
        tokens: &Arc<Tokens>,
        longest: usize,
    ) -> Result<Self, TrainerError> {
        let data = &opener.spec.data;
        let columns: Vec<&str> = data.roles(Task::Language).into_iter().map(|role| data.field(role)).collect();
        let mut opened = Self {
            rows: opener.rows(paths, &columns)?,
            form: Form::of(data),
            format: Arc::clone(format),
            tokens: Arc::clone(tokens),
            longest,
            counts_all: data.loss_on == LossOn::All,
            predicts: opener.predicts,
            longest_rows: Vec::new(),
        };
        let lacks = ("a conversation", Some("a conversation that can be read"));
        let checked = opener.check_rows(&opened.rows, 1, lacks, |index| opened.check(index))?;
        opened.longest_rows = format.leave_out(&mut opened.rows, checked)?;
        Ok(opened)
    }

    /// The bytes of its text. Only a text that may be too long is made into tokens here.
    fn check(&self, index: usize) -> Result<[usize; 1], TrainerError> {
        let conversation = self.conversation(index)?;
        if self.predicts {
            return Ok([self.question(index)?.len()]);
        }
        let rendered = self.rendered(index, &conversation)?;
        if rendered.text.len() > self.longest {
            let encoded = self.encoded(index, &rendered)?;
            self.format.cut.fetch_add(u64::from(encoded.was_cut), Ordering::Relaxed);
            self.format.without_targets.fetch_add(u64::from(targets(&encoded.is_counted) == 0), Ordering::Relaxed);
        } else if !self.counts_all && rendered.is_marked && rendered.spoken.is_empty() {
            self.format.without_targets.fetch_add(1, Ordering::Relaxed);
        }
        if !self.counts_all && !self.format.template.has_marks() && rendered.spoken.is_empty() {
            self.format.unmarked.fetch_add(1, Ordering::Relaxed);
        }
        Ok([rendered.text.len()])
    }

    fn conversation(&self, index: usize) -> Result<Conversation, TrainerError> {
        let values = self.rows.values(index)?;
        let present = self.rows.columns().iter().zip(values).filter_map(|(name, value)| Some((name.clone(), value?)));
        let row: Map<String, Value> = present.collect();
        let columns = self.form.columns(&row);
        let read = if self.predicts { Conversation::read(&row, columns) } else { Conversation::of(&row, columns) };
        read.map_err(|error| self.fail(index, &error))
    }

    /// All of it, with what the assistant says; without that where the template does not tell.
    fn rendered(&self, index: usize, conversation: &Conversation) -> Result<Rendered, TrainerError> {
        let rendered = match self.counts_all {
            true => self.format.template.render(conversation, false),
            false => self.format.render_spoken(conversation),
        };
        rendered.map_err(|error| self.fail(index, &error))
    }

    fn encoded(&self, index: usize, rendered: &Rendered) -> Result<Encoded, TrainerError> {
        let mut encoded = self.tokens.encode_chat(rendered, self.longest).map_err(|error| self.fail(index, &error))?;
        if self.counts_all || (rendered.spoken.is_empty() && !rendered.is_marked) {
            encoded.is_counted.fill(true);
        }
        Ok(encoded)
    }

    /// The messages before the last answer, or all where none is there yet, as the text that asks for it.
    fn question_text(&self, index: usize) -> Result<(String, Option<String>), TrainerError> {
        let mut conversation = self.conversation(index)?;
        let last = conversation.messages.iter().rposition(|message| message["role"] == "assistant");
        let is_answered = last.is_some_and(|last| last + 1 == conversation.messages.len()) || !self.predicts;
        let answer = last.filter(|_| is_answered).map(|last| {
            let answer = conversation.messages[last]["content"].as_str().unwrap_or_default().to_owned();
            conversation.messages.truncate(last);
            answer
        });
        let rendered = self.format.template.render(&conversation, true);
        Ok((rendered.map_err(|error| self.fail(index, &error))?.text, answer))
    }

    /// Its tokens. Of one that leaves no room for an answer, the end.
    fn question(&self, index: usize) -> Result<Vec<i64>, TrainerError> {
        let (text, _) = self.question_text(index)?;
        let rendered = Rendered { text, ..Rendered::default() };
        let encoded = self.tokens.encode_chat(&rendered, usize::MAX).map_err(|error| self.fail(index, &error))?;
        let most = self.longest.saturating_sub(self.longest / 4).max(1);
        let first = encoded.ids.len().saturating_sub(most);
        Ok(encoded.ids[first..].iter().map(|token| i64::from(*token)).collect())
    }

    fn fail(&self, index: usize, error: &ChatError) -> TrainerError {
        self.rows.fail(index, error.to_string()).into()
    }
}

/// Tokens that are counted and have one before them that predicts them.
fn targets(is_counted: &[bool]) -> usize {
    is_counted.iter().skip(1).filter(|counted| **counted).count()
}

impl Source for Conversations {
    fn len(&self) -> usize {
        self.rows.len()
    }

    /// A row in which nothing is to be learned is left out.
    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        during(self.rows.place(index), || {
            let rendered = self.rendered(index, &self.conversation(index)?)?;
            let Encoded { ids, is_counted, .. } = self.encoded(index, &rendered)?;
            let targets = targets(&is_counted) as u64;
            let ids: Vec<i64> = ids.into_iter().map(i64::from).collect();
            let label = |(id, counted): (&i64, bool)| if counted { *id } else { IGNORED };
            let labels = ids.iter().zip(is_counted).map(label).collect();
            let columns = vec![("ids", Column::Tokens(ids)), ("labels", Column::PerToken(labels))];
            Ok((targets > 0).then_some(Sample { columns, targets }))
        })
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.rows.number(index); 2]
    }

    fn longest(&self) -> Vec<usize> {
        self.longest_rows.clone()
    }

    fn prompt(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let prompt = during(self.rows.place(index), || self.question(index))?;
        Ok(Some(Sample { columns: vec![(PROMPT, Column::Tokens(prompt))], targets: 0 }))
    }

    /// The question without the marks of the template, and the answer.
    fn reference_texts(&self, index: usize) -> Result<(String, String), TrainerError> {
        let (_, answer) = self.question_text(index)?;
        let question = self.tokens.decode(&self.question(index)?)?;
        Ok((question.trim().to_owned(), answer.unwrap_or_default()))
    }
}

/// The same rows as what they ask.
struct Questions(Conversations);

impl Source for Questions {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.0.prompt(index)
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        self.0.rows(index)
    }
}
