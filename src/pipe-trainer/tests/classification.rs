//! Models that predict classes or a number: that they learn, in every precision, and resume.

use std::collections::BTreeMap;
use std::fs;

use crate::support::{Bench, Ended, furthest, losses};
use pipe_spec::event::{Eval, EventKind};
use serde_json::{Value, json};

/// A small BERT from scratch, with dropout, on generated texts; the data decides the labels.
pub fn dishes() -> Bench {
    let mut bench = Bench::dishes(100);
    let data = bench.path("data");
    let config = json!({
        "vocab_size": 192, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "max_position_embeddings": 64, "pad_token_id": 0,
    });
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/model", json!({ "arch": "bert", "config": config }))
        .set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl"), "workers": 1 }))
        .set("/train/optimizer", json!({ "lr": 1e-3 }))
        .set("/train/steps", json!(10));
    bench
}

/// As many as there are lines.
fn with_rows(bench: &mut Bench, name: &str, text: &str) {
    fs::write(bench.path(name), text).unwrap();
    let path = json!(bench.path(name));
    bench.set("/data/train", path.clone()).set("/data/eval", path);
}

fn last_eval(ended: &Ended) -> &Eval {
    fn eval(event: &EventKind) -> Option<&Eval> {
        if let EventKind::Eval(eval) = event { Some(eval) } else { None }
    }
    ended.events.iter().rev().find_map(eval).expect("it was evaluated")
}

fn warnings(ended: &Ended) -> String {
    ended.warnings().concat()
}

fn exported(bench: &Bench) -> Value {
    serde_json::from_slice(&fs::read(bench.run_folder().model().join("config.json")).unwrap()).unwrap()
}

#[test]
fn a_small_bert_learns() {
    expect_to_learn("bert");
}

#[test]
#[ignore = "test-all"]
fn a_small_roberta_learns() {
    expect_to_learn("roberta");
}

#[track_caller]
fn expect_to_learn(arch: &str) {
    let mut bench = dishes();
    bench
        .set("/model/arch", json!(arch))
        .set("/train/batch", json!(16))
        .set("/train/effective_batch", json!(16))
        .set("/train/steps", json!(150))
        .set("/train/schedule", json!({ "kind": "linear", "warmup": 10 }));
    let ended = bench.train().expect(0);
    let scores = &last_eval(&ended).scores;
    assert_eq!(scores.keys().collect::<Vec<_>>(), ["accuracy", "f1", "macro_f1", "mcc"]);
    assert!(scores.values().all(|score| *score >= 0.9), "{arch} {scores:?}");
}

#[test]
fn every_precision_stays_near_fp32() {
    let few = crate::support::narrow_steps(30);
    let run = |precision: &str, steps: usize| {
        let mut bench = dishes();
        let rows = fs::read_to_string(bench.path("data/train.jsonl")).unwrap();
        with_rows(&mut bench, "few.jsonl", &rows.lines().take(16).collect::<Vec<_>>().join("\n"));
        bench.set("/train/dropout", json!(0.0)).set("/train/precision", json!(precision));
        bench.set("/train/batch", json!(16)).set("/train/effective_batch", json!(16));
        losses(&bench.set("/train/steps", json!(steps)).train().expect(0))
    };
    let reference = run("fp32", 30);
    assert!(reference[29] < 0.5 * reference[0], "{reference:?}");
    assert_eq!(run("tf32", few), reference[..few]);
    for (precision, near) in [("bf16-mixed", 0.02), ("fp16-mixed", 0.02), ("bf16", 0.05)] {
        let losses = run(precision, few);
        let apart = furthest(&losses, &reference[..few]);
        assert!(apart > 0.0, "{precision} computes in fp32");
        assert!(apart < near * reference[0], "{precision} is {apart} from fp32: {losses:?} {reference:?}");
    }
}

#[test]
fn checkpointing_gives_the_same_training() {
    expect_checkpointing_to_change_nothing([("roberta", "fp32"), ("bert", "bf16-mixed")]);
}

#[test]
#[ignore = "test-all"]
fn checkpointing_gives_the_same_training_of_bert() {
    expect_checkpointing_to_change_nothing([("bert", "fp32")]);
}

#[track_caller]
fn expect_checkpointing_to_change_nothing<const N: usize>(cases: [(&str, &str); N]) {
    for (arch, precision) in cases {
        let run = |checkpointing: bool| {
            let mut bench = dishes();
            bench.set("/model/arch", json!(arch)).set("/train/precision", json!(precision));
            let config = "/model/config";
            bench.set(&format!("{config}/hidden_dropout_prob"), json!(0.2));
            bench.set(&format!("{config}/attention_probs_dropout_prob"), json!(0.3));
            bench.set(&format!("{config}/classifier_dropout"), json!(0.4));
            losses(&bench.set("/train/checkpointing", json!(checkpointing)).train().expect(0))
        };
        assert!(furthest(&run(false), &run(true)) < 1e-6, "{arch} {precision}");
    }
}

#[test]
fn a_run_that_goes_on_ends_with_the_same_bits() {
    for precision in ["fp32", "bf16"] {
        let mut bench = dishes();
        bench.set("/train/precision", json!(precision)).set("/save", json!({ "every": 4, "keep": 3 }));
        bench.expect_the_same_bits_from(4);
    }
}

#[test]
fn names_of_classes_stay_with_the_model() {
    let mut bench = dishes();
    bench.train().expect(0);
    assert_eq!(exported(&bench)["id2label"], json!({ "0": "cake", "1": "salad", "2": "soup" }));
    let model = bench.path("exported");
    fs::rename(bench.run_folder().model(), &model).unwrap();
    fs::remove_dir_all(bench.run_folder().path()).unwrap();
    // Data that has seen no cake is data of the same three classes.
    bench.set("/model", json!({ "arch": "bert", "from": model }));
    with_rows(&mut bench, "few.csv", "text,label\n\"boil, skim\",soup\ntoss,salad\nsimmer,2\n");
    let ended = bench.train().expect(0);
    assert_eq!(warnings(&ended), "");
    assert_eq!(exported(&bench)["label2id"], json!({ "cake": 0, "salad": 1, "soup": 2 }));
    with_rows(&mut bench, "pie.csv", "text,label\nboil,soup\nbake,pie\n");
    let ended = bench.train().expect(3);
    let want = "pie.csv line 3: the label \"pie\" is no class of the model; allowed: cake, salad, soup, or their numbers, 0 to 2";
    assert!(ended.stderr.contains(want), "{}", ended.stderr);
}

#[test]
fn an_encoder_gets_a_new_head() {
    let fixtures = crate::support::fixture().join("..");
    for (arch, names) in [
        ("bert", "bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.weight, classifier.bias"),
        (
            "roberta",
            "classifier.dense.weight, classifier.dense.bias, classifier.out_proj.weight, classifier.out_proj.bias",
        ),
    ] {
        let mut bench = dishes();
        bench.set("/model", json!({ "arch": arch, "from": fixtures.join(format!("{arch}-encoder")) }));
        // Its vocabulary is small.
        let tokenizer = fs::read_to_string(bench.path("data/tokenizer.json")).unwrap();
        let mut tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
        let vocabulary: BTreeMap<String, u64> = serde_json::from_value(tokenizer["model"]["vocab"].take()).unwrap();
        tokenizer["model"]["vocab"] =
            json!(vocabulary.into_iter().filter(|(_, id)| *id < 83).collect::<BTreeMap<_, _>>());
        let written = tokenizer.to_string();
        fs::write(bench.path("data/tokenizer.json"), &written).unwrap();
        if arch == "roberta" {
            let refused = bench.train().expect(3).stderr;
            let want = "tokenizer.json: its padding token [PAD] has the number 0, the model's pad_token_id is 1";
            assert!(refused.contains(want), "{refused}");
            let swapped = written.replace(r#""id":0,"#, r#""id":2222,"#).replace(r#""id":1,"#, r#""id":0,"#);
            let swapped = swapped.replace(r#""id":2222,"#, r#""id":1,"#);
            let swapped = swapped.replace(r#""[PAD]":0"#, r#""[PAD]":1"#).replace(r#""[UNK]":1"#, r#""[UNK]":0"#);
            fs::write(bench.path("data/tokenizer.json"), swapped).unwrap();
        }
        let ended = bench.train().expect(0);
        assert!(warnings(&ended).contains(names), "{}", warnings(&ended));
        assert_eq!(exported(&bench)["id2label"]["2"], "soup");
    }
}

#[test]
fn numbers_are_predicted_where_the_data_has_numbers() {
    let mut bench = dishes();
    let row = |number: u32| match number % 3 {
        0 => json!({ "text": "boil the stock", "label": 0.5 }),
        1 => json!({ "text": "toss the lettuce", "label": -1 }),
        _ => json!({ "text": "bake", "text_pair": "the flour", "label": 1.25 }),
    };
    let rows: String = (0..24).map(|number| row(number).to_string() + "\n").collect();
    with_rows(&mut bench, "numbers.jsonl", &rows);
    bench.set("/train/steps", json!(60)).set("/train/dropout", json!(0.0));
    let ended = bench.train().expect(0);
    let eval = last_eval(&ended);
    assert_eq!(eval.scores.keys().collect::<Vec<_>>(), ["mse", "pearson", "r2"]);
    assert!((eval.scores["mse"] - eval.loss).abs() < 1e-6 && eval.scores["mse"] < 0.02, "{eval:?}");
    assert!(eval.scores["pearson"] > 0.98, "{eval:?}");
    let config = exported(&bench);
    assert_eq!((&config["problem_type"], &config["id2label"]), (&json!("regression"), &json!({ "0": "LABEL_0" })));
}

#[test]
fn texts_are_cut_where_the_model_ends() {
    // RoBERTa's first position is 1, behind that of its padding: 16 tokens fit.
    for (pad, steps) in [("longest", 2), ("max", 2)] {
        let mut bench = dishes();
        bench.set("/model/arch", json!("roberta")).set("/model/config/max_position_embeddings", json!(17));
        bench.set("/data/pad", json!(pad)).set("/train/steps", json!(steps)).train().expect(0);
    }
}

#[test]
fn bad_rows_are_named() {
    let good = "{\"text\": \"boil\", \"label\": \"soup\"}\n{\"text\": \"toss\", \"label\": \"salad\"}\n";
    let cases = [
        ("{\"text\": \"x\"}", json!(null), "bad.jsonl line 3: no field \"label\"; it has: text"),
        ("{\"text\": 4, \"label\": \"a\"}", json!(null), "line 3: field \"text\" holds a number, not a text"),
        (
            "{\"text\": \"x\", \"text_pair\": [], \"label\": \"a\"}",
            json!(null),
            "line 3: field \"text_pair\" holds a list",
        ),
        ("{\"text\": \"x\", \"label\": [1]}", json!(null), "line 3: field \"label\" holds a list, not a class"),
        ("{\"text\": \"x\", \"label\": \"\"}", json!(null), "line 3: the label is empty"),
        (
            "{\"text\": \"x\", \"label\": 3}",
            json!(null),
            "line 3: this label is a number, and those of other rows are names",
        ),
        (
            "{\"text\": \"x\", \"label\": 2}",
            json!(2),
            "line 1: the label \"soup\" is no class of the model; allowed: LABEL_0, LABEL_1, or",
        ),
        ("{\"text\": \"x\", \"label\": 2}", json!(1), "line 1: the label \"soup\" is no number"),
    ];
    for (row, num_labels, want) in cases {
        let mut bench = dishes();
        bench.set("/model/config/num_labels", num_labels);
        with_rows(&mut bench, "bad.jsonl", &format!("{good}{row}\n"));
        let ended = bench.train().expect(3);
        assert!(ended.stderr.contains(want), "{}", ended.stderr);
    }
    // A column that the pipeline names must be there.
    let mut bench = dishes();
    bench.set("/data/fields", json!({ "text_pair": "question" }));
    let ended = bench.train().expect(3);
    assert!(ended.stderr.contains("line 1: no field \"question\"; it has:"), "{}", ended.stderr);
}

#[test]
fn space_around_labels_is_left_out_and_said() {
    let mut bench = dishes();
    with_rows(&mut bench, "spaces.csv", "text,label\nboil, soup\ntoss,salad\t\nbake,cake\nsimmer,soup\n");
    bench.set("/data/eval", json!(null));
    let ended = bench.train().expect(0);
    assert_eq!(exported(&bench)["id2label"], json!({ "0": "cake", "1": "salad", "2": "soup" }));
    let line = format!("{} line 2", bench.path("spaces.csv").display());
    let want = format!("removed spaces around 2 labels; the first is \" soup\" ({line})");
    assert_eq!(warnings(&ended), want);
    // The same for a model that has its classes.
    let model = bench.path("exported");
    fs::rename(bench.run_folder().model(), &model).unwrap();
    fs::remove_dir_all(bench.run_folder().path()).unwrap();
    let ended = bench.set("/model", json!({ "arch": "bert", "from": model })).train().expect(0);
    assert_eq!(warnings(&ended), want);
}

#[test]
fn rows_without_a_label_are_left_out_on_request() {
    let csv = "text,label\nboil,soup\n\ntoss,\nbake,cake\nmix,  \n";
    let jsonl = "{\"text\":\"boil\",\"label\":\"soup\"}\n{\"text\":\"mix\",\"label\":null}\n{\"text\":\"bake\",\"label\":\"cake\"}\n{\"text\":\"mix\",\"label\":\"\"}\n";
    for (name, text, lines, problem) in [
        ("few.csv", csv, [4, 6], "the label is empty; data.skip_bad: true skips such rows"),
        ("few.jsonl", jsonl, [2, 4], "field \"label\" holds null, not a class or a number"),
    ] {
        let mut bench = dishes();
        with_rows(&mut bench, name, text);
        let path = bench.path(name).display().to_string();
        bench.set("/train/steps", json!(null)).set("/train/epochs", json!(2)).set("/data/eval", json!(null));
        let ended = bench.train().expect(3);
        assert!(ended.stderr.contains(&format!("{path} line {}: {problem}", lines[0])), "{}", ended.stderr);
        let ended = bench.set("/data/skip_bad", json!(true)).train().expect(0);
        let want = format!("skipped 2 rows without a label: {path} line {}, {path} line {}", lines[0], lines[1]);
        assert_eq!(warnings(&ended), want);
        let started = |event: &EventKind| if let EventKind::Started(one) = event { Some(one.samples) } else { None };
        assert_eq!(ended.events.iter().find_map(started), Some(4));
        // The training is that of the other rows alone.
        let rows: Vec<&str> = text.lines().collect();
        let dropped = |number: &usize| !lines.contains(&(number + 1));
        let others: Vec<&str> = (0..rows.len()).filter(dropped).map(|number| rows[number]).collect();
        let curve = ended.curve();
        fs::remove_dir_all(bench.run_folder().path()).unwrap();
        with_rows(&mut bench, name, &others.join("\n"));
        let ended = bench.set("/data/eval", json!(null)).train().expect(0);
        assert_eq!((ended.curve(), warnings(&ended)), (curve, String::new()));
    }
    let mut bench = dishes();
    with_rows(&mut bench, "none.csv", "text,label\nboil,\n");
    bench.set("/data/skip_bad", json!(true)).set("/model/config/num_labels", json!(2));
    assert!(bench.train().expect(3).stderr.contains("it is without a label, and so is every other row"));
}

#[test]
fn rows_with_other_than_the_cells_of_the_columns_are_skipped_on_request() {
    let text = "text,label\nboil,soup\nmix\nbake,cake\ntoss,cake,more\n";
    let mut bench = dishes();
    with_rows(&mut bench, "few.csv", text);
    bench.set("/train/steps", json!(null)).set("/train/epochs", json!(2)).set("/data/eval", json!(null));
    let path = bench.path("few.csv").display().to_string();
    let ended = bench.train().expect(3);
    let want = format!("{path} line 3: 1 value for 2 columns; data.skip_bad: true skips such rows");
    assert!(ended.stderr.contains(&want), "{}", ended.stderr);
    let ended = bench.set("/data/skip_bad", json!(true)).train().expect(0);
    assert_eq!(
        warnings(&ended),
        format!("skipped 2 rows with too few or too many cells: {path} line 3, {path} line 5")
    );
    let started = |event: &EventKind| if let EventKind::Started(one) = event { Some(one.samples) } else { None };
    assert_eq!(ended.events.iter().find_map(started), Some(4));
}

#[test]
fn rows_without_a_text_are_skipped_on_request() {
    let row = |text: &str, label: &str| format!("{{{text}\"label\": {label:?}}}\n");
    let good = row("\"text\": \"boil\", ", "soup") + &row("\"text\": \"bake\", ", "cake");
    let bad = [("\"text\": null, ", "field \"text\" holds null"), ("", "no field \"text\"; it has: label")];
    for (text, problem) in bad {
        let mut bench = dishes();
        with_rows(&mut bench, "few.jsonl", &format!("{good}{}", row(text, "soup")));
        bench.set("/data/eval", json!(null));
        let path = bench.path("few.jsonl").display().to_string();
        let ended = bench.train().expect(3);
        assert!(ended.stderr.contains(&format!("{path} line 3: {problem}")), "{}", ended.stderr);
        assert!(ended.stderr.contains("data.skip_bad: true skips such rows"), "{}", ended.stderr);
        let ended = bench.set("/data/skip_bad", json!(true)).train().expect(0);
        assert_eq!(warnings(&ended), format!("skipped 1 row without a text: {path} line 3"));
    }
}

#[test]
fn as_many_classes_as_the_model_has_get_the_names_of_the_data() {
    let rows = |labels: &[&str]| {
        labels.iter().map(|label| format!("{{\"text\": \"boil\", \"label\": {label}}}\n")).collect::<String>()
    };
    for (labels, want) in [
        (&["3", "1", "2", "1"][..], json!({ "0": "1", "1": "2", "2": "3" })),
        (&["\"soup\"", "\"cake\"", "\"pie\""], json!({ "0": "cake", "1": "pie", "2": "soup" })),
        (&["2", "0", "1"], json!({ "0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2" })),
    ] {
        let mut bench = dishes();
        with_rows(&mut bench, "few.jsonl", &rows(labels));
        bench.set("/data/eval", json!(null)).set("/model/config/num_labels", json!(3)).train().expect(0);
        assert_eq!(exported(&bench)["id2label"], want);
    }
    let mut bench = dishes();
    with_rows(&mut bench, "few.jsonl", &rows(&["5", "1"]));
    let ended = bench.set("/data/eval", json!(null)).set("/model/config/num_labels", json!(3)).train().expect(3);
    assert!(ended.stderr.contains("the label 5 is no class of the model"), "{}", ended.stderr);
}

/// Two classes, each of one text, with so many rows.
fn unequal(soups: usize, cakes: usize) -> Bench {
    let mut bench = dishes();
    let rows = [r#"{"text": "boil the stock", "label": "soup"}"#, r#"{"text": "bake", "label": "cake"}"#];
    let text: Vec<&str> = [vec![rows[0]; soups], vec![rows[1]; cakes]].concat();
    with_rows(&mut bench, "unequal.jsonl", &text.join("\n"));
    bench.set("/data/shuffle", json!(false)).set("/train/dropout", json!(0.0));
    bench
}

#[test]
fn balanced_classes_count_the_same() {
    // Where the rows of a class are all alike, weights do what as many rows of each class would do.
    let run = |bench: &mut Bench, weights: &str| {
        let ended = bench.set("/train/class_weights", json!(weights)).train().expect(0);
        (losses(&ended), last_eval(&ended).loss)
    };
    let (equal, _) = run(&mut unequal(4, 4), "none");
    let (balanced, _) = run(&mut unequal(6, 2), "balanced");
    assert!(furthest(&equal, &balanced) < 1e-5, "{equal:?} {balanced:?}");
    let (unweighted, _) = run(&mut unequal(6, 2), "none");
    assert!(furthest(&equal, &unweighted) > 1e-3, "{equal:?} {unweighted:?}");
    // A step without a change: the evaluation of the same rows gives the loss without weights.
    let mut once = unequal(6, 2);
    let (first, _) = run(once.set("/train/optimizer/lr", json!(0.0)).set("/train/steps", json!(1)), "none");
    let mut again = unequal(6, 2);
    let (_, eval_loss) = run(again.set("/train/optimizer/lr", json!(0.0)).set("/train/steps", json!(1)), "balanced");
    assert!((first[0] - eval_loss).abs() < 1e-5, "{first:?} {eval_loss}");
}

/// With few soups, whose loss counts more.
pub fn balanced_dishes() -> Bench {
    let mut bench = dishes();
    let rows = fs::read_to_string(bench.path("data/train.jsonl")).unwrap();
    let (mut soups, others): (Vec<&str>, Vec<&str>) = rows.lines().partition(|row| row.contains("\"soup\""));
    soups.truncate(10);
    with_rows(&mut bench, "rare.jsonl", &[soups, others].concat().join("\n"));
    bench.set("/train/class_weights", json!("balanced"));
    bench
}

#[test]
fn class_weights_go_on_after_a_stop() {
    let mut bench = balanced_dishes();
    bench.set("/save", json!({ "every": 4, "keep": 3 })).set("/train/batch", json!(3));
    bench.expect_the_same_bits_from(4);
    // A checkpoint of another loss is not gone on with.
    bench.remove_checkpoints_after(4);
    let ended = bench.set("/train/class_weights", json!("none")).train().expect(3);
    assert!(ended.stderr.contains("made with class weights Balanced, this run has None"), "{}", ended.stderr);
}

#[test]
fn class_weights_are_refused_where_there_are_no_classes() {
    let mut bench = dishes();
    with_rows(&mut bench, "numbers.csv", "text,label\nboil,0.5\nbake,1.5\n");
    let ended = bench.set("/train/class_weights", json!("balanced")).train().expect(3);
    let want = "train.class_weights: only for models that predict classes";
    assert!(ended.stderr.contains(want), "{}", ended.stderr);
    let ended = Bench::recipes().set("/train/class_weights", json!("balanced")).train().expect(3);
    assert!(ended.stderr.contains(want), "{}", ended.stderr);
}

#[test]
fn every_class_is_evaluated_where_a_share_is_kept() {
    // One row of the first class is kept for evaluation, as of any class with two rows or more.
    let mut bench = unequal(2, 38);
    bench
        .set("/data/eval", json!(null))
        .set("/data/eval_share", json!(0.1))
        .set("/train/class_weights", json!("balanced"));
    bench.set("/train/steps", json!(null)).set("/train/epochs", json!(1)).set("/evaluate/batch", json!(8));
    let ended = bench.train().expect(0);
    assert_eq!(last_eval(&ended).samples, 1 + 4);
    let started = |event: &EventKind| if let EventKind::Started(one) = event { Some(one.samples) } else { None };
    assert_eq!(ended.events.iter().find_map(started), Some(1 + 34));
    // Where there is nothing to keep, that is said.
    let mut bench = unequal(1, 1);
    let ended = bench.set("/data/eval", json!(null)).set("/data/eval_share", json!(0.5)).train().expect(3);
    assert!(ended.stderr.contains("data.eval_share: no row can be kept for evaluation"), "{}", ended.stderr);
}

#[test]
fn tensors_are_checked_against_the_model() {
    let batch = crate::support::fixture().join("../bert/batch.safetensors");
    let with = |config: Value| {
        let mut bench = dishes();
        bench.set("/data", json!({ "train": batch, "eval": batch })).set("/tokenizer", json!(null));
        bench.set("/train/dropout", json!(0.0));
        for (key, value) in config.as_object().unwrap() {
            bench.set(&format!("/model/config/{key}"), value.clone());
        }
        bench
    };
    let ended = with(json!({ "vocab_size": 217 })).train().expect(0);
    assert!(last_eval(&ended).scores.contains_key("accuracy"));
    for (config, want) in [
        (json!({ "vocab_size": 217, "num_labels": 2 }), "its label is 2; allowed: 0 to 1"),
        (json!({ "vocab_size": 217, "max_position_embeddings": 39 }), "sample 0: it has 40 tokens; allowed: 39"),
    ] {
        let ended = with(config).train().expect(3);
        assert!(ended.stderr.contains(want), "{}", ended.stderr);
    }
}
