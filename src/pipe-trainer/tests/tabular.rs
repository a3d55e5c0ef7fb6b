//! Tables: that a class and a number are learned and predicted, in the unit of the data and with cells missing, that every class is held
//! out, and that a resumed run has the same bits.
//!
//! The bag of words: that it learns, resumes with the same bits, loads its export, and that `fit` works without an estimate.

use std::fs;

use pipe_model::read_config;
use pipe_spec::event::EventKind;
use pipe_spec::pipeline::Arch;
use serde_json::{Value, json};

use crate::support::{Bench, Ended, generate, losses};

/// Whether customers cancel.
pub fn customers() -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    generate(&["table", "--rows", "600", "--seed", "1"], &data);
    bench
        .set("/tokenizer", json!(null))
        .set("/model", json!({ "arch": "tabular", "config": { "hidden_size": 32, "embedding_size": 4 } }))
        .set(
            "/data",
            json!({
                "train": data.join("train.csv"), "eval_share": 0.2, "fields": { "label": "churn" }, "workers": 1,
            }),
        )
        .set("/train/optimizer", json!({ "lr": 3e-3 }))
        .set("/train/steps", json!(10));
    bench
}

/// How much they spend: a number, some of them missing.
pub fn spending() -> Bench {
    let mut bench = customers();
    bench.set("/data/fields", json!({ "label": "spend", "ignore": "customer; churn" }));
    bench.set("/data/skip_bad", json!(true));
    bench
}

fn learn(bench: &mut Bench) -> Ended {
    generate(&["table", "--rows", "2400", "--seed", "1"], &bench.path("data"));
    bench.set("/model/config/hidden_size", json!(128)).set("/train/optimizer", json!({ "lr": 1e-3 }));
    bench.set("/train/batch", json!(64)).set("/train/effective_batch", json!(64)).set("/train/steps", json!(300));
    bench.train().expect(0)
}

fn score(ended: &Ended, name: &str) -> f64 {
    let last = ended.events.iter().rev().find_map(|event| match event {
        EventKind::Eval(eval) => eval.scores.get(name).copied(),
        _ => None,
    });
    last.unwrap_or_else(|| panic!("no {name}"))
}

/// Predicts rows with the exported model of a bench.
fn predict(bench: &Bench, rows: &str) -> Vec<Value> {
    let file = bench.path("rows.csv");
    fs::write(&file, rows).unwrap();
    let ended = crate::predict::predict(bench, &file, |_| {});
    ended.done();
    ended.lines
}

#[test]
fn a_class_is_learned_and_predicted() {
    let mut bench = customers();
    let ended = learn(&mut bench);
    assert!(score(&ended, "accuracy") >= 0.85, "{}", score(&ended, "accuracy"));
    let details = fs::read_to_string(bench.run_folder().attempt(1).job().evaluation()).unwrap();
    let details: Value = serde_json::from_str(&details).unwrap();
    let names = [0, 1].map(|class| details["classes"]["scores"][class]["name"].as_str());
    assert_eq!(names, [Some("no"), Some("yes")], "{details}");
    // The mistakes have the numbers of their rows in the file, though these are held out of it.
    let table = fs::read_to_string(bench.path("data/train.csv")).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let churn = lines[0].iter().position(|name| *name == "churn").unwrap();
    let mistakes = details["mistakes"].as_array().unwrap();
    assert!(mistakes.iter().any(|mistake| mistake["rows"][0].as_u64().unwrap() > 480), "{details}");
    for mistake in mistakes {
        assert_eq!(mistake["class"], lines[mistake["rows"][0].as_u64().unwrap() as usize][churn], "{mistake}");
    }

    let model = bench.run_folder().model();
    let config: Value = serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    let names: Vec<&str> =
        config["features"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["age", "city", "plan", "calls", "spend"]);
    let told = ended.warnings().join("\n");
    assert!(told.contains("this column is not used: customer (most values differ)"), "{told}");

    let mut again = customers();
    again.set("/model", json!({ "arch": "tabular", "from": model })).set("/train/steps", json!(1));
    let (first, trained) = (losses(&again.train().expect(0))[0], losses(&ended)[299]);
    assert!(first < 2.0 * trained.max(0.3), "the export begins at a loss of {first}, the training ended at {trained}");

    // Columns in another order, one more, none of the label, a city that nobody lives in, and nothing at all.
    let rows = "calls,more,spend,plan,city,age\n11,x,9,basic,Lyon,40\n0,x,45,pro,Lyon,40\n11,x,9,basic,Rome,?\n,,,,,\n";
    let predicted = predict(&bench, rows);
    let labels: Vec<&str> = predicted.iter().map(|row| row["label"].as_str().unwrap()).collect();
    assert_eq!((labels.len(), &labels[..3]), (4, &["yes", "no", "yes"][..]), "{predicted:?}");
    assert!(predicted.iter().all(|row| (0.5..=1.0).contains(&row["score"].as_f64().unwrap())), "{predicted:?}");
    // A label that the model does not know, and none.
    let rows =
        "calls,spend,plan,city,age,churn\n11,9,basic,Lyon,40,maybe\n11,9,basic,Lyon,40,\n11,9,basic,Lyon,40,yes\n";
    let expected: Vec<Value> = predict(&bench, rows).iter().map(|row| row["expected"].clone()).collect();
    assert_eq!(expected, [Value::Null, Value::Null, json!("yes")]);
}

#[test]
fn a_number_is_learned_in_its_unit() {
    let mut bench = spending();
    let ended = learn(&mut bench);
    let (mse, share) = (score(&ended, "mse"), score(&ended, "r2"));
    // The deviation is about 10, and no more than 1.3 of it are noise that nothing predicts.
    assert!(mse < 20.0 && share > 0.8, "mse {mse}, r2 {share}");
    let told = ended.warnings().join("\n");
    assert!(told.contains("rows without a label: "), "{told}");
    let predicted = predict(&bench, "age,city,plan,calls,spend\n40,Lyon,pro,3,38.5\n40,Lyon,basic,3,\n");
    let value = |row: usize| predicted[row]["value"].as_f64().unwrap();
    assert!((value(0) - 38.0).abs() < 5.0 && (value(1) - 16.0).abs() < 5.0, "{predicted:?}");
    assert_eq!((&predicted[0]["expected"], &predicted[1]["expected"]), (&json!(38.5), &Value::Null));
}

#[test]
fn a_word_among_numbers_is_no_label() {
    let mut bench = customers();
    let file = bench.path("rows.csv");
    let price = |row: usize| match row % 20 {
        3 => "on request".to_owned(),
        7 => "n/a".to_owned(),
        _ => format!("{}.5", row * 3),
    };
    let rows: String = (0..100).map(|row| format!("{},{},{}\n", row, row % 7, price(row))).collect();
    fs::write(&file, format!("size,kind,price\n{rows}")).unwrap();
    bench.set("/data/train", json!(file)).set("/data/fields", json!({ "label": "price" }));
    let ended = bench.train().expect(3);
    assert!(ended.stderr.contains("line 5: the label \"on request\" is not a number"), "{}", ended.stderr);
    assert!(ended.stderr.contains("data.skip_bad: true skips such rows"), "{}", ended.stderr);
    let ended = bench.set("/data/skip_bad", json!(true)).train().expect(0);
    let told = ended.warnings().join("\n");
    assert!(told.contains("skipped 10 rows without a number as label: "), "{told}");
    assert!(score(&ended, "mse") > 0.0);
    let predicted = predict(&bench, "size,kind,price\n3,1,on request\n4,2,12.5\n5,3,\n");
    let expected: Vec<&Value> = predicted.iter().map(|row| &row["expected"]).collect();
    assert_eq!(expected, [&Value::Null, &json!(12.5), &Value::Null]);
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    for (mut bench, precision) in [(customers(), "fp32"), (spending(), "bf16")] {
        bench.set("/train/precision", json!(precision)).set("/save", json!({ "every": 4, "keep": 3 }));
        bench.expect_the_same_bits_from(4);
    }
}

#[test]
fn fit_works_without_an_estimate() {
    let mut bench = customers();
    bench.set("/train/batch", json!("auto")).set("/train/effective_batch", json!(16));
    let ended = bench.run("fit").expect(0);
    let is_fitted = |event: &EventKind| matches!(event, EventKind::Fitted(fitted) if fitted.batch == 16);
    assert!(ended.events.iter().any(is_fitted), "{:?}", ended.events);
}

/// The message with which a training of `rows` ends.
fn refused(rows: &str, fields: Value, config: Value) -> String {
    let mut bench = customers();
    let file = bench.path("rows.csv");
    fs::write(&file, rows).unwrap();
    bench.set("/data/train", json!(file)).set("/data/fields", fields).set("/model/config", config);
    bench.train().expect(3).stderr.replace(&file.display().to_string(), "rows.csv")
}

#[test]
fn what_cannot_be_learned_is_named() {
    let label = || json!({ "label": "y" });
    let rows = "a,y\n1,u\n2,v\n1,u\n5,v\n";
    let cases = [
        ("a,y\n1,u\n2,u\n3,u\n", label(), json!({}), "rows.csv line 2: every row has this label"),
        ("a,y\n1,u\n2,\n3,v\n", label(), json!({}), "rows.csv line 3: the label is empty; data.skip_bad: true"),
        (rows, json!({ "label": "z" }), json!({}), "no column \"z\"; it has: a, y"),
        (rows, json!({ "label": "y", "ignore": "b" }), json!({}), "no column \"b\"; there are: a, y"),
        (rows, label(), json!({ "num_labels": 3 }), "num_labels: found 3; the data has 2: u, v"),
        (rows, label(), json!({ "num_labels": 1 }), "the label \"u\" is not a number"),
        (
            "a,y\n1,u\n1,v\n1,u\n1,v\n",
            label(),
            json!({}),
            "no column to learn from: this column is not used: a (one value)",
        ),
    ];
    for (rows, fields, config, want) in cases {
        let message = refused(rows, fields, config);
        assert!(message.contains(want), "{want:?} in {message}");
    }
}

/// Generated descriptions of dishes; the data decides the labels.
pub fn dishes() -> Bench {
    let mut bench = Bench::dishes(100);
    let data = bench.path("data");
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/model", json!({ "arch": "bag-of-words", "config": { "vocab_size": 192, "hidden_size": 32 } }))
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl"), "workers": 1 }))
        .set("/train/optimizer", json!({ "lr": 1e-2 }))
        .set("/train/steps", json!(10));
    bench
}

#[test]
fn it_learns_and_its_export_is_loaded() {
    let mut bench = dishes();
    bench.set("/train/batch", json!(16)).set("/train/effective_batch", json!(16)).set("/train/steps", json!(200));
    let ended = bench.train().expect(0);
    let eval = ended.events.iter().rev().find_map(|event| match event {
        EventKind::Eval(eval) => Some(eval),
        _ => None,
    });
    let scores = &eval.expect("it was evaluated").scores;
    assert!(scores["accuracy"] >= 0.9, "{scores:?}");
    let model = bench.run_folder().model();
    let config: Value = serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["model_type"], &config["id2label"]["1"]), (&json!("bag_of_words"), &json!("salad")));

    let trained = losses(&ended)[199];
    let mut again = dishes();
    again.set("/model", json!({ "arch": "bag-of-words", "from": model })).set("/train/steps", json!(1));
    let first = losses(&again.train().expect(0))[0];
    assert!(first < 2.0 * trained.max(0.2), "the export begins at a loss of {first}, the training ended at {trained}");
}

#[test]
fn a_resumed_bag_of_words_ends_with_the_same_bits() {
    for precision in ["fp32", "bf16"] {
        let mut bench = dishes();
        bench.set("/train/precision", json!(precision)).set("/save", json!({ "every": 4, "keep": 3 }));
        bench.expect_the_same_bits_from(4);
    }
}

#[test]
fn it_has_no_estimate_and_fit_works_without_one() {
    let mut bench = dishes();
    let config = bench.spec["model"]["config"].as_object().unwrap().clone();
    assert!(read_config(Arch::BagOfWords, &config).unwrap().step_memory().is_none());
    bench.set("/train/batch", json!("auto")).set("/train/effective_batch", json!(16));
    let ended = bench.run("fit").expect(0);
    let fitted = ended.events.iter().find_map(|event| match event {
        EventKind::Fitted(fitted) => Some(fitted),
        _ => None,
    });
    assert_eq!(fitted.expect("a batch is found").batch, 16);
}
