//! Which file a run takes its tokenizer from, and what belongs to it.

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.test("tokenizers::the_first_complete_set_is_taken", Needs::Nothing, first_set);
    suite.test("tokenizers::the_models_come_before_those_beside_the_data", Needs::Nothing, of_the_model);
    suite.test("tokenizers::a_set_must_be_whole", Needs::Nothing, whole);
    suite.test("tokenizers::every_file_that_defines_it_is_locked", Needs::Nothing, locked);
}

/// A folder whose pipeline trains a RoBERTa, with these files beside the data.
fn folder(more: &str, files: &[&str]) -> Folder {
    let folder = job::folder("exit 0", "");
    let pipeline = folder.read("job.yaml").replace("arch: t5, config: {}", &format!("arch: roberta, {more}"));
    folder.write("job.yaml", pipeline);
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    for name in files {
        folder.write(name, format!("{{}} {name}"));
    }
    folder
}

/// Runs it. Returns the end of the path in the trainer's spec, and the lock.
fn chosen(folder: &Folder) -> (String, Value) {
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let read = |name: &str| serde_json::from_str::<Value>(&folder.read_run(name)).unwrap();
    let path = read("attempts/01/spec.json")["tokenizer"].as_str().unwrap().to_owned();
    let base = folder.path().canonicalize().unwrap().display().to_string();
    let short = path.strip_prefix(&base).unwrap_or_else(|| panic!("{path} is not in {base}"));
    (short.to_owned(), read("lock.json"))
}

fn first_set() {
    for (files, want) in [
        (&["vocab.json", "merges.txt"][..], "/vocab.json"),
        (&["vocab.json", "merges.txt", "tokenizer.json"], "/tokenizer.json"),
        // Half a set, and one of another architecture.
        (&["vocab.json", "spm.model", "tokenizer.json"], "/tokenizer.json"),
    ] {
        assert_eq!(chosen(&folder("config: {}", files)).0, want, "{files:?}");
    }
}

fn of_the_model() {
    let with = |files: &[&str]| folder("from: model", &[&["tokenizer.json"], files].concat());
    let inside = ["model/config.json", "model/pytorch_model.bin", "model/vocab.json", "model/merges.txt"];
    assert_eq!(chosen(&with(&inside)).0, "/model/vocab.json");
    assert_eq!(chosen(&with(&inside[..3])).0, "/tokenizer.json");
}

fn whole() {
    let refused = |folder: &Folder, text: &str| {
        folder.pipe(&["check", "job.yaml"]).exits(3).says(text);
    };
    let named = folder("config: {}", &["other/vocab.json"]);
    named
        .write("job.yaml", named.read("job.yaml").replace("train.jsonl}", "train.jsonl, tokenizer: other/vocab.json}"));
    refused(&named, "data.tokenizer: ");
    refused(&named, "/other/merges.txt, which does not exist");
    named.write("other/merges.txt", "");
    assert_eq!(chosen(&named).0, "/other/vocab.json");
    let none = folder("config: {}", &["vocab.json"]);
    refused(&none, "/tokenizer.json; give the path of a tokenizer.json or a vocab.json with merges.txt");
}

fn locked() {
    let files = ["vocab.json", "merges.txt", "tokenizer_config.json"];
    let vocabulary = folder("config: {}", &files);
    let lock = chosen(&vocabulary).1;
    let end = |file: &Value| file["name"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    assert_eq!(end(&lock["tokenizer"]), "vocab.json");
    let others: Vec<String> = lock["tokenizer_files"].as_array().unwrap().iter().map(end).collect();
    assert_eq!(others, ["merges.txt", "tokenizer_config.json"]);
    // Files beside a tokenizer.json are ignored.
    let json = folder("config: {}", &["tokenizer.json", "tokenizer_config.json"]);
    let lock = chosen(&json).1;
    assert_eq!((end(&lock["tokenizer"]).as_str(), &lock["tokenizer_files"]), ("tokenizer.json", &Value::Null));

    let run = vocabulary.run_folder().file_name().unwrap().to_str().unwrap().to_owned();
    vocabulary.write("merges.txt", "other");
    vocabulary.pipe(&["reproduce", &run]).exits(3).says("merges.txt");
}
