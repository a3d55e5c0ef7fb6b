//! `pipe check` opens the data with the real trainer: what is in it, what is wrong with it, and what will disappoint.

use serde_json::{Value, json};

use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::run_trainer;

pub fn tests(suite: &mut Suite) {
    suite.test("check_data::rows_classes_and_lengths_are_printed", Needs::Nothing, printed);
    suite.test("check_data::what_a_first_step_would_trip_over_is_found", Needs::Nothing, found);
    suite.test("check_data::settings_that_disappoint_are_warnings", Needs::Nothing, warnings);
    suite.test("check_data::compressed_data_is_opened", Needs::Nothing, compressed);
    suite.test("check_data::the_command_that_makes_a_tokenizer_is_followed", Needs::Nothing, own_tokenizer);
    suite.test("check_data::input_that_fails_leaves_no_run", Needs::Nothing, no_run);
}

/// Descriptions of dishes with their class, and `dishes.yaml`.
fn dishes() -> Folder {
    let folder = Folder::new();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    run_trainer(&["data", "texts", "--rows", "60", "--eval-rows", "30", "--seed", "1", "--out", data]).exits(0);
    folder.write(
        "dishes.yaml",
        "version: 1\nname: dishes\nmodel: {arch: bag-of-words, config: {vocab_size: 192, hidden_size: 8}}\n\
         data: {train: data/train.jsonl, eval: data/eval.jsonl}\n\
         train: {epochs: 2, batch: 4, effective_batch: 8}\ncontainer: {gpus: 0, cpus: 1}\n",
    );
    folder
}

fn rows(folder: &Folder, name: &str) -> Vec<Value> {
    folder.read(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn printed() {
    let folder = dishes();
    let said = folder.pipe(&["check", "dishes.yaml"]).exits(0).stdout;
    let soups = rows(&folder, "data/train.jsonl").iter().filter(|row| row["label"] == "soup").count();
    for text in
        ["effective batch 8", "train  60 rows", "text: ", &format!("soup {soups}"), "eval   30 rows", "steps  15"]
    {
        assert!(said.contains(text), "{text:?} is not in {said}");
    }
    assert!(!said.contains("warning"), "{said}");
    let json: Value = serde_json::from_str(&folder.pipe(&["check", "dishes.yaml", "--json"]).exits(0).stdout).unwrap();
    assert_eq!((&json["valid"], &json["warnings"]), (&json!(true), &json!([])));
    assert_eq!((&json["data"]["train"]["rows"], &json["data"]["steps"]), (&json!(60), &json!(15)));
    let said = folder.pipe(&["check", "dishes.yaml", "--no-data"]).exits(0).stdout;
    assert_eq!(said.lines().count(), 1, "{said}");
}

fn found() {
    let folder = dishes();
    let train = folder.read("data/train.jsonl");
    let cases = [
        ("data/train.jsonl", "{\"text\": \"stir\"}", "train.jsonl line 61: no field \"label\""),
        ("data/train.jsonl", "{\"text\": 7, \"label\": \"soup\"}", "field \"text\" holds a number"),
        ("data/eval.jsonl", "{\"text\": \"stir\", \"label\": \"bread\"}", "the label \"bread\" is no class"),
    ];
    for (file, row, want) in cases {
        let before = folder.read(file);
        folder.write(file, format!("{before}{row}\n"));
        folder.pipe(&["check", "dishes.yaml"]).exits(3).says(want);
        let answer = folder.pipe(&["check", "dishes.yaml", "--json"]).exits(3);
        let json: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert!(json["problems"][0]["message"].as_str().unwrap().contains(want), "{json}");
        folder.write(file, before);
    }
    // A tokenizer with more words than the model knows.
    let small = "model.config.vocab_size=100";
    folder.pipe(&["check", "dishes.yaml", "--set", small]).exits(3).says("tokenizer.json");
    assert_eq!(folder.read("data/train.jsonl"), train);
}

fn warnings() {
    let folder = dishes();
    let check = |sets: &[&str]| {
        let words: Vec<&str> =
            ["check", "dishes.yaml"].into_iter().chain(sets.iter().flat_map(|set| ["--set", set])).collect();
        folder.pipe(&words).exits(0).stdout
    };
    assert!(check(&["train.schedule.warmup=15"]).contains("warning: train.schedule.warmup: "));
    assert!(
        check(&["train.effective_batch=60", "train.epochs=1"])
            .contains("warning: train: the training is a single step")
    );
    assert!(check(&["data.max_length=4"]).contains("warning: data.max_length: "));
    folder.write("dishes.yaml", folder.read("dishes.yaml").replace(", eval: data/eval.jsonl", ""));
    assert!(check(&[]).contains("warning: data.eval: "));
}

fn compressed() {
    let folder = dishes();
    let gzip = std::process::Command::new("gzip").arg(folder.path().join("data/train.jsonl")).status();
    assert!(gzip.unwrap().success());
    folder.write("dishes.yaml", folder.read("dishes.yaml").replace("train.jsonl", "train.jsonl.gz"));
    assert!(folder.pipe(&["check", "dishes.yaml"]).exits(0).stdout.contains("train  60 rows"));
}

fn no_run() {
    let folder = dishes();
    folder.write("data/train.jsonl", "{\"text\": \"stir\"}\n");
    folder.pipe(&["run", "dishes.yaml", "--engine", "process"]).exits(3).says("train.jsonl line 1: no field \"label\"");
    assert_eq!(folder.pipe(&["ls", "--json"]).exits(0).stdout.trim(), "[]");
}

/// Texts under another name, and no tokenizer: the problem names a command, and what it makes is found.
fn own_tokenizer() {
    let folder = dishes();
    std::fs::remove_file(folder.path().join("data/tokenizer.json")).unwrap();
    for name in ["data/train.jsonl", "data/eval.jsonl"] {
        folder.write(name, folder.read(name).replace("\"text\":", "\"the dish\":"));
    }
    let fields = "{train: data/train.jsonl, fields: {text: the dish},";
    folder.write("dishes.yaml", folder.read("dishes.yaml").replace("{train: data/train.jsonl,", fields));
    let said = folder.pipe(&["check", "dishes.yaml"]).exits(3).stderr;
    let command = said.split_once("or make one: `pipe-trainer ").and_then(|(_, rest)| rest.split_once('`')).unwrap().0;
    let shell = format!("{} {command}", crate::small_t5::trainer().display());
    assert!(std::process::Command::new("sh").args(["-c", &shell]).status().unwrap().success(), "{shell}");
    folder.pipe(&["check", "dishes.yaml"]).exits(0);
    folder.pipe(&["run", "dishes.yaml", "--engine", "process"]).exits(0);
}
