//! Adapters beside quantized weights: what bitsandbytes and PEFT compute, and one training however it is cut, stopped and resumed.

use std::path::{Path, PathBuf};

use crate::golden::fixture;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, same_curve};

const EFFECTIVE: u64 = 8;

pub fn tests(suite: &mut Suite) {
    suite.test("quantized::nf4_is_one_training_however_it_is_cut", Needs::Nothing, || one_training("nf4"));
    suite.test("quantized::int8_is_one_training_however_it_is_cut", Needs::Nothing, || one_training("int8"));
    suite.test("quantized::killed_and_resumed_to_the_bit", Needs::Nothing, resumed);
    suite.test("quantized::predicts_and_merges", Needs::Nothing, predicts);
    suite.test("quantized::only_beside_an_adapter", Needs::Nothing, refused);
    suite.test("quantized::init_drafts_it_for_a_small_card", Needs::Nothing, drafted);
}

/// Few of the layers have an adapter, all of them are quantized.
fn pipeline(quantize: &str, batch: u32) -> String {
    let folder = fixture("chat-llama-lora").display().to_string();
    format!(
        "version: 1\nname: chat\nmodel: {{from: {folder}, quantize: {quantize}}}\n\
         adapter: {{rank: 4, dropout: 0.2, targets: [q_proj, v_proj, down_proj]}}\n\
         data: {{train: {folder}/train.jsonl, fields: {{messages: messages}}, max_length: 96, shuffle: false}}\n\
         train: {{steps: 12, batch: {batch}, effective_batch: {EFFECTIVE}, dropout: 0.1, optimizer: {{lr: 5.0e-3}}}}\n\
         save: {{every: 4}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
    )
}

/// The folder of the run that began last.
fn newest(folder: &Folder) -> PathBuf {
    folder.path().join("runs").join(folder.show()["id"].as_str().unwrap())
}

fn run(folder: &Folder, set: &[&str]) -> PathBuf {
    folder.pipe(&[&["run", "chat.yaml", "--engine", "process"], set].concat()).exits(0);
    newest(folder)
}

fn adapter(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/adapter_model.safetensors")).unwrap()
}

fn one_training(quantize: &str) {
    let folder = Folder::new();
    folder.write("chat.yaml", pipeline(quantize, 8));
    let want = curve(&run(&folder, &[]));
    assert!(want.last().unwrap().2 < want[0].2 - 0.1, "nothing was learned: {want:?}");
    for (batch, more) in [
        ("train.batch=3", "train.split=fixed"),
        ("train.batch=1", "train.split=fixed"),
        ("train.batch=2", "train.split=fill"),
        ("train.batch=8", "train.checkpointing=true"),
        ("train.batch=2", "train.ranks=2"),
    ] {
        same_curve(&curve(&run(&folder, &["--set", batch, "--set", more])), &want, EFFECTIVE, 1e-5);
    }
    // It is another model than the one with wide weights, and near it.
    let wide = curve(&run(&folder, &["--set", "model.quantize=none", "--set", "train.steps=1"]))[0].2;
    let apart = (wide - want[0].2).abs();
    assert!(apart > 1e-6 && apart < 0.3, "{quantize}: {} and {wide}", want[0].2);
}

fn resumed() {
    let folder = Folder::new();
    folder.write("chat.yaml", pipeline("nf4", 3));
    let whole = adapter(&run(&folder, &[]));
    let folder = Folder::new();
    folder.write("chat.yaml", pipeline("nf4", 3));
    let running = folder.start(&["run", "chat.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "step 6/");
    running.kill();
    folder.pipe(&["resume", "latest"]).exits(0);
    assert_eq!(adapter(&newest(&folder)), whole);
}

/// Merged into the weights that the codes stand for, it answers the same.
fn predicts() {
    let folder = Folder::new();
    folder.write("chat.yaml", pipeline("nf4", 4).replace("steps: 12", "steps: 3"));
    let question = r#"{"messages": [{"role": "user", "content": "what with lemon?"}]}"#;
    folder.write("questions.jsonl", format!("{question}\n{}", question.replace("lemon", "tofu, salt")));
    let answers =
        || folder.pipe(&["predict", "latest", "--data", "questions.jsonl", "--engine", "process"]).exits(0).stdout;
    let set = ["--set", "evaluate.temperature=0", "--set", "evaluate.max_tokens=12"];
    let quantized = run(&folder, &set);
    assert!(!quantized.join("model/model.safetensors").exists());
    let want = answers();
    assert_eq!(want.lines().count(), 2, "{want}");
    let merged = run(&folder, &[&set[..], &["--set", "save.merge=true"]].concat());
    assert!(merged.join("model/model.safetensors").exists() && !merged.join("model/adapter_config.json").exists());
    assert_eq!(answers(), want);
}

fn refused() {
    let folder = Folder::new();
    let without = pipeline("nf4", 4);
    let adapter = without.lines().find(|line| line.starts_with("adapter:")).unwrap();
    folder.write("chat.yaml", without.replace(&format!("{adapter}\n"), ""));
    folder.pipe(&["check", "chat.yaml"]).exits(3).says("model.quantize: only with an `adapter`");
    folder.write("chat.yaml", pipeline("nf5", 4));
    folder
        .pipe(&["check", "chat.yaml"])
        .exits(3)
        .says("model.quantize: found the text \"nf5\"; allowed: none, or int8, or nf4");
}

fn drafted() {
    let folder = Folder::new();
    std::fs::copy(fixture("chat-llama").join("train.jsonl"), folder.path().join("talk.jsonl")).unwrap();
    // The sizes of a Llama with 7 billion parameters.
    std::fs::create_dir(folder.path().join("large")).unwrap();
    folder.write("large/config.json", r#"{"model_type": "llama"}"#);
    let draft = |memory: &str| {
        let file = format!("{memory}.yaml");
        let base = ["init", &file, "--data", "talk.jsonl", "--yes", "--model", "large"];
        folder.pipe(&[&base[..], &["--gpu-memory", memory]].concat()).exits(0);
        folder.read(&file)
    };
    let (small, large) = (draft("12g"), draft("24g"));
    assert!(small.contains("quantize: nf4") && small.contains("adapter:"), "{small}");
    assert!(!large.contains("quantize") && large.contains("adapter:"), "{large}");
}
