//! Several labels a text, and a label for each token, as somebody brings them: `init --yes`, `check`, `run`, `predict`, and what
//! transformers makes of the exported model.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::harness::folder::repository;
use crate::harness::suite::transformers;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::events;

pub fn tests(suite: &mut Suite) {
    suite.test("labels::several_labels_a_text", Needs::Nothing, || {
        drop(several(&tickets_csv(), &["tickets.csv", "--arch", "bag-of-words"], "bag-of-words", "|"));
    });
    suite.test("labels::a_label_for_each_token", Needs::Nothing, || drop(tokens(&news_conll(), "news.conll", "tags")));
    suite.thorough("labels::several_labels_in_transformers", Needs::Transformers, || {
        in_transformers(&several(&tickets_jsonl(), &["tickets.jsonl"], "bert", ""), &tickets_jsonl());
    });
    suite.thorough("labels::token_labels_in_transformers", Needs::Transformers, || {
        in_transformers(&tokens(&news_jsonl(), "news.jsonl", "ner_tags"), &news_jsonl());
    });
}

const TOPICS: [(&str, [&str; 3]); 4] = [
    ("billing", ["I was charged twice", "the invoice is wrong", "my refund is missing"]),
    ("delivery", ["the parcel is late", "the courier lost my box", "the package was open"]),
    ("login", ["I cannot sign in", "the password reset fails", "my account is locked"]),
    ("urgent", ["please answer today", "this is an emergency", "we lose money every hour"]),
];

/// A text with the topics whose bits are set in `row`.
fn ticket(row: usize) -> (String, Vec<&'static str>) {
    // Every combination in turn, in another order than that of the bits.
    let bits = row * 7 % 16;
    let chosen = || (0..TOPICS.len()).filter(move |topic| bits >> topic & 1 == 1);
    let said = chosen().map(|topic| TOPICS[topic].1[(row / 16 + topic * row) % 3]);
    let text = std::iter::once(["Hello", "Good morning", "To the team"][row % 3]).chain(said).collect::<Vec<_>>();
    (text.join(". "), chosen().map(|topic| TOPICS[topic].0).collect())
}

const TICKETS: usize = 1040;

fn tickets_csv() -> String {
    let row = |row: usize| {
        let (text, labels) = ticket(row);
        format!("{row},{text},{}\n", labels.join("|"))
    };
    format!("nr,message,topics\n{}", (0..TICKETS).map(row).collect::<String>())
}

fn tickets_jsonl() -> String {
    let row = |row: usize| {
        let (text, labels) = ticket(row);
        format!("{}\n", json!({ "message": text, "topics": labels }))
    };
    (0..TICKETS).map(row).collect()
}

/// Words with their tags.
fn sentence(row: usize) -> Vec<(&'static str, &'static str)> {
    const PEOPLE: [&[&str]; 5] = [&["Peter"], &["Ana", "Santos"], &["Greta", "Weber"], &["Omar"], &["Ines", "Rossi"]];
    const PLACES: [&[&str]; 5] = [&["Paris"], &["New", "York"], &["Oslo"], &["Cape", "Town"], &["Rome"]];
    let name = |words: &[&'static str], tags: [&'static str; 2]| -> Vec<(&'static str, &'static str)> {
        words.iter().enumerate().map(|(at, word)| (*word, tags[at.min(1)])).collect()
    };
    let person = |at: usize| name(PEOPLE[at % 5], ["B-PER", "I-PER"]);
    let place = |at: usize| name(PLACES[at % 5], ["B-LOC", "I-LOC"]);
    let plain = |text: &'static str| text.split(' ').map(|word| (word, "O")).collect::<Vec<_>>();
    match row % 4 {
        0 => [person(row / 4), plain("lives in"), place(row / 20), plain(".")].concat(),
        1 => [plain("Yesterday"), person(row / 4), plain("met"), person(row / 20 + 1), plain(".")].concat(),
        2 => {
            [person(row / 4), plain("flew from"), place(row / 8), plain("to"), place(row / 40 + 2), plain(".")].concat()
        }
        _ => plain("Nothing happened today ."),
    }
}

const SENTENCES: usize = 480;

fn news_conll() -> String {
    let mut text = "-DOCSTART- O\n\n".to_owned();
    for row in 0..SENTENCES {
        sentence(row).iter().for_each(|(word, tag)| writeln!(text, "{word} {tag}").unwrap());
        text.push('\n');
    }
    text
}

fn news_jsonl() -> String {
    let row = |row: usize| {
        let (words, tags): (Vec<&str>, Vec<&str>) = sentence(row).into_iter().unzip();
        format!("{}\n", json!({ "tokens": words, "ner_tags": tags }))
    };
    (0..SENTENCES).map(row).collect()
}

/// Drafts as `init` says, checks, trains with `set`, and returns the best value of a metric.
fn first_hour(folder: &Folder, init: &[&str], draft: &[&str], set: &[&str], metric: &str) -> f64 {
    folder.pipe(&[&["init", "mine.yaml", "--yes", "--data"][..], init].concat()).exits(0);
    let written = folder.read("mine.yaml");
    draft.iter().for_each(|wanted| assert!(written.contains(wanted), "no {wanted:?} in\n{written}"));
    let checked = folder.pipe(&["check", "mine.yaml", "--json"]).exits(0).json();
    assert_eq!(checked["warnings"], Value::Array(Vec::new()), "{written}");
    folder.pipe(&[&["run", "mine.yaml", "--engine", "process"][..], set].concat()).exits(0);
    let events = events(&folder.run_folder());
    let values = events.iter().filter(|event| event["type"] == "eval").filter_map(|event| event[metric].as_f64());
    values.fold(0.0, f64::max)
}

/// `arch` is `bert` unless the command line says otherwise.
fn several(data: &str, init: &[&str], arch: &str, separator: &str) -> Folder {
    let folder = Folder::new();
    folder.write(init[0], data);
    let arch = format!("arch: {arch}");
    let draft = [arch.as_str(), "label: topics", "several labels a text, 4 labels", "best: eval.micro_f1"];
    // Half of all labels apply: always answering all of them is 0.67.
    let f1 = first_hour(&folder, init, &draft, &[], "micro_f1");
    assert!(f1 > 0.85, "{f1}");
    assert_eq!(folder.read("mine.yaml").contains("label_separator"), !separator.is_empty());
    folder.write("rows.jsonl", "{\"message\": \"Hello. my account is locked. this is an emergency\"}\n");
    let run = folder.run_folder().display().to_string();
    let args = ["predict", run.as_str(), "--data", "rows.jsonl", "--engine", "process"];
    assert_eq!(folder.pipe(&args).exits(0).json()["labels"], json!(["login", "urgent"]));
    folder
}

fn tokens(data: &str, name: &str, tags: &str) -> Folder {
    let folder = Folder::new();
    folder.write(name, data);
    let tags = format!("tags: {tags}, a label for each token, 5 labels");
    let draft = ["arch: bert", "task: token-classification", "best: eval.entity_f1", tags.as_str()];
    // The draft would train for half a minute; so much is enough here.
    let f1 = first_hour(&folder, &[name], &draft, &["--set", "train.epochs=4"], "entity_f1");
    assert!(f1 > 0.8, "{f1}");
    folder.write("rows.txt", "Yesterday Ana Santos flew to Oslo.\n");
    let run = folder.run_folder().display().to_string();
    let args = ["predict", run.as_str(), "--data", "rows.txt", "--engine", "process"];
    let spans = folder.pipe(&args).exits(0).json()["spans"].clone();
    let shown = |span: &Value| json!([span["text"], span["label"], span["start"], span["end"]]);
    let shown: Vec<Value> = spans.as_array().unwrap().iter().map(shown).collect();
    assert_eq!(shown, [json!(["Ana Santos", "PER", 10, 20]), json!(["Oslo", "LOC", 29, 33])]);
    folder
}

/// The exported model gives the same probabilities there.
fn in_transformers(folder: &Folder, rows: &str) {
    let run = folder.run_folder();
    folder.write("some.jsonl", rows.lines().take(50).map(|line| format!("{line}\n")).collect::<String>());
    let id = run.display().to_string();
    folder.pipe(&["predict", &id, "--data", "some.jsonl", "--out", "out.jsonl", "--engine", "process"]).exits(0);
    let output = transformers()
        .arg(repository().join("tests/labels_check.py"))
        .args([run.join("model"), folder.path().join("some.jsonl"), folder.path().join("out.jsonl")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
