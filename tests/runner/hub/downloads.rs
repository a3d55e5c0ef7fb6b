//! Which files of a model are fetched, and when.

use std::path::Path;

use super::interrupted_transfers::ranges;
use super::{CONFIG, MODEL, RUN, WEIGHTS, blob, files, folder_with, hub_and_folder, lock, repository, text, weights};
use crate::stand_ins::hub::{Hub, git_hash, sha256};

pub fn fetched() {
    let (hub, folder, commit) = hub_and_folder(&files());
    folder
        .pipe(&RUN)
        .exits(0)
        .says("fetching some-org/tiny: 3 files, 2.9 MiB")
        .says("fetched some-org/tiny: 2.9 MiB in ");
    assert_eq!(hub.fetched(), ["config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]);
    let repository = repository(&folder);
    assert_eq!(std::fs::read_to_string(repository.join("refs/main")).unwrap(), commit);
    let snapshot = repository.join("snapshots").join(&commit);
    let link = |name: &str| std::fs::read_link(snapshot.join(name)).unwrap();
    assert_eq!(link(WEIGHTS), Path::new("../../blobs").join(sha256(&weights())));
    assert_eq!(link("config.json"), Path::new("../../blobs").join(git_hash(CONFIG.as_bytes())));
    assert_eq!(std::fs::read(snapshot.join(WEIGHTS)).unwrap(), weights());
    let lock = lock(&folder);
    assert_eq!(lock["hub"], serde_json::json!([{ "name": MODEL, "revision": "main", "commit": commit }]));
    assert_eq!(lock["model"].as_array().unwrap().len(), 2, "{lock:#}");
    hub.forget();
    folder.pipe(&RUN).exits(0).says(&format!("hub: some-org/tiny at commit {}", &commit[..12]));
    assert!(hub.requests().is_empty(), "{:?}", hub.requests());
}

pub fn sharded() {
    let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}"#;
    let mut files = vec![
        ("config.json", text(CONFIG)),
        ("tokenizer.json", text("{}")),
        ("model.safetensors.index.json", text(index)),
        ("one.safetensors", weights()),
        ("two.safetensors", text(&"two".repeat(1000))),
        ("three.safetensors", text("not named")),
    ];
    let (hub, folder, commit) = hub_and_folder(&files);
    folder.pipe(&RUN).exits(0).says("fetching some-org/tiny: 3 files");
    let want = ["config.json", "model.safetensors.index.json", "one.safetensors", "tokenizer.json", "two.safetensors"];
    assert_eq!(hub.fetched(), want);
    assert_eq!(lock(&folder)["model"].as_array().unwrap().len(), 4);
    // A part that is gone is fetched again.
    std::fs::remove_file(repository(&folder).join("snapshots").join(commit).join("two.safetensors")).unwrap();
    hub.forget();
    folder.pipe(&RUN).exits(0);
    assert_eq!(hub.fetched(), Vec::<String>::new(), "its content is still there");

    files.retain(|file| file.0 != "one.safetensors");
    let (_hub, folder, _) = hub_and_folder(&files);
    folder.pipe(&RUN).exits(3).says("names files that the repository does not have");
}

pub fn pickled() {
    let files: Vec<_> = files().into_iter().filter(|file| file.0 != WEIGHTS).collect();
    let (hub, folder, _) = hub_and_folder(&files);
    folder.pipe(&RUN).exits(0);
    assert_eq!(hub.fetched(), ["config.json", "pytorch_model.bin", "tokenizer.json", "tokenizer_config.json"]);
}

pub fn revision() {
    let hub = Hub::start();
    let first = hub.push(MODEL, "main", &files());
    let tagged = hub.push(MODEL, "v1.0", &[files(), vec![("added_tokens.json", text("{}"))]].concat());
    let folder = folder_with(&hub, &format!("{MODEL}@v1.0"), "fit 9");
    folder.pipe(&RUN).exits(0);
    assert_eq!(lock(&folder)["hub"][0]["commit"], tagged.as_str());
    assert_eq!(std::fs::read_to_string(repository(&folder).join("refs/v1.0")).unwrap(), tagged);
    let folder = folder_with(&hub, &format!("{MODEL}@{first}"), "fit 9");
    folder.pipe(&RUN).exits(0);
    assert_eq!(lock(&folder)["hub"][0]["commit"], first.as_str());
    assert!(!repository(&folder).join("refs").exists());
}

pub fn terse() {
    let (hub, folder, _) = hub_and_folder(&files());
    hub.be_terse();
    folder.pipe(&RUN).exits(0);
    assert_eq!(std::fs::read(blob(&folder, &weights())).unwrap(), weights());
    assert!(hub.requests().iter().any(|request| request.line.starts_with("HEAD ")));
}

pub fn two_at_once() {
    let (hub, folder, _) = hub_and_folder(&files());
    let first = folder.start(&RUN);
    let second = folder.start(&RUN);
    first.end().exits(0);
    second.end().exits(0);
    assert_eq!(ranges(&hub).len(), 1);
}

pub fn config_alone() {
    let (hub, folder, _) = hub_and_folder(&files());
    folder.pipe(&["plan", "job.yaml"]).exits(0).prints("parameters");
    assert_eq!(hub.fetched(), ["config.json"]);
    folder.pipe(&["check", "job.yaml"]).exits(0).prints("job.yaml is valid");
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--dry-run"]).exits(0).prints("tokenizer.json");
    let init =
        ["init", "--arch", "t5", "--data", "train.jsonl", "--model", MODEL, "--gpu-memory", "24g", "--yes", "--stdout"];
    folder.pipe(&init).exits(0).prints("from: some-org/tiny");
    assert_eq!(hub.fetched(), ["config.json"]);
    // What the hub lacks is known without fetching.
    let (hub, folder, _) = hub_and_folder(&files()[1..3]);
    folder.pipe(&["check", "job.yaml"]).exits(3).says("model.from: some-org/tiny has no weights in a known format");
    assert_eq!(hub.fetched(), ["config.json"]);
}

pub fn problems_first() {
    let (hub, folder, _) = hub_and_folder(&files());
    folder.write("job.yaml", folder.read("job.yaml").replace("train.jsonl", "gone.jsonl"));
    folder.pipe(&RUN).exits(3).says("data.train: cannot read gone.jsonl");
    assert_eq!(hub.fetched(), ["config.json"]);
    // A model without a tokenizer of its own.
    let (hub, folder, _) = hub_and_folder(&[&files()[1..2], &files()[4..5]].concat());
    folder.pipe(&RUN).exits(3).says("data.tokenizer: ");
    assert_eq!(hub.fetched(), ["config.json"]);
}
