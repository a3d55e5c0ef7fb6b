//! Stopping, going on, and what is refused; trainings of one process; and the end of the program that started one.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use pipe_spec::EventKind;
use serde_json::json;

use crate::support::{Bench, Ended, step_line, struck, trainer, wait_for};
use crate::{classification, hybrid, pairs};

fn bench() -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/train/steps", json!(9)).set("/save/every", json!(2)).set("/evaluate/every", json!(3));
    bench
}

#[test]
fn a_run_that_was_stopped_and_killed_ends_with_the_same_bits() {
    expect_the_same_bits(&[("adamw", "fp32"), ("adamw8bit", "bf16"), ("adafactor", "fp16-mixed")]);
}

#[test]
#[ignore = "test-all"]
fn a_run_that_was_stopped_and_killed_ends_with_the_same_bits_in_every_precision() {
    let adamw = ["bf16", "bf16-mixed", "fp16-mixed"].map(|precision| ("adamw", precision));
    let adafactor = ["fp32", "bf16"].map(|precision| ("adafactor", precision));
    expect_the_same_bits(&[adamw.as_slice(), &adafactor].concat());
}

/// Stopped, killed and resumed, with each optimizer and precision.
fn expect_the_same_bits(settings: &[(&str, &str)]) {
    for (optimizer, precision) in settings {
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

fn benches() -> Vec<Bench> {
    let bf16 = {
        let mut bench = Bench::recipes();
        bench.set("/train/precision", json!("bf16")).set("/train/checkpointing", json!(true));
        bench
    };
    let mut all = vec![Bench::recipes(), bf16, classification::dishes(), pairs::bench(60, 5), hybrid::series()];
    for (bench, seed) in all.iter_mut().zip(5..) {
        bench.set("/train/steps", json!(6)).set("/train/dropout", json!(0.2)).set("/train/seed", json!(seed));
        bench.set("/evaluate/every", json!(3));
    }
    all
}

#[test]
fn trainings_of_one_process_do_not_disturb_each_other() {
    let result = |bench: &Bench, ended: Ended| (ended.expect(0).curve(), bench.checkpoint_digests(6));
    let alone: Vec<_> = benches().iter().map(|bench| result(bench, bench.run("train"))).collect();
    let benches = benches();
    let together: Vec<_> = std::thread::scope(|scope| {
        let train = |bench| scope.spawn(move || result(bench, bench.train()));
        let threads: Vec<_> = benches.iter().map(train).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

/// Its stdin is the lease.
fn start(bench: &Bench) -> Child {
    let spec = bench.path("spec.json");
    fs::write(&spec, bench.spec.to_string()).unwrap();
    let mut command = trainer();
    command.args(["train", "--spec"]).arg(spec).env("PIPE_LEASE", "stdin");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[track_caller]
fn end_of(child: &mut Child) -> ExitStatus {
    wait_for("the end", || child.try_wait().unwrap())
}

#[test]
fn while_it_loads_it_ends_at_once() {
    let mut bench = Bench::golden();
    // Nothing is ever written into it: a reader waits.
    let data = bench.path("endless.jsonl");
    assert!(Command::new("mkfifo").arg(&data).status().unwrap().success());
    let mut child = start(bench.set("/data/train", json!(data)));
    // Can be opened once the trainer reads.
    let open = || fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&data).ok();
    let writer = wait_for("the reading of its data", open);
    drop(child.stdin.take());
    assert!(!end_of(&mut child).success());
    drop(writer);
}

#[test]
fn while_it_trains_it_saves_and_ends() {
    let mut bench = Bench::golden();
    let mut child = start(bench.set("/train/steps", json!(1_000_000)));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().contains("\"type\":\"step\"")).unwrap().unwrap();
    drop(child.stdin.take());
    let rest = std::thread::spawn(move || lines.count());
    assert_eq!(end_of(&mut child).code(), Some(143));
    rest.join().unwrap();
    assert_eq!(fs::read_dir(bench.run_folder().checkpoints()).unwrap().count(), 1);
}

/// The process that measures batches for a training: none may be left.
fn measurers(bench: &Bench) -> usize {
    let spec = bench.path("spec.json").display().to_string();
    let measures = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<String> = String::from_utf8_lossy(&line).split('\0').map(str::to_owned).collect();
        words.contains(&"measure".to_owned()) && words.contains(&spec)
    };
    fs::read_dir("/proc").unwrap().flatten().filter(measures).count()
}

#[test]
fn what_it_started_ends_with_it() {
    let mut bench = Bench::golden();
    // Large enough that a batch takes a while.
    bench.set("/train/batch", json!("auto")).set("/train/effective_batch", json!(100_000));
    let mut child = start(&bench);
    wait_for("a measurement", || (measurers(&bench) > 0).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of what measures", || (measurers(&bench) == 0).then_some(()));
}
