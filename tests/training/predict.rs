//! `pipe predict`: the model of a run on any engine, rows from files and from stdin, and what is left behind.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Answer, Folder, Needs, Suite};
use crate::small_t5::generate;

pub fn tests(suite: &mut Suite) {
    suite.each_engine("predict::the_figures_are_those_of_the_run", evaluation);
    suite.any_engine("predict::an_interrupt_leaves_nothing", interrupted);
    suite.test("predict::rows_from_everywhere", Needs::Nothing, everywhere);
    suite.test("predict::a_model_by_itself", Needs::Nothing, model_by_itself);
    suite.test("predict::what_cannot_be_predicted_is_named", Needs::Nothing, refusals);
}

/// A folder with descriptions of dishes and a run that has learned them; `more` is added to the pipeline.
fn trained(engine: &str, more: &str) -> Folder {
    let folder = Folder::new();
    generate(&["texts", "--rows", "200", "--eval-rows", "40", "--seed", "3"], &folder);
    folder.write(
        "dishes.yaml",
        format!(
            "version: 1\nname: dishes\nmodel:\n  arch: bert\n  config: {{vocab_size: 192, hidden_size: 32, num_hidden_layers: 1, \
             num_attention_heads: 4, intermediate_size: 64, max_position_embeddings: 64}}\n\
             data: {{train: data/train.jsonl, eval: data/eval.jsonl}}\n\
             train: {{steps: 30, batch: 8, optimizer: {{lr: 3.0e-3}}}}\ncontainer: {{gpus: 0, cpus: 1}}\n{more}"
        ),
    );
    folder.pipe(&["run", "dishes.yaml", "--engine", engine]).exits(0);
    folder
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The folders of jobs that are still there.
fn left_behind(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".pipe-predict-")).collect()
}

fn evaluation(engine: &str) {
    let folder = trained(engine, "");
    let shown = folder.show();
    let (id, wanted) = (shown["id"].as_str().unwrap(), &shown["result"]["last"]["metrics"]);
    let args = ["predict", id, "--data", "data/eval.jsonl", "--out", "out.jsonl", "--batch", "7", "--json"];
    let summary = folder.pipe(&args).exits(0).says("evaluation on 40 rows").json();
    assert_eq!((&summary["run"], &summary["engine"]), (&json!(id), &json!(engine)));
    let metrics = &summary["predicted"]["evaluation"]["metrics"];
    for name in ["accuracy", "macro_f1", "mcc"] {
        assert_eq!(metrics[name], wanted[format!("eval.{name}")], "{name}: {summary:#}");
    }
    let (loss, want) = (metrics["loss"].as_f64().unwrap(), wanted["eval.loss"].as_f64().unwrap());
    assert!((loss - want).abs() < 1e-6, "{loss} {want}");
    assert_eq!(lines(&folder.read("out.jsonl")).len(), 40);
    assert_eq!(left_behind(folder.path()), [""; 0]);
    if engine == "docker" {
        assert_eq!(folder.containers(), [""; 0]);
    }

    // As the run says how to use it.
    let hint = shown["use"].as_str().unwrap();
    let args: Vec<String> = hint.split(' ').skip(1).map(|word| word.replace("FILE", "data/eval.jsonl")).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let answer = folder.pipe(&args).exits(0);
    assert_eq!(answer.stdout.lines().count(), 40);
    let labels = |text: &str| lines(text).iter().map(|line| line["label"].clone()).collect::<Vec<_>>();
    assert_eq!(labels(&answer.stdout), labels(&folder.read("out.jsonl")));

    // A warning has the path on this machine, and a table is written as one.
    folder.write("few.csv", "text,label\nBoil the soup.,soup\nMix\nBake the cake.,pie\n");
    let args = ["predict", id, "--data", "few.csv", "--skip-bad", "--out", "out.csv"];
    let own = folder.path().join("few.csv").display().to_string();
    folder
        .pipe(&args)
        .exits(0)
        .says(&format!("skipped 1 row with too few or too many cells: {own} line 3\n"))
        .says("one label does not count")
        .says(&format!("is \"pie\" ({own} line 4)\n"));
    let table = folder.read("out.csv");
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows.len() == 3 && rows[0].starts_with("row,label,score,scores."), "{table}");
    assert!(rows[1].starts_with("0,") && rows[2].starts_with("2,"), "{table}");
    let refused = folder.pipe(&["predict", id, "--data", "few.csv", "--out", "out.xlsx"]).exits(2);
    refused.says("predictions cannot be written as out.xlsx").says("allowed: .jsonl");
}

/// With `input` as its stdin.
fn pipe_with_stdin(folder: &Folder, args: &[&str], input: &str) -> Answer {
    let mut child = folder.command(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Answer::new(format!("pipe {}", args.join(" ")), child.wait_with_output().unwrap())
}

fn everywhere() {
    let folder = trained("process", "");
    let predict = |data: &str| folder.pipe(&["predict", "latest", "--data", data]).exits(0).stdout;
    let rows = folder.read("data/eval.jsonl");
    let wanted = predict("data/eval.jsonl");
    let piped = pipe_with_stdin(&folder, &["predict", "latest", "--data", "-"], &rows).exits(0);
    assert_eq!(piped.stdout, wanted);

    let packed = std::fs::File::create(folder.path().join("rows.jsonl.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
    packed.write_all(rows.as_bytes()).unwrap();
    packed.finish().unwrap();
    assert_eq!(predict("rows.jsonl.gz"), wanted);

    let cells = |key: &str| lines(&rows).iter().map(|row| row[key].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let table: String = cells("text").iter().map(|text| format!("\"{}\"\n", text.replace('"', "\"\""))).collect();
    folder.write("rows.csv", format!("review\n{table}"));
    let args = ["predict", "latest", "--data", "rows.csv", "--field", "text=review", "--keep", "review"];
    let answer = folder.pipe(&args).exits(0).says_not("evaluation");
    let column = |text: &str, key: &str| lines(text).iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(column(&answer.stdout, "label"), column(&wanted, "label"));
    assert_eq!(column(&answer.stdout, "review"), cells("text").into_iter().map(Value::from).collect::<Vec<_>>());

    let bad = pipe_with_stdin(&folder, &["predict", "latest", "--data", "-"], "{\"text\": 5}\n").exits(3);
    bad.says("error: stdin line 1: field \"text\" holds a number, not a text\n");
    pipe_with_stdin(&folder, &["predict", "latest", "--data", "-"], "\n").exits(3).says("stdin has no rows");
}

fn model_by_itself() {
    let folder = trained("process", "");
    let run = folder.run_folder();
    let with_run = folder.pipe(&["predict", "latest", "--data", "data/eval.jsonl"]).exits(0).stdout;
    for subject in [run.clone(), run.join("model")] {
        let subject = subject.to_str().unwrap();
        assert_eq!(folder.pipe(&["predict", subject, "--data", "data/eval.jsonl"]).exits(0).stdout, with_run);
    }
    std::fs::rename(run.join("model"), folder.path().join("exported")).unwrap();
    let args =
        ["predict", "exported", "--data", "data/eval.jsonl", "--engine", "process", "--out", "out.jsonl", "--json"];
    let summary = folder.pipe(&args).exits(0).json();
    assert_eq!((&summary["run"], &summary["predicted"]["evaluation"]["rows"]), (&json!(null), &json!(40)));
    let labels = |text: &str| lines(text).iter().map(|line| line["label"].clone()).collect::<Vec<_>>();
    assert_eq!(labels(&folder.read("out.jsonl")), labels(&with_run));
    let answer = folder.pipe(&["predict", "latest", "--data", "data/eval.jsonl"]).exits(3);
    answer.says("(finished) has no exported model\nhint: ");
}

fn refusals() {
    let folder = trained("process", "save: {export: false}\n");
    let predict = |more: &[&str]| folder.pipe(&[&["predict", "latest"], more].concat());
    predict(&["--data", "data/eval.jsonl"]).exits(3).says("--set save.export=true");
    folder.pipe(&["run", "dishes.yaml", "--engine", "process", "--set", "save.export=true"]).exits(0);
    predict(&["--data", "none.jsonl"]).exits(3).says("error: cannot read none.jsonl: no such file in ");
    predict(&["--data", "dishes.yaml"]).exits(3).says("dishes.yaml: allowed for classification: .jsonl");
    let role = predict(&["--data", "data/eval.jsonl", "--field", "source=text"]).exits(2);
    role.says("no role \"source\" for classification; allowed: text, text_pair, label");
    predict(&["--data", "data/eval.jsonl", "--out", "-", "--json"]).exits(2).says("--out FILE");
    predict(&["--data", "data/eval.jsonl", "--out", "data"]).exits(3).says("data is a folder, not a file");
    folder.pipe(&["predict", "nobody", "--data", "data/eval.jsonl"]).exits(2).says("no run \"nobody\"");
    folder.pipe(&["predict", "data", "--data", "data/eval.jsonl"]).exits(3).says("neither the folder of a model");

    let here = folder.path().join("bad.jsonl").display().to_string();
    folder.write("bad.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n").write("out.jsonl", "before");
    let answer = predict(&["--data", "bad.jsonl", "--out", "out.jsonl"]).exits(3);
    answer.says(&format!(
        "error: {here} line 2: no field \"text\"; it has: txt; --skip-bad skips such rows\nhint: --field ROLE=COLUMN"
    ));
    assert_eq!(folder.read("out.jsonl"), "before");
    assert_eq!(left_behind(folder.path()), [""; 0]);
}

fn interrupted(engine: &str) {
    let folder = trained(engine, "");
    folder.write("many.jsonl", folder.read("data/eval.jsonl").repeat(2000));
    let running = folder.start(&["predict", "latest", "--data", "many.jsonl", "--out", "out.jsonl", "--batch", "1"]);
    folder.wait_until("the output begins", || {
        let names = left_behind(folder.path());
        names.iter().any(|name| folder.path().join(name).join("job/predictions.jsonl.partial").exists())
    });
    running.signal("INT");
    running.end().exits(130);
    assert!(!folder.path().join("out.jsonl").exists());
    assert_eq!(left_behind(folder.path()), [""; 0]);
    if engine == "docker" {
        assert_eq!(folder.containers(), [""; 0]);
    }
}
