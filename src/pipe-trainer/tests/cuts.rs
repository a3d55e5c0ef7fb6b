//! One training, however a step is cut, with dropout on, in every architecture and precision, and however often it is stopped and
//! continued; what is refused; trainings of one process; and the end of the program that started one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use pipe_spec::event::{Rehearsed, Step};
use pipe_spec::run::checkpoint_name;
use pipe_spec::{EventKind, RunFolder};
use safetensors::SafeTensors;
use serde_json::json;

use crate::classification::{self, balanced_dishes as bert_with_weights_of_classes, dishes as bert};
use crate::pictures::{self, vit};
use crate::support::{Bench, Ended, for_each_architecture, furthest, losses, step_line, struck, trainer, wait_for};
use crate::tabular::{customers as tabular, dishes as bag_of_words, spending as tabular_with_a_number};
use crate::{deberta, hybrid, mu_sota};

fn t5() -> Bench {
    Bench::recipes()
}

fn roberta() -> Bench {
    let mut bench = bert();
    bench.set("/model/arch", json!("roberta"));
    bench
}

fn deberta() -> Bench {
    let mut bench = deberta::texts();
    bench.set("/model/config/conv_kernel_size", json!(3));
    bench
}

fn hybrid_cnn_lstm() -> Bench {
    let mut bench = hybrid::series();
    bench.set("/model/config/norm", json!("layer"));
    bench
}

fn mu_sota() -> Bench {
    mu_sota::bench(100)
}

fn clip() -> Bench {
    pictures::bench(60, 5)
}

for_each_architecture! {
    expect_one_cut_to_change_nothing, expect_no_cut_to_change_anything:
    t5, clip, bert, bert_with_weights_of_classes, roberta, deberta, hybrid_cnn_lstm, mu_sota, bag_of_words, tabular,
    tabular_with_a_number, vit
}

#[test]
fn no_cut_changes_thirty_steps() {
    expect_cuts_to_change_nothing(Bench::recipes(), [(0.3, &[(5, "fill", true), (1, "fixed", false)])]);
}

#[test]
fn no_cut_changes_thirty_contrastive_steps() {
    expect_cuts_to_change_nothing(clip(), [(0.3, &[(5, "fill", true), (1, "fixed", false)])]);
}

/// A part's samples at most, how they are put together, and whether it checkpoints.
type Cut = (u32, &'static str, bool);

const WHOLE: Cut = (12, "fixed", false);

/// Trains with steps of 12 samples.
fn train(bench: &mut Bench, steps: u32, dropout: f64, (batch, split, checkpointing): Cut) -> (Vec<f64>, RunFolder) {
    bench.set("/train/effective_batch", json!(12)).set("/data/eval", json!(null));
    // A gradient that is nothing but rounding is no step of full size.
    bench.set("/train/optimizer/eps", json!(1e-6));
    let folder = bench.path(&format!("run-{steps}-{dropout}-{batch}-{split}-{checkpointing}"));
    bench.set("/run", json!(folder)).set("/train/dropout", json!(dropout)).set("/train/batch", json!(batch));
    bench.set("/train/steps", json!(steps)).set("/train/checkpointing", json!(checkpointing));
    bench.set("/train/split", json!(split));
    (losses(&bench.train().expect(0)), RunFolder::new(folder))
}

#[track_caller]
fn expect_the_same(whole: &[f64], cut: &[f64], dropout: f64, how: Cut) {
    let apart = furthest(whole, cut);
    assert!(apart < 1e-5, "dropout {dropout}, batch, split and checkpointing {how:?}: {apart}\n{whole:?}\n{cut:?}");
}

/// Ten steps whole and ten of short parts that are recomputed.
#[track_caller]
fn expect_one_cut_to_change_nothing(mut bench: Bench) {
    let (dropout, how) = (0.3, (5, "fill", true));
    let (whole, _) = train(&mut bench, 10, dropout, WHOLE);
    expect_the_same(&whole, &train(&mut bench, 10, dropout, how).0, dropout, how);
}

#[track_caller]
fn expect_no_cut_to_change_anything(bench: Bench) {
    let cuts: [(f64, &[Cut]); 2] = [
        (0.1, &[(12, "fixed", true), (7, "fixed", false), (5, "fill", true)]),
        (0.3, &[(11, "fixed", true), (2, "fill", false), (1, "fixed", false)]),
    ];
    expect_cuts_to_change_nothing(bench, cuts);
}

/// However a step is cut, with checkpointing and without, what dropout drops included: one training over 30 steps, and the same
/// gradient at the first.
#[track_caller]
fn expect_cuts_to_change_nothing<const N: usize>(mut bench: Bench, cuts: [(f64, &[Cut]); N]) {
    let mut run = |steps: u32, dropout: f64, how: Cut| train(&mut bench, steps, dropout, how);
    let (without, _) = run(2, 0.0, WHOLE);
    for (dropout, cuts) in cuts {
        let (whole, _) = run(30, dropout, WHOLE);
        for how in cuts {
            expect_the_same(&whole, &run(30, dropout, *how).0, dropout, *how);
        }
        assert!(furthest(&without, &whole[..2]) > 1e-4, "nothing is dropped: {whole:?} {without:?}");
    }

    let (whole, cut) = (first_gradients(&run(1, 0.3, WHOLE).1), first_gradients(&run(1, 0.3, (5, "fixed", false)).1));
    for (name, whole) in whole {
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        let apart = norm(&mut whole.iter().zip(&cut[&name]).map(|(a, b)| a - b));
        // Some, such as the bias of keys, have a true gradient of 0.
        let size = norm(&mut whole.iter().copied()).max(1e-3);
        assert!(apart < 1e-5 * size, "{name}: {apart} of {size}");
    }
}

/// By parameter, up to one factor: after one step AdamW's average is the gradient.
fn first_gradients(run: &RunFolder) -> BTreeMap<String, Vec<f32>> {
    let file = fs::read(run.checkpoints().join(checkpoint_name(1)).join("optimizer.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let numbers = |bytes: &[u8]| bytes.chunks(4).map(|number| f32::from_le_bytes(number.try_into().unwrap())).collect();
    let averages =
        tensors.tensors().into_iter().filter(|(name, _)| name.contains("exp_avg") && !name.contains("exp_avg_sq"));
    let averages: BTreeMap<String, Vec<f32>> = averages.map(|(name, view)| (name, numbers(view.data()))).collect();
    assert!(averages.len() > 1, "{:?}", tensors.names());
    averages
}

/// Recipes are shorter than their limits, so that a part of full length holds several times as many of them.
fn filled(split: &str) -> Bench {
    let mut bench = Bench::recipes();
    bench
        .set("/train/effective_batch", json!(24))
        .set("/train/batch", json!(3))
        .set("/train/split", json!(split))
        .set("/data/max_source", json!(256))
        .set("/data/max_target", json!(256));
    bench
}

fn steps_of(ended: &Ended) -> Vec<Step> {
    let step = |event: &EventKind| if let EventKind::Step(step) = event { Some(step.clone()) } else { None };
    ended.events.iter().filter_map(step).collect()
}

fn rehearsed(ended: &Ended) -> &Rehearsed {
    let rehearsed = ended.events.iter().find_map(|event| match event {
        EventKind::Rehearsed(rehearsed) => Some(rehearsed),
        _ => None,
    });
    rehearsed.expect("it was rehearsed")
}

#[test]
fn short_samples_make_few_parts_and_the_same_training() {
    // In a process of its own, whose peaks are those of this training.
    let (fixed, fill) = (filled("fixed").train().expect(0), filled("fill").run("train").expect(0));
    assert!(steps_of(&fixed).iter().all(|step| step.parts == 8 && step.filled.is_none()), "{:?}", steps_of(&fixed));
    for step in steps_of(&fill) {
        let filled = step.filled.unwrap();
        assert!(step.parts <= 3 && filled > 0.2 && filled <= 1.0, "{step:?}");
    }
    let apart = furthest(&losses(&fixed), &losses(&fill));
    assert!(apart < 1e-5, "{apart}");
    // The rehearsed part is as large as those of the training.
    assert!(rehearsed(&fill).peak >= steps_of(&fill).iter().map(|step| step.peak).max().unwrap() / 10 * 9);
}

#[test]
fn a_killed_run_ends_with_the_same_bits() {
    let filled = || {
        let mut bench = filled("fill");
        bench.set("/train/steps", json!(9)).set("/save/every", json!(2)).set("/evaluate/every", json!(3));
        bench
    };
    let whole = filled();
    whole.train().expect(0);
    let broken = struck(filled, &[(step_line(5), libc::SIGKILL)]);
    broken.train().expect(0);
    assert_eq!(whole.checkpoint_digests(9), broken.checkpoint_digests(9));
}

#[test]
fn a_model_without_an_estimate_is_cut_by_tokens() {
    let mut bench = Bench::dishes(30);
    let data = bench.path("data");
    bench
        .set("/tokenizer", json!(data.join("tokenizer.json")))
        .set("/model", json!({ "arch": "bag-of-words", "config": { "vocab_size": 192, "hidden_size": 32 } }))
        .set("/data", json!({ "train": data.join("train.jsonl"), "max_length": 256 }))
        .set("/train/effective_batch", json!(24))
        .set("/train/batch", json!(4))
        .set("/train/split", json!("fill"));
    assert!(steps_of(&bench.train().expect(0)).iter().all(|step| step.parts < 6));
}

fn of_precision(precision: &str) -> Bench {
    let mut bench = Bench::recipes();
    bench
        .set("/train/dropout", json!(0.0))
        .set("/train/steps", json!(25))
        .set("/train/precision", json!(precision))
        .set("/save/every", json!(0));
    bench
}

fn curve(bench: &Bench) -> Vec<f64> {
    losses(&bench.train().expect(0))
}

#[test]
fn every_precision_learns_and_stays_near_fp32() {
    let few = crate::support::narrow_steps(25);
    let short = |precision: &str| curve(of_precision(precision).set("/train/steps", json!(few)));
    let reference = curve(&of_precision("fp32"));
    assert!(reference[24] < 0.7 * reference[0], "{reference:?}");
    assert_eq!(short("tf32"), reference[..few]);
    for (precision, near) in [("bf16-mixed", 0.02), ("fp16-mixed", 0.02), ("bf16", 0.05)] {
        let losses = short(precision);
        let apart = furthest(&losses, &reference[..few]);
        assert!(apart > 0.0, "{precision} computes in fp32");
        assert!(apart < near * reference[0], "{precision} is {apart} from fp32: {losses:?} {reference:?}");
    }
}

#[test]
fn adafactor_learns() {
    let adafactor = |precision| {
        let mut bench = of_precision(precision);
        bench.set("/train/optimizer/kind", json!("adafactor")).set("/train/optimizer/lr", json!(0.01));
        curve(&bench)
    };
    let reference = adafactor("fp32");
    assert!(reference[24] < 0.7 * reference[0], "{reference:?}");
    let narrow = adafactor("bf16");
    assert!(narrow[24] < 0.7 * narrow[0], "{narrow:?}");
    let apart = furthest(&narrow, &reference);
    assert!(apart < 0.05 * reference[0], "bf16 is {apart} from fp32: {narrow:?} {reference:?}");
}

#[test]
fn checkpointing_gives_the_same_training_with_dropout_on() {
    for precision in ["fp32", "bf16"] {
        let mut plain = of_precision(precision);
        plain.set("/train/dropout", json!(0.2)).set("/train/steps", json!(6));
        let mut checkpointing = of_precision(precision);
        checkpointing.set("/train/dropout", json!(0.2)).set("/train/steps", json!(6));
        checkpointing.set("/train/checkpointing", json!(true));
        assert!(furthest(&curve(&plain), &curve(&checkpointing)) < 1e-6, "{precision}");
    }
}

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
    let mut all = vec![Bench::recipes(), bf16, classification::dishes(), pictures::bench(60, 5), hybrid::series()];
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
