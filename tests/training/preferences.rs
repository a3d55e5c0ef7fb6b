//! Pairs of answers: the loss that TRL computes, and one training however it is cut, stopped and resumed, with an adapter and without one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::golden::{compare_with, expected, fixture};
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, events, same_curve};

const STEPS: u64 = 12;
const EFFECTIVE: u64 = 8;
const ADAPTER: &str = "adapter: {rank: 4, dropout: 0.2, targets: [q_proj, v_proj, down_proj]}\n";

pub fn tests(suite: &mut Suite) {
    for (name, has_adapter) in [("llama-dpo", true), ("llama-dpo-whole", false)] {
        let test = move || golden(name, has_adapter);
        suite.test(&format!("preferences::loss_and_gradients_of_trl::{name}"), Needs::Nothing, test);
    }
    for (name, adapter) in [("adapter", ADAPTER), ("whole", "")] {
        let test = move || one_training(adapter);
        suite.test(&format!("preferences::one_training_however_it_is_cut::{name}"), Needs::Nothing, test);
        let test = move || resumed(adapter);
        suite.test(&format!("preferences::resumed_to_the_bit::{name}"), Needs::Nothing, test);
    }
    suite.test("preferences::the_better_answer_is_learned", Needs::Nothing, learned);
    suite.test("preferences::init_drafts_pairs_and_check_shows_one", Needs::Nothing, drafted);
    suite.test("preferences::what_is_no_pair_is_refused", Needs::Nothing, refused);
}

/// With all weights the model is its own reference.
fn golden(name: &str, has_adapter: bool) {
    let (folder, model) = (Folder::new(), fixture("llama-lora"));
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(model.join(file), folder.path().join(file)).unwrap();
    }
    let (beta, adapter) = (expected(name)["beta"].to_string(), model.join("adapter").display().to_string());
    let adapter = if has_adapter { &["--adapter", &adapter][..] } else { &[] };
    compare_with(name, folder.path(), &[&["--beta", &beta], adapter].concat());
}

/// Conversations with their answer, and with that of the next row in its place.
fn pairs() -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("chat-llama-lora").join("train.jsonl")).unwrap();
    let talks: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["messages"].take()).collect();
    let answer = |talk: &Value| talk.as_array().unwrap().last().unwrap().clone();
    let pair = |(talk, next): (&Value, &Value)| {
        let mut rejected = talk.clone();
        *rejected.as_array_mut().unwrap().last_mut().unwrap() = answer(next);
        json!({ "chosen": talk, "rejected": rejected })
    };
    let pairs = talks.iter().zip(talks.iter().cycle().skip(1)).map(pair);
    pairs.filter(|pair| pair["chosen"] != pair["rejected"]).collect()
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

/// With dropout in the attention, and in the adapter where there is one.
fn folder(adapter: &str) -> Folder {
    let folder = Folder::new();
    let model = fixture("chat-llama-lora").display().to_string();
    folder.write("pairs.jsonl", lines(&pairs()));
    folder.write(
        "pairs.yaml",
        format!(
            "version: 1\nname: pairs\nmodel: {{task: preference, from: {model}}}\n\
             data: {{train: pairs.jsonl, max_length: 96, shuffle: false}}\n\
             train: {{steps: {STEPS}, batch: 8, effective_batch: {EFFECTIVE}, dropout: 0.1, optimizer: {{lr: 2.0e-3}}, \
             preference: {{beta: 0.2}}}}\n\
             container: {{gpus: 0, cpus: 1}}\nsave: {{every: 4}}\n{adapter}"
        ),
    );
    folder
}

/// The folder of the run that began last.
fn newest(folder: &Folder) -> PathBuf {
    folder.path().join("runs").join(folder.show()["id"].as_str().unwrap())
}

fn run(folder: &Folder, set: &[&str]) -> PathBuf {
    let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
    folder.pipe(&[&["run", "pairs.yaml", "--engine", "process"], &set[..]].concat()).exits(0);
    newest(folder)
}

fn one_training(adapter: &str) {
    let folder = folder(adapter);
    let share = if adapter.is_empty() { "train.clip=1" } else { "adapter.dropout=0" };
    let quiet = curve(&run(&folder, &["train.dropout=0", share]));
    assert!((quiet[0].2 - 2f64.ln()).abs() < 1e-6, "it does not begin as its own reference: {quiet:?}");
    let last = quiet[8..].iter().map(|(_, _, loss)| loss).sum::<f64>() / 4.0;
    assert!(last < 2f64.ln() - 0.02, "nothing was learned: {quiet:?}");
    let want = curve(&run(&folder, &[]));
    for set in [
        &["train.batch=3"][..],
        &["train.batch=1"],
        &["train.batch=2", "train.split=fixed"],
        &["train.checkpointing=true", "train.batch=3"],
        &["train.ranks=2", "train.batch=2"],
    ] {
        same_curve(&curve(&run(&folder, set)), &want, EFFECTIVE, 1e-5);
    }
    let hinge = curve(&run(&folder, &["train.preference.loss=hinge", "train.dropout=0", share]));
    assert!((hinge[0].2 - 1.0).abs() < 1e-6, "{hinge:?}");
    let cut = ["train.preference.loss=hinge", "train.dropout=0", share, "train.batch=3"];
    same_curve(&curve(&run(&folder, &cut)), &hinge, EFFECTIVE, 1e-5);
}

/// The reference of a resumed run is still the model that it began with.
fn resumed(adapter: &str) {
    let file = if adapter.is_empty() { "model/model.safetensors" } else { "model/adapter_model.safetensors" };
    let weights = |run: &Path| std::fs::read(run.join(file)).unwrap();
    let whole = weights(&run(&folder(adapter), &[]));
    let folder = folder(adapter);
    let running = folder.start(&["run", "pairs.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "step 6/");
    running.kill();
    folder.pipe(&["resume", "latest"]).exits(0);
    assert_eq!(weights(&newest(&folder)), whole);
}

/// Texts with a prompt; the evaluation tells the better answer, and the model gives it.
fn learned() {
    let folder = Folder::new();
    let kinds = [("sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black")];
    let row = |at: usize| {
        let ((thing, colour), (_, other)) = (kinds[at % 4], kinds[(at / 4 + 1 + at) % 4]);
        let other = if other == colour { "pink" } else { other };
        json!({ "q": format!("what colour has {thing}"), "good": colour, "bad": other })
    };
    folder.write("pairs.jsonl", lines(&(0..64).map(row).collect::<Vec<_>>()));
    folder.write(
        "pairs.yaml",
        "version: 1\nname: colours\nmodel: {arch: llama, task: preference, config: {vocab_size: 300, hidden_size: 32, \
         intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, max_position_embeddings: 64, \
         tie_word_embeddings: true, eos_token_id: 2}}\n\
         data: {train: pairs.jsonl, eval_share: 0.2, fields: {prompt: q, chosen: good, rejected: bad}, max_length: 64}\n\
         train: {steps: 40, batch: 16, optimizer: {lr: 5.0e-3}}\nevaluate: {every: 20, max_tokens: 8}\n\
         save: {best: eval.reward_accuracy}\ncontainer: {gpus: 0, cpus: 1}\n",
    );
    let run = run(&folder, &[]);
    let evals: Vec<Value> = events(&run).into_iter().filter(|event| event["type"] == "eval").collect();
    let last = evals.last().unwrap();
    assert!(last["loss"].as_f64().unwrap() < 0.4, "{last}");
    assert!(last["reward_accuracy"].as_f64().unwrap() > 0.9 && last["reward_margin"].as_f64().unwrap() > 0.5, "{last}");
    folder.write("question.jsonl", "{\"q\": \"what colour has snow\"}\n");
    let answer = folder.pipe(&["predict", "latest", "--data", "question.jsonl"]).exits(0).json();
    assert!(answer["text"].is_string(), "{answer}");
}

fn drafted() {
    let folder = Folder::new();
    let model = fixture("chat-llama").display().to_string();
    let rows: Vec<Value> = pairs()
        .into_iter()
        .map(|mut pair| {
            pair["prompt"] = pair["chosen"][0]["content"].clone();
            pair["score_chosen"] = json!(8.5);
            pair
        })
        .collect();
    folder.write("pairs.jsonl", lines(&rows));
    folder
        .pipe(&["init", "pairs.yaml", "--data", "pairs.jsonl", "--yes", "--model", &model])
        .exits(0)
        .says("two answers to each prompt, one of them better");
    let draft = folder.read("pairs.yaml");
    assert!(draft.contains("task: preference") && draft.contains("rejected: rejected"), "{draft}");
    let checked = folder.pipe(&["check", "pairs.yaml"]).exits(0);
    assert!(checked.stdout.contains("chosen:") && checked.stdout.contains("rejected:"), "{checked}");
    assert!(checked.stdout.contains("»"), "{checked}");
}

fn refused() {
    let folder = folder("");
    let yaml = folder.read("pairs.yaml");
    folder.write("a.yaml", yaml.replace("task: preference, ", ""));
    folder.pipe(&["check", "a.yaml"]).exits(3).says("train.preference: only with `model.task: preference`");
    folder.write("b.yaml", yaml.replace("beta: 0.2", "beta: 0"));
    folder.pipe(&["check", "b.yaml"]).exits(3).says("train.preference.beta");
    let bert = fixture("bert").display().to_string();
    folder.write("c.yaml", yaml.replace(&fixture("chat-llama-lora").display().to_string(), &bert));
    folder.pipe(&["check", "c.yaml"]).exits(3).says("\"preference\", which bert has no head for");
    folder.write("pairs.jsonl", "{\"chosen\": \"yes\", \"rejected\": \"no\"}\n");
    folder.pipe(&["check", "pairs.yaml"]).exits(3).says("give the column with what it answers as data.fields.prompt");
    // Pairs of which there is nothing to learn.
    let talk = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "yes" }]);
    folder.write("pairs.jsonl", lines(&vec![json!({ "chosen": talk, "rejected": talk }); 7]));
    let why = "no row is left to train on: all 7 are skipped: 7 rows left out: both answers are the same";
    folder.pipe(&["check", "pairs.yaml"]).exits(3).says(why);
    let other = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "no" }]);
    let one = json!({ "chosen": talk, "rejected": other });
    folder.write("pairs.jsonl", lines(&[vec![json!({ "chosen": talk, "rejected": talk }); 7], vec![one]].concat()));
    folder.pipe(&["check", "pairs.yaml"]).exits(0).prints("7 rows left out").prints("train  8 rows");
}
