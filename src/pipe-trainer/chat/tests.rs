//! Conversations rendered and encoded exactly as by transformers: `tests/fixtures/make_chat.py` wrote what it makes of them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use super::render::encode;
use super::{ChatError, ChatTemplate, Columns, Conversation, Encoded, Rendered};

/// Longer than every conversation.
const WHOLE: usize = 1 << 20;

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/chat").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn source(name: &str) -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/chat/templates").join(format!("{name}.jinja"));
    std::fs::read_to_string(path).unwrap()
}

fn tokens(value: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The small tokenizer; `trims` where it trims blanks off its offsets, as Llama 3's does.
fn tokenizer(trims: bool) -> Tokenizer {
    let mut keys = fixture("golden.json")["llama"]["tokenizer"].take();
    if trims {
        keys["post_processor"] =
            json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
    }
    Tokenizer::from_bytes(keys.to_string()).unwrap()
}

fn conversation(value: &Value) -> Conversation {
    let (messages, tools) = match value {
        Value::Array(messages) => (messages, None),
        value => (value["messages"].as_array().unwrap(), value.get("tools").cloned()),
    };
    Conversation { messages: messages.clone(), tools }
}

fn is_answered(conversation: &Conversation) -> bool {
    conversation.messages.last().unwrap()["role"] == "assistant"
}

fn bits(encoded: &Encoded) -> String {
    encoded.is_counted.iter().map(|is_counted| if *is_counted { '1' } else { '0' }).collect()
}

/// Every template with every conversation, and what transformers made of both.
fn for_each_case(mut check: impl FnMut(&str, &str, &ChatTemplate, &Conversation, &Value)) -> usize {
    let fixture = fixture("cases.json");
    let mut count = 0;
    for (name, cases) in fixture["cases"].as_object().unwrap() {
        let template = ChatTemplate::new(name, &source(name), tokens(&fixture["tokens"])).unwrap();
        for (key, case) in cases.as_object().unwrap() {
            let conversation = conversation(&fixture["conversations"][key]);
            check(name, key, &template, &conversation, case);
            count += 1;
        }
    }
    count
}

#[test]
fn texts_are_those_of_transformers() {
    let count = for_each_case(|name, key, template, conversation, case| {
        let rendered = template.render(conversation, !is_answered(conversation));
        match (rendered, &case["text"], &case["raises"]) {
            (Ok(Rendered { text, .. }), Value::String(want), _) => assert_eq!(&text, want, "{name}, {key}"),
            (Err(ChatError::Refused { message, .. }), _, Value::String(want)) => {
                assert_eq!(&message, want, "{name}, {key}")
            }
            (Err(ChatError::Template { line: Some(_), .. }), Value::Null, Value::Null) => {}
            (rendered, ..) => panic!("{name}, {key}: {rendered:?}, but want {case}"),
        }
    });
    assert!(count > 150, "{count}");
}

#[test]
fn tokens_and_masks_are_those_of_transformers() {
    let (plain, trimming) = (tokenizer(false), tokenizer(true));
    for_each_case(|name, key, template, conversation, case| {
        let Some(mask) = case["mask"].as_str() else { return };
        let rendered = template.render(conversation, !is_answered(conversation)).unwrap();
        let encoded = encode(&plain, &rendered, WHOLE).unwrap();
        if !case["ids"].is_null() {
            assert_eq!(json!(encoded.ids), case["ids"], "{name}, {key}");
        }
        assert_eq!(bits(&encoded), mask, "{name}, {key}");
        assert!(!encoded.was_cut);
        let cut = encode(&plain, &rendered, 40).unwrap();
        assert_eq!(bits(&cut), case["cut_mask"].as_str().unwrap(), "{name}, {key}");
        assert_eq!((cut.ids.as_slice(), cut.was_cut), (&encoded.ids[..cut.ids.len()], encoded.ids.len() > 40));
        // Where blanks have no token, transformers counts what follows a turn, or forgets the turns behind it; here neither happens.
        let trimmed = bits(&encode(&trimming, &rendered, WHOLE).unwrap());
        match case["trimmed_mask"].as_str() {
            None => assert_eq!(trimmed, mask, "{name}, {key}"),
            Some(_) => assert!(trimmed.bytes().zip(mask.bytes()).all(|(one, other)| one <= other), "{name}, {key}"),
        }
    });
}

fn spoken(rendered: &Rendered) -> Vec<&str> {
    rendered.spoken.iter().map(|range| &rendered.text[range.clone()]).collect()
}

/// The marks of a template are found again without them.
#[test]
fn turns_are_found_where_templates_do_not_mark_them() {
    let fixture = fixture("cases.json");
    let mut found = BTreeMap::new();
    for_each_case(|name, key, marked, conversation, case| {
        if !marked.has_marks() || !is_answered(conversation) || name == "forms" || case["text"].is_null() {
            return;
        }
        let mut source = source(name);
        for tag in ["generation %}", "endgeneration %}", "endgeneration +%}"] {
            source = source.replace(&format!("{{% {tag}"), "").replace(&format!("{{%- {tag}"), "");
        }
        let plain = ChatTemplate::new(name, &source, tokens(&fixture["tokens"])).unwrap();
        assert!(!plain.has_marks());
        let rendered = match plain.render_spoken(conversation) {
            Ok(rendered) => rendered,
            Err(error) => panic!("{name}, {key}: {error}"),
        };
        // Qwen 2.5's template as it is marked here leaves out calls of tools.
        let turns: Vec<&str> = spoken(&rendered).into_iter().filter(|text| !text.starts_with("<tool_call>")).collect();
        assert_eq!(turns, spoken(&marked.render_spoken(conversation).unwrap()), "{name}, {key}");
        *found.entry(name.to_owned()).or_insert(0) += 1;
    });
    assert_eq!(found.len(), 7, "{found:?}");
}

#[test]
fn turns_are_found_that_depend_on_what_follows() {
    let fixture = fixture("cases.json");
    let cases: [(&str, &str, &[&str]); 13] = [
        ("zephyr", "system", &["Fry them.<|im_end|>", "Boil it.\n\nThen fry it.<|im_end|>"]),
        ("zephyr", "blanks", &["  in and out \n\n<|im_end|>", "\u{3000}wide\u{3000}\r\n<|im_end|>"]),
        ("zephyr", "assistant_first", &["Hello!<|im_end|>", "Well?<|im_end|>"]),
        ("smol-lm-2", "unicode", &["é🙂ß<|im_end|>", "👋🏽 नमस्ते<|im_end|>"]),
        // The last turn ends the text too.
        ("phi-3", "system", &["Fry them.<|end|>", "Boil it.\n\nThen fry it.<|end|>\n<|im_end|>"]),
        ("phi-3", "blanks", &["  in and out \n\n<|end|>", "\u{3000}wide\u{3000}\r\n<|end|>\n<|im_end|>"]),
        // The system message stands in the last message, where that is a user's.
        ("mistral", "system", &["Fry them.<|im_end|>", "Boil it.\n\nThen fry it.<|im_end|>"]),
        ("mistral", "unicode", &[" é🙂ß<|im_end|>", " 👋🏽 नमस्ते<|im_end|>"]),
        ("qwen-3", "short", &["<think>\n\n</think>\n\nHello!<|im_end|>"]),
        ("qwen-3", "system", &["Fry them.<|im_end|>", "<think>\n\n</think>\n\nBoil it.\n\nThen fry it.<|im_end|>"]),
        ("qwen-3", "think", &["2<|im_end|>", "<think>\nAdd again.\n</think>\n\n4<|im_end|>"]),
        ("qwen-3", "reason", &["<think>\nAdd.\n</think>\n\n2<|im_end|>"]),
        (
            "qwen-3",
            "special",
            &[
                "\u{f0000}\u{f0001}<|im_end|>{{ 7 * 7 }}{# no #}\u{e000}<|im_end|>",
                "<think>\n\n</think>\n\n\u{f0002}<end_of_turn><|eot_id|><|im_end|>",
            ],
        ),
    ];
    let render = |name: &str, key: &str| {
        let template = ChatTemplate::new(name, &source(name), tokens(&fixture["tokens"])).unwrap();
        template.render_spoken(&conversation(&fixture["conversations"][key]))
    };
    for (name, key, want) in cases {
        let rendered = render(name, key).unwrap();
        assert_eq!(spoken(&rendered), want, "{name}, {key}");
        assert!(!rendered.is_marked);
    }
    for (name, key) in [("mistral", "tools"), ("qwen-3", "empty")] {
        let error = render(name, key).unwrap_err().to_string();
        let want = "cannot tell which text the assistant wrote in message 2: the template writes it differently once \
            messages follow; hint: add {% generation %} to the template, or count all tokens";
        assert_eq!(error, format!("{name}: {want}"));
    }
}

/// A tokenizer that trims its offsets has no token for the blank with which Mistral's turns begin.
#[test]
fn found_turns_count_without_their_blanks() {
    let fixture = fixture("cases.json");
    let template = ChatTemplate::new("mistral", &source("mistral"), tokens(&fixture["tokens"])).unwrap();
    let rendered = template.render_spoken(&conversation(&fixture["conversations"]["unicode"])).unwrap();
    let masks = [false, true].map(|trims| bits(&encode(&tokenizer(trims), &rendered, WHOLE).unwrap()));
    for mask in masks {
        assert_eq!(mask.split('0').filter(|turn| !turn.is_empty()).count(), 2, "{mask}");
    }
}

#[test]
fn golden_labels_come_out() {
    let models = fixture("golden.json");
    for (name, model) in models.as_object().unwrap() {
        let special = tokens(&json!({ "eos_token": model["tokenizer_config"]["eos_token"] }));
        let template = ChatTemplate::new(name, model["template"].as_str().unwrap(), special).unwrap();
        let tokenizer = Tokenizer::from_bytes(model["tokenizer"].to_string()).unwrap();
        let pad = tokenizer.token_to_id(model["tokenizer_config"]["pad_token"].as_str().unwrap()).unwrap();
        for (at, row) in model["rows"].as_array().unwrap().iter().enumerate() {
            let row: &Map<String, Value> = row.as_object().unwrap();
            let conversation =
                Conversation::of(row, Columns::Messages { messages: "messages", tools: "tools" }).unwrap();
            let encoded = encode(&tokenizer, &template.render_spoken(&conversation).unwrap(), 96).unwrap();
            let length = model["input_ids"][at].as_array().unwrap().len();
            let mut ids: Vec<i64> = encoded.ids.iter().map(|id| i64::from(*id)).collect();
            let label = |(id, is_counted): (&i64, &bool)| if *is_counted { *id } else { -100 };
            let mut labels: Vec<i64> = ids.iter().zip(&encoded.is_counted).map(label).collect();
            ids.resize(length, i64::from(pad));
            labels.resize(length, -100);
            assert_eq!(json!(ids), model["input_ids"][at], "{name}, row {at}");
            assert_eq!(json!(labels), model["labels"][at], "{name}, row {at}");
        }
    }
}
