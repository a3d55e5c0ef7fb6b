//! What a run says at its end, and `pipe show` and `pipe ls` afterwards: evaluations, model, report, and what to do next.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("results::{name}"), Needs::Nothing, test);
    test("of_a_finished_run", finished);
    test("rows_that_were_trained_on_are_not_called_held_out", evaluated_on_what_was_trained_on);
    test("of_a_run_that_learned_nothing", nothing_learned);
    test("of_a_run_without_evaluations", without_evaluations);
    test("in_a_list", list);
    test("some_of_a_list", filtered);
    test("of_classes", classes);
    test("of_a_stopped_run", stopped);
    test("an_error_is_printed_once", once);
    test("a_run_without_a_model_is_not_the_latest_to_predict_with", latest_to_predict);
}

const RUN: [&str; 4] = ["run", "job.yaml", "--engine", "process"];

/// A run with four evaluations, of which the second is the best.
fn learned() -> Folder {
    job::folder("learn", "evaluate: {every: 1}\nsave: {best: eval.loss}\n")
}

/// While a run trains, the one before it is the latest that has a model.
fn latest_to_predict() {
    let folder = learned();
    folder.pipe(&[&RUN[..], &["--set", "data.eval=train.jsonl"]].concat()).exits(0);
    let running = folder.start(&[&RUN[..], &["--set", "container.env.JOB=sleep", "--set", "save.best="]].concat());
    folder.wait_for_log(1, "sleeping");
    let (run, rows) = (folder.show(), ["--data", "train.jsonl"]);
    let by_id = folder.pipe(&[&["predict", run["id"].as_str().unwrap()][..], &rows].concat());
    by_id.exits(3).says("(running) has no exported model");
    let answer = folder.pipe(&[&["predict", "latest"][..], &rows].concat());
    assert!(!answer.stderr.contains("has no exported model"), "{answer}");
    running.signal("INT");
    running.end().exits(130);
}

/// Rows that were trained on are not called held out.
fn evaluated_on_what_was_trained_on() {
    let answer = learned().pipe(&[&RUN[..], &["--set", "data.eval=train.jsonl"]].concat()).exits(0);
    answer.prints("on 400 tokens, some of them trained on;").says("train.jsonl is part of data.train too");
}

const TABLE: &str = "\
evaluation       first   best    last
step             1       2       4
eval.loss        0.9000  0.5000  0.7500
eval.perplexity  2.4596  1.6487  2.1170
";

fn finished() {
    let folder = learned();
    std::fs::copy(folder.path().join("train.jsonl"), folder.path().join("eval.jsonl")).unwrap();
    let run = [&RUN[..], &["--set", "data.eval=eval.jsonl"]].concat();
    let answer = folder.pipe(&run).exits(0);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    let lines = [
        format!("result   {SENTENCE}\n"),
        "end      stopped early at step 4: eval.loss did not improve in 2 evaluations; its best is 0.5000 at step 2\n"
            .to_owned(),
        format!("model    runs/{id}/model (step 2, the best eval.loss)\n"),
        format!("use      pipe predict {id} --data FILE\n"),
        format!("report   runs/{id}/report.html\n"),
    ];
    assert!(TABLE.lines().all(|line| line.len() <= 80));
    let answer = lines.iter().fold(answer.prints(TABLE), |answer, line| answer.prints(line));
    assert!(answer.stdout.trim_end().lines().last().unwrap().starts_with(&format!("run {id} finished: ")), "{answer}");
    lines.iter().fold(folder.pipe(&["show"]).exits(0).prints(TABLE.trim_end()), |answer, line| answer.prints(line));

    let shown = folder.show();
    let result = &shown["result"];
    assert_eq!(
        (&result["metric"], &result["value"], &result["model_step"]),
        (&json!("eval.loss"), &json!(0.5), &json!(2))
    );
    assert_eq!([&result["first"]["step"], &result["best"]["step"], &result["last"]["step"]], [1, 2, 4]);
    assert_eq!(result["best"]["metrics"]["eval.loss"], 0.5);
    let model = folder.run_folder().join("model");
    assert_eq!(shown["model"], json!(model));
    assert!(shown["report"].as_str().unwrap().ends_with("report.html"), "{shown:#}");
    assert_eq!(shown["use"], json!(format!("pipe predict {id} --data FILE")));

    let baseline = json!({ "name": "guessing by token frequency", "value": 5.0 });
    let answer = &result["answer"];
    assert_eq!((&answer["metric"], &answer["baseline"]), (&json!("eval.perplexity"), &baseline));
    assert_eq!((&answer["learned"], &answer["step"], &shown["summary"]), (&json!(true), &json!(2), &json!(SENTENCE)));

    let page = folder.read_run("report.html");
    for text in [
        &format!("<p class=\"sentence\">{SENTENCE}.</p>"),
        "exported model: step 2 (best loss)",
        "exported model, step 2",
        "last, step 4",
        "stopped early: eval.loss did not improve",
    ] {
        assert!(page.contains(text), "the report lacks {text:?}");
    }
    let last = folder.pipe(&[&run[..], &["--json"]].concat()).exits(0).json_lines().pop().unwrap();
    assert_eq!((&last["type"], &last["result"]["best"]["step"]), (&json!("run"), &json!(2)));
    assert!(last["model"].as_str().unwrap().ends_with("/model"), "{last:#}");
}

const SENTENCE: &str = "perplexity 1.65 on 400 held-out tokens; guessing by token frequency would be 5";

/// What a run says that was no success, and one of an older version.
fn nothing_learned() {
    let folder = learned();
    folder.pipe(&[&RUN[..], &["--set", "data.eval=train.jsonl"]].concat()).exits(0);
    let run = folder.run_folder();
    let set_answer = |answer: Value| {
        let path = run.join("run.json");
        let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        state["result"]["answer"] = answer;
        std::fs::write(path, state.to_string()).unwrap();
    };
    let accuracy = |classes: u64, learned: Value| {
        json!({ "metric": "eval.accuracy", "value": 0.5, "step": 4, "rows": 90, "classes": classes, "learned": learned,
                "baseline": { "name": "always answering soup", "value": 0.5 } })
    };
    let sentence = "50 % right on 90 held-out rows; always answering soup would be 50 %";
    for (answer, note) in [
        (accuracy(3, json!(false)), "The model is no better than that: the run learned nothing. "),
        (accuracy(1, Value::Null), "All held-out rows have the same class, so this is no result. "),
    ] {
        set_answer(answer);
        folder.pipe(&["show"]).exits(0).prints(&format!("\nresult   {sentence}\nnote     {note}"));
        assert!(folder.show()["summary"].as_str().unwrap().starts_with(&format!("{sentence}. {note}")));
        folder.pipe(&["report"]).exits(0);
        assert!(folder.read_run("report.html").contains(note), "{note}");
    }
    // An older version wrote no answer, and no baseline into its events.
    set_answer(Value::Null);
    let events: Vec<String> = folder
        .read_run("events.jsonl")
        .lines()
        .map(|line| {
            let mut event: Value = serde_json::from_str(line).unwrap();
            event.as_object_mut().unwrap().remove("headline");
            event.to_string()
        })
        .collect();
    std::fs::write(run.join("events.jsonl"), events.join("\n")).unwrap();
    folder.pipe(&["show"]).exits(0).prints("\nresult   perplexity 1.65\n");
}

fn without_evaluations() {
    let folder = job::folder("fit 8", "");
    let answer = folder.pipe(&RUN).exits(0).prints("\nreport   runs/");
    assert!(!answer.stdout.contains("evaluation") && !answer.stdout.contains("\nmodel "), "{answer}");
    folder.pipe(&["ls"]).exits(0).prints("  loss 3.3333  ");
}

/// Writes another result into the state of a run.
fn set_result(run: &Path, metric: &str, value: f64) {
    let path = run.join("run.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    state["result"] = json!({ "metric": metric, "value": value });
    std::fs::write(path, state.to_string()).unwrap();
}

fn list() {
    let folder = learned();
    folder.pipe(&[&RUN[..], &["--set", "data.eval=train.jsonl"]].concat()).exits(0);
    let run = folder.run_folder();
    folder.pipe(&["ls"]).exits(0).prints("metric").prints("loss 0.5000");
    let own = run.file_name().unwrap().to_str().unwrap().to_owned();
    job::copy_run(&run, 4);
    let copy = |index: u32| format!("copy-20260101-0000{index:02}-{index:04}");
    for (index, metric, value) in [(0, "eval.loss", 0.75), (1, "eval.accuracy", 0.5), (2, "eval.accuracy", 0.75)] {
        set_result(&run.with_file_name(copy(index)), metric, value);
    }
    // A run of an older version.
    let old = run.with_file_name(copy(3)).join("run.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&old).unwrap()).unwrap();
    state.as_object_mut().unwrap().remove("result");
    std::fs::write(&old, state.to_string()).unwrap();
    let order = |sort: &str| -> Vec<String> {
        let runs = folder.pipe(&["ls", "--json", "--sort", sort]).exits(0).json();
        runs.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(order("metric"), [copy(2), copy(1), own.clone(), copy(0), copy(3)]);
    assert_eq!(order("name"), [copy(0), copy(1), copy(2), copy(3), own]);
    folder.pipe(&["ls"]).exits(0).prints("  accuracy 0.7500  ");
    folder.pipe(&["ls", "--sort", "size"]).exits(2).says("[possible values: metric, started, name]");
}

/// Runs of two pipelines, with the ids `copy-...` for the older ones.
fn filtered() {
    let folder = job::folder("fit 8", "");
    folder.pipe(&RUN).exits(0);
    let run = folder.run_folder();
    let own = run.file_name().unwrap().to_str().unwrap().to_owned();
    job::copy_run(&run, 3);
    let copy = |index: u32| format!("copy-20260101-0000{index:02}-{index:04}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let hour = 3600.0;
    for (index, name, status, hours) in
        [(0, "texts-a", "failed", 1.5), (1, "texts-b", "finished", 30.0), (2, "other", "stopped", 24.0 * 40.0)]
    {
        let path = run.with_file_name(copy(index)).join("run.json");
        let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        state["name"] = json!(name);
        state["status"] = json!(status);
        state["created"] = json!(now - hours * hour);
        std::fs::write(path, state.to_string()).unwrap();
    }
    let ids = |args: &[&str]| -> Vec<String> {
        let runs = folder.pipe(&[&["ls", "--json"], args].concat()).exits(0).json();
        let ids: Vec<String> =
            runs.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
        // The same in every form.
        let quiet = folder.pipe(&[&["ls", "-q"], args].concat()).exits(0).stdout;
        assert_eq!(quiet.lines().collect::<Vec<_>>(), ids);
        ids
    };
    let all = [own.clone(), copy(0), copy(1), copy(2)];
    assert_eq!(ids(&[]), all);
    assert_eq!(ids(&["--status", "failed"]), [copy(0)]);
    assert_eq!(ids(&["--status", "failed,stopped"]), [copy(0), copy(2)]);
    assert_eq!(ids(&["--status", "finished", "--status", "stopped"]), [own.clone(), copy(1), copy(2)]);
    assert_eq!(ids(&["--name", "texts-*"]), [copy(0), copy(1)]);
    assert_eq!(ids(&["--name", "texts"]), [] as [String; 0]);
    assert_eq!(ids(&["--since", "90m"]), all[..1]);
    assert_eq!(ids(&["--since", "2h"]), [own.clone(), copy(0)]);
    assert_eq!(ids(&["--since", "2d"]), all[..3]);
    assert_eq!(ids(&["--since", "2001-01-01"]), all);
    assert_eq!(ids(&["--limit", "2"]), all[..2]);
    assert_eq!(ids(&["--sort", "name", "--limit", "2"]), [copy(0), copy(1)]);
    assert_eq!(ids(&["--name", "texts-?", "--status", "finished", "--since", "2d", "--limit", "5"]), [copy(1)]);
    folder.pipe(&["ls", "--name", "texts-*"]).exits(0).prints(&copy(0)).prints(&copy(1));
    folder.pipe(&["ls", "--name", "none"]).exits(0).says("no run matches; `pipe ls` lists all 4");
    folder.pipe(&["ls", "--since", "soon"]).exits(2).says("allowed: a number with m, h, d or w");
    folder.pipe(&["ls", "--status", "done"]).exits(2).says("running, finished, failed, stopped, orphaned, unknown");
}

/// What the trainer writes beside the events of its first attempt.
fn write_details(run: &Path, details: &Value) {
    std::fs::write(run.join("attempts/01/job/evaluation.json"), details.to_string()).unwrap();
}

fn classes() {
    let folder = learned();
    folder.pipe(&[&RUN[..], &["--set", "data.eval=train.jsonl"]].concat()).exits(0);
    assert!(folder.show().get("evaluation").is_none());
    let class = |class: u64, rows: u64| {
        json!({ "class": class, "name": format!("dish {class}"), "rows": rows, "predicted": 4,
                "precision": 0.75, "recall": 0.5, "f1": 0.6 })
    };
    let confusion = json!([{ "class": 0, "predicted": 1, "rows": 3 }]);
    let scores: Vec<Value> = (0..2).map(|number| class(number, 6)).collect();
    let retrieval = json!([{ "picture": "AAAA", "caption": "a car", "rank": 2 }]);
    let classes = json!({ "count": 2, "scores": scores, "confusion": confusion });
    write_details(&folder.run_folder(), &json!({ "step": 4, "classes": classes, "retrieval": retrieval }));
    let table = "class, step 4  rows  predicted  precision  recall  f1\n\
                 dish 0         6     4          0.750      0.500   0.600\n";
    let answer = folder.pipe(&["show"]).exits(0).prints(table);
    assert!(!answer.stdout.contains("more class"), "{answer}");
    let evaluation = &folder.show()["evaluation"];
    assert_eq!((&evaluation["step"], &evaluation["classes"]["confusion"]), (&json!(4), &confusion));
    assert_eq!(evaluation["classes"]["scores"][1]["name"], "dish 1");
    assert_eq!(evaluation["retrieval"][0]["rank"], 2);
    assert!(evaluation["retrieval"][0].get("picture").is_none(), "{evaluation:#}");

    let scores: Vec<Value> = (0..13).map(|number| class(number, 100 + number)).collect();
    write_details(&folder.run_folder(), &json!({ "step": 4, "classes": { "count": 13, "scores": scores } }));
    let answer = folder.pipe(&["show"]).exits(0).prints("3 more classes with fewer rows: in the report");
    assert!(!answer.stdout.contains("dish 2 ") && answer.stdout.contains("dish 12 "), "{answer}");
    assert!(answer.stdout.lines().filter(|line| line.starts_with("dish")).all(|line| line.len() <= 80), "{answer}");
    // What cannot be read is as if it was not there.
    for damaged in ["{\"step\": ", "[[[", "{\"step\": -1}", "null"] {
        std::fs::write(folder.run_folder().join("attempts/01/job/evaluation.json"), damaged).unwrap();
        assert!(!folder.pipe(&["show"]).exits(0).stdout.contains("class, step"));
    }
}

fn stopped() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&RUN);
    folder.wait_for_log(1, "sleeping");
    running.signal("INT");
    let answer = running.end().exits(130);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    answer.prints(&format!("\nresume   pipe resume {id}\n"));
    folder.pipe(&["show"]).exits(0).prints(&format!("\nresume   pipe resume {id}\n"));
    folder.pipe(&["ls"]).exits(0).prints("`pipe resume` continues it");
}

fn once() {
    let folder = job::folder("exit 1", "");
    let reason = "the job was told to exit";
    let count = |texts: [&str; 2]| texts.iter().map(|text| text.matches(reason).count()).sum::<usize>();
    let answer = folder.pipe(&RUN).exits(6).says(&format!("error: training failed: {reason}"));
    assert_eq!(count([&answer.stdout, &answer.stderr]), 1, "{answer}");
    let shown = folder.pipe(&["show"]).exits(0);
    assert_eq!(count([&shown.stdout, &shown.stderr]), 1, "{shown}");
    // A retry still says why it was necessary, when it happens.
    let folder = job::folder("fit 2", "train: {batch: 8}\n");
    let answer = folder.pipe(&RUN).exits(0).says("attempt 1: oom: ");
    let at = |text: &str| answer.stderr.find(text).unwrap_or_else(|| panic!("{text:?}\n{answer}"));
    assert!(at("attempt 1: oom: ") < at("attempt 2 of at most "), "{answer}");
}
