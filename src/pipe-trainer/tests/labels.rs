//! Several labels a text, and a label for each token: that models learn them, whatever the cut, resume, and predict what their
//! evaluation says.

use std::fs;

use crate::predict::{expect_figures, nothing, predict, texts, train};
use crate::support::{Bench, fixture, furthest, losses};
use serde_json::{Value, json};

/// The rows of a file of `texts`, each made into another.
fn rewrite(bench: &Bench, row: impl Fn(&str, &str) -> Value) {
    for name in ["data/train.jsonl", "data/eval.jsonl"] {
        let text = fs::read_to_string(bench.path(name)).unwrap();
        let written: String = text
            .lines()
            .map(|line| {
                let read: Value = serde_json::from_str(line).unwrap();
                format!("{}\n", row(read["text"].as_str().unwrap(), read["label"].as_str().unwrap()))
            })
            .collect();
        fs::write(bench.path(name), written).unwrap();
    }
}

/// Texts with their dish as a label, and `butter` where there is some. Soups have none of their own.
fn several(arch: &str) -> Bench {
    let bench = texts(arch);
    rewrite(&bench, |text, label| {
        let labels = [(label != "soup").then_some(label), text.contains("butter").then_some("butter")];
        json!({ "text": text, "label": labels.into_iter().flatten().collect::<Vec<_>>() })
    });
    bench
}

/// The words of texts: those that begin with a capital letter or a digit begin a span, the word behind a digit is inside of it.
fn tokens(arch: &str) -> Bench {
    let mut bench = texts(arch);
    rewrite(&bench, |text, _| {
        // Few enough that the model reads all of them at once.
        let words: Vec<&str> = text.split_whitespace().take(16).collect();
        let is_number = |word: &str| word.starts_with(|letter: char| letter.is_ascii_digit());
        let tag = |at: usize| match words[at] {
            word if is_number(word) => "B-AMOUNT",
            _ if at > 0 && is_number(words[at - 1]) => "I-AMOUNT",
            word if word.starts_with(['a', 'b', 'c']) => "B-EARLY",
            _ => "O",
        };
        json!({ "tokens": words, "tags": (0..words.len()).map(tag).collect::<Vec<_>>() })
    });
    bench.set("/model/task", json!("token-classification")).set("/evaluate", json!({ "every": 30 }));
    bench
}

fn config(bench: &Bench) -> Value {
    serde_json::from_slice(&fs::read(bench.run_folder().model().join("config.json")).unwrap()).unwrap()
}

#[test]
fn several_labels_are_learned_and_predicted() {
    let mut bench = several("bag-of-words");
    bench.set("/train/batch", json!(16)).set("/train/effective_batch", json!(16)).set("/train/steps", json!(200));
    bench.set("/train/optimizer", json!({ "lr": 2e-2 })).set("/evaluate/threshold", json!(0.4));
    let eval = train(&bench);
    assert_eq!(eval.scores.keys().collect::<Vec<_>>(), ["exact_match", "macro_f1", "micro_f1"]);
    assert!(eval.scores["micro_f1"] > 0.9, "{:?}", eval.scores);
    let exported = config(&bench);
    assert_eq!(exported["problem_type"], json!("multi_label_classification"));
    assert_eq!((&exported["threshold"], &exported["id2label"]["0"]), (&json!(0.4), &json!("butter")));
    let rows = bench.path("few.csv");
    fs::write(&rows, "text,label\n\"Bake with butter.\",cake|butter\n\"Simmer the soup.\",\n").unwrap();
    let separator = |spec: &mut Value| spec["settings"]["data"]["label_separator"] = json!("|");
    let ended = predict(&bench, &rows, separator);
    assert_eq!(ended.done().evaluation.as_ref().map(|evaluation| evaluation.rows), Some(2));
    assert_eq!(ended.column("expected"), [json!(["butter", "cake"]), json!([])]);
    for line in &ended.lines {
        let scores = line["scores"].as_object().unwrap();
        let above: Vec<&String> =
            scores.iter().filter(|(_, score)| score.as_f64() >= Some(0.4)).map(|(name, _)| name).collect();
        assert_eq!(line["labels"], json!(above), "{line}");
    }
    let unlabelled = bench.path("few.jsonl");
    fs::write(&unlabelled, "{\"text\": \"Simmer the soup.\"}\n").unwrap();
    assert_eq!(predict(&bench, &unlabelled, nothing).done().evaluation, None);
}

#[test]
fn a_label_for_each_token_is_learned_and_predicted_as_spans() {
    let mut bench = tokens("bert");
    bench.set("/train/steps", json!(120)).set("/train/optimizer", json!({ "lr": 5e-3 }));
    let eval = train(&bench);
    let names = ["entity_f1", "entity_precision", "entity_recall", "token_accuracy"];
    assert_eq!(eval.scores.keys().collect::<Vec<_>>(), names);
    assert!(eval.scores["entity_f1"] > 0.8, "{:?}", eval.scores);
    let exported = config(&bench);
    assert_eq!(exported["architectures"], json!(["BertForTokenClassification"]));
    assert_eq!(exported["id2label"], json!({ "0": "B-AMOUNT", "1": "B-EARLY", "2": "I-AMOUNT", "3": "O" }));
    let rows = bench.path("few.txt");
    // More than the model can read at once.
    let long = "bake 5 minutes. ".repeat(40);
    fs::write(&rows, format!("Mix 5 eggs, then bake.\n{long}\n")).unwrap();
    let ended = predict(&bench, &rows, nothing);
    assert_eq!((ended.done().predictions, ended.done().evaluation.as_ref()), (2, None));
    for (line, text) in ended.lines.iter().zip(["Mix 5 eggs, then bake.", &long]) {
        let letters: Vec<char> = text.chars().collect();
        for span in line["spans"].as_array().unwrap() {
            let at = |key: &str| span[key].as_u64().unwrap() as usize;
            assert_eq!(span["text"], json!(letters[at("start")..at("end")].iter().collect::<String>()));
            assert!((0.0..=1.0).contains(&span["score"].as_f64().unwrap()), "{span}");
        }
    }
    let last = ended.lines[1]["spans"].as_array().unwrap().last().unwrap()["start"].as_u64().unwrap();
    assert!(last > 400, "the end of a long text is labelled too: {last}");
    let conll = bench.path("few.conll");
    fs::write(&conll, "Add O\n3 B-AMOUNT\ncups I-AMOUNT\n\nbake B-EARLY\n").unwrap();
    let ended = predict(&bench, &conll, nothing);
    assert_eq!(ended.done().evaluation.as_ref().map(|evaluation| evaluation.rows), Some(2));
    assert_eq!(ended.lines[0]["expected"], json!(["O", "B-AMOUNT", "I-AMOUNT"]));
    assert_eq!(ended.lines[0]["tags"].as_array().unwrap().len(), 3);
}

#[test]
fn labels_that_are_numbers_are_judged_by_token() {
    let mut bench = tokens("bert");
    for name in ["data/train.jsonl", "data/eval.jsonl"] {
        let text = fs::read_to_string(bench.path(name)).unwrap();
        let numbered = [("\"O\"", "0"), ("\"B-AMOUNT\"", "1"), ("\"I-AMOUNT\"", "2"), ("\"B-EARLY\"", "10")];
        let text = numbered.iter().fold(text, |text, (tag, number)| text.replace(tag, number));
        fs::write(bench.path(name), text).unwrap();
    }
    bench.set("/train/steps", json!(120)).set("/train/optimizer", json!({ "lr": 5e-3 }));
    bench.set("/save", json!({ "best": "eval.token_macro_f1" }));
    let eval = train(&bench);
    assert_eq!(eval.scores.keys().collect::<Vec<_>>(), ["token_accuracy", "token_macro_f1"]);
    assert!(eval.scores["token_macro_f1"] > 0.6, "{:?}", eval.scores);
    let headline = eval.headline.unwrap();
    assert_eq!(
        (headline.metric.as_str(), headline.baseline.unwrap().name.as_str()),
        ("token_accuracy", "always answering 0")
    );
    assert_eq!(config(&bench)["id2label"], json!({ "0": "0", "1": "1", "2": "2", "3": "10" }));
    let rows = bench.path("few.txt");
    fs::write(&rows, "Mix 5 eggs.\n").unwrap();
    let line = predict(&bench, &rows, nothing).lines.remove(0);
    assert_eq!((line["tokens"].clone(), line.get("spans")), (json!(["Mix", "5", "eggs", "."]), None));
    assert_eq!(line["tags"].as_array().unwrap().len(), 4);
    bench.set("/save", json!({ "best": "eval.entity_f1" }));
    let ended = bench.train().expect(3);
    assert!(ended.stderr.contains("allowed: eval.loss, eval.token_accuracy, eval.token_macro_f1"), "{}", ended.stderr);
}

#[test]
fn the_figures_are_those_of_the_evaluation() {
    expect_figures([several("bert"), tokens("bert")]);
}

#[test]
#[ignore = "test-all"]
fn the_figures_of_the_other_models_are_those_of_the_evaluation() {
    let encoders = ["roberta", "xlm-roberta", "deberta-v3"];
    let benches = encoders.iter().flat_map(|arch| [several(arch), tokens(arch)]);
    expect_figures(benches.chain([several("bag-of-words")]));
}

#[test]
fn every_cut_gives_the_same_training() {
    for bench in [several, tokens] {
        let run = |batch: u32| {
            let mut bench = bench("bert");
            bench
                .set("/train/steps", json!(8))
                .set("/train/effective_batch", json!(12))
                .set("/train/batch", json!(batch));
            losses(&bench.train().expect(0))
        };
        let whole = run(12);
        for batch in [1, 5] {
            let apart = furthest(&whole, &run(batch));
            assert!(apart < 1e-5, "batch {batch}: {apart}");
        }
    }
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    for mut bench in [several("bert"), tokens("bert"), tokens("deberta-v3")] {
        bench.set("/train/steps", json!(8)).set("/save", json!({ "every": 4, "keep": 3 }));
        bench.expect_the_same_bits_from(4);
    }
}

#[test]
fn what_cannot_be_trained_is_named() {
    let mut bench = tokens("bert");
    let model = fixture().join("../bert-several");
    bench.set("/model", json!({ "arch": "bert", "task": "token-classification", "from": model }));
    let ended = bench.train().expect(3);
    assert!(ended.stderr.contains("it is trained for text-classification"), "{}", ended.stderr);
    let uneven = bench.path("uneven.jsonl");
    fs::write(&uneven, "{\"tokens\": [\"a\", \"b\"], \"tags\": [\"O\"]}\n").unwrap();
    let mut bench = tokens("bert");
    bench.set("/data/train", json!(uneven));
    let ended = bench.train().expect(3);
    assert!(ended.stderr.contains("line 1: 2 tokens and 1 tags; every token needs one"), "{}", ended.stderr);
}
