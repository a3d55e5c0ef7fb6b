//! `pipe check` opens the data with the real trainer: what is in it, what is wrong with it, and what will disappoint.

use serde_json::{Value, json};

use crate::golden::fixture;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::generate;

pub fn tests(suite: &mut Suite) {
    suite.test("check_data::rows_classes_and_lengths_are_printed", Needs::Nothing, printed);
    suite.test("check_data::what_a_first_step_would_trip_over_is_found", Needs::Nothing, found);
    suite.test("check_data::settings_that_disappoint_are_warnings", Needs::Nothing, warnings);
    suite.test("check_data::compressed_data_is_opened", Needs::Nothing, compressed);
    suite.test("check_data::a_tokenizer_is_trained_where_there_is_none", Needs::Nothing, own_tokenizer);
    suite.test("check_data::the_time_that_an_earlier_run_took", Needs::Nothing, time);
    suite.test("check_data::weights_of_another_config", Needs::Nothing, other_weights);
    suite.test("check_data::conversations", Needs::Nothing, conversations);
    suite.test("check_data::conversations_of_which_nothing_is_left", Needs::Nothing, nothing_left);
    suite.test("check_data::padding_that_changes_nothing", Needs::Nothing, padding);
    suite.test("check_data::a_stop_is_heard_while_rows_are_read", Needs::Nothing, stopped);
    suite.test("check_data::semicolons_and_tabs", Needs::Nothing, separators);
    suite.test("check_data::input_that_fails_leaves_no_run", Needs::Nothing, no_run);
}

/// Descriptions of dishes with their class, and `dishes.yaml`.
fn dishes() -> Folder {
    let folder = Folder::new();
    generate(&["texts", "--rows", "60", "--eval-rows", "30", "--seed", "1"], &folder);
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
    let step_of = |length: &str, samples: &str| {
        let set =
            ["train.split=fill", &format!("data.max_length={length}"), &format!("train.effective_batch={samples}")];
        let args: Vec<&str> =
            ["check", "dishes.yaml"].into_iter().chain(set.iter().flat_map(|one| ["--set", one])).collect();
        folder.pipe(&args).exits(0)
    };
    step_of("2048", "8").prints("8 samples a step, in one part on this data");
    step_of("8", "32").prints("32 samples a step: about 8 parts of 4 on this data");
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

/// Texts under another name, and no tokenizer: one is trained, once, and belongs to the lock.
fn own_tokenizer() {
    const SAID: &str = "no tokenizer is named: training one on the texts of data.train, once";
    let folder = dishes();
    let cache = folder.path().join("cache");
    let folder = folder.env("PIPE_CACHE", cache.display());
    std::fs::remove_file(folder.path().join("data/tokenizer.json")).unwrap();
    for name in ["data/train.jsonl", "data/eval.jsonl"] {
        folder.write(name, folder.read(name).replace("\"text\":", "\"the dish\":"));
    }
    let fields = "{train: data/train.jsonl, fields: {text: the dish},";
    folder.write("dishes.yaml", folder.read("dishes.yaml").replace("{train: data/train.jsonl,", fields));
    folder.pipe(&["check", "dishes.yaml"]).exits(0).says(SAID);
    let run = |engine: &str| folder.pipe(&["run", "dishes.yaml", "--engine", engine]).exits(0);
    assert!(!run("process").stderr.contains(SAID));
    let lock: Value = serde_json::from_str(&folder.read_run("lock.json")).unwrap();
    assert!(lock["tokenizer"]["name"].as_str().unwrap().ends_with("/tokenizer.json"), "{lock}");
    // The same again where the cache was removed.
    std::fs::remove_dir_all(cache).unwrap();
    let id = folder.run_folder().file_name().unwrap().to_str().unwrap().to_owned();
    folder.pipe(&["reproduce", &id]).exits(0).says(SAID);
    // Other texts: another tokenizer, and a run that cannot be reproduced.
    let first = folder.read("data/train.jsonl");
    folder.write("data/train.jsonl", first.replacen("\"the dish\":\"", "\"the dish\":\"xylophone ", 1));
    folder.pipe(&["check", "dishes.yaml"]).exits(0).says(SAID);
    folder.pipe(&["reproduce", &id]).exits(3).says("data.train");
    // Nothing to learn from.
    folder.write("dishes.yaml", folder.read("dishes.yaml").replace("the dish", "the meal"));
    folder
        .pipe(&["check", "dishes.yaml"])
        .exits(3)
        .says("data.tokenizer: ")
        .says("train.jsonl line 1: no field \"the meal\"");
}

/// Answers of an assistant, read without a tokenizer.
fn conversations() {
    let folder =
        crate::small_t5::folder("train: {epochs: 1, batch: 8, effective_batch: 8}\ncontainer: {gpus: 0, cpus: 1}\n");
    let turn = |role: &str, text: &str| serde_json::json!({ "role": role, "content": text });
    let rows: String = (0..40)
        .map(|number| {
            let question = turn("user", &format!("what comes after {number}?"));
            let answer = turn("assistant", &format!("{} comes after {number}.", number + 1));
            format!("{}\n", serde_json::json!({ "chat": [question, answer] }))
        })
        .collect();
    folder.write("chat/train.jsonl", rows);
    let pipeline = folder.read("t5.yaml");
    let data = "  train: chat/train.jsonl\n  fields: {messages: chat}\n  eval_share: 0.2\n";
    let before = "  train: data/train.jsonl\n  fields: {source: ingredients, target: directions}\n";
    assert!(pipeline.contains(before), "{pipeline}");
    folder.write("t5.yaml", pipeline.replace(before, data));
    let out = folder.pipe(&["check", "t5.yaml"]).exits(0).stdout;
    assert!(out.contains("train  32 rows"), "{out}");
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    folder.write("chat/train.jsonl", "{\"chat\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
    let want = "train.jsonl line 1: field \"chat\" has 1 turns; there must be a question and an answer";
    folder.pipe(&["check", "t5.yaml"]).exits(3).says(want);
}

/// A small llama on conversations of this many rows, whose assistant speaks after `words` words. Its template does `work` for each row.
fn talks(rows: usize, words: usize, work: &str) -> Folder {
    let folder = Folder::new();
    let model = fixture("chat-llama-lora");
    for file in std::fs::read_dir(&model).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let template = "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    folder.write("chat_template.jinja", format!("{work}{template}"));
    let question = json!({ "role": "user", "content": "soup ".repeat(words) });
    let row = json!({ "messages": [question, { "role": "assistant", "content": "yes" }] });
    folder.write("rows.jsonl", format!("{row}\n").repeat(rows));
    let here = folder.path().display();
    let yaml = format!(
        "version: 1\nname: talks\nmodel: {{from: {here}}}\ndata: {{train: rows.jsonl, fields: {{messages: messages}}, max_length: 64}}\n\
         train: {{steps: 2, batch: 2, effective_batch: 2}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
    );
    folder.write("talks.yaml", yaml);
    folder
}

/// Where every row is skipped nothing would be trained: that is an error, with the reason.
fn nothing_left() {
    let folder = talks(9, 20, "");
    let why = "no row is left to train on: all 9 are skipped: ";
    let said = folder.pipe(&["check", "talks.yaml"]).exits(3).says(why).stderr;
    assert!(said.contains("9 rows left out: the assistant says nothing within data.max_length"), "{said}");
    folder.pipe(&["check", "talks.yaml", "--set", "data.max_length=128"]).exits(0);
}

fn padding() {
    let folder = dishes();
    let bag = "{arch: bag-of-words, config: {vocab_size: 192, hidden_size: 8}}";
    let bert = "{arch: bert, config: {vocab_size: 192, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, \
                intermediate_size: 16}}";
    folder.write("dishes.yaml", folder.read("dishes.yaml").replace(bag, bert));
    let check = |set: &[&str]| {
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        folder.pipe(&[&["check", "dishes.yaml"], &set[..]].concat()).exits(0).stdout
    };
    let note = "note   data.pad: max changes nothing on a card in 16 bits";
    assert!(check(&["data.pad=max", "train.precision=bf16"]).contains(note));
    for set in [&["data.pad=max"][..], &["train.precision=bf16"]] {
        assert!(!check(set).contains("data.pad"), "{set:?}");
    }
    let batch = fixture("vit").join("batch.safetensors");
    folder.write(
        "vit.yaml",
        format!(
            "version: 1\nname: vit\nmodel: {{from: {}}}\ndata: {{train: {}, pad: max}}\n\
             train: {{steps: 1, batch: 2, effective_batch: 2}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
            fixture("vit").display(),
            batch.display()
        ),
    );
    folder.pipe(&["check", "vit.yaml"]).exits(0).prints("data.pad: max changes nothing: vit reads no texts");
}

/// Each row takes some hundredths of a second to write: all of them would take minutes.
fn stopped() {
    let folder = talks(20_000, 2, "{%- for a in range(60000) %}{% endfor %}");
    let began = std::time::Instant::now();
    let running = folder.start(&["run", "talks.yaml", "--engine", "process"]);
    let spec =
        || folder.path().join("runs").read_dir().ok()?.next()?.ok().map(|run| run.path().join("attempts/01/spec.json"));
    while !spec().is_some_and(|spec| spec.exists()) {
        assert!(began.elapsed().as_secs() < 60, "no attempt began");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    let asked = std::time::Instant::now();
    running.signal("TERM");
    running.end().exits(130);
    assert!(asked.elapsed().as_secs() < 20, "{:?}", asked.elapsed());
    assert_eq!(folder.show()["status"], "stopped");
}

/// The same rows between semicolons, and between tabs.
fn separators() {
    let folder = dishes();
    let rows: Vec<Value> =
        folder.read("data/train.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let table = |separator: &str| {
        let cell = |row: &Value, name: &str| format!("\"{}\"", row[name].as_str().unwrap());
        let line = |row: &Value| format!("{}{separator}{}\r\n", cell(row, "text"), cell(row, "label"));
        format!("\u{feff}text{separator}label\r\n{}", rows.iter().map(line).collect::<String>())
    };
    for (name, separator) in [("train.csv", ";"), ("train.tsv", "\t")] {
        folder.write(&format!("data/{name}"), table(separator));
        let set = format!("data.train=data/{name}");
        let out = folder.pipe(&["check", "dishes.yaml", "--set", &set]).exits(0).stdout;
        assert!(out.contains("train  60 rows"), "{out}");
    }
}

/// Once it was run, the ledger knows how long it takes: twice as long in twice as many steps.
fn time() {
    let folder = dishes();
    let check = |epochs: u32| {
        let set = format!("train.epochs={epochs}");
        let json = folder.pipe(&["check", "dishes.yaml", "--json", "--set", &set]).exits(0).stdout;
        serde_json::from_str::<Value>(&json).unwrap()["time"].clone()
    };
    assert_eq!(check(2), Value::Null);
    folder.pipe(&["run", "dishes.yaml", "--engine", "process"]).exits(0);
    let (once, twice) = (check(2), check(4));
    let seconds = |time: &Value| time["seconds"].as_f64().unwrap();
    assert_eq!((once["device"].as_str(), once["run"].as_str()), (Some("cpu"), folder.show()["id"].as_str()));
    assert!(seconds(&once) > 0.0 && (seconds(&twice) / seconds(&once) - 2.0).abs() < 1e-9, "{once} {twice}");
    let said = folder.pipe(&["check", "dishes.yaml"]).exits(0).stdout;
    assert!(said.contains("time   about ") && said.contains(" on cpu, as fast as dishes-"), "{said}");
}

/// A folder whose config.json is not that of its weights: found before a run, without loading them.
fn other_weights() {
    let folder = dishes();
    folder.pipe(&["run", "dishes.yaml", "--engine", "process"]).exits(0);
    let model = folder.run_folder().join("model");
    let own = "model: {arch: bag-of-words, config: {vocab_size: 192, hidden_size: 8}}";
    let from = format!("model: {{arch: bag-of-words, from: {}}}", model.display());
    folder.write("dishes.yaml", folder.read("dishes.yaml").replace(own, &from));
    folder.pipe(&["check", "dishes.yaml"]).exits(0);
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let wider = config.replace("\"hidden_size\": 8", "\"hidden_size\": 16");
    assert_ne!(wider, config);
    std::fs::write(model.join("config.json"), wider).unwrap();
    folder.pipe(&["check", "dishes.yaml"]).exits(3).says("its shape is [192, 8], the model has [192, 16]");
}
