//! Adapters of models that are no decoders: one training however it is cut, stopped and resumed; a new head beside one; exports that PEFT loads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::golden::fixture;
use crate::harness::folder::repository;
use crate::harness::suite::transformers;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, same_curve};

const STEPS: u64 = 12;
const EFFECTIVE: u64 = 8;

/// A model that begins from a fixture.
#[derive(Clone, Copy)]
struct Base {
    fixture: &'static str,
    /// The file of the fixture that is trained on.
    rows: &'static str,
    /// The pipeline's `data`, after the file.
    data: &'static str,
    targets: &'static str,
    lr: &'static str,
}

const T5: Base = Base {
    fixture: "t5-gated",
    rows: "train.jsonl",
    data: "shuffle: false, max_source: 48, max_target: 64, eval_share: 0.1",
    targets: "[q, v, wi_1, wo]",
    lr: "2.0e-2",
};
const BERT: Base = Base {
    fixture: "bert",
    rows: "train.jsonl",
    data: "shuffle: false, max_length: 40, eval_share: 0.1",
    targets: "[query, dense]",
    lr: "1.0e-2",
};
const DEBERTA: Base = Base {
    fixture: "deberta-v3",
    rows: "train.jsonl",
    data: "shuffle: false, max_length: 40",
    targets: "[query_proj, key_proj, output.dense]",
    lr: "1.0e-2",
};
const CLIP: Base = Base {
    fixture: "clip",
    rows: "train.jsonl",
    data: "shuffle: false, pad: max",
    targets: "[q_proj, fc2, text_projection]",
    lr: "1.0e-2",
};
/// Its layers by the names of transformers' modules, and by those in its files.
const VIT: Base = Base {
    fixture: "vit",
    rows: "batch.safetensors",
    data: "shuffle: false",
    targets: "[q_proj, value, o_proj, intermediate.dense]",
    lr: "1.0e-2",
};

pub fn tests(suite: &mut Suite) {
    for base in [T5, BERT, DEBERTA, CLIP, VIT] {
        let name = base.fixture;
        suite.test(&format!("adapters::one_training_however_it_is_cut::{name}"), Needs::Nothing, move || cut(base));
        suite.test(&format!("adapters::resumed_to_the_bit::{name}"), Needs::Nothing, move || resumed(base));
        suite.test(&format!("adapters::export_loads_in_peft::{name}"), Needs::Transformers, move || in_peft(base));
    }
    suite.test("adapters::a_new_head_is_trained_and_predicts", Needs::Nothing, new_head);
    suite.test("adapters::generation_with_an_adapter_is_that_of_the_merged_model", Needs::Nothing, generated);
    suite.test("adapters::what_does_not_fit_the_model_is_refused", Needs::Nothing, refused);
}

/// With dropout in the model and in its adapter.
fn pipeline(base: Base, model: &Path, adapter: &str, train: &str) -> String {
    let (model, data) = (model.display(), fixture(base.fixture));
    format!(
        "version: 1\nname: adapted\nmodel: {{from: {model}}}\nadapter: {{{adapter}}}\n\
         data: {{train: {}/{}, {}}}\n\
         train: {{{train}, effective_batch: {EFFECTIVE}, optimizer: {{lr: {}}}}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
        data.display(),
        base.rows,
        base.data,
        base.lr
    )
}

fn with_dropout(base: Base) -> String {
    let adapter = format!("rank: 4, dropout: 0.2, targets: {}", base.targets);
    let train = format!("steps: {STEPS}, batch: 8, dropout: 0.1");
    pipeline(base, &fixture(base.fixture), &adapter, &train) + "save: {every: 4}\n"
}

/// The folder of the run that began last.
fn newest(folder: &Folder) -> PathBuf {
    folder.path().join("runs").join(folder.show()["id"].as_str().unwrap())
}

fn run(folder: &Folder, set: &[&str]) -> PathBuf {
    let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
    folder.pipe(&[&["run", "adapted.yaml", "--engine", "process"], &set[..]].concat()).exits(0);
    newest(folder)
}

fn cut(base: Base) {
    let folder = Folder::new();
    folder.write("adapted.yaml", with_dropout(base));
    let want = curve(&run(&folder, &[]));
    let mean = |losses: &[(u64, u64, f64)]| losses.iter().map(|(_, _, loss)| loss).sum::<f64>();
    assert!(mean(&want[8..]) < mean(&want[..4]), "nothing was learned: {want:?}");
    for set in [
        &["train.batch=3"][..],
        &["train.batch=1"],
        &["train.batch=2", "train.split=fixed"],
        &["train.checkpointing=true", "train.batch=3"],
        &["train.ranks=2", "train.batch=2"],
    ] {
        same_curve(&curve(&run(&folder, set)), &want, EFFECTIVE, 1e-5);
    }
    // The adapter drops where nothing else does.
    let [drops, keeps] = ["0.2", "0.0"].map(|share| {
        let share = format!("adapter.dropout={share}");
        curve(&run(&folder, &["train.dropout=0.0", "train.steps=3", &share]))
    });
    assert!((drops[2].2 - keeps[2].2).abs() > 1e-5, "{drops:?} {keeps:?}");
}

/// Killed in the middle, and resumed from a checkpoint that holds nothing of the frozen weights.
fn resumed(base: Base) {
    let weights = |run: &Path| std::fs::read(run.join("model/adapter_model.safetensors")).unwrap();
    let folder = Folder::new();
    folder.write("adapted.yaml", with_dropout(base));
    let whole = weights(&run(&folder, &[]));
    let folder = Folder::new();
    folder.write("adapted.yaml", with_dropout(base));
    let running = folder.start(&["run", "adapted.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "step 6/");
    running.kill();
    folder.pipe(&["resume", "latest"]).exits(0);
    let resumed = newest(&folder);
    assert_eq!(weights(&resumed), whole);
    let size = |path: PathBuf| std::fs::metadata(path).unwrap().len();
    let model = size(fixture(base.fixture).join("model.safetensors"));
    assert!(size(resumed.join("checkpoints/step-00000012/model.safetensors")) * 3 < model);
}

/// What the trained model computes for the batch of its fixture, by `pipe-trainer-bench` and by PEFT.
fn in_peft(base: Base) {
    let folder = Folder::new();
    let model = if base.fixture == "deberta-v3" { without_head(&folder, base.fixture) } else { fixture(base.fixture) };
    let yaml = pipeline(base, &model, "rank: 3, rs: true", "steps: 3, batch: 4");
    folder.write("adapted.yaml", yaml);
    let exported = run(&folder, &[]).join("model");
    let out = folder.path().join("out.safetensors");
    let batch = fixture(base.fixture).join("batch.safetensors");
    let computed = Command::new(env!("CARGO_BIN_EXE_pipe-trainer-bench"))
        .args(["parity", "--model"])
        .arg(&model)
        .arg("--adapter")
        .arg(&exported)
        .arg("--batch")
        .arg(&batch)
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert!(computed.status.success(), "{}", String::from_utf8_lossy(&computed.stderr));
    let check = repository().join("tests/export_check.py");
    let checked = transformers().arg(check).arg(&exported).arg(&batch).arg(&out).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// The model of a fixture as an encoder alone.
fn without_head(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.path().join("encoder");
    std::fs::create_dir(&path).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(fixture(name).join(file), path.join(file)).unwrap();
    }
    let bytes = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let is_head = |name: &str| name.contains("classifier") || name.contains("pooler");
    let encoder: HashMap<String, _> = tensors.tensors().into_iter().filter(|(name, _)| !is_head(name)).collect();
    safetensors::serialize_to_file(encoder, None, &path.join("model.safetensors")).unwrap();
    path
}

/// An encoder without a head gets one for the classes of the data. It is trained whole, saved with the adapter, and is in the merged model.
fn new_head() {
    let folder = Folder::new();
    let encoder = without_head(&folder, "bert");
    let kinds = [("tofu, rice and beans", "savoury"), ("sugar, butter and vanilla", "sweet")];
    let rows = kinds.iter().cycle().take(48).map(|(text, label)| json!({ "text": text, "label": label }));
    folder.write("rows.jsonl", rows.map(|row| format!("{row}\n")).collect::<String>());
    let yaml = pipeline(BERT, &encoder, "rank: 4, targets: [query, value]", "steps: 20, batch: 8");
    let data = format!("{}/train.jsonl", fixture("bert").display());
    folder.write("adapted.yaml", yaml.replace(&data, &folder.path().join("rows.jsonl").display().to_string()));
    let first = run(&folder, &[]);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    let settings: Value =
        serde_json::from_slice(&std::fs::read(first.join("model/adapter_config.json")).unwrap()).unwrap();
    assert_eq!(settings["modules_to_save"], json!(["classifier", "score", "pooler"]), "{settings}");
    assert_eq!((&settings["task_type"], &settings["target_modules"]), (&json!("SEQ_CLS"), &json!(["query", "value"])));
    let saved = std::fs::read(first.join("model/adapter_model.safetensors")).unwrap();
    let saved = SafeTensors::deserialize(&saved).unwrap();
    for name in ["classifier.weight", "classifier.bias", "bert.pooler.dense.weight"] {
        assert!(saved.tensor(&format!("base_model.model.{name}")).is_ok(), "{name}");
    }
    folder
        .write("questions.jsonl", "{\"text\": \"sugar, butter and vanilla\"}\n{\"text\": \"tofu, rice and beans\"}\n");
    let predict = |id: &str| folder.pipe(&["predict", id, "--data", "questions.jsonl"]).exits(0).stdout;
    let answers = predict(&id);
    let labels: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&labels[0]["label"], &labels[1]["label"]), (&json!("sweet"), &json!("savoury")), "{answers}");
    // It goes on with its head, and is the same in one model.
    let from = first.join("model").display().to_string();
    folder.write(
        "adapted.yaml",
        folder.read("adapted.yaml").replace("adapter: {", &format!("adapter: {{from: {from}, ")),
    );
    let continued = curve(&run(&folder, &["train.steps=2"]));
    let want = curve(&first);
    assert!(continued[0].2 < want[0].2 - 0.1, "it began anew: {continued:?} after {want:?}");
    folder.write("adapted.yaml", folder.read("adapted.yaml").replace(&format!("from: {from}, "), ""));
    let merged = run(&folder, &["save.merge=true"]);
    assert!(merged.join("model/model.safetensors").exists() && !merged.join("model/adapter_config.json").exists());
    let merged = predict(folder.show()["id"].as_str().unwrap());
    same_answers(&merged, &answers);
}

/// Numbers may differ by rounding.
fn same_answers(got: &str, want: &str) {
    let read = |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    for (got, want) in read(got).iter().zip(read(want)) {
        assert_eq!(got["label"], want["label"], "{got} and {want}");
        let [got, want] = [got, &want].map(|row| row["score"].as_f64().unwrap());
        assert!((got - want).abs() < 1e-5, "{got} and {want}");
    }
}

fn generated() {
    let folder = Folder::new();
    folder.write("adapted.yaml", pipeline(T5, &fixture("t5-gated"), "rank: 4", "steps: 30, batch: 8"));
    run(&folder, &[]);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    let rows = std::fs::read_to_string(fixture("t5-gated").join("train.jsonl")).unwrap();
    folder.write("rows.jsonl", rows.lines().take(4).map(|line| format!("{line}\n")).collect::<String>());
    let predict = |id: &str| folder.pipe(&["predict", id, "--data", "rows.jsonl"]).exits(0).stdout;
    let answers = predict(&id);
    assert_eq!(answers.lines().count(), 4, "{answers}");
    run(&folder, &["save.merge=true"]);
    assert_eq!(predict(folder.show()["id"].as_str().unwrap()), answers);
    // Without its adapter the model says something else.
    run(&folder, &["save.merge=true", "train.optimizer.lr=0"]);
    assert_ne!(predict(folder.show()["id"].as_str().unwrap()), answers);
}

fn refused() {
    let folder = Folder::new();
    let t5 = pipeline(T5, &fixture("t5-gated"), "targets: [wi]", "steps: 1, batch: 8");
    folder.write("adapted.yaml", &t5);
    folder.pipe(&["check", "adapted.yaml"]).says("adapter.targets: found wi; the model has no such layer");
    folder.write("adapted.yaml", t5.replace("[wi]", "[q_proj]"));
    folder.pipe(&["check", "adapted.yaml"]).exits(3).says("found \"q_proj\"; allowed: all-linear, q, k, v, o, wi");
    // Names of files that modules of transformers do not have.
    folder.write("adapted.yaml", pipeline(VIT, &fixture("vit"), "targets: [query, lm_head]", "steps: 1, batch: 8"));
    folder
        .pipe(&["check", "adapted.yaml"])
        .exits(3)
        .says("found \"lm_head\"; allowed: all-linear, k_proj, v_proj, q_proj");
    // The adapter of another model.
    let other = fixture("bert-lora/adapter").display().to_string();
    folder.write("adapted.yaml", t5.replace("targets: [wi]", &format!("from: {other}")));
    folder.pipe(&["check", "adapted.yaml"]).exits(3).says("adapter");
}
