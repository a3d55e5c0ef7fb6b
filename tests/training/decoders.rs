//! Decoder models on conversations and texts, whole and with adapters: what transformers and PEFT compute, and one training however it is
//! cut, stopped and resumed.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::golden::{expected, fixture};
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, same_curve};

const STEPS: u64 = 12;
const EFFECTIVE: u64 = 8;

pub fn tests(suite: &mut Suite) {
    for name in ["chat-llama", "chat-qwen3", "chat-llama-lora"] {
        for batch in [8, 3] {
            let test = move || golden_curve(name, batch);
            suite.test(&format!("decoders::loss_curve::{name}::batch_{batch}"), Needs::Nothing, test);
        }
    }
    suite.test("decoders::adapter_is_one_training_however_it_is_cut::process", Needs::Nothing, one_training);
    suite.test("decoders::adapter_continues_merges_and_predicts::docker", Needs::Docker, || merged("docker"));
    suite.test("decoders::adapter_of_a_model_without_layers_for_it_is_refused", Needs::Nothing, refused);
    suite.test("decoders::a_template_that_takes_all_memory_is_refused", Needs::Nothing, greedy_template);
    suite.test("decoders::a_tokenizer_that_takes_all_memory_is_refused", Needs::Nothing, greedy_tokenizer);
    suite.test("decoders::answers_are_learned_from_scratch", Needs::Nothing, from_scratch);
    suite.test("decoders::init_drafts_a_chat", Needs::Nothing, drafted);
    suite.test("decoders::texts_of_their_own_rows", Needs::Nothing, texts);
}

/// The pipeline of a fixture with conversations; `more` follows its training.
fn pipeline(name: &str, train: &str, more: &str) -> String {
    let folder = fixture(name).display().to_string();
    format!(
        "version: 1\nname: chat\nmodel: {{from: {folder}}}\n\
         data: {{train: {folder}/train.jsonl, fields: {{messages: messages}}, max_length: 96, shuffle: false}}\n\
         train: {train}\ncontainer: {{gpus: 0, cpus: 1}}\n{more}"
    )
}

/// The folder of the run that began last.
fn newest(folder: &Folder) -> PathBuf {
    folder.path().join("runs").join(folder.show()["id"].as_str().unwrap())
}

fn golden_curve(name: &str, batch: u32) {
    let expected = expected(name);
    let (hyper, optimizer) = (&expected["hyper"], &expected["optimizer"]);
    let folder = Folder::new();
    let train = format!(
        "{{steps: {}, batch: {batch}, effective_batch: {}, clip: {}, optimizer: {{lr: {}, weight_decay: {}, decay: all}}}}",
        hyper["steps"], hyper["effective_batch"], hyper["clip"], optimizer["lr"], optimizer["weight_decay"],
    );
    let adapter = fixture(name).join("adapter");
    let adapter = if adapter.is_dir() { format!("adapter: {{from: {}}}\n", adapter.display()) } else { String::new() };
    folder.write("chat.yaml", pipeline(name, &train, &adapter));
    folder.pipe(&["run", "chat.yaml", "--engine", "process"]).exits(0);
    let got = curve(&newest(&folder));
    let want: Vec<(u64, u64, f64)> = (1u64..)
        .zip(expected["curve"].as_array().unwrap())
        .map(|(step, loss)| (step, step * EFFECTIVE, loss.as_f64().unwrap()))
        .collect();
    same_curve(&got, &want, EFFECTIVE, 1e-5);
}

/// With dropout in the adapter and in the attention.
fn with_dropout(batch: u32) -> String {
    let train = format!(
        "{{steps: {STEPS}, batch: {batch}, effective_batch: {EFFECTIVE}, dropout: 0.1, optimizer: {{lr: 5.0e-3}}}}"
    );
    let adapter = "adapter: {rank: 4, dropout: 0.2, targets: [q_proj, v_proj, down_proj]}\nsave: {every: 4}\n";
    pipeline("chat-llama-lora", &train, adapter)
}

fn one_training() {
    let folder = Folder::new();
    folder.write("chat.yaml", with_dropout(8));
    let run = |set: &[&str], code: i32| {
        folder.pipe(&[&["run", "chat.yaml", "--engine", "process"], set].concat()).exits(code);
        newest(&folder)
    };
    let weights = |run: &Path| std::fs::read(run.join("model/adapter_model.safetensors")).unwrap();
    let whole = run(&[], 0);
    let want = curve(&whole);
    assert!(want.last().unwrap().2 < want[0].2 - 0.1, "nothing was learned: {want:?}");
    for (batch, split) in [("3", "fixed"), ("1", "fixed"), ("2", "fill")] {
        let (batch, split) = (format!("train.batch={batch}"), format!("train.split={split}"));
        same_curve(&curve(&run(&["--set", &batch, "--set", &split], 0)), &want, EFFECTIVE, 1e-5);
    }
    same_curve(&curve(&run(&["--set", "train.checkpointing=true"], 0)), &want, EFFECTIVE, 1e-5);
    same_curve(&curve(&run(&["--set", "train.ranks=2", "--set", "train.batch=2"], 0)), &want, EFFECTIVE, 1e-5);
    // The adapter drops where nothing else does.
    let [drops, keeps] = ["0.2", "0.0"].map(|share| {
        let share = format!("adapter.dropout={share}");
        curve(&run(&["--set", "train.dropout=0.0", "--set", "train.steps=3", "--set", &share], 0))
    });
    assert!((drops[2].2 - keeps[2].2).abs() > 1e-4, "{drops:?} {keeps:?}");
    // Killed in the middle and resumed from a checkpoint that holds the adapter alone: the same bits.
    let folder = Folder::new();
    folder.write("chat.yaml", with_dropout(8));
    let running = folder.start(&["run", "chat.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "step 6/");
    running.kill();
    folder.pipe(&["resume", "latest"]).exits(0);
    let resumed = newest(&folder);
    assert_eq!(weights(&resumed), weights(&whole));
    let (model, checkpoint) =
        (fixture("chat-llama-lora").join("model.safetensors"), "checkpoints/step-00000012/model.safetensors");
    let size = |path: PathBuf| std::fs::metadata(path).unwrap().len();
    assert!(size(resumed.join(checkpoint)) * 8 < size(model), "a checkpoint holds more than the adapter");
}

/// An exported adapter is continued; merged into its model it predicts the same.
fn merged(engine: &str) {
    let folder = Folder::new();
    folder.write("chat.yaml", with_dropout(4).replace("steps: 12", "steps: 3"));
    folder.pipe(&["run", "chat.yaml", "--engine", engine]).exits(0);
    let (id, run) = (folder.show()["id"].as_str().unwrap().to_owned(), newest(&folder));
    let settings: Value =
        serde_json::from_slice(&std::fs::read(run.join("model/adapter_config.json")).unwrap()).unwrap();
    assert_eq!(
        (&settings["r"], &settings["lora_alpha"], &settings["lora_dropout"]),
        (&json!(4), &json!(8.0), &json!(0.2))
    );
    assert!(settings["base_model_name_or_path"].as_str().unwrap().ends_with("chat-llama-lora"), "{settings}");
    assert!(!run.join("model/model.safetensors").exists());
    let question = r#"{"messages": [{"role": "user", "content": "what with lemon?"}]}"#;
    let set = ["--set", "evaluate.temperature=0", "--set", "evaluate.max_tokens=12"];
    folder.write("questions.jsonl", format!("{question}\n{}", question.replace("lemon", "tofu, salt")));
    let predict =
        |id: &str| folder.pipe(&["predict", id, "--data", "questions.jsonl", "--engine", engine]).exits(0).stdout;
    let from = run.join("model").display().to_string();
    folder.write("more.yaml", folder.read("chat.yaml").replace("adapter: {", &format!("adapter: {{from: {from}, ")));
    let continued = folder.pipe(&[&["run", "more.yaml", "--engine", engine], &set[..]].concat());
    continued.exits(0);
    let continued = newest(&folder);
    let start = curve(&continued)[0].2;
    assert!(start < curve(&run)[0].2, "it began anew: {start}");
    let answers = predict(&id);
    assert_eq!(answers.lines().count(), 2, "{answers}");
    // The same training, merged.
    let merge = ["run", "chat.yaml", "--engine", engine, "--set", "save.merge=true"];
    folder.pipe(&merge).exits(0);
    let merged = folder.show()["id"].as_str().unwrap().to_owned();
    assert!(newest(&folder).join("model/model.safetensors").exists());
    assert!(!newest(&folder).join("model/adapter_config.json").exists());
    assert_eq!(predict(&merged), answers);
}

/// A text that doubles with each turn of a loop, as nobody's template needs it.
fn greedy_template() {
    let folder = Folder::new();
    let model = fixture("chat-llama");
    for file in std::fs::read_dir(&model).unwrap().map(Result::unwrap) {
        folder.write(&format!("model/{}", file.file_name().display()), std::fs::read(file.path()).unwrap());
    }
    let body = "{% set ns.text = ns.text ~ ns.text %}";
    let template =
        format!("{{% set ns = namespace(text=messages[0].content) %}}{{% for i in range(60) %}}{body}{{% endfor %}}");
    folder.write("model/chat_template.jinja", template);
    let yaml = pipeline("chat-llama", "{steps: 1}", "engine: process\n");
    let yaml = yaml.replace(&format!("from: {}", model.display()), "from: model");
    folder.write("a.yaml", yaml);
    for command in ["check", "run"] {
        let answer = folder.pipe(&[command, "a.yaml"]).exits(3);
        answer.says("takes more than 512 MiB of memory for one conversation while reading row ").says("train.jsonl");
    }
}

/// Each letter becomes a thousand, four times.
fn greedy_tokenizer() {
    let folder = Folder::new();
    let model = fixture("chat-llama");
    for file in std::fs::read_dir(&model).unwrap().map(Result::unwrap) {
        folder.write(&format!("model/{}", file.file_name().display()), std::fs::read(file.path()).unwrap());
    }
    let mut tokenizer: serde_json::Value = serde_json::from_str(&folder.read("model/tokenizer.json")).unwrap();
    let replace = serde_json::json!({ "type": "Replace", "pattern": { "String": "e" }, "content": "e".repeat(1000) });
    tokenizer["normalizer"] = serde_json::json!({ "type": "Sequence", "normalizers": vec![replace; 4] });
    folder.write("model/tokenizer.json", tokenizer.to_string());
    let yaml = pipeline("chat-llama", "{steps: 1}", "engine: process\n");
    folder.write("a.yaml", yaml.replace(&format!("from: {}", model.display()), "from: model"));
    for command in ["check", "run"] {
        folder.pipe(&[command, "a.yaml"]).exits(3).says("takes more than 512 MiB of memory for one text");
    }
}

fn refused() {
    let folder = Folder::new();
    let resnet = fixture("resnet-basic").display().to_string();
    let yaml = format!(
        "version: 1\nname: a\nmodel: {{arch: resnet, from: {resnet}}}\nadapter: {{rank: 4}}\n\
         data: {{train: {resnet}}}\ncontainer: {{gpus: 0}}\n"
    );
    folder.write("a.yaml", yaml);
    folder.pipe(&["check", "a.yaml"]).exits(3).says("adapter: this architecture cannot have one; leave it out");
    let chat = pipeline("chat-llama", "{steps: 1}", "adapter: {targets: [q_proj, lm_head]}\n");
    folder.write("b.yaml", &chat);
    folder.pipe(&["check", "b.yaml"]).exits(3).says("found \"lm_head\"; allowed: all-linear, q_proj, k_proj");
    folder.write("c.yaml", chat.replace("adapter: {targets: [q_proj, lm_head]}", "save: {merge: true}"));
    folder.pipe(&["check", "c.yaml"]).exits(3).says("save.merge: only with an `adapter`");
    let adapter = fixture("chat-llama-lora").join("adapter");
    std::fs::create_dir(folder.path().join("alone")).unwrap();
    std::fs::copy(adapter.join("adapter_config.json"), folder.path().join("alone/adapter_config.json")).unwrap();
    std::fs::copy(fixture("chat-llama").join("config.json"), folder.path().join("alone/config.json")).unwrap();
    let model = fixture("chat-llama").display().to_string();
    let mu_sota = chat.replace(&format!("from: {model}}}"), "arch: mu-sota, config: {}}");
    folder.write("f.yaml", mu_sota.replace("adapter: {targets: [q_proj, lm_head]}\n", ""));
    folder.pipe(&["check", "f.yaml"]).exits(3).says("conversations are for models that talk");
    let texts = chat.replace("fields: {messages: messages}", "loss_on: all");
    folder.write("g.yaml", texts.replace("adapter: {targets: [q_proj, lm_head]}\n", ""));
    folder.pipe(&["check", "g.yaml"]).exits(3).says("data.loss_on: only for conversations");
    folder.write("e.yaml", chat.replace(&format!("from: {model}}}"), "from: alone}"));
    folder.pipe(&["check", "e.yaml"]).exits(3).says("alone holds an adapter alone; give its model as model.from");
    folder.write("d.yaml", chat.replace("targets: [q_proj, lm_head]", "from: nowhere"));
    folder.pipe(&["check", "d.yaml"]).exits(3).says("adapter.from: nowhere has no adapter_config.json");
}

/// Questions and answers in three forms: conversations, those of ShareGPT, and columns.
fn from_scratch() {
    let folder = Folder::new();
    let kinds = [("sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black")];
    let rows = |row: &dyn Fn(&str, &str) -> Value| {
        let all = kinds.iter().cycle().take(64).map(|(thing, colour)| row(&format!("what colour has {thing}"), colour));
        all.map(|row| format!("{row}\n")).collect::<String>()
    };
    let asked = |question: &str| json!({"role": "user", "content": question});
    let forms: [(&str, String, &str); 3] = [
        (
            "{messages: messages}",
            rows(&|question, answer| json!({"messages": [asked(question), {"role": "assistant", "content": answer}]})),
            r#"{"messages": [{"role": "user", "content": "what colour has snow"}]}"#,
        ),
        (
            "{messages: talk}",
            rows(
                &|question, answer| json!({"talk": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}),
            ),
            r#"{"talk": [{"from": "human", "value": "what colour has snow"}]}"#,
        ),
        (
            "{prompt: q, completion: a}",
            rows(&|question, answer| json!({"q": question, "a": answer})),
            r#"{"q": "what colour has snow"}"#,
        ),
    ];
    for (fields, data, question) in forms {
        folder.write("train.jsonl", data).write("question.jsonl", question);
        folder.write(
            "chat.yaml",
            format!(
                "version: 1\nname: colours\nmodel: {{arch: llama, config: {{vocab_size: 300, hidden_size: 32, \
                 intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, max_position_embeddings: 64, \
                 tie_word_embeddings: true, eos_token_id: 2}}}}\n\
                 data: {{train: train.jsonl, eval_share: 0.1, fields: {fields}, max_length: 64}}\n\
                 train: {{steps: 60, batch: 16, optimizer: {{lr: 1.0e-2}}}}\n\
                 evaluate: {{temperature: 0, max_tokens: 8, generate: 1}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
            ),
        );
        let checked = folder.pipe(&["check", "chat.yaml"]).exits(0);
        assert!(checked.stdout.contains("conversations are written in ChatML"), "{checked}");
        assert!(checked.stdout.contains("»"), "{checked}");
        folder.pipe(&["run", "chat.yaml", "--engine", "process"]).exits(0).says_not("learned nothing");
        let answer = folder.pipe(&["predict", "latest", "--data", "question.jsonl"]).exits(0);
        assert_eq!(answer.json()["text"], "white", "{fields}: {answer}");
    }
    // The last form has columns.
    folder.write("question.jsonl", "{\"q\": \"what colour has snow\"}\n{\"q\": 7}\n");
    folder.pipe(&["predict", "latest", "--data", "question.jsonl"]).exits(3).says("question.jsonl line 2: ");
    let answer = folder.pipe(&["predict", "latest", "--data", "question.jsonl", "--skip-bad"]).exits(0);
    let answer = answer.says("skipped 1 row without a conversation that can be read: ").says("question.jsonl line 2");
    assert_eq!(answer.json()["text"], "white", "{answer}");
}

fn drafted() {
    let folder = Folder::new();
    let model = fixture("chat-llama").display().to_string();
    std::fs::copy(fixture("chat-llama").join("train.jsonl"), folder.path().join("talk.jsonl")).unwrap();
    folder
        .pipe(&["init", "talk.yaml", "--data", "talk.jsonl", "--yes", "--model", &model])
        .exits(0)
        .says("it learns what the assistant says");
    let draft = folder.read("talk.yaml");
    assert!(draft.contains("arch: llama") && draft.contains("messages: messages"), "{draft}");
    assert!(!draft.contains("adapter:"), "{draft}");
    folder.pipe(&["check", "talk.yaml"]).exits(0);
    // A model of many parameters gets an adapter.
    let large = folder.path().join("large");
    std::fs::create_dir(&large).unwrap();
    std::fs::write(large.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let large = large.display().to_string();
    folder.pipe(&["init", "large.yaml", "--data", "talk.jsonl", "--yes", "--model", &large]).exits(0);
    assert!(folder.read("large.yaml").contains("adapter:"), "{}", folder.read("large.yaml"));
    // Without a trained model it is told which one can talk.
    folder
        .pipe(&["init", "plain.yaml", "--data", "talk.jsonl", "--yes"])
        .exits(0)
        .says("starts from one that can talk");
}

/// Plain texts: each has rows of its own, so that how they are cut into files changes nothing.
fn texts() {
    let folder = Folder::new();
    let fixture = fixture("chat-llama").display().to_string();
    let texts: Vec<String> =
        (0..24).map(|row| format!("mix the salt for {row} minutes and boil it {row} times")).collect();
    let lines =
        |texts: &[String]| texts.iter().map(|text| format!("{}\n", json!({ "text": text }))).collect::<String>();
    folder.write("all.jsonl", lines(&texts)).write("a.jsonl", lines(&texts[..7])).write("b.jsonl", lines(&texts[7..]));
    let run = |files: &str, batch: u32| {
        folder.write(
            "texts.yaml",
            format!(
                "version: 1\nname: texts\nmodel: {{from: {fixture}}}\ndata: {{train: {files}, max_length: 24, shuffle: false}}\n\
                 train: {{steps: 5, batch: {batch}, effective_batch: 8}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
            ),
        );
        folder.pipe(&["run", "texts.yaml", "--engine", "process"]).exits(0);
        curve(&newest(&folder))
    };
    let want = run("all.jsonl", 8);
    same_curve(&run("[a.jsonl, b.jsonl]", 3), &want, 8, 1e-5);
}
