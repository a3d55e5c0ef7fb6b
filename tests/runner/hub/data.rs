//! Data sets.

use serde_json::Value;

use super::{MODEL, RUN, WEIGHTS, blob, files, folder_with, lock, text, weights};
use crate::harness::Folder;
use crate::stand_ins::hub::Hub;

pub const ROW: &str = "{\"source\": \"a\", \"target\": \"b\"}\n";

pub fn data_hub() -> (Hub, String) {
    let hub = Hub::start();
    let rows = |count: usize| text(&ROW.repeat(count));
    let files = [
        ("README.md", text("rows")),
        ("data/train-00001.jsonl", rows(20)),
        ("data/train-00000.jsonl", rows(2)),
        ("data/notes.md", text("rows")),
        ("data/deep/x.jsonl", rows(4)),
        ("eval set.jsonl", rows(1)),
    ];
    let commit = hub.push("datasets/o/rows", "main", &files);
    hub.push("datasets/o/rows", "v2", &[("train.jsonl", rows(30))]);
    (hub, commit)
}

pub fn data_folder(hub: &Hub, train: &str, eval: &str, job: &str) -> Folder {
    let folder = folder_with(hub, "unused", job);
    let pipeline = folder.read("job.yaml").replace("from: unused", "config: {}");
    let data = format!("train: {train}, eval: {eval}, tokenizer: tokenizer.json");
    folder.write("job.yaml", pipeline.replace("train: train.jsonl", &data)).write("tokenizer.json", "{}");
    folder
}

/// What the first attempt was given as its data, by the last parts of the paths.
pub fn given(folder: &Folder, part: &str) -> Vec<String> {
    let spec: Value = serde_json::from_str(&folder.read_run("attempts/01/spec.json")).unwrap();
    let paths = match &spec["data"][part] {
        Value::Array(many) => many.clone(),
        one => vec![one.clone()],
    };
    let last = |path: &Value| path.as_str().unwrap().split("/snapshots/").last().unwrap().to_owned();
    paths.iter().map(last).collect()
}

pub fn data() {
    let (hub, commit) = data_hub();
    let eval = "\"hf://datasets/o/rows/eval set.jsonl\"";
    let cases = [
        ("hf://datasets/o/rows/data/train-*.jsonl", vec!["data/train-00000.jsonl", "data/train-00001.jsonl"]),
        ("hf://datasets/o/rows/data", vec!["data/train-00000.jsonl", "data/train-00001.jsonl"]),
        ("hf://datasets/o/rows/data/deep/x.jsonl", vec!["data/deep/x.jsonl"]),
        (
            "[hf://datasets/o/rows/data/deep/, hf://datasets/o/rows/data/train-00001.jsonl]",
            vec!["data/deep/x.jsonl", "data/train-00001.jsonl"],
        ),
    ];
    for (train, want) in cases {
        let folder = data_folder(&hub, train, eval, "fit 9");
        hub.forget();
        folder.pipe(&["check", "job.yaml"]).exits(0);
        assert_eq!(hub.fetched(), Vec::<String>::new(), "{train}");
        folder.pipe(&RUN).exits(0);
        let want: Vec<String> = want.iter().map(|name| format!("{commit}/{name}")).collect();
        assert_eq!(given(&folder, "train"), want, "{train}");
        assert_eq!(given(&folder, "eval"), [format!("{commit}/eval set.jsonl")]);
        let lock = lock(&folder);
        let repository = serde_json::json!([{ "name": "datasets/o/rows", "revision": "main", "commit": commit }]);
        assert_eq!(lock["hub"], repository);
        assert!(folder.path().join("hub/datasets--o--rows/snapshots").join(&commit).join("eval set.jsonl").is_file());
        // All of it is in the cache now, the list of a folder too.
        hub.forget();
        folder.env("HF_HUB_OFFLINE", "1").pipe(&RUN).exits(0);
        assert!(hub.requests().is_empty(), "{:?}", hub.requests());
    }
    let folder = data_folder(&hub, "hf://datasets/o/rows@v2/train.jsonl", "hf://datasets/o/rows@v2", "fit 9");
    folder.pipe(&RUN).exits(0);
    assert_eq!(given(&folder, "train"), given(&folder, "eval"));
}

pub fn no_data() {
    let (hub, _) = data_hub();
    let cases = [
        (
            "hf://datasets/o/rows/gone.jsonl",
            "the data set o/rows has no file, and no folder with data, that is \"gone.jsonl\"",
        ),
        ("hf://datasets/o/rows/*.csv", "that is \"*.csv\""),
        ("hf://datasets/o/rows/README.md", "README.md: allowed for text to text: ."),
        ("hf://datasets/o/none/a.jsonl", "the hub has no data set o/none"),
        ("hf://o/rows/a.jsonl", "found hf://o/rows/a.jsonl; allowed: hf://datasets/owner/name/path"),
        ("\"hf://datasets/o/${HOME}/a.jsonl\"", "without variables"),
    ];
    for (train, want) in cases {
        let folder = data_folder(&hub, train, "hf://datasets/o/rows/data", "fit 9");
        folder.pipe(&RUN).exits(3).says("data.train: ").says(want);
        assert!(!folder.has_runs());
    }
    let folder = data_folder(&hub, "hf://datasets/o/rows/data", "hf://datasets/o/rows/data", "fit 9");
    let pipeline = folder.read("job.yaml").replace("arch: t5", "arch: clip").replace("tokenizer: tokenizer.json", "");
    folder.write("job.yaml", pipeline);
    folder.pipe(&RUN).exits(3).says("pictures that a file names are not fetched from the hub");
}

/// Links of the cache can be followed in a container.
pub fn contained() {
    let (hub, commit) = data_hub();
    hub.push(MODEL, "main", &files());
    let data = "hf://datasets/o/rows/data/train-*.jsonl";
    let folder = folder_with(&hub, MODEL, "read");
    let pipeline = folder.read("job.yaml").replace("train: train.jsonl", &format!("train: {data}"));
    folder.write("job.yaml", pipeline);
    folder.pipe(&["run", "job.yaml", "--engine", "docker"]).exits(0);
    let log = folder.read_run("attempts/01/log.txt");
    let size = |count: usize| count * ROW.len();
    for (name, bytes) in
        [("data/train-00000.jsonl", size(2)), ("data/train-00001.jsonl", size(20)), (WEIGHTS, 3_000_000)]
    {
        assert!(log.lines().any(|line| line.ends_with(&format!("{name}: {bytes} bytes"))), "{name}\n{log}");
    }
    assert!(log.contains(&commit), "{log}");
    // A content that the hub's own tools share among repositories lies outside of this one.
    let (blob, shared) = (blob(&folder, &weights()), folder.path().join("hub/blobs/aa/shared"));
    std::fs::create_dir_all(shared.parent().unwrap()).unwrap();
    std::fs::rename(&blob, &shared).unwrap();
    std::os::unix::fs::symlink("../../blobs/aa/shared", &blob).unwrap();
    std::fs::remove_dir_all(folder.path().join("runs")).unwrap();
    folder.pipe(&["run", "job.yaml", "--engine", "docker"]).exits(0);
    assert!(folder.read_run("attempts/01/log.txt").contains("model.safetensors: 3000000 bytes"));
}
