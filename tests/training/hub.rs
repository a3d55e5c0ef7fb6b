//! Models by their hub id: found in the local cache, on every engine, whole or in several files.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::curve;

pub fn tests(suite: &mut Suite) {
    suite.each_engine("hub::a_model_is_found_by_its_id", |engine| found(engine, whole));
    suite.any_engine("hub::a_model_in_several_files", |engine| found(engine, sharded));
    suite.test("hub::a_model_that_is_not_in_the_cache_is_refused", Needs::Nothing, refused);
}

fn fixture() -> PathBuf {
    repository().join("tests/fixtures/t5-gated")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(fixture().join(name)).unwrap()
}

/// A folder whose pipeline trains two steps from `model`, with a hub cache that holds `files` as some-org/tiny-t5.
fn folder(model: &str, files: &[(&str, Vec<u8>)]) -> Folder {
    let folder = Folder::new();
    let cache = folder.path().join("hub");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let inside = |name: &str| format!("hub/models--some-org--tiny-t5/{name}");
    folder.write(&inside("refs/main"), commit);
    for (number, (name, bytes)) in files.iter().enumerate() {
        let link = folder.path().join(inside(&format!("snapshots/{commit}/{name}")));
        folder.write(&inside(&format!("blobs/{number:040}")), bytes);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(Path::new("../../blobs").join(format!("{number:040}")), link).unwrap();
    }
    let pipeline = format!(
        "version: 1\nname: hub\nmodel: {{arch: t5, from: {model}}}\n\
         data: {{train: train.jsonl, max_source: 48, max_target: 64, shuffle: false}}\n\
         train: {{steps: 2, batch: 8, optimizer: {{lr: 2.0e-3}}}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
    );
    folder.write("hub.yaml", pipeline).write("train.jsonl", read("train.jsonl"));
    folder.env("HF_HUB_CACHE", cache.display()).env("HF_HUB_OFFLINE", "1")
}

fn whole() -> Vec<(&'static str, Vec<u8>)> {
    ["config.json", "tokenizer.json", "model.safetensors"].map(|name| (name, read(name))).into()
}

/// The same with its tensors in two files and an index of them.
fn sharded() -> Vec<(&'static str, Vec<u8>)> {
    let bytes = read("model.safetensors");
    let model = SafeTensors::deserialize(&bytes).unwrap();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let place = |name: &str| usize::from(name.starts_with("decoder") || name.starts_with("lm_head"));
    let map: Map<String, Value> =
        model.names().iter().map(|name| (name.to_string(), json!(shards[place(name)]))).collect();
    let index = json!({ "metadata": { "total_size": bytes.len() }, "weight_map": map });
    let mut files = vec![
        ("config.json", read("config.json")),
        ("tokenizer.json", read("tokenizer.json")),
        ("model.safetensors.index.json", index.to_string().into_bytes()),
    ];
    for (number, shard) in shards.into_iter().enumerate() {
        let tensors: Vec<_> = model.iter().filter(|(name, _)| place(name) == number).collect();
        assert!(!tensors.is_empty());
        files.push((shard, safetensors::serialize(tensors, None).unwrap()));
    }
    files
}

/// The steps are those of the same model in a folder.
fn found(engine: &str, files: fn() -> Vec<(&'static str, Vec<u8>)>) {
    let hub = folder("some-org/tiny-t5", &files());
    hub.pipe(&["run", "hub.yaml", "--engine", engine]).exits(0);
    let plain = folder(fixture().to_str().unwrap(), &[]);
    plain.pipe(&["run", "hub.yaml", "--engine", "process"]).exits(0);
    let want = curve(&plain.run_folder());
    assert_eq!(want.len(), 2);
    assert_eq!(curve(&hub.run_folder()), want);
}

fn refused() {
    let refused = |model: &str, files: &[(&str, Vec<u8>)], code: i32, text: &str| {
        let folder = folder(model, files);
        folder.pipe(&["run", "hub.yaml"]).exits(code).says(text);
        assert!(!folder.has_runs());
        folder
    };
    let folder = refused("some-org/other", &whole(), 4, "some-org/other is not in the hub cache");
    folder.pipe(&["check", "hub.yaml"]).exits(4).says("hf download some-org/other");
    refused("some-org/tiny-t5", &[], 4, "or is incomplete there, and HF_HUB_OFFLINE forbids downloads");
    refused("some-org/tiny-t5", &whole()[..2], 4, "or is incomplete there, and HF_HUB_OFFLINE forbids downloads");
    refused("nowhere", &whole(), 3, "no such folder: nowhere; give a folder in Hugging Face layout, or a hub id");
}
