//! A conversation as a source and a target: the last turn is what the model is to write, the turns before it are what it reads.

use pipe_data::kind;
use serde_json::Value;

/// What the keys of a turn are called, by those who write such files.
const SPEAKERS: [&str; 2] = ["role", "from"];
const TEXTS: [&str; 3] = ["content", "value", "text"];
/// Who speaks where the model is to.
const ANSWERERS: [&str; 4] = ["assistant", "gpt", "model", "bot"];

struct Turn<'a> {
    speaker: &'a str,
    text: &'a str,
}

/// Source and target; otherwise what is wrong with the conversation.
pub fn pair(value: &Value) -> Result<(String, String), String> {
    let turns = turns(value)?;
    let Some((last, before)) = turns.split_last().filter(|(_, before)| !before.is_empty()) else {
        return Err(format!("has {} turns; there must be a question and an answer", turns.len()));
    };
    if !ANSWERERS.contains(&last.speaker) {
        return Err(format!("ends with a turn of {:?}; the last turn must be the assistant's", last.speaker));
    }
    Ok((written(before), last.text.to_owned()))
}

/// All of a conversation that still waits for its answer.
pub fn question(value: &Value) -> Option<String> {
    let turns = turns(value).ok()?;
    let last = turns.last()?;
    (!ANSWERERS.contains(&last.speaker)).then(|| written(&turns))
}

fn written(turns: &[Turn<'_>]) -> String {
    match turns {
        [one] => one.text.to_owned(),
        many => many.iter().map(|turn| format!("{}: {}", turn.speaker, turn.text)).collect::<Vec<_>>().join("\n"),
    }
}

fn turns(value: &Value) -> Result<Vec<Turn<'_>>, String> {
    let Value::Array(turns) = value else {
        return Err(format!("holds {}, not a list of turns", kind(value)));
    };
    let one = |(turn, number): (_, usize)| {
        Turn::read(turn).ok_or_else(|| {
            format!("turn {number} has no speaker (\"role\" or \"from\") or no text (\"content\" or \"value\")")
        })
    };
    turns.iter().zip(1..).map(one).collect()
}

impl<'a> Turn<'a> {
    fn read(value: &'a Value) -> Option<Self> {
        let text_of = |keys: &[&str]| keys.iter().find_map(|key| value.get(key)?.as_str());
        Some(Self { speaker: text_of(&SPEAKERS)?, text: text_of(&TEXTS)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_waits_for_its_answer() {
        let asked = |text: &str| question(&serde_json::from_str(text).unwrap());
        let user = r#"{"role": "user", "content": "hi"}"#;
        assert_eq!(asked(&format!("[{user}]")).as_deref(), Some("hi"));
        assert_eq!(asked(&format!("[{user}, {}]", r#"{"role": "assistant", "content": "a"}"#)), None);
        assert_eq!(asked("3"), None);
    }

    #[test]
    fn the_last_turn_is_the_target() {
        for (text, want) in [
            (r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]"#, Ok(("hi", "hello"))),
            (
                r#"[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]"#,
                Ok(("human: a\ngpt: b\nhuman: c", "d")),
            ),
            (r#""hi""#, Err("holds a text, not a list of turns")),
            (r#"[]"#, Err("has 0 turns; there must be a question and an answer")),
            (
                r#"[{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]"#,
                Err("ends with a turn of \"user\"; the last turn must be the assistant's"),
            ),
            (
                r#"[{"role": "user"}, {"role": "assistant", "content": "a"}]"#,
                Err("turn 1 has no speaker (\"role\" or \"from\") or no text (\"content\" or \"value\")"),
            ),
        ] {
            let found = pair(&serde_json::from_str(text).unwrap());
            let want = want.map(|(source, target)| (source.to_owned(), target.to_owned())).map_err(str::to_owned);
            assert_eq!(found, want, "{text}");
        }
    }
}
