//! The Python client of the hub and `pipe` find each other's downloads.

use std::process::Command;

use super::data::{data_hub, given};
use super::{MODEL, RUN, files, folder_with, hub_and_folder, lock, repository};
use crate::harness::{Answer, Folder, suite};
use crate::stand_ins::hub::Hub;

fn python(folder: &Folder, hub: &Hub, script: &str) -> Answer {
    let output = Command::new("python3")
        .args(["-c", script])
        .env("PYTHONPATH", suite::mlflow())
        .env("HF_ENDPOINT", hub.address())
        .env("HF_HUB_CACHE", folder.path().join("hub"))
        .env("HF_HOME", folder.path().join("home"))
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env_remove("HF_TOKEN")
        .env_remove("HF_HUB_OFFLINE")
        .output()
        .unwrap();
    Answer::new("python3".to_owned(), output)
}

pub fn tool_finds() {
    let (hub, folder, commit) = hub_and_folder(&files());
    folder.pipe(&RUN).exits(0);
    hub.forget();
    let script = "from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache, scan_cache_dir\n\
        print(hf_hub_download('some-org/tiny', 'model.safetensors', local_files_only=True))\n\
        print(snapshot_download('some-org/tiny', local_files_only=True))\n\
        print(try_to_load_from_cache('some-org/tiny', 'tokenizer.json'))\n\
        scan = scan_cache_dir()\n\
        assert not scan.warnings, scan.warnings\n\
        print([(repo.repo_id, len(repo.revisions), repo.nb_files) for repo in scan.repos])\n\
        print(hf_hub_download('some-org/tiny', 'model.safetensors'))\n";
    let snapshot = repository(&folder).join("snapshots").join(commit).display().to_string();
    python(&folder, &hub, script).exits(0).prints(&format!(
        "{snapshot}/model.safetensors\n{snapshot}\n{snapshot}/tokenizer.json\n[('some-org/tiny', 1, 4)]\n"
    ));
    assert!(hub.requests().iter().all(|request| !request.is_content), "{:?}", hub.requests());
}

pub fn tool_fetched() {
    let (hub, commit) = data_hub();
    let first = hub.push(MODEL, "main", &files());
    let folder = folder_with(&hub, MODEL, "fit 9");
    let pipeline =
        folder.read("job.yaml").replace("train: train.jsonl", "train: hf://datasets/o/rows/data/deep/x.jsonl");
    folder.write("job.yaml", pipeline);
    let script = "from huggingface_hub import hf_hub_download, snapshot_download\n\
        print(snapshot_download('some-org/tiny', ignore_patterns='tf_*'))\n\
        print(hf_hub_download('o/rows', 'data/deep/x.jsonl', repo_type='dataset'))\n";
    python(&folder, &hub, script).exits(0).prints(&first);
    hub.forget();
    folder.pipe(&RUN).exits(0);
    assert!(hub.requests().is_empty(), "{:?}", hub.requests());
    assert_eq!(given(&folder, "train"), [format!("{commit}/data/deep/x.jsonl")]);
    assert_eq!(lock(&folder)["hub"].as_array().unwrap().len(), 2);
}
