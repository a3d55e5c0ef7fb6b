//! The same rows as JSON lines, compressed, as Parquet, as a JSON array, as a workbook and in another encoding: the same training to
//! the bit, and errors that name the user's file.

use std::path::Path;
use std::process::Command;

use crate::golden::fixture as model;
use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, events, folder, run_trainer};

/// Every way in which the rows of `rows.jsonl` are stored.
const ROWS: [&str; 8] = [
    "rows.jsonl.gz",
    "rows.jsonl.zst",
    "plain.parquet",
    "snappy.parquet",
    "zstd.parquet",
    "categories.parquet",
    "duckdb.parquet",
    "rows.xlsx",
];

pub fn tests(suite: &mut Suite) {
    suite.test("data_files::same_losses_in_every_format", Needs::Nothing, same_losses);
    suite.test("data_files::same_losses_of_a_time_series", Needs::Nothing, time_series);
    suite.each_engine("data_files::bad_rows_are_named", bad_rows);
    suite.any_engine("data_files::killed_and_resumed_to_the_bit", killed);
    suite.any_engine("data_files::pictures", pictures);
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(repository().join("tests/fixtures/data").join(name)).unwrap()
}

/// A folder with recipes, a tokenizer for them and a cache of its own.
fn with_cache(more: &str) -> Folder {
    let folder = folder(&format!("{more}container: {{gpus: 0, cpus: 1}}\n"));
    let cache = folder.path().join("cache");
    folder.env("PIPE_CACHE", cache.display())
}

fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/model.safetensors")).unwrap()
}

/// Steps and weights of one run.
type Trained = (Vec<(u64, u64, f64)>, Vec<u8>);

fn train(folder: &Folder, pipeline: &str, set: &[String]) -> Trained {
    std::fs::remove_dir_all(folder.path().join("runs")).ok();
    let mut args = vec!["run", pipeline, "--engine", "process"];
    set.iter().for_each(|set| args.extend(["--set", set]));
    folder.pipe(&args).exits(0);
    (curve(&folder.run_folder()), weights(&folder.run_folder()))
}

fn same_losses() {
    let folder = with_cache("train: {steps: 8, batch: 4, effective_batch: 8, dropout: 0.1}\n");
    let run = |name: &str| {
        folder.write(&format!("data/{name}"), fixture(name));
        train(&folder, "t5.yaml", &[format!("data.train=data/{name}"), format!("data.eval=data/{name}")])
    };
    let want = run("rows.jsonl");
    assert_eq!(want.0.len(), 8);
    for name in ROWS {
        assert!(run(name) == want, "{name}");
    }
    let lines = String::from_utf8(fixture("rows.jsonl")).unwrap();
    let list = format!("{{\"data\": [{}]}}", lines.trim().replace('\n', ",\n"));
    folder.write("data/wrapped.json", list).write("data/wide.jsonl", utf_16(&lines));
    for name in ["wrapped.json", "wide.jsonl"] {
        let set = [format!("data.train=data/{name}"), format!("data.eval=data/{name}")];
        assert!(train(&folder, "t5.yaml", &set) == want, "{name}");
    }
}

/// With a byte order mark, as Windows programs write it.
fn utf_16(text: &str) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

fn time_series() {
    let folder = Folder::new();
    let cache = folder.path().join("cache");
    let folder = folder.env("PIPE_CACHE", cache.display());
    folder.write(
        "series.yaml",
        format!(
            "version: 1\nname: series\nmodel: {{arch: hybrid-cnn-lstm, from: {}}}\ndata: {{train: series.csv, eval_share: 0.4}}\n\
             train: {{steps: 4, batch: 4}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
            model("hybrid-cnn-lstm").display()
        ),
    );
    let run = |name: &str| {
        folder.write(name, fixture(name));
        train(&folder, "series.yaml", &[format!("data.train={name}")])
    };
    let want = run("series.csv");
    for name in ["series.csv.gz", "series.parquet"] {
        assert!(run(name) == want, "{name}");
    }
}

/// `pipe` is killed in the middle and its prepared data deleted; the resumed run ends with the same bits.
fn killed(engine: &str) {
    let pipeline = "train: {steps: 40, batch: 4, effective_batch: 8, optimizer: {lr: 2.0e-3}}\nsave: {every: 7}\n";
    let folder = with_cache(pipeline);
    folder.write("data/snappy.parquet", fixture("snappy.parquet")).write("data/rows.jsonl", fixture("rows.jsonl"));
    let set = "data.train=data/snappy.parquet";
    let running = folder.start(&["run", "t5.yaml", "--engine", engine, "--set", set]);
    folder.wait_for_log(1, "\"step\":10,");
    running.kill_alive();
    if engine == "process" {
        std::fs::remove_dir_all(folder.path().join("cache")).unwrap();
    }
    folder.pipe(&["attach"]).exits(0);
    let got = weights(&folder.run_folder());
    let (_, want) = train(&folder, "t5.yaml", &["data.train=data/rows.jsonl".to_owned()]);
    assert!(got == want, "other weights");
}

fn bad_rows(engine: &str) {
    let folder = with_cache("");
    let good = r#"{"ingredients": "salt", "directions": "chop the salt."}"#;
    folder.write("data/bad.jsonl", format!("{good}\n{good}\n{{\"ingredients\": \"salt\"}}\n"));
    let packed = Command::new("gzip").arg(folder.path().join("data/bad.jsonl")).status().unwrap();
    assert!(packed.success());
    folder.write("data/kinds.parquet", fixture("kinds.parquet"));
    for (set, text) in [
        ("data.train=data/bad.jsonl.gz", "data/bad.jsonl.gz line 3: no field \"directions\""),
        (
            "data={train: data/kinds.parquet, fields: {source: text, target: text}}",
            "data/kinds.parquet row 1: field \"text\" holds null",
        ),
    ] {
        let here = folder.path().join(text).display().to_string();
        folder
            .pipe(&["run", "t5.yaml", "--engine", engine, "--set", set])
            .exits(3)
            .says(&here)
            .says_not("/pipe/prepared");
    }
}

/// Pictures inside of Parquet, and beside a compressed file that names them.
fn pictures(engine: &str) {
    let folder = Folder::new();
    let cache = folder.path().join("cache");
    let folder = folder.env("PIPE_CACHE", cache.display());
    let data = folder.path().join("data");
    let out = data.to_str().unwrap();
    run_trainer(&["data", "pictures", "--rows", "24", "--eval-rows", "8", "--seed", "3", "--size", "32", "--out", out])
        .exits(0);
    let tower = "hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 4";
    folder.write("data/pictures.parquet", fixture("pictures.parquet")).write(
        "clip.yaml",
        format!(
            "version: 1\nname: clip\nmodel:\n  arch: clip\n  config:\n    projection_dim: 32\n    \
             text_config: {{{tower}, vocab_size: 96, max_position_embeddings: 16, eos_token_id: 1, pad_token_id: 1}}\n    \
             vision_config: {{{tower}, image_size: 32, patch_size: 8}}\n\
             data: {{train: data/train.jsonl.gz, eval: data/pictures.parquet}}\n\
             train: {{steps: 2, batch: 4}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
        ),
    );
    let packed = Command::new("gzip").arg(data.join("train.jsonl")).status().unwrap();
    assert!(packed.success());
    folder.pipe(&["run", "clip.yaml", "--engine", engine]).exits(0);
    let events = events(&folder.run_folder());
    let eval = events.iter().find(|event| event["type"] == "eval").unwrap();
    assert_eq!(eval["samples"], 12);
    std::fs::remove_file(data.join("pictures/train-000004.png")).unwrap();
    std::fs::remove_dir_all(folder.path().join("runs")).unwrap();
    let here = data.join("train.jsonl.gz").display().to_string();
    let named = data.join("pictures/train-000004.png").display().to_string();
    folder
        .pipe(&["run", "clip.yaml", "--engine", engine])
        .exits(3)
        .says(&format!("{here} line 5: the picture {named}"));
}
