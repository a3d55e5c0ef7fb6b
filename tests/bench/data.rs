//! How fast rows come from Parquet and zstd beside plain JSON lines.
//!
//! Measured is a run of one step, less the same run over a few rows: hashing, preparing (into an empty cache), opening, and the
//! trainer's pass over every row before the first step. Both sides of a ratio are of the same rounds.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::harness::Folder;
use crate::harness::folder::binaries;
use crate::{median, timed};

const ROUNDS: usize = 5;
const ROWS: usize = 1_000_000;
const FEW: usize = 64;
/// Of a row group.
const GROUP: usize = 200_000;

pub fn formats() {
    let trainer = binaries().join("pipe-trainer");
    if !trainer.is_file() {
        println!("rows of Parquet and zstd beside JSON lines: not measured, because pipe-trainer is not built");
        return;
    }
    let folder = Folder::new().env("PIPE_TRAINER", trainer.display());
    let cache = folder.path().join("cache");
    let folder = folder.env("PIPE_CACHE", cache.display());
    make(&folder, &trainer);
    let names = ["few.jsonl", "rows.jsonl", "rows.jsonl.zst", "rows.jsonl.gz", "rows.parquet", "rows-zstd.parquet"];
    let mut times = names.map(|_| Vec::new());
    // The first round is not counted: it reads the programs from disk.
    for round in 0..=ROUNDS {
        for (name, times) in names.iter().zip(&mut times) {
            std::fs::remove_dir_all(&cache).ok();
            let set = format!("data.train=data/{name}");
            let args = ["run", "rows.yaml", "--engine", "process", "--ignore-ledger", "--set", &set];
            let time = timed(|| folder.pipe(&args).exits(0));
            if round > 0 {
                times.push(time);
            }
            std::fs::remove_dir_all(folder.path().join("runs")).ok();
        }
    }
    let [few, plain, others @ ..] = times.map(|times| median(times.into_iter()));
    let seconds = |time: Duration| time.saturating_sub(few).as_secs_f64().max(1e-3);
    println!("\n{} recipes prepared, opened and read once by the trainer, median of {ROUNDS} rounds", ROWS);
    println!("{:<58} {:>6.0} k rows/s", "  plain JSON lines", ROWS as f64 / seconds(plain) / 1000.0);
    for (name, time) in ["zstd", "gzip", "Parquet, snappy", "Parquet, zstd"].into_iter().zip(others) {
        let ratio = seconds(plain) / seconds(time);
        let rate = ROWS as f64 / seconds(time) / 1000.0;
        let verdict = if ratio >= 0.5 { "reached" } else { "missed" };
        println!("{:<58} {rate:>6.0} k rows/s, {ratio:.2} of plain; at least 0.5: {verdict}", format!("  {name}"));
    }
}

fn make(folder: &Folder, trainer: &Path) {
    let data = folder.path().join("data");
    let rows = ROWS.to_string();
    let made =
        Command::new(trainer).args(["data", "recipes", "--seed", "3", "--rows", &rows, "--out"]).arg(&data).output();
    assert!(made.unwrap().status.success());
    let text = folder.read("data/train.jsonl");
    std::fs::rename(data.join("train.jsonl"), data.join("rows.jsonl")).unwrap();
    let few: Vec<&str> = text.lines().take(FEW).collect();
    folder.write("data/few.jsonl", few.join("\n") + "\n");
    folder.write("data/rows.jsonl.zst", zstd::bulk::compress(text.as_bytes(), 3).unwrap());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    folder.write("data/rows.jsonl.gz", gzip.finish().unwrap());
    parquet(&data.join("rows.parquet"), &text, Compression::SNAPPY);
    parquet(&data.join("rows-zstd.parquet"), &text, Compression::ZSTD(Default::default()));
    folder.write(
        "rows.yaml",
        "version: 1\nname: rows\nmodel:\n  arch: t5\n  config: {vocab_size: 128, d_model: 16, d_kv: 8, d_ff: 16, \
         num_layers: 1, num_heads: 1, dropout_rate: 0.0, pad_token_id: 0, eos_token_id: 1, decoder_start_token_id: 0}\n\
         data: {train: data/rows.jsonl, fields: {source: ingredients, target: directions}, shuffle: false}\n\
         train: {steps: 1, batch: 1}\nmemory: {worst_first: false}\nsave: {export: false}\ncontainer: {gpus: 0}\n",
    );
}

fn parquet(path: &Path, text: &str, compression: Compression) {
    let schema = "message rows { optional binary ingredients (UTF8); optional binary directions (UTF8); }";
    let properties = WriterProperties::builder().set_compression(compression).build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for rows in rows.chunks(GROUP) {
        let mut group = writer.next_row_group().unwrap();
        for name in ["ingredients", "directions"] {
            let values: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(row[name].as_str().unwrap())).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&vec![1; values.len()]), None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}
