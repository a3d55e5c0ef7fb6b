//! Pairs of answers of which one is better: rows with two conversations, or with a prompt and two answers to it. Both are written with the chat
//! template of the model. What they begin with alike is not counted: it says nothing about the difference.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pipe_data::Rows;
use pipe_model::TaskData;
use pipe_spec::pipeline::{CHOSEN, Data, PROMPT, Paths, REJECTED, Task};
use serde_json::{Map, Value, json};

use super::conversations::ChatFormat;
use super::rows::{Opener, during, is_lacking};
use super::source::Sources;
use super::{Column, IGNORED, Sample, Source};
use crate::chat::{ChatError, Columns, Conversation, Encoded, Rendered};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

/// How the names of columns with the worse answer begin.
pub const REJECTED_PREFIX: &str = "rejected_";

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Preference { vocab_size, max_length } = *task_data else {
        panic!("not for pairs of answers: {task_data:?}")
    };
    let data = &opener.spec.data;
    let tokens = Arc::new(Tokens::whole(opener.tokenizer()?, opener.arch())?.check_vocabulary(vocab_size)?);
    let longest = data.max_length.get().min(max_length);
    let (format, mut notices) = ChatFormat::open(opener.tokenizer()?)?;
    let format = Arc::new(format);
    let mut open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        opener.part(paths, &|paths| {
            Ok(Arc::new(Pairs::open(paths, opener, &format, &tokens, longest as usize)?) as Arc<dyn Source>)
        })
    };
    let train = open(&data.train)?;
    let eval = data.eval.as_ref().map(&mut open).transpose()?;
    notices.extend(format.notices());
    let paddings = [("ids", 0), ("labels", IGNORED), ("rejected_ids", 0), ("rejected_labels", IGNORED)];
    Ok(Sources {
        train,
        eval,
        paddings: paddings.map(|(column, with)| opener.padding(column, with, longest)).to_vec(),
        tokens: Some(tokens),
        labels: None,
        classes: None,
        notices,
    })
}

struct Pairs {
    rows: Rows,
    /// The columns of the better answer, the other one, and the prompt where it has one.
    sides: [String; 2],
    prompt: Option<String>,
    format: Arc<ChatFormat>,
    tokens: Arc<Tokens>,
    /// Tokens of a prompt with an answer at most.
    longest: usize,
    longest_rows: Vec<usize>,
}

impl Pairs {
    fn open(
        paths: &Paths,
        opener: &Opener<'_>,
        format: &Arc<ChatFormat>,
        tokens: &Arc<Tokens>,
        longest: usize,
    ) -> Result<Self, TrainerError> {
        let data: &Data = &opener.spec.data;
        let columns: Vec<&str> = data.roles(Task::Preference).into_iter().map(|role| data.field(role)).collect();
        let mut opened = Self {
            rows: opener.rows(paths, &columns)?,
            sides: [CHOSEN, REJECTED].map(|role| data.field(role).to_owned()),
            prompt: data.fields.get(PROMPT).cloned(),
            format: Arc::clone(format),
            tokens: Arc::clone(tokens),
            longest,
            longest_rows: Vec::new(),
        };
        let lacks = ("both answers", Some("a pair that can be read"));
        let checked = opener.check_rows(&opened.rows, columns.len(), lacks, |index| opened.check(index))?;
        opened.longest_rows = format.leave_out(&mut opened.rows, checked)?;
        Ok(opened)
    }

    /// The bytes of both texts. Only texts that may be too long are made into tokens here.
    fn check(&self, index: usize) -> Result<[usize; 1], TrainerError> {
        let rendered = self.rendered(index)?;
        let bytes = rendered.each_ref().map(|one| one.text.len());
        if bytes.iter().any(|bytes| *bytes > self.longest) {
            let encoded = self.encoded(index, &rendered)?;
            let was_cut = encoded.iter().any(|one| one.was_cut);
            self.format.cut.fetch_add(u64::from(was_cut), Ordering::Relaxed);
            let are_alike = self.labels(&encoded).is_none();
            self.format.alike.fetch_add(u64::from(are_alike), Ordering::Relaxed);
        } else if rendered[0].text == rendered[1].text {
            self.format.alike.fetch_add(1, Ordering::Relaxed);
        }
        Ok([bytes.iter().sum()])
    }

    fn rendered(&self, index: usize) -> Result<[Rendered; 2], TrainerError> {
        let values = self.rows.values(index)?;
        let present = self.rows.columns().iter().zip(values).filter_map(|(name, value)| Some((name.clone(), value?)));
        let row: Map<String, Value> = present.collect();
        let side = |column: &String| {
            let conversation = conversation(&row, column, self.prompt.as_deref());
            let rendered = conversation.and_then(|conversation| self.format.render_spoken(&conversation));
            rendered.map_err(|error| self.fail(index, &error))
        };
        let [chosen, rejected] = &self.sides;
        Ok([side(chosen)?, side(rejected)?])
    }

    fn encoded(&self, index: usize, rendered: &[Rendered; 2]) -> Result<[Encoded; 2], TrainerError> {
        let encode = |rendered: &Rendered| -> Result<Encoded, TrainerError> {
            let encoded = self.tokens.encode_chat(rendered, self.longest);
            let mut encoded = encoded.map_err(|error| self.fail(index, &error))?;
            if rendered.spoken.is_empty() && !rendered.is_marked {
                encoded.is_counted.fill(true);
            }
            Ok(encoded)
        };
        Ok([encode(&rendered[0])?, encode(&rendered[1])?])
    }

    /// The labels of both; nothing where one of them has nothing of its own.
    fn labels(&self, [better, worse]: &[Encoded; 2]) -> Option<[Vec<i64>; 2]> {
        let alike = better.ids.iter().zip(&worse.ids).take_while(|(one, other)| one == other).count();
        let labels = |one: &Encoded| -> Vec<i64> {
            let label = |(at, (id, counted)): (usize, (&u32, &bool))| {
                if *counted && at >= alike { i64::from(*id) } else { IGNORED }
            };
            one.ids.iter().zip(&one.is_counted).enumerate().map(label).collect()
        };
        let both = [labels(better), labels(worse)];
        both.iter().all(|labels| labels.iter().skip(1).any(|label| *label != IGNORED)).then_some(both)
    }

    fn fail(&self, index: usize, error: &ChatError) -> TrainerError {
        self.rows.fail(index, error.to_string()).into()
    }
}

/// The conversation that ends with the answer in `column`: messages, perhaps behind those of the prompt, or a text that answers it.
fn conversation(row: &Map<String, Value>, column: &str, prompt: Option<&str>) -> Result<Conversation, ChatError> {
    const MESSAGES: &str = "messages";
    let asked = prompt.and_then(|name| row.get(name)).filter(|asked| !is_lacking(Some(asked)));
    let fail = |message: String| ChatError::Row { message };
    let messages: Vec<Value> = match (row.get(column), asked) {
        (Some(Value::Array(answer)), Some(Value::Array(asked))) => asked.iter().chain(answer).cloned().collect(),
        // The conversation begins with what is asked.
        (Some(Value::Array(answer)), _) => answer.clone(),
        (Some(Value::String(answer)), Some(Value::Array(asked))) => {
            let answer = json!({ "role": "assistant", "content": answer });
            asked.iter().cloned().chain([answer]).collect()
        }
        (Some(Value::String(answer)), Some(Value::String(asked))) => {
            vec![json!({ "role": "user", "content": asked }), json!({ "role": "assistant", "content": answer })]
        }
        (Some(Value::String(_)), _) => {
            let message = format!("{column:?} is a text; give the column with what it answers as data.fields.prompt");
            return Err(fail(message));
        }
        (found, _) => {
            let found = found.map_or_else(|| "nothing".to_owned(), Value::to_string);
            return Err(fail(format!("{column:?}: found {found}; allowed: a list of messages, or a text")));
        }
    };
    let is_sharegpt = messages.first().is_some_and(|first| first.get("from").is_some());
    let row = Map::from_iter([(MESSAGES.to_owned(), Value::Array(messages))]);
    let columns = match is_sharegpt {
        true => Columns::ShareGpt { conversations: MESSAGES, system: "system", tools: "tools" },
        false => Columns::Messages { messages: MESSAGES, tools: "tools" },
    };
    let conversation = Conversation::of(&row, columns)?;
    match conversation.messages.last() {
        Some(last) if last["role"] == "assistant" => Ok(conversation),
        _ => Err(fail(format!("{column:?}: the last message is not the assistant's"))),
    }
}

impl Source for Pairs {
    fn len(&self) -> usize {
        self.rows.len()
    }

    /// A row whose answers are alike as far as they are read is left out.
    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        during(self.rows.place(index), || {
            let encoded = self.encoded(index, &self.rendered(index)?)?;
            let Some([better, worse]) = self.labels(&encoded) else { return Ok(None) };
            let [ids, rejected_ids] = encoded.map(|one| Column::Tokens(one.ids.into_iter().map(i64::from).collect()));
            let columns = vec![
                ("ids", ids),
                ("labels", Column::PerToken(better)),
                ("rejected_ids", rejected_ids),
                ("rejected_labels", Column::PerToken(worse)),
            ];
            Ok(Some(Sample { columns, targets: 1 }))
        })
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.rows.number(index); 2]
    }

    fn longest(&self) -> Vec<usize> {
        self.longest_rows.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(row: Value, prompt: Option<&str>) -> Result<String, String> {
        let read = conversation(row.as_object().unwrap(), "chosen", prompt).map_err(|error| error.to_string())?;
        let one = |message: &Value| {
            format!("{}: {}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
        };
        Ok(read.messages.iter().map(one).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn forms_of_published_data() {
        let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
        let talk = json!([turn("user", "hi"), turn("assistant", "yo")]);
        let cases = [
            // A whole conversation, whose beginning the prompt repeats.
            (json!({ "prompt": "hi", "chosen": talk }), Some("prompt")),
            (json!({ "chosen": talk }), None),
            (json!({ "chosen": [{ "from": "human", "value": "hi" }, { "from": "gpt", "value": "yo" }] }), None),
            (json!({ "q": "hi", "chosen": "yo" }), Some("q")),
            (json!({ "q": [turn("user", "hi")], "chosen": "yo" }), Some("q")),
            (json!({ "q": [turn("user", "hi")], "chosen": [turn("assistant", "yo")] }), Some("q")),
        ];
        for (row, prompt) in cases {
            assert_eq!(roles(row.clone(), prompt).as_deref(), Ok("user: hi, assistant: yo"), "{row}");
        }
        let wrong = [
            (json!({ "chosen": "yo" }), "give the column with what it answers as data.fields.prompt"),
            (json!({ "chosen": 3 }), "found 3; allowed: a list of messages, or a text"),
            (
                json!({ "chosen": [turn("assistant", "yo"), turn("user", "hi")] }),
                "the last message is not the assistant's",
            ),
        ];
        for (row, want) in wrong {
            let error = roles(row, None).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
