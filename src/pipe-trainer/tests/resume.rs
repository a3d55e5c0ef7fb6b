//! Stopping, going on, and what is refused.

use std::fs;

use crate::support::{Bench, Ended, step_line, struck};
use pipe_spec::EventKind;
use serde_json::json;

fn bench() -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/train/steps", json!(9)).set("/save/every", json!(2)).set("/evaluate/every", json!(3));
    bench
}

#[test]
fn a_run_that_was_stopped_and_killed_ends_with_the_same_bits() {
    let adamw = ["fp32", "bf16", "bf16-mixed", "fp16-mixed"].map(|precision| ("adamw", precision));
    let adafactor = ["fp32", "bf16", "fp16-mixed"].map(|precision| ("adafactor", precision));
    for (optimizer, precision) in adamw.into_iter().chain(adafactor) {
        let bench = || {
            let mut bench = bench();
            bench.set("/train/precision", json!(precision)).set("/train/optimizer/kind", json!(optimizer));
            bench
        };
        let whole = bench();
        let curve = whole.train().expect(0).curve();
        let broken = struck(bench, &[(step_line(3), libc::SIGTERM), (step_line(6), libc::SIGKILL)]);
        let rest = broken.train().expect(0).curve();
        assert_eq!(rest, curve[curve.len() - rest.len()..]);
        assert_eq!(whole.checkpoint_digests(9), broken.checkpoint_digests(9), "{optimizer} {precision}");
    }
}

#[test]
fn a_complete_run_only_exports_again() {
    let bench = bench();
    bench.train().expect(0);
    fs::remove_dir_all(bench.run_folder().model()).unwrap();
    let again = bench.train().expect(0);
    assert!(matches!(again.events.as_slice(), [EventKind::Started(_), EventKind::Finished(_)]), "{:?}", again.events);
    assert!(bench.run_folder().model().join("model.safetensors").exists());
}

#[test]
fn a_damaged_checkpoint_costs_a_warning_and_the_steps_since_the_one_before() {
    let bench = bench();
    bench.train().expect(0);
    let whole = bench.checkpoint_digests(9);
    let file = bench.run_folder().checkpoints().join("step-00000009/optimizer.safetensors");
    fs::write(&file, &fs::read(&file).unwrap()[..1000]).unwrap();
    let again = bench.train().expect(0);
    assert!(matches!(&again.events[0], EventKind::Warning(warning) if warning.message.contains("1000 bytes")));
    assert_eq!(again.curve().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [9]);
    assert_eq!(whole, bench.checkpoint_digests(9));
}

#[test]
fn another_effective_batch_or_seed_is_refused() {
    for (pointer, value) in [("/train/effective_batch", json!(16)), ("/train/seed", json!(7))] {
        let mut bench = bench();
        bench.train().expect(0);
        let ended: Ended = bench.set(pointer, value).train().expect(3);
        assert!(ended.stderr.contains("error: the checkpoint "), "{}", ended.stderr);
    }
}

#[test]
fn the_result_trains_on_as_a_model_of_its_own() {
    let mut bench = Bench::recipes();
    bench.set("/train/steps", json!(2)).train().expect(0);
    let model = bench.path("exported");
    fs::rename(bench.run_folder().model(), &model).unwrap();
    fs::remove_dir_all(bench.run_folder().path()).unwrap();
    bench.set("/model", json!({ "arch": "t5", "from": model })).train().expect(0);
}
