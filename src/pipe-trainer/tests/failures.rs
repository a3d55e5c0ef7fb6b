//! How a training that cannot go on ends: what is wrong is named, nothing that is not finite is saved, and nothing exceeds the limit.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use pipe_spec::event::{EventKind, MemoryKind, OomRecord, Phase};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::{Bench, fixture};

/// A model whose steps need a few hundred megabytes, much more in one batch than in several.
fn large() -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/train/batch", json!(64)).set("/train/effective_batch", json!(64)).set("/train/steps", json!(3));
    // Rows that are longer than the model reads.
    let rows = fs::read_to_string(bench.path("data/train.jsonl")).unwrap();
    let long = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        row.as_object_mut().unwrap().values_mut().for_each(|text| *text = text.as_str().unwrap().repeat(8).into());
        row.to_string() + "\n"
    };
    fs::write(bench.path("data/train.jsonl"), rows.lines().map(long).collect::<String>()).unwrap();
    bench
}

#[test]
fn a_batch_that_does_not_fit_leaves_a_record() {
    let mut bench = large();
    let ended = bench.set("/memory/limit", json!("150m")).train().expect(43);
    let file = fs::read(bench.run_folder().attempt(1).job().oom()).unwrap();
    let record: OomRecord = serde_json::from_slice(&file).unwrap();
    assert!(matches!(record.phase, Phase::Forward | Phase::Backward), "{record:?}");
    assert_eq!((record.memory, record.step, record.batch), (MemoryKind::Host, 1, 64));
    assert_eq!((record.longest_sequence, record.sizes.total), (Some(128), Some(150 << 20)));
    assert!(record.sizes.requested.unwrap() > record.sizes.free.unwrap() / 2, "{record:?}");
    assert_eq!(ended.events.last(), Some(&EventKind::Oom(record)));

    let smaller = bench.set("/train/batch", json!(8)).train().expect(0);
    assert_eq!(smaller.curve().len(), 3);
}

#[test]
fn the_last_completed_step_is_saved_when_memory_runs_out() {
    let mut bench = Bench::recipes();
    bench.set("/train/steps", json!(4)).set("/evaluate", json!({ "every": 2, "batch": 400 }));
    let data = bench.path("many.jsonl");
    let row = fs::read_to_string(bench.path("data/eval.jsonl")).unwrap();
    fs::write(&data, row.repeat(40)).unwrap();
    bench.set("/data/eval", json!(data)).set("/memory/limit", json!("150m")).train().expect(43);
    let file = fs::read(bench.run_folder().attempt(1).job().oom()).unwrap();
    let record: OomRecord = serde_json::from_slice(&file).unwrap();
    assert_eq!((record.phase, record.batch), (Phase::Eval, 400));

    bench.set("/evaluate/batch", json!(8)).set("/attempt", json!(2));
    let ended = bench.train().expect(0);
    let EventKind::Started(started) = &ended.events[0] else { panic!("{:?}", ended.events) };
    assert_eq!(started.resumed_from, Some(2));
    let next = ended.events[1..].iter().find(|event| !matches!(event, EventKind::Rehearsed(_)));
    assert!(matches!(next, Some(EventKind::Eval(eval)) if eval.step == 2), "the evaluation is made up for");
    assert_eq!(ended.curve().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn a_model_that_does_not_fit_says_that_it_was_loading() {
    let mut bench = Bench::recipes();
    bench.set("/model/config/d_ff", json!(100_000)).set("/memory/limit", json!("150m")).train().expect(43);
    let file = fs::read(bench.run_folder().attempt(1).job().oom()).unwrap();
    let record: OomRecord = serde_json::from_slice(&file).unwrap();
    assert!(matches!(record.phase, Phase::Load | Phase::Optimizer), "{record:?}");
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let mut bench = Bench::golden();
    bench.set("/train/optimizer/lr", json!(1e30));
    let ended = bench.train().expect(44);
    assert!(ended.stderr.contains(" is NaN") || ended.stderr.contains(" is inf"), "{}", ended.stderr);
}

#[test]
fn bad_input_is_named() {
    let folder = Bench::golden();
    let write = |name: &str, text: &str| {
        fs::write(folder.path(name), text).unwrap();
        json!(folder.path(name))
    };
    let row = "{\"source\": \"a\", \"target\": \"b\"}\n";
    let cases = [
        ("/data/train", json!("nowhere.jsonl"), "nowhere.jsonl: No such file"),
        ("/data/train", write("empty.jsonl", ""), "empty.jsonl: the file is empty"),
        ("/data/train", write("cut.jsonl", &format!("{row}{{\"sour")), "cut.jsonl line 2: not JSON"),
        (
            "/data/train",
            write("field.jsonl", &format!("{row}\n{{\"target\": \"b\", \"x\": 1}}")),
            "field.jsonl line 3: no field \"source\"; it has: target, x",
        ),
        ("/data/train", write("table.csv", "a,b"), "table.csv: the file has no rows"),
        (
            "/data/train",
            write("short.csv", "source,b\nx,y"),
            "short.csv line 2: no field \"target\"; it has: source, b",
        ),
        (
            "/data/train",
            write("double.csv", "source,target,b,b, target\nx,y,1,2,z"),
            "double.csv line 1: two columns are called \"target\"; rename or remove one of them",
        ),
        (
            "/data/train",
            write("crlf.csv", "\u{feff}source,target\r\n\"a\r\nb\",c\r\n\r\nd,e,f\r\n"),
            "crlf.csv line 5: 3 values for 2 columns; data.skip_bad: true skips such rows",
        ),
        ("/data/train", json!("${NO_SUCH_FOLDER}/train.jsonl"), "the variable ${NO_SUCH_FOLDER} is not set"),
        ("/tokenizer", write("tokenizer.json", "{}"), "hint: data.tokenizer names a tokenizer.json"),
        ("/model/from", json!("google/flan-t5-xl"), "the model google/flan-t5-xl: not a folder"),
        ("/model", json!({ "arch": "t5", "config": {} }), "model config: d_model: missing"),
        (
            "/model",
            json!({ "arch": "t5", "config": { "d_model": 8, "vocab_size": 10 } }),
            "tokens, the model's vocab_size is 10",
        ),
        ("/nonsense", json!(1), "unknown field `nonsense`"),
    ];
    for (pointer, value, want) in cases {
        let mut bench = Bench::golden();
        let ended = bench.set(pointer, value).train().expect(3);
        assert!(ended.stderr.contains(want), "{}", ended.stderr);
    }
}

#[test]
fn a_wrong_tensor_names_itself() {
    let mut bench = Bench::golden();
    let model = bench.path("model");
    fs::create_dir(&model).unwrap();
    fs::copy(crate::support::fixture().join("model.safetensors"), model.join("model.safetensors")).unwrap();
    let config = fs::read_to_string(crate::support::fixture().join("config.json")).unwrap();
    fs::write(model.join("config.json"), config.replace("\"d_ff\": 96", "\"d_ff\": 64")).unwrap();
    let ended = bench.set("/model/from", json!(model)).train().expect(3);
    let want =
        "tensor encoder.block.0.layer.1.DenseReluDense.wi_0.weight: its shape is [96, 48], the model has [64, 48]";
    assert!(ended.stderr.contains(want), "{}", ended.stderr);
}

/// Every value of every tensor of a file.
fn values(file: &PathBuf) -> Vec<f32> {
    let bytes = fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let all = tensors.tensors().into_iter().flat_map(|(_, view)| view.data().to_vec()).collect::<Vec<u8>>();
    all.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// The names of the checkpoints that are there, all of which must hold numbers only.
fn checkpoints(bench: &Bench) -> Vec<String> {
    let folder = bench.run_folder().checkpoints();
    let mut names: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in &names {
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let bad = values(&folder.join(name).join(file)).iter().filter(|value| !value.is_finite()).count();
            assert_eq!(bad, 0, "{name}/{file}");
        }
    }
    names
}

fn diverging(lr: f64) -> Bench {
    let mut bench = Bench::golden();
    bench.set("/train/optimizer/lr", json!(lr)).set("/train/clip", json!(0.0));
    bench.set("/save", json!({ "every": 1, "keep": 1 }));
    bench
}

#[test]
fn weights_that_became_infinite_do_not_replace_the_last_good_ones() {
    let mut bench = diverging(1e39);
    // The first step changes nothing; the second makes the weights infinite, at a loss that is still a number.
    bench.set("/train/schedule", json!({ "warmup": 1 }));
    let ended = bench.train().expect(44);
    assert_eq!(ended.curve().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2], "{}", ended.stderr);
    assert!(ended.stderr.contains("error: step 2: "), "{}", ended.stderr);
    assert!(ended.stderr.contains(" is not finite, so nothing of this step was saved"), "{}", ended.stderr);
    assert!(ended.stderr.contains("step-00000001"), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: lower train.optimizer.lr"), "{}", ended.stderr);
    assert_eq!(checkpoints(&bench), ["step-00000001"]);
    assert!(!bench.run_folder().model().exists());

    // The same at the end of the training, where the last step is saved and exported.
    bench.set("/train/steps", json!(2)).set("/save/every", json!(0)).set("/attempt", json!(2));
    bench.train().expect(44);
    assert_eq!(checkpoints(&bench), ["step-00000001"]);
    assert!(!bench.run_folder().model().exists());
}

#[test]
fn a_loss_that_is_not_finite_saves_nothing() {
    // Large, but finite, after the first step; the loss of the second is not.
    let bench = diverging(1e30);
    let ended = bench.train().expect(44);
    assert!(ended.stderr.contains("error: step 2: the "), "{}", ended.stderr);
    assert_eq!(checkpoints(&bench), ["step-00000001"]);
}

/// Bytes that the program maps without allocating them.
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
        let (ended, peak) = bench.set("/memory/limit", json!("400m")).set(pointer, value).train_and_measure();
        let ended = ended.expect(3);
        assert!(ended.stderr.contains(want), "{}", ended.stderr);
        assert!(peak < (450 << 20) + LIBRARIES, "{} MiB", peak >> 20);
    }
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
    let (ended, peak) = bench.train_and_measure();
    let ended = ended.expect(43);
    assert!(ended.stderr.contains(" while reading row 2 of "), "{}", ended.stderr);
    assert!(ended.stderr.contains("rows.jsonl"), "{}", ended.stderr);
    assert!(peak < (450 << 20) + LIBRARIES, "{} MiB", peak >> 20);
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
    let (ended, peak) = bench.train_and_measure();
    let ended = ended.expect(43);
    assert!(ended.stderr.contains("the memory limit was reached while reading row "), "{}", ended.stderr);
    let record: OomRecord =
        serde_json::from_slice(&fs::read(bench.run_folder().attempt(1).job().oom()).unwrap()).unwrap();
    assert_eq!(record.memory, MemoryKind::Host);
    assert!(record.message.contains("table.csv"), "{}", record.message);
    assert!(peak < (450 << 20) + LIBRARIES, "{} MiB", peak >> 20);
}
