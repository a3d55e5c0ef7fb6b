//! Evaluations: their scores, and the details that a report shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use pipe_spec::evaluation::{ClassDetails, EvaluationDetails, Mistake, RetrievalExample};
use pipe_spec::event::{Eval, EventKind, Sample};
use serde_json::{Value, json};

use crate::support::{Bench, Ended, generate};

fn evals(ended: &Ended) -> Vec<&Eval> {
    let mut evals = Vec::new();
    for event in &ended.events {
        if let EventKind::Eval(eval) = event {
            evals.push(eval);
        }
    }
    evals
}

fn samples(ended: &Ended) -> Vec<&Sample> {
    let mut samples = Vec::new();
    for event in &ended.events {
        if let EventKind::Sample(sample) = event {
            samples.push(sample);
        }
    }
    samples
}

fn bench(evaluate: serde_json::Value) -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/train/steps", json!(6)).set("/save/every", json!(3)).set("/evaluate", evaluate);
    bench
}

#[test]
fn a_run_that_is_watched_ends_with_the_same_bits() {
    let watched = bench(json!({ "every": 2, "generate": 2, "batch": 3 }));
    let mut alone = bench(json!({}));
    alone.set("/data/eval", json!(null));
    let (ended, undisturbed) = (watched.train().expect(0), alone.train().expect(0));
    assert_eq!(ended.curve(), undisturbed.curve());
    assert_eq!(watched.checkpoint_digests(6), alone.checkpoint_digests(6));
    assert_eq!((evals(&ended).len(), samples(&ended).len()), (3, 6));
    assert!(evals(&undisturbed).is_empty());
}

/// A context is read as if it stood behind the source, on a line of its own, in the rows that have one.
#[test]
fn a_context_is_part_of_the_source() {
    let mut bench = Bench::recipes();
    let rows = fs::read_to_string(bench.path("data/train.jsonl")).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let write = |name: &str, joined: bool| {
        let row = |(number, row): (usize, &Value)| {
            let (mut row, note) = (row.clone(), ["salt and sugar", "", " "][number % 3]);
            match joined && number % 3 == 0 {
                true => row["ingredients"] = json!(format!("{}\n{note}", row["ingredients"].as_str().unwrap())),
                false => row["note"] = json!(note),
            }
            row.to_string() + "\n"
        };
        fs::write(bench.path(name), rows.iter().enumerate().map(row).collect::<String>()).unwrap();
        bench.path(name)
    };
    let (joined, apart) = (write("joined.jsonl", true), write("apart.jsonl", false));
    bench.set("/train/steps", json!(2)).set("/data/eval", json!(null));
    let mut curve = |train: &std::path::Path, name: &str| {
        let run = bench.path(name);
        bench.set("/data/train", json!(train)).set("/run", json!(run)).train().expect(0).curve()
    };
    let (joined, without) = (curve(&joined, "run-joined"), curve(&apart, "run-without"));
    bench.set("/data/fields/context", json!("note"));
    let run = bench.path("run-apart");
    let apart = bench.set("/data/train", json!(apart)).set("/run", json!(run)).train().expect(0).curve();
    assert_eq!(apart, joined);
    assert_ne!(without, joined);
}

#[test]
fn texts_are_written_where_they_are_asked_for() {
    let silent = bench(json!({ "every": 3 })).train().expect(0);
    assert!(samples(&silent).is_empty());
    assert!(evals(&silent).iter().all(|eval| !eval.scores.contains_key("exact_match")));
    // More than there are rows for.
    let all = bench(json!({ "generate": 1000 })).train().expect(0);
    assert_eq!(samples(&all).len() as u64, evals(&all)[0].samples);
}

#[test]
fn a_model_that_has_learned_its_data_writes_it() {
    let mut bench = Bench::golden();
    let rows = std::fs::read_to_string(crate::support::fixture().join("train.jsonl")).unwrap();
    let rows: Vec<&str> = rows.lines().take(4).collect();
    std::fs::write(bench.path("few.jsonl"), rows.join("\n")).unwrap();
    let few = json!(bench.path("few.jsonl"));
    bench
        .set("/data/train", few.clone())
        .set("/data/eval", few)
        .set("/evaluate", json!({ "every": 20, "generate": 2 }));
    bench.set("/data/max_target", json!(128));
    bench.set("/train/steps", json!(120)).set("/train/batch", json!(4)).set("/train/effective_batch", json!(4));
    let ended = bench.train().expect(0);
    let evals = evals(&ended);
    let (first, last) = (evals[0], evals[evals.len() - 1]);
    assert!(
        first.scores["exact_match"] < 1.0 && first.scores["rouge_l"] < last.scores["rouge_l"],
        "{first:?} {last:?}"
    );
    assert_eq!(
        (last.scores["exact_match"], last.scores["rouge_l"]),
        (1.0, 1.0),
        "{last:?} {:?}",
        samples(&ended).last()
    );
    let written = samples(&ended);
    let [.., one, two] = written.as_slice() else { panic!("{written:?}") };
    for (sample, row) in [one, two].into_iter().zip(rows) {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!((json!(sample.source), json!(sample.target)), (row["source"].clone(), row["target"].clone()));
        assert_eq!((sample.step, &sample.generated), (120, &sample.target));
    }
}

/// A fifth of 100 rows, no two of which are the same, is kept for evaluation.
fn share(seed: u64) -> Bench {
    let mut bench = bench(json!({ "generate": 100 }));
    let all = std::fs::read_to_string(bench.path("data/train.jsonl")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let source = |row: &str| serde_json::from_str::<serde_json::Value>(row).unwrap()["ingredients"].to_string();
    let rows: Vec<&str> = all.lines().filter(|row| seen.insert(source(row))).take(100).collect();
    let path = bench.path("rows.jsonl");
    std::fs::write(&path, rows.join("\n")).unwrap();
    bench.set("/data/train", json!(path)).set("/data/eval", json!(null)).set("/data/eval_share", json!(0.2));
    bench.set("/train/steps", json!(null)).set("/train/epochs", json!(1)).set("/train/seed", json!(seed));
    bench
}

#[test]
fn a_share_of_the_rows_is_kept_for_evaluation() {
    let kept = |ended: &Ended| samples(ended).iter().map(|sample| json!(sample.source)).collect::<Vec<_>>();
    let mut bench = share(1);
    let ended = bench.train().expect(0);
    let started =
        ended.events.iter().find_map(|event| if let EventKind::Started(one) = event { Some(one) } else { None });
    assert_eq!((evals(&ended)[0].samples, started.unwrap().samples), (20, 80));
    assert_ne!(kept(&ended), kept(&share(2).train().expect(0)));
    // As two files would be: the same rows are trained on, the others evaluated.
    let all = std::fs::read_to_string(bench.path("rows.jsonl")).unwrap();
    let sources = kept(&ended);
    let is_kept =
        |row: &&str| sources.contains(&serde_json::from_str::<serde_json::Value>(row).unwrap()["ingredients"]);
    let (eval, train): (Vec<&str>, Vec<&str>) = all.lines().partition(is_kept);
    for (key, rows) in [("train", train), ("eval", eval)] {
        let path = bench.path(&format!("{key}-part.jsonl"));
        std::fs::write(&path, rows.join("\n")).unwrap();
        bench.set(&format!("/data/{key}"), json!(path));
    }
    std::fs::remove_dir_all(bench.run_folder().path()).unwrap();
    let files = bench.set("/data/eval_share", json!(0.0)).train().expect(0);
    assert_eq!(files.curve(), ended.curve());
    assert_eq!((evals(&files)[0].loss, kept(&files)), (evals(&ended)[0].loss, sources));
}

/// A small BERT on generated texts of three classes.
fn dishes() -> Bench {
    let mut bench = Bench::dishes(100);
    let data = bench.path("data");
    let config = json!({
        "vocab_size": 192, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
        "max_position_embeddings": 64,
    });
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/model", json!({ "arch": "bert", "config": config }))
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl"), "workers": 1 }))
        .set("/train/optimizer", json!({ "lr": 1e-3 }))
        .set("/train/steps", json!(8));
    bench
}

/// A small hybrid model on a generated series.
fn series() -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    generate(&["series", "--rows", "1500", "--seed", "5"], &data);
    let config = json!({
        "input_features": 8, "sequence_length": 24, "conv_channels": [16], "lstm_hidden": 16, "lstm_layers": 1,
        "attention_heads": 4, "num_classes": 3,
    });
    bench
        .set("/tokenizer", json!(null))
        .set("/data", json!({ "train": data.join("train.csv"), "eval": data.join("eval.csv") }))
        .set("/model", json!({ "arch": "hybrid-cnn-lstm", "config": config }))
        .set("/train/batch", json!(32))
        .set("/train/effective_batch", json!(32))
        .set("/train/steps", json!(6));
    bench
}

/// A small CLIP on generated pictures of cars.
fn cars(eval_rows: u32) -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    let eval_rows = eval_rows.to_string();
    generate(&["pictures", "--rows", "40", "--seed", "1", "--size", "32", "--eval-rows", &eval_rows], &data);
    let tower = json!({
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "vocab_size": 96, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
        "image_size": 32, "patch_size": 8,
    });
    let config = json!({ "projection_dim": 32, "text_config": tower, "vision_config": tower });
    bench
        .set("/model", json!({ "arch": "clip", "config": config }))
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl") }))
        .set("/train/steps", json!(4));
    bench
}

fn file(bench: &Bench, name: &str) -> Vec<u8> {
    fs::read(bench.run_folder().attempt(1).job().path().join(name)).unwrap()
}

fn details(bench: &Bench) -> EvaluationDetails {
    serde_json::from_slice(&file(bench, "evaluation.json")).unwrap()
}

fn last_eval(ended: &Ended) -> &Eval {
    let mut evals = ended.events.iter().rev();
    evals.find_map(|event| if let EventKind::Eval(eval) = event { Some(eval) } else { None }).unwrap()
}

/// The class of every row of a file of JSON lines, counted.
fn counted(bench: &Bench, file: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(bench.path(file)).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        *counts.entry(row["label"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

/// The figures of the classes agree with each other and with the event.
#[track_caller]
fn agrees(classes: &ClassDetails, eval: &Eval) {
    let rows: u64 = classes.scores.iter().map(|class| class.rows).sum();
    assert_eq!(rows, eval.samples);
    assert_eq!(classes.confusion.iter().map(|cell| cell.rows).sum::<u64>(), rows);
    assert_eq!(classes.calibration.bins.iter().map(|bin| bin.rows).sum::<u64>(), rows);
    let right: u64 = classes.confusion.iter().filter(|cell| cell.class == cell.predicted).map(|cell| cell.rows).sum();
    assert!((right as f64 / rows as f64 - eval.scores["accuracy"]).abs() < 1e-9, "{classes:?} {eval:?}");
    for class in &classes.scores {
        let of = |counts: &dyn Fn(u64, u64) -> bool| -> u64 {
            let cells = classes.confusion.iter().filter(|cell| counts(cell.class, cell.predicted));
            cells.map(|cell| cell.rows).sum()
        };
        assert_eq!(of(&|wanted, _| wanted == class.class), class.rows);
        assert_eq!(of(&|_, predicted| predicted == class.class), class.predicted);
    }
    let f1: Vec<f64> = classes.scores.iter().filter_map(|class| class.f1).collect();
    assert!((f1.iter().sum::<f64>() / f1.len() as f64 - eval.scores["macro_f1"]).abs() < 1e-4, "{classes:?} {eval:?}");
    assert!((0.0..=1.0).contains(&classes.calibration.error), "{classes:?}");
}

#[test]
fn classes_of_texts_are_counted_and_named() {
    let bench = dishes();
    let ended = bench.train().expect(0);
    let EvaluationDetails { step, classes, retrieval, mistakes } = details(&bench);
    let classes = classes.unwrap();
    assert!((step, retrieval.len(), classes.count) == (8, 0, 3), "{classes:?}");
    let rows: BTreeMap<String, u64> = classes.scores.iter().map(|class| (class.name.clone(), class.rows)).collect();
    assert_eq!(rows, counted(&bench, "data/eval.jsonl"));
    let eval = last_eval(&ended);
    agrees(&classes, eval);

    let common = rows.iter().rev().max_by_key(|(_, rows)| **rows).map(|(name, _)| name.clone()).unwrap();
    let headline = eval.headline.clone().unwrap();
    let baseline = headline.baseline.unwrap();
    assert_eq!((headline.metric.as_str(), headline.rows, headline.classes), ("accuracy", eval.samples, Some(3)));
    assert_eq!(baseline.name, format!("always answering {common}"));
    assert!((baseline.value - rows[&common] as f64 / eval.samples as f64).abs() < 1e-9, "{baseline:?}");
    let wrong: u64 = classes.confusion.iter().filter(|cell| cell.class != cell.predicted).map(|cell| cell.rows).sum();
    assert_eq!(mistakes.len() as u64, wrong.min(Mistake::MOST as u64));
    assert!(mistakes.is_sorted_by(|a, b| a.confidence >= b.confidence), "{mistakes:?}");
    let text = fs::read_to_string(bench.path("data/eval.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for mistake in &mistakes {
        let row = &lines[mistake.rows[0] as usize - 1];
        let text: String = row["text"].as_str().unwrap().chars().take(Mistake::TEXT).collect();
        assert_eq!((&text, &row["label"]), (&mistake.text, &json!(mistake.class)));
        assert_ne!(mistake.class, mistake.predicted);
    }
}

#[test]
fn classes_of_time_series_are_counted_and_named() {
    let bench = series();
    let ended = bench.train().expect(0);
    let classes = details(&bench).classes.unwrap();
    assert_eq!(
        classes.scores.iter().map(|class| class.name.as_str()).collect::<Vec<_>>(),
        ["falling", "flat", "rising"]
    );
    agrees(&classes, last_eval(&ended));
}

#[test]
fn numbers_and_texts_leave_no_file() {
    let mut bench = dishes();
    let rows = "{\"text\": \"soup\", \"label\": 0.5}\n{\"text\": \"cake\", \"label\": 1.5}\n".repeat(8);
    fs::write(bench.path("numbers.jsonl"), rows).unwrap();
    let path = json!(bench.path("numbers.jsonl"));
    bench.set("/data/train", path.clone()).set("/data/eval", path).train().expect(0);
    assert!(!bench.run_folder().attempt(1).job().evaluation().exists());
}

#[test]
fn parts_of_other_sizes_give_the_same_file() {
    let benches: [fn() -> Bench; 3] = [dishes, series, || cars(20)];
    for bench in benches {
        let files: Vec<Vec<u8>> = [64, 7, 1]
            .iter()
            .map(|batch| {
                let mut bench = bench();
                bench.set("/evaluate", json!({ "batch": batch })).train().expect(0);
                file(&bench, "evaluation.json")
            })
            .collect();
        assert!(files.iter().all(|file| *file == files[0]), "{}", String::from_utf8_lossy(&files[0]));
    }
}

#[test]
fn the_last_and_the_best_evaluation_are_kept_and_change_no_bit() {
    let mut bench = dishes();
    bench.set("/evaluate", json!({ "every": 2 })).set("/save", json!({ "every": 4, "keep": 3 }));
    bench.expect_the_same_bits_from(4);
    assert_eq!(details(&bench).step, 8);
    assert!(!bench.run_folder().attempt(1).job().best_evaluation().exists());

    bench.set("/save/best", json!("eval.loss"));
    fs::remove_dir_all(bench.run_folder().path()).unwrap();
    let ended = bench.train().expect(0);
    let best = ended.events.iter().find_map(|event| match event {
        EventKind::Finished(finished) => finished.best.clone(),
        _ => None,
    });
    let file: EvaluationDetails = serde_json::from_slice(&file(&bench, "evaluation-best.json")).unwrap();
    assert_eq!((file.step, details(&bench).step), (best.unwrap().step, 8));
}

#[test]
fn pictures_come_with_their_texts() {
    let bench = cars(20);
    let ended = bench.train().expect(0);
    let examples = details(&bench).retrieval;
    assert_eq!(examples.len(), RetrievalExample::MOST);
    let text = fs::read_to_string(bench.path("data/eval.jsonl")).unwrap();
    let captions: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["text"].clone()).collect();
    for (number, example) in examples.iter().enumerate() {
        assert_eq!(json!(example.caption), captions[number * 20 / 8]);
        assert!((1..=20).contains(&example.rank) && example.score.abs() <= 1.0, "{example:?}");
        let texts: BTreeSet<&String> = example.best.iter().map(|found| &found.caption).collect();
        assert_eq!(texts.len(), RetrievalExample::MOST_CAPTIONS, "{example:?}");
        assert!(example.best.is_sorted_by(|a, b| a.score >= b.score), "{example:?}");
        assert!(example.best.iter().all(|found| captions.contains(&json!(found.caption))), "{example:?}");
        assert!(example.rank > 3 || example.best.iter().any(|found| found.right), "{example:?}");
        assert!(example.picture.starts_with("iVBORw0KGgo"), "{example:?}");
    }
    assert!(last_eval(&ended).scores.contains_key("text_recall_1"));
}

#[test]
fn a_picture_that_cannot_be_read_moves_no_other() {
    let mut bench = cars(9);
    let path = bench.path("data/eval.jsonl");
    let rows = fs::read_to_string(&path).unwrap();
    let mut rows: Vec<String> = rows.lines().map(str::to_owned).collect();
    rows[1] = "{\"image\": \"missing.png\", \"text\": \"a car that is not there\"}".to_owned();
    fs::write(&path, rows.join("\n")).unwrap();
    bench.set("/data/skip_bad", json!(true)).set("/evaluate", json!({ "batch": 4 })).train().expect(0);
    let captions: Vec<String> = details(&bench).retrieval.into_iter().map(|example| example.caption).collect();
    let text = |row: &String| serde_json::from_str::<Value>(row).unwrap()["text"].as_str().unwrap().to_owned();
    rows.remove(1);
    assert_eq!(captions, rows.iter().map(text).collect::<Vec<_>>());
}
