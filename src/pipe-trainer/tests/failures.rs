//! How a training that cannot go on ends.

use std::fs;

use crate::support::Bench;
use pipe_spec::event::{EventKind, MemoryKind, OomRecord, Phase};
use serde_json::json;

/// A model whose steps need a few hundred megabytes, much more in one batch than in several.
fn large() -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/train/batch", json!(64)).set("/train/effective_batch", json!(64)).set("/train/steps", json!(3));
    bench.set("/data/pad", json!("max"));
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
    assert_eq!((record.longest_sequence, record.total), (Some(128), Some(150 << 20)));
    assert!(record.requested.unwrap() > record.free.unwrap() / 2, "{record:?}");
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
            "crlf.csv line 5: 3 values; the first line names 2 columns",
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
