//! Memory before the first step: the longest samples first, and the search for the largest batch.

use crate::support::{Bench, Ended, wait_for};
use pipe_spec::EventKind;
use pipe_spec::event::{Fitted, Measured, Rehearsed};
use serde_json::json;

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
