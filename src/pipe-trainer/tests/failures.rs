//! Trainings that end early or are refused: bad input, weights and losses that are not finite, memory that runs out, and the search for a
//! batch that fits.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use pipe_spec::event::{EventKind, Fitted, Measured, MemoryKind, OomRecord, Phase, Rehearsed};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::{Bench, Ended, fixture, wait_for};

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

fn rehearsed(ended: &Ended) -> Option<&Rehearsed> {
    ended.events.iter().find_map(|event| if let EventKind::Rehearsed(one) = event { Some(one) } else { None })
}

fn measured(ended: &Ended) -> Vec<&Measured> {
    ended
        .events
        .iter()
        .filter_map(|event| if let EventKind::Measured(one) = event { Some(one) } else { None })
        .collect()
}

fn fitted(ended: &Ended) -> Option<&Fitted> {
    ended.events.iter().find_map(|event| if let EventKind::Fitted(one) = event { Some(one) } else { None })
}

#[test]
fn worst_first_changes_no_bit() {
    expect_the_same_bits_with_worst_first([("adamw", "fp32"), ("adafactor", "bf16")]);
}

#[test]
#[ignore = "test-all"]
fn worst_first_changes_no_bit_of_other_optimizers() {
    expect_the_same_bits_with_worst_first([("adamw", "fp16-mixed"), ("adamw8bit", "bf16")]);
}

#[track_caller]
fn expect_the_same_bits_with_worst_first<const N: usize>(cases: [(&str, &str); N]) {
    for (optimizer, precision) in cases {
        let [with, without] = [true, false].map(|worst_first| {
            let mut bench = Bench::recipes();
            bench.set("/train/steps", json!(4)).set("/memory/worst_first", json!(worst_first));
            bench.set("/train/dropout", json!(0.2)).set("/train/precision", json!(precision));
            bench.set("/train/optimizer/kind", json!(optimizer)).set("/train/batch", json!(3));
            let ended = bench.train().expect(0);
            assert_eq!(rehearsed(&ended).is_some(), worst_first);
            (ended.curve(), bench.checkpoint_digests(4))
        });
        assert_eq!(with, without, "{optimizer} {precision}");
    }
}

#[test]
fn the_rehearsal_is_as_long_as_any_step() {
    let mut bench = Bench::recipes();
    let long = "salt ".repeat(40);
    let rows: Vec<String> = (0..60)
        .map(|row| {
            let (source, target) = match row {
                17 => (long.as_str(), "stir"),
                41 => ("flour", long.as_str()),
                _ => ("flour", "stir"),
            };
            json!({ "ingredients": source, "directions": target }).to_string()
        })
        .collect();
    let path = bench.path("uneven.jsonl");
    std::fs::write(&path, rows.join("\n")).unwrap();
    bench.set("/data/train", json!(path)).set("/data/pad", json!("longest")).set("/train/steps", json!(1));
    bench.set("/data/max_source", json!(32)).set("/data/max_target", json!(24));
    let ended = bench.train().expect(0);
    assert_eq!(rehearsed(&ended).unwrap().longest, "32+24");
    let EventKind::Started(started) = &ended.events[0] else { panic!("{:?}", ended.events) };
    assert_eq!(started.longest.as_deref(), Some("32+24"));
}

/// A model whose batch of 128 does not fit, however many threads and kernels a machine has.
fn tight() -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/train/effective_batch", json!(128)).set("/train/steps", json!(3)).set("/data/pad", json!("max"));
    bench.set("/train/batch", json!("auto")).set("/memory/limit", json!("200m")).set("/train/dropout", json!(0.0));
    bench
}

#[test]
fn the_largest_batch_is_found_and_trained_with() {
    let bench = tight();
    let ended = bench.train().expect(0);
    let found = fitted(&ended).expect("a batch was found").clone();
    assert!(found.batch > 4 && found.batch < 128, "{found:?}");
    assert_eq!((found.accum, found.effective_batch), (128u32.div_ceil(found.batch), 128));
    let tried = measured(&ended);
    assert!(tried.iter().any(|one| one.batch >= found.batch && one.fits && one.peak == Some(found.peak)), "{tried:?}");
    let started =
        ended.events.iter().find_map(|event| if let EventKind::Started(one) = event { Some(one) } else { None });
    assert_eq!(started.unwrap().batch, found.batch);
    // It is the training that any other batch would have given.
    let mut other = tight();
    let curve = other.set("/train/batch", json!(4)).train().expect(0).curve();
    assert_eq!(curve.len(), 3);
    for ((step, loss), (_, want)) in ended.curve().into_iter().zip(curve) {
        assert!((loss - want).abs() < 1e-5 * want, "step {step}: {loss} and {want}");
    }
    // Nothing is trained by a search alone.
    let searched = bench.run("fit").expect(0);
    assert!(fitted(&searched).is_some() && searched.curve().is_empty());
}

#[test]
fn what_does_not_fit_at_all_is_said() {
    let mut bench = tight();
    bench.set("/model/config/d_ff", json!(100_000)).set("/memory/limit", json!("150m"));
    let searched = bench.run("fit").expect(43);
    assert!(searched.stderr.contains("not even a batch of 1 fits"), "{}", searched.stderr);
    // The training itself says where it ran out.
    let trained = bench.train().expect(43);
    assert!(matches!(trained.events.last(), Some(EventKind::Oom(_))), "{:?}", trained.events);
}

#[test]
fn a_change_of_the_maths_goes_on_from_the_checkpoint() {
    for (pointer, value) in [("/train/precision", "bf16-mixed"), ("/train/optimizer/kind", "adafactor")] {
        let mut bench = Bench::recipes();
        bench.set("/train/steps", json!(4)).set("/save/every", json!(2)).train().expect(0);
        std::fs::remove_dir_all(bench.run_folder().checkpoints().join("step-00000004")).unwrap();
        bench.set(pointer, json!(value));
        let refused = bench.train().expect(3);
        assert!(refused.stderr.contains("it was made with"), "{}", refused.stderr);
        let ended = bench.set("/maths_changed", json!(true)).train().expect(0);
        assert_eq!(ended.curve().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3, 4], "{value}");
    }
}

/// A BERT whose checkpoint has no head, on a few labelled texts.
fn without_a_head() -> Bench {
    let mut bench = Bench::golden();
    let fixtures = crate::support::fixture().join("..");
    let row = |label: &str| json!({ "text": "a b c", "label": label }).to_string();
    let rows: Vec<String> = (0..24).map(|number| row(if number % 2 == 0 { "x" } else { "y" })).collect();
    let (path, tokenizer) = (bench.path("rows.jsonl"), bench.path("tokenizer.json"));
    std::fs::write(&path, rows.join("\n")).unwrap();
    let vocabulary = json!({ "[UNK]": 0, "a": 1, "b": 2, "c": 3 });
    let model = json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" });
    let parts = json!({ "version": "1.0", "pre_tokenizer": { "type": "Whitespace" }, "model": model });
    std::fs::write(&tokenizer, parts.to_string()).unwrap();
    bench
        .set("/model", json!({ "arch": "bert", "from": fixtures.join("bert-encoder") }))
        .set("/tokenizer", json!(tokenizer))
        .set("/data", json!({ "train": path, "max_length": 16 }))
        .set("/train/steps", json!(2))
        .set("/train/batch", json!("auto"));
    bench
}

#[test]
fn a_warning_of_the_measuring_process_is_no_answer() {
    for verb in ["fit", "train"] {
        let ended = without_a_head().run(verb).expect(0);
        assert_eq!(fitted(&ended).unwrap().batch, 8, "{verb}");
        let [warning] = ended.warnings()[..] else { panic!("{verb}: {:?}", ended.events) };
        assert!(warning.starts_with("not in the checkpoint, newly initialised: "), "{verb}: {warning}");
    }
}

#[test]
fn what_is_wrong_with_the_data_is_what_fit_reports() {
    let mut bench = without_a_head();
    bench.set("/data/train", json!("no-such-file.jsonl"));
    let ended = bench.run("fit").expect(3);
    assert_eq!(ended.stderr.matches("error: ").count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("error: no-such-file.jsonl: "), "{}", ended.stderr);
}

#[test]
fn a_stop_is_heard_while_batches_are_measured() {
    let bench = without_a_head();
    let child = bench.start_to("fit");
    let pid = child.id();
    // Stopped before it runs its own program, it would keep whoever starts it waiting, deaf to everything.
    let runs_its_program = |child: &i32| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"measure")
    };
    // A measuring process that is stopped gives no answer until someone lets it go on.
    let measuring = wait_for("a measuring process", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_ascii_whitespace().map(|child| child.parse().unwrap()).find(runs_its_program)
    });
    let signal = |pid: i32, signal: &str| {
        let sent = std::process::Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
        assert!(sent.success());
    };
    signal(measuring, "-STOP");
    signal(pid.cast_signed(), "-TERM");
    let ended = Ended::from(child.wait_with_output().unwrap());
    ended.expect(143);
}
