//! `save.best` and `train.early_stop`: the best step is kept and exported, and a run that was disturbed ends like one that was
//! not.

use std::fs;
use std::path::Path;

use crate::support::{Bench, Ended, step_line, struck};
use pipe_spec::event::{Eval, EventKind, Finished};
use pipe_spec::pipeline::Metric;
use pipe_spec::run::checkpoint_name;
use serde_json::{Value, json};

/// A classifier that first learns and then becomes too sure: every third label of the evaluation data is wrong, so its loss
/// there falls and then rises.
fn bench() -> Bench {
    let mut bench = Bench::dishes(30);
    let data = bench.path("data");
    let rows = fs::read_to_string(data.join("eval.jsonl")).unwrap();
    let rows: Vec<String> = rows.lines().enumerate().map(|(row, line)| relabelled(row, line)).collect();
    fs::write(data.join("eval.jsonl"), rows.join("\n")).unwrap();
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/model", json!({ "arch": "bag-of-words", "config": { "vocab_size": 192, "hidden_size": 32 } }))
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl"), "workers": 1 }))
        .set("/train/optimizer", json!({ "lr": 0.05 }))
        .set("/train/steps", json!(48))
        .set("/evaluate", json!({ "every": 4 }))
        .set("/save", json!({ "every": 5, "keep": 1, "best": "eval.loss" }));
    bench
}

fn relabelled(row: usize, line: &str) -> String {
    let mut sample: Value = serde_json::from_str(line).unwrap();
    if row.is_multiple_of(3) {
        let next = match sample["label"].as_str().unwrap() {
            "cake" => "salad",
            "salad" => "soup",
            _ => "cake",
        };
        sample["label"] = json!(next);
    }
    sample.to_string()
}

fn with_early_stop() -> Bench {
    let mut bench = bench();
    bench.set("/train/early_stop", json!({ "metric": "eval.loss", "patience": 3 }));
    bench
}

fn evals(ended: &Ended) -> Vec<Eval> {
    let eval = |event: &EventKind| if let EventKind::Eval(eval) = event { Some(eval.clone()) } else { None };
    ended.events.iter().filter_map(eval).collect()
}

#[track_caller]
fn finished(ended: &Ended) -> &Finished {
    match ended.events.last() {
        Some(EventKind::Finished(finished)) => finished,
        other => panic!("the last event is {other:?}"),
    }
}

/// The step of the best evaluation, counted from the events.
fn best_step(ended: &Ended, metric: &Metric) -> u64 {
    let (mut best, mut step) = (None, 0);
    for eval in evals(ended) {
        let value = eval.value(metric).unwrap();
        if metric.is_better(value, best) {
            (best, step) = (Some(value), eval.step);
        }
    }
    step
}

fn eval_line(step: u64) -> String {
    format!("\"type\":\"eval\",\"step\":{step},")
}

fn exported(bench: &Bench) -> blake3::Hash {
    blake3::hash(&fs::read(bench.run_folder().model().join("model.safetensors")).unwrap())
}

fn checkpoints(bench: &Bench) -> Vec<String> {
    let entries = fs::read_dir(bench.run_folder().checkpoints()).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn damage(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
}

#[test]
fn the_best_step_is_kept_beside_the_last_and_exported() {
    for metric in ["loss", "macro_f1"] {
        let metric = Metric::named(metric);
        let mut bench = bench();
        let ended = bench.set("/save/best", json!(metric)).train().expect(0);
        let best = best_step(&ended, &metric);
        assert!(best > 4 && best < 48, "{metric} is best at {best}, which shows nothing");
        assert_eq!(checkpoints(&bench), [checkpoint_name(best), checkpoint_name(48)]);
        assert_eq!(exported(&bench), bench.checkpoint_digests(best)[0]);
        assert_ne!(exported(&bench), bench.checkpoint_digests(48)[0]);
        let finished = finished(&ended);
        assert_eq!((finished.step, finished.model_step), (48, Some(best)));
        let reported = finished.best.as_ref().unwrap();
        assert_eq!((&reported.metric, reported.step), (&metric, best));
        assert_eq!(finished.stopped_early, None);
    }
}

#[test]
fn macro_f1_is_the_figure_of_f1() {
    let ended = bench().train().expect(0);
    assert!(evals(&ended).iter().all(|eval| eval.scores["macro_f1"] == eval.scores["f1"]));
}

#[test]
fn keeping_the_best_changes_no_bit_of_the_training() {
    let (kept, mut plain) = (bench(), bench());
    plain.set("/save", json!({ "every": 5, "keep": 1 }));
    let (ended, undisturbed) = (kept.train().expect(0), plain.train().expect(0));
    assert_eq!(ended.curve(), undisturbed.curve());
    assert_eq!(kept.checkpoint_digests(48), plain.checkpoint_digests(48));
    let last = plain.checkpoint_digests(48)[0];
    assert_eq!((exported(&plain), finished(&undisturbed).model_step), (last, Some(48)));
}

#[test]
fn a_training_without_improvement_ends_early_as_a_finished_one() {
    let bench = with_early_stop();
    let ended = bench.train().expect(0);
    let best = best_step(&ended, &Metric::loss());
    let finished = finished(&ended);
    assert_eq!((finished.step, finished.model_step), (best + 12, Some(best)));
    let why = finished.stopped_early.as_ref().unwrap().to_string();
    assert!(why.starts_with("eval.loss did not improve in 3 evaluations; its best is "), "{why}");
    assert!(why.ends_with(&format!(" at step {best}")), "{why}");
    assert_eq!(checkpoints(&bench), [checkpoint_name(best), checkpoint_name(best + 12)]);
    // Complete: it only exports again.
    let again = bench.train().expect(0);
    assert!(matches!(again.events.as_slice(), [EventKind::Started(_), EventKind::Finished(_)]), "{:?}", again.events);
}

#[test]
fn a_run_that_was_killed_has_the_same_best_and_the_same_end() {
    expect_the_same_best_and_the_same_end(|best, end| {
        vec![
            // Saved before it is evaluated, as after an out-of-memory in the evaluation.
            (step_line(best), libc::SIGTERM),
            (eval_line(best + 4), libc::SIGKILL),
            (eval_line(end), libc::SIGKILL),
        ]
    });
}

#[test]
#[ignore = "test-all"]
fn a_run_that_was_killed_anywhere_has_the_same_best_and_the_same_end() {
    expect_the_same_best_and_the_same_end(|best, end| {
        vec![
            (step_line(end), libc::SIGTERM),
            (eval_line(best), libc::SIGKILL),
            (step_line(best + 2), libc::SIGTERM),
            (eval_line(best + 8), libc::SIGTERM),
            (step_line(end - 1), libc::SIGKILL),
            ("\"type\":\"checkpoint\",\"step\":".to_owned() + &end.to_string(), libc::SIGKILL),
        ]
    });
}

/// Each case is the line after which the run is ended, and the signal.
#[track_caller]
fn expect_the_same_best_and_the_same_end(cases: impl Fn(u64, u64) -> Vec<(String, i32)>) {
    let whole = with_early_stop();
    let ended = whole.train().expect(0);
    let (want, bits) = (finished(&ended), exported(&whole));
    let (best, end) = (want.model_step.unwrap(), want.step);
    for case in cases(best, end) {
        let broken = struck(with_early_stop, std::slice::from_ref(&case));
        let ended = broken.train().expect(0);
        assert_eq!(finished(&ended), want, "{case:?}");
        assert_eq!(exported(&broken), bits, "{case:?}");
    }
    // Twice in the same run, the second time before an evaluation can be saved.
    let twice = [(eval_line(best + 4), libc::SIGKILL), (eval_line(best + 4), libc::SIGKILL)];
    let broken = struck(with_early_stop, &twice);
    assert_eq!(finished(&broken.train().expect(0)), want);
}

#[test]
fn a_retry_with_a_smaller_batch_has_the_same_best_and_the_same_end() {
    let whole = with_early_stop();
    let ended = whole.train().expect(0);
    let want = finished(&ended);
    let mut broken = struck(with_early_stop, &[(eval_line(want.step - 4), libc::SIGTERM)]);
    let ended = broken.set("/train/batch", json!(3)).set("/attempt", json!(2)).train().expect(0);
    assert_eq!((finished(&ended).step, finished(&ended).model_step), (want.step, want.model_step));
}

#[test]
fn a_damaged_best_checkpoint_costs_a_warning_and_the_last_step_is_exported() {
    let bench = bench();
    let best = finished(&bench.train().expect(0)).model_step.unwrap();
    fs::remove_dir_all(bench.run_folder().model()).unwrap();
    damage(&bench.run_folder().checkpoints().join(checkpoint_name(best)).join("model.safetensors"));
    let ended = bench.train().expect(0);
    let warned = ended.events.iter().any(|event| {
        matches!(event, EventKind::Warning(warning) if warning.message.contains("of the best step is damaged")
            && warning.message.contains("model.safetensors has another checksum"))
    });
    assert!(warned, "{:?}", ended.events);
    assert_eq!(finished(&ended).model_step, Some(48));
    assert_eq!(exported(&bench), bench.checkpoint_digests(48)[0]);
}

#[test]
fn a_run_folder_from_before_is_resumed() {
    let without_best = || {
        let mut bench = bench();
        bench.set("/save", json!({ "every": 5, "keep": 1 }));
        bench
    };
    let mut bench = struck(without_best, &[("\"type\":\"checkpoint\",\"step\":10,".to_owned(), libc::SIGTERM)]);
    let newest = checkpoints(&bench).pop().unwrap();
    let state = fs::read_to_string(bench.run_folder().checkpoints().join(newest).join("state.json")).unwrap();
    assert!(!state.contains("metrics"), "{state}");
    let ended = bench.set("/save/best", json!("eval.loss")).train().expect(0);
    assert!(matches!(&ended.events[0], EventKind::Started(started) if started.resumed_from >= Some(10)));
    assert_eq!(finished(&ended).model_step, Some(best_step(&ended, &Metric::loss())));
}

#[test]
fn a_metric_that_the_labels_do_not_have_is_refused_before_the_training() {
    let mut bench = bench();
    let file = bench.path("numbers.jsonl");
    let rows: Vec<String> = (0..40).map(|row| format!("{{\"text\":\"salt {row}\",\"label\":{row}.5}}")).collect();
    fs::write(&file, rows.join("\n")).unwrap();
    bench.set("/data/train", json!(file)).set("/data/eval", json!(file)).set("/save/best", json!("eval.macro_f1"));
    let ended = bench.train().expect(3);
    let want = "save.best: found \"eval.macro_f1\"; allowed: eval.loss, eval.mse, eval.pearson";
    assert!(ended.stderr.contains(want), "{}", ended.stderr);
    assert!(ended.events.is_empty(), "{:?}", ended.events);
    let ended = bench.set("/save/best", json!("eval.mse")).train().expect(0);
    assert_eq!(finished(&ended).best.as_ref().unwrap().metric, Metric::named("mse"));
}
