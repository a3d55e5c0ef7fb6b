//! Predictions of every kind of model: the figures of its evaluation, rows in order, what may be missing and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Bench, generate, trainer};
use pipe_spec::event::{Eval, EventKind};
use pipe_spec::trainer::{PredictEvent, Predicted};
use serde_json::{Value, json};

/// The end of a prediction.
pub struct Ended {
    code: Option<i32>,
    stderr: String,
    done: Option<Predicted>,
    pub warnings: Vec<String>,
    /// The output; nothing where there is none.
    pub lines: Vec<Value>,
}

impl Ended {
    #[track_caller]
    pub fn done(&self) -> &Predicted {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.done.as_ref().expect("it says that it is done")
    }

    /// A key of every line.
    pub fn column(&self, key: &str) -> Vec<Value> {
        self.lines.iter().map(|line| line[key].clone()).collect()
    }
}

/// Predicts `rows` with the model that `bench` has exported; `change` is made to the spec.
pub fn predict(bench: &Bench, rows: &Path, change: impl FnOnce(&mut Value)) -> Ended {
    let (model, out) = (bench.run_folder().model(), bench.path("predictions.jsonl"));
    let mut spec = json!({ "settings": bench.spec, "out": out });
    let settings = &mut spec["settings"];
    settings["model"]["from"] = json!(model);
    settings["model"].as_object_mut().unwrap().remove("config");
    settings["tokenizer"] = json!(Some(model.join("tokenizer.json")).filter(|file| file.is_file()));
    settings["data"]["train"] = json!(rows);
    settings["data"].as_object_mut().unwrap().remove("eval");
    settings["evaluate"]["batch"] = json!(7);
    change(&mut spec);
    let file = bench.path("predict.json");
    fs::write(&file, spec.to_string()).unwrap();
    fs::remove_file(&out).ok();
    let output = trainer().args(["predict", "--spec"]).arg(file).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let (mut done, mut warnings) = (None, Vec::new());
    for line in stdout.lines() {
        match PredictEvent::parse(line).unwrap_or_else(|| panic!("not an event: {line}")) {
            PredictEvent::Done(predicted) => done = Some(predicted),
            PredictEvent::Warning { message } => warnings.push(message),
            PredictEvent::Started { .. } | PredictEvent::Progress { .. } => {}
        }
    }
    assert!(!bench.path("predictions.jsonl.partial").exists());
    let text = fs::read_to_string(&out).unwrap_or_default();
    Ended {
        code: output.status.code(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        done,
        warnings,
        lines: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    }
}

pub fn nothing(_: &mut Value) {}

/// Trains, and returns the last evaluation.
pub fn train(bench: &Bench) -> Eval {
    let ended = bench.train().expect(0);
    let eval = ended.events.into_iter().rev().find_map(|event| match event {
        EventKind::Eval(eval) => Some(eval),
        _ => None,
    });
    eval.expect("it was evaluated")
}

pub fn texts(arch: &str) -> Bench {
    let mut bench = Bench::dishes(60);
    let data = bench.path("data");
    let config = match arch {
        "bag-of-words" => json!({ "vocab_size": 192, "hidden_size": 32 }),
        _ => json!({
            "vocab_size": 192, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
            "intermediate_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
        }),
    };
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/model", json!({ "arch": arch, "config": config }))
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl") }))
        .set("/train/optimizer", json!({ "lr": 3e-3 }))
        .set("/train/steps", json!(30));
    if arch == "deberta-v3" {
        for (key, value) in [
            ("relative_attention", json!(true)),
            ("position_buckets", json!(8)),
            ("norm_rel_ebd", json!("layer_norm")),
            ("share_att_key", json!(true)),
            ("pos_att_type", json!("p2c|c2p")),
            ("position_biased_input", json!(false)),
        ] {
            bench.set(&format!("/model/config/{key}"), value);
        }
    }
    bench
}

fn pictures() -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    generate(&["pictures", "--rows", "40", "--eval-rows", "20", "--seed", "1", "--size", "32"], &data);
    let tower = json!({
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "vocab_size": 96, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
        "image_size": 32, "patch_size": 8,
    });
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set(
            "/model",
            json!({ "arch": "clip", "config": {
                "projection_dim": 32, "text_config": tower, "vision_config": tower,
            }}),
        )
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl") }))
        .set("/train/steps", json!(6));
    bench
}

fn series() -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    generate(&["series", "--rows", "1000", "--eval-rows", "200", "--seed", "5"], &data);
    bench
        .set("/tokenizer", json!(null))
        .set("/data", json!({ "train": data.join("train.csv"), "eval": data.join("eval.csv") }))
        .set(
            "/model",
            json!({ "arch": "hybrid-cnn-lstm", "config": {
                "input_features": 8, "sequence_length": 24, "conv_channels": [8], "lstm_hidden": 8, "lstm_layers": 1,
                "attention_heads": 2, "num_classes": 3,
            }}),
        )
        .set("/train/steps", json!(20));
    bench
}

fn stories() -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    generate(&["stories", "--rows", "200", "--seed", "1"], &data);
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set(
            "/model",
            json!({ "arch": "mu-sota", "config": {
                "vocab_size": 160, "n_layers": 1, "n_blocks": 2, "block_dim": 8, "block_heads": 2, "cross_heads": 2,
                "ffn_dim": 32, "max_seq_len": 64,
            }}),
        )
        .set("/data", json!({ "train": data.join("train.txt"), "eval": data.join("eval.txt"), "max_length": 32 }))
        .set("/train/steps", json!(20));
    bench
}

fn recipes() -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/evaluate", json!({ "generate": 1 })).set("/train/steps", json!(20));
    bench
}

/// The file that a training evaluated, predicted in other batches: accuracy and the like are equal, losses but for rounding.
#[test]
fn the_figures_are_those_of_the_evaluation() {
    expect_figures([texts("bert"), recipes(), series()]);
}

#[test]
#[ignore = "test-all"]
fn the_figures_of_the_other_models_are_those_of_the_evaluation() {
    let classifiers = ["roberta", "xlm-roberta", "deberta-v3", "bag-of-words"].map(texts);
    expect_figures(classifiers.into_iter().chain([pictures(), stories()]));
}

pub fn expect_figures(benches: impl IntoIterator<Item = Bench>) {
    for bench in benches {
        let arch = bench.spec["model"]["arch"].clone();
        let eval = train(&bench);
        let rows = PathBuf::from(bench.spec["data"]["eval"].as_str().unwrap());
        let ended = predict(&bench, &rows, nothing);
        let metrics = &ended.done().evaluation.as_ref().expect("the rows have labels or targets").metrics;
        let names = |scores: &pipe_spec::event::Scores| scores.keys().cloned().collect::<Vec<_>>();
        let mut wanted = eval.scores.clone();
        wanted.insert("loss".to_owned(), eval.loss);
        assert_eq!(names(metrics), names(&wanted), "{arch}");
        for (name, want) in &wanted {
            let is_count = !["loss", "perplexity"].contains(&name.as_str());
            let tolerance = if is_count { 1e-12 } else { 1e-6 * want.max(1.0) };
            assert!((metrics[name] - want).abs() <= tolerance, "{arch} {name}: {} and {want}", metrics[name]);
        }
    }
}

#[test]
fn classes_come_in_the_order_of_the_rows_whatever_the_batch() {
    let bench = texts("bert");
    train(&bench);
    let rows = bench.path("data/eval.jsonl");
    let ended = predict(&bench, &rows, nothing);
    assert_eq!(ended.done().predictions, 60);
    assert_eq!(ended.column("row"), (0..60).map(Value::from).collect::<Vec<_>>());
    let text = fs::read_to_string(&rows).unwrap();
    let wanted: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["label"].clone()).collect();
    assert_eq!(ended.column("expected"), wanted);
    for line in &ended.lines {
        let scores = line["scores"].as_object().unwrap();
        assert!((scores.values().map(|score| score.as_f64().unwrap()).sum::<f64>() - 1.0).abs() < 1e-5, "{line}");
        let best = scores.iter().max_by(|a, b| a.1.as_f64().unwrap().total_cmp(&b.1.as_f64().unwrap())).unwrap();
        assert_eq!((&line["label"], &line["score"]), (&json!(best.0), best.1));
    }
    for batch in [1, 60] {
        let other = predict(&bench, &rows, |spec| spec["settings"]["evaluate"]["batch"] = json!(batch));
        assert_eq!(other.done().batch, batch);
        assert_eq!(other.column("label"), ended.column("label"));
        for (a, b) in ended.column("score").iter().zip(other.column("score")) {
            assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-5, "{a} {b}");
        }
    }
}

#[test]
fn labels_may_be_missing_and_columns_are_kept() {
    let bench = texts("bag-of-words");
    train(&bench);
    let rows = bench.path("few.jsonl");
    fs::write(
        &rows,
        "{\"id\": 7, \"text\": \"a warm soup\", \"n\": [1]}\n\n{\"text\": \"a sweet cake\", \"label\": null, \"n\": 2}\n\
         {\"text\": \"a cake\", \"label\": \"cake\", \"n\": 3}\n",
    )
    .unwrap();
    let keep = |spec: &mut Value| spec["keep"] = json!(["n"]);
    let ended = predict(&bench, &rows, keep);
    assert_eq!(ended.done().evaluation.as_ref().map(|evaluation| evaluation.rows), Some(1));
    assert_eq!(ended.column("expected"), [json!(null), json!(null), json!("cake")]);
    assert_eq!(ended.column("id"), [json!(7), json!(null), json!(null)]);
    assert_eq!(ended.column("n"), [json!([1]), json!(2), json!(3)]);

    let table = bench.path("few.csv");
    fs::write(&table, "id,text\nx,a warm soup\ny,\"a sweet, cake\"\n").unwrap();
    let ended = predict(&bench, &table, nothing);
    assert_eq!((ended.done().evaluation.as_ref(), ended.column("id")), (None, vec![json!("x"), json!("y")]));
}

#[test]
fn labels_that_the_model_does_not_know_do_not_count() {
    let bench = texts("bag-of-words");
    train(&bench);
    let rows = bench.path("few.jsonl");
    let row = |label: &str| format!("{{\"text\": \"a cake\", \"label\": {label}}}\n");
    let labels = ["\"cake\"", "\"pie\"", "\"\"", "[\"cake\"]", "7"];
    fs::write(&rows, labels.map(row).concat()).unwrap();
    let ended = predict(&bench, &rows, nothing);
    assert_eq!((ended.done().predictions, ended.done().evaluation.as_ref().unwrap().rows), (5, 1));
    assert_eq!(ended.column("expected")[..2], [json!("cake"), json!(null)]);
    let place = format!("{} line 2", rows.display());
    assert_eq!(
        ended.warnings,
        [format!("2 labels do not count: the model does not predict such; the first is \"pie\" ({place})")]
    );
}

#[test]
fn rows_with_too_few_cells_are_skipped_on_request() {
    let bench = texts("bag-of-words");
    train(&bench);
    let rows = bench.path("few.csv");
    fs::write(&rows, "id,text\nx,a warm soup\ny\nz,a cake\n").unwrap();
    let ended = predict(&bench, &rows, nothing);
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("few.csv line 3: 1 value for 2 columns; --skip-bad skips"), "{}", ended.stderr);
    let ended = predict(&bench, &rows, |spec| spec["settings"]["data"]["skip_bad"] = json!(true));
    assert_eq!((ended.done().predictions, ended.column("row")), (2, vec![json!(0), json!(2)]));
    assert_eq!(ended.column("id"), [json!("x"), json!("z")]);
    assert_eq!(ended.warnings, [format!("skipped 1 row with too few or too many cells: {} line 3", rows.display())]);
}

#[test]
fn what_is_refused_is_named_and_nothing_is_written() {
    let bench = texts("bag-of-words");
    train(&bench);
    let rows = bench.path("bad.jsonl");
    let good = r#"{"text": "a soup"}"#;
    for (row, want) in [
        ("{\"text\": ", "bad.jsonl line 2: not JSON"),
        (r#"{"txt": "a"}"#, "bad.jsonl line 2: no field \"text\"; it has: txt"),
    ] {
        fs::write(&rows, format!("{good}\n{row}\n")).unwrap();
        let ended = predict(&bench, &rows, nothing);
        assert!(ended.code == Some(3) && ended.stderr.contains(want), "{}", ended.stderr);
        assert!(!bench.path("predictions.jsonl").exists());
    }
    fs::write(&rows, good).unwrap();
    let ended = predict(&bench, &rows, |spec| spec["keep"] = json!(["n"]));
    assert!(ended.code == Some(3) && ended.stderr.contains("no field \"n\"; it has: text"), "{}", ended.stderr);
}

#[test]
fn numbers_are_predicted() {
    let mut bench = texts("bert");
    let rows: String =
        (0..40).map(|n| format!("{{\"text\": \"a warm soup {n}\", \"label\": {}}}\n", f64::from(n) / 8.0)).collect();
    fs::write(bench.path("numbers.jsonl"), rows).unwrap();
    let file = json!(bench.path("numbers.jsonl"));
    bench.set("/data/train", file.clone()).set("/data/eval", file);
    let eval = train(&bench);
    let ended = predict(&bench, &bench.path("numbers.jsonl"), nothing);
    assert_eq!(ended.lines[3]["expected"], json!(0.375));
    assert!(ended.lines.iter().all(|line| line["value"].is_f64()), "{:?}", ended.lines);
    let mse = ended.done().evaluation.as_ref().unwrap().metrics["mse"];
    assert!((mse - eval.scores["mse"]).abs() < 1e-5, "{mse} {}", eval.scores["mse"]);
}

#[test]
fn texts_are_written_for_sources_without_a_target() {
    let bench = recipes();
    train(&bench);
    let rows = bench.path("few.jsonl");
    fs::write(&rows, "{\"ingredients\": \"salt, leek, rice\"}\n{\"ingredients\": \"salt\"}\n").unwrap();
    let ended = predict(&bench, &rows, nothing);
    assert_eq!((ended.done().predictions, ended.done().evaluation.as_ref()), (2, None));
    assert!(ended.column("text").iter().all(Value::is_string), "{:?}", ended.lines);
    let short = predict(&bench, &rows, |spec| spec["settings"]["data"]["max_target"] = json!(3));
    let words = |text: &Value| text.as_str().unwrap().split_whitespace().count();
    assert!(short.column("text").iter().all(|text| words(text) <= 3), "{:?}", short.lines);
}

#[test]
fn pictures_and_texts_alone_have_embeddings() {
    let bench = pictures();
    train(&bench);
    let rows = bench.path("data/few.jsonl");
    let name = "pictures/eval-000000.png";
    let pair = fs::read_to_string(bench.path("data/eval.jsonl")).unwrap();
    let pair: Value = serde_json::from_str(pair.lines().next().unwrap()).unwrap();
    let text = pair["text"].clone();
    let lines = [json!({ "image": name }), json!({ "text": text }), json!({ "image": name, "text": text })];
    fs::write(&rows, lines.map(|line| line.to_string()).join("\n")).unwrap();
    let ended = predict(&bench, &rows, nothing);
    assert_eq!(ended.done().predictions, 3);
    let embedding = |line: usize| -> Vec<f64> {
        ended.lines[line]["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (image, text) = (embedding(0), embedding(1));
    assert!((product(&image, &image) - 1.0).abs() < 1e-5 && (product(&text, &text) - 1.0).abs() < 1e-5);
    let score = ended.lines[2]["score"].as_f64().unwrap();
    assert!((product(&image, &text) - score).abs() < 1e-5, "{score}");

    fs::write(&rows, format!("{{\"image\": \"none.png\"}}\n{{\"image\": \"{name}\"}}\n")).unwrap();
    let ended = predict(&bench, &rows, nothing);
    assert!(ended.code == Some(3) && ended.stderr.contains("few.jsonl line 1: the picture"), "{}", ended.stderr);
    let ended = predict(&bench, &rows, |spec| spec["settings"]["data"]["skip_bad"] = json!(true));
    assert_eq!((ended.done().skipped, ended.column("row")), (1, vec![json!(1)]));
}

#[test]
fn a_window_is_named_by_its_rows() {
    let bench = series();
    train(&bench);
    let table = fs::read_to_string(bench.path("data/eval.csv")).unwrap();
    let labelled = predict(&bench, &bench.path("data/eval.csv"), nothing);
    // Without labels, with a column that is no feature, and with columns in another order.
    let names: Vec<&str> = table.lines().next().unwrap().split(',').collect();
    let label = names.iter().position(|name| *name == "label").unwrap();
    let rows: Vec<String> = table
        .lines()
        .enumerate()
        .map(|(number, line)| {
            let mut values: Vec<&str> = line.split(',').collect();
            values.remove(label);
            values.reverse();
            format!("{},{}", if number == 0 { "id".to_owned() } else { format!("r{}", number - 1) }, values.join(","))
        })
        .collect();
    fs::write(bench.path("bare.csv"), rows.join("\n")).unwrap();
    let bare = predict(&bench, &bench.path("bare.csv"), nothing);
    assert_eq!((bare.done().predictions, bare.done().evaluation.as_ref()), (200 - 23, None));
    assert_eq!(bare.column("scores"), labelled.column("scores"));
    let first = &bare.lines[0];
    assert_eq!((&first["first_row"], &first["row"], &first["id"]), (&json!(0), &json!(23), &json!("r23")));
    assert_eq!(bare.lines.last().unwrap()["row"], json!(199));
}

#[test]
fn prompts_are_continued_and_texts_scored() {
    let bench = stories();
    train(&bench);
    let prompts = bench.path("prompts.jsonl");
    let rows = ["Once upon", "The", "", "Once upon", "The old"].map(|prompt| json!({ "prompt": prompt }).to_string());
    fs::write(&prompts, rows.join("\n")).unwrap();
    let greedy = |batch: u32| {
        let ended = predict(&bench, &prompts, |spec| {
            spec["settings"]["evaluate"] = json!({ "batch": batch, "temperature": 0.0, "max_tokens": 8 });
        });
        assert_eq!(ended.done().predictions, 5);
        ended.column("text")
    };
    let texts = greedy(5);
    assert!(texts[0] == texts[3] && texts.iter().all(|text| !text.as_str().unwrap().is_empty()), "{texts:?}");
    assert_eq!(texts, greedy(1));
    let sampled = |batch: u32| predict(&bench, &prompts, |spec| spec["settings"]["evaluate"]["batch"] = json!(batch));
    assert_eq!(sampled(5).column("text"), sampled(1).column("text"), "the number of a row decides what is drawn");

    let table = bench.path("texts.jsonl");
    let story = fs::read_to_string(bench.path("data/eval.txt")).unwrap();
    let story = story.split("\n\n").next().unwrap();
    let rows = [story, "Once", story].map(|text| json!({ "text": text }).to_string());
    fs::write(&table, rows.join("\n")).unwrap();
    let ended = predict(&bench, &table, nothing);
    assert_eq!(ended.column("row"), [json!(0), json!(1), json!(2)]);
    assert_eq!(ended.lines[0]["tokens"], ended.lines[2]["tokens"]);
    for line in &ended.lines {
        let (loss, perplexity) = (line["loss"].as_f64().unwrap(), line["perplexity"].as_f64().unwrap());
        assert!(loss > 0.0 && (loss.exp() - perplexity).abs() < 1e-9 * perplexity, "{line}");
    }
    let apart = ended.lines[0]["loss"].as_f64().unwrap() - ended.lines[2]["loss"].as_f64().unwrap();
    assert!(apart.abs() < 1e-6, "{apart}");
}

#[test]
fn a_batch_that_does_not_fit_is_halved() {
    let mut bench = texts("bert");
    bench.set("/model/config/hidden_size", json!(256)).set("/model/config/intermediate_size", json!(1024));
    bench.set("/train/steps", json!(1)).set("/data/pad", json!("max")).set("/data/max_length", json!(64));
    train(&bench);
    let rows = bench.path("data/train.jsonl");
    let with = |limit: Value| {
        predict(&bench, &rows, move |spec| {
            spec["settings"]["evaluate"]["batch"] = json!(600);
            spec["settings"]["memory"] = limit;
        })
    };
    let free = with(json!({}));
    let limited = with(json!({ "limit": "260m" }));
    assert_eq!((free.done().batch, limited.done().predictions), (600, 600));
    assert!(limited.done().batch < 600, "{}", limited.done().batch);
    assert_eq!(limited.column("label"), free.column("label"));
}
