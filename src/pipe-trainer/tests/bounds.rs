//! Data, tokenizers and configs of absurd size: refused by name, and never more memory than the limit and its reserve.

use std::fs::{self, File};
use std::io::{BufWriter, Write};

use crate::support::{Bench, fixture};
use pipe_spec::OomRecord;
use pipe_spec::event::MemoryKind;
use serde_json::{Value, json};

/// The most that any trainer of this program has held so far: what it allocated, and the libraries that it mapped.
fn peak() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for a write.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    unsafe { usage.assume_init() }.ru_maxrss.cast_unsigned() * 1024
}

/// What the program maps without allocating it.
const LIBRARIES: u64 = 600 << 20;

#[test]
fn absurd_sizes_are_named() {
    let folder = Bench::golden();
    let row = "{\"source\": \"a\", \"target\": \"b\"}\n";
    let line = folder.path("line.jsonl");
    let mut file = BufWriter::new(File::create(&line).unwrap());
    write!(file, "{row}{{\"source\": \"").unwrap();
    (0..70).for_each(|_| file.write_all(&[b'a'; 1 << 20]).unwrap());
    write!(file, "\", \"target\": \"b\"}}\n{row}").unwrap();
    drop(file);
    let text = folder.path("text.jsonl");
    fs::write(&text, format!("{row}\n{{\"source\": \"{}\", \"target\": \"b\"}}\n", "a ".repeat(9 << 20))).unwrap();
    let tokenizer = folder.path("tokenizer.json");
    // It takes no room on the disk.
    File::create(&tokenizer).unwrap().set_len(300 << 20).unwrap();
    let cases = [
        ("/data/train", json!(line), "line.jsonl line 2: the row has 70.0 MiB; allowed: at most 64.0 MiB"),
        (
            "/data/train",
            json!(text),
            "text.jsonl line 3: field \"source\" has 18.0 MiB of text; allowed: at most 16.0 MiB",
        ),
        ("/tokenizer", json!(tokenizer), "tokenizer.json: the file has 300.0 MiB; allowed: at most 256.0 MiB"),
        (
            "/model",
            json!({ "arch": "t5", "config": { "d_model": 8, "num_layers": 100_000_000 } }),
            "model config: num_layers: found 100000000; allowed: at most 4096",
        ),
        ("/data/workers", json!(1_000_000), "data.workers: found 1000000; allowed: at most 1024"),
        ("/data/prefetch", json!(u32::MAX), "data.prefetch: found 4294967295; allowed: at most 1024"),
        (
            "/train/effective_batch",
            json!(u32::MAX),
            "train.effective_batch: found 4294967295; allowed: at most 16777216",
        ),
    ];
    for (pointer, value, want) in cases {
        let mut bench = Bench::golden();
        let ended = bench.set("/memory/limit", json!("400m")).set(pointer, value).train().expect(3);
        assert!(ended.stderr.contains(want), "{}", ended.stderr);
    }
    assert!(peak() < (450 << 20) + LIBRARIES, "{} MiB", peak() >> 20);
}

/// A tokenizer that makes a megabyte of every letter, and a row that has many.
#[test]
fn a_tokenizer_that_blows_texts_up_is_held_to_the_limit() {
    let mut bench = Bench::golden();
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(fixture().join("tokenizer.json")).unwrap()).unwrap();
    tokenizer["normalizer"] =
        json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "b".repeat(1 << 20) });
    let path = bench.path("tokenizer.json");
    fs::write(&path, tokenizer.to_string()).unwrap();
    let data = bench.path("rows.jsonl");
    let row = |text: &str| format!("{{\"source\": \"{text}\", \"target\": \"b\"}}\n");
    fs::write(&data, row("b") + &row(&"a".repeat(5000)) + &row("b")).unwrap();
    bench.set("/tokenizer", json!(path)).set("/data/train", json!(data)).set("/memory/limit", json!("400m"));
    let ended = bench.train().expect(43);
    assert!(ended.stderr.contains(" while reading row 2 of "), "{}", ended.stderr);
    assert!(ended.stderr.contains("rows.jsonl"), "{}", ended.stderr);
    assert!(peak() < (450 << 20) + LIBRARIES, "{} MiB", peak() >> 20);
}

/// A table is held whole: where it does not fit, the row is named in the record.
#[test]
fn a_table_that_does_not_fit_names_its_row() {
    let mut bench = Bench::golden();
    let data = bench.path("table.csv");
    let mut file = BufWriter::new(File::create(&data).unwrap());
    writeln!(file, "source,target").unwrap();
    let row = format!("{},b\n", "a ".repeat(5000));
    (0..40_000).for_each(|_| file.write_all(row.as_bytes()).unwrap());
    drop(file);
    bench.set("/data/train", json!(data)).set("/memory/limit", json!("200m"));
    let ended = bench.train().expect(43);
    assert!(ended.stderr.contains("the memory limit was reached while reading row "), "{}", ended.stderr);
    let record: OomRecord =
        serde_json::from_slice(&fs::read(bench.run_folder().attempt(1).job().oom()).unwrap()).unwrap();
    assert_eq!(record.memory, MemoryKind::Host);
    assert!(record.message.contains("table.csv"), "{}", record.message);
    assert!(peak() < (450 << 20) + LIBRARIES, "{} MiB", peak() >> 20);
}
