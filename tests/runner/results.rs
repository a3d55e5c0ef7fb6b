//! What a run says at its end, and `pipe show` and `pipe ls` afterwards: evaluations, model, report, and what to do next.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Folder, Needs, Suite, job};

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("results::{name}"), Needs::Nothing, test);
    test("of_a_finished_run", finished);
    test("of_a_run_without_evaluations", without_evaluations);
    test("in_a_list", list);
    test("of_a_stopped_run", stopped);
    test("an_error_is_printed_once", once);
}

const RUN: [&str; 4] = ["run", "job.yaml", "--engine", "process"];

/// A run with four evaluations, of which the second is the best.
fn learned() -> Folder {
    job::folder("learn", "evaluate: {every: 1}\nsave: {best: eval.loss}\n")
}

const TABLE: &str = "\
evaluation       first   best    last
step             1       2       4
eval.loss        0.9000  0.5000  0.7500
eval.perplexity  2.4596  1.6487  2.1170
";

fn finished() {
    let folder = learned();
    let run = [&RUN[..], &["--set", "data.eval=train.jsonl"]].concat();
    let answer = folder.pipe(&run).exits(0);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    let lines = [
        "end      stopped early at step 4: eval.loss did not improve in 2 evaluations; its best is 0.5000 at step 2\n"
            .to_owned(),
        format!("model    runs/{id}/model (step 2, the best eval.loss)\n"),
        format!("use      pipe-trainer generate --model runs/{id}/model --prompt TEXT\n"),
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
    assert_eq!(shown["use"], json!(format!("pipe-trainer generate --model {} --prompt TEXT", model.display())));

    let page = folder.read_run("report.html");
    for text in ["best eval.loss", "0.5000 at step 2", "model from step", "stopped early: eval.loss did not improve"] {
        assert!(page.contains(text), "the report lacks {text:?}");
    }
    let last = folder.pipe(&[&run[..], &["--json"]].concat()).exits(0).json_lines().pop().unwrap();
    assert_eq!((&last["type"], &last["result"]["best"]["step"]), (&json!("run"), &json!(2)));
    assert!(last["model"].as_str().unwrap().ends_with("/model"), "{last:#}");
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
