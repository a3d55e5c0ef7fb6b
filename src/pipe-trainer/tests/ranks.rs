//! Several ranks: the same training as one, in every architecture; and nothing lost to one that is gone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::OnceLock;

use pipe_spec::event::{Eval, EventKind, Started, Step};
use serde_json::json;

use crate::classification::{balanced_dishes as bert_with_weights_of_classes, dishes as bert};
use crate::pictures::{self, resnet, vit};
use crate::support::{Bench, Ended, for_each_architecture, furthest, losses, step_line, wait_for};
use crate::tabular::dishes as bag_of_words;
use crate::{deberta, hybrid, mu_sota};

pub fn ranks(bench: &mut Bench, count: u32) -> &mut Bench {
    bench.set("/rank", json!({ "index": 0, "count": count })).set("/train/ranks", json!(count))
}

fn evals(ended: &Ended) -> Vec<&Eval> {
    ended.events.iter().filter_map(|event| if let EventKind::Eval(eval) = event { Some(eval) } else { None }).collect()
}

fn steps_of(ended: &Ended) -> Vec<&Step> {
    ended.events.iter().filter_map(|event| if let EventKind::Step(step) = event { Some(step) } else { None }).collect()
}

fn started(ended: &Ended) -> &Started {
    let started =
        ended.events.iter().find_map(|event| if let EventKind::Started(it) = event { Some(it) } else { None });
    started.expect("it has started")
}

/// How many ranks, and how each of them trains.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    count: u32,
    batch: u32,
    split: &'static str,
    shard: &'static str,
    checkpointing: bool,
}

const ONE: Ranks = Ranks { count: 1, batch: 13, split: "fixed", shard: "none", checkpointing: false };
const TWO: Ranks = Ranks { count: 2, ..ONE };
const THREE: Ranks = Ranks { count: 3, batch: 2, split: "fill", shard: "optimizer", checkpointing: true };
const FOUR: Ranks = Ranks { count: 4, batch: 1, split: "fill", ..ONE };

#[track_caller]
fn expect_three_to_change_nothing(bench: Bench) {
    expect_one_training(bench, 10, &[THREE]);
}

#[track_caller]
fn expect_no_number_to_change_anything(bench: Bench) {
    expect_one_training(bench, 30, &[TWO, THREE, FOUR]);
}

/// However many ranks there are, with dropout on: one training, and one evaluation. Steps have an odd number of samples, and the last
/// of an epoch has fewer than there are ranks.
#[track_caller]
fn expect_one_training(mut bench: Bench, steps: u32, all: &[Ranks]) {
    bench.set("/train/effective_batch", json!(13)).set("/train/steps", json!(steps)).set("/train/dropout", json!(0.2));
    bench
        .set("/train/optimizer/eps", json!(1e-6))
        .set("/evaluate/every", json!(steps / 2))
        .set("/evaluate/generate", json!(1));
    let mut run = |how: Ranks| {
        let folder = bench.path(&format!("run-{}", how.count));
        bench.set("/run", json!(folder)).set("/train/batch", json!(how.batch)).set("/train/split", json!(how.split));
        bench.set("/train/shard", json!(how.shard)).set("/train/checkpointing", json!(how.checkpointing));
        ranks(&mut bench, how.count).train().expect(0)
    };
    let one = run(ONE);
    for how in all {
        expect_the_same(&one, &run(*how), *how);
    }
}

#[track_caller]
fn expect_the_same(one: &Ended, several: &Ended, how: Ranks) {
    let (name, count) = (format!("{how:?}"), how.count);
    let apart = furthest(&losses(one), &losses(several));
    assert!(apart < 1e-5, "{name}: {apart}\n{:?}\n{:?}", losses(one), losses(several));
    assert_eq!((started(several).ranks, started(several).sums_by.as_deref()), (count, Some("gloo")), "{name}");
    for step in steps_of(several) {
        assert_eq!(step.ranks.len(), count as usize, "{name}");
        let parts = step.ranks.iter().map(|rank| rank.parts).sum::<u32>();
        assert_eq!(parts, step.parts, "{name}: {step:?}");
        assert!(step.ranks.iter().all(|rank| rank.peak > 0 && rank.peak <= step.peak), "{name}: {step:?}");
    }
    for (one, other) in evals(one).into_iter().zip(evals(several)) {
        assert_eq!((one.step, one.samples), (other.step, other.samples), "{name}");
        assert!((one.loss - other.loss).abs() < 1e-5, "{name}: {one:?} {other:?}");
        assert_eq!(one.scores.len(), other.scores.len(), "{name}: {one:?} {other:?}");
        // A text that is generated may turn at one token.
        for (score, value) in one.scores.iter().filter(|(name, _)| !["rouge_l", "exact_match"].contains(&name.as_str()))
        {
            let apart = (value - other.scores[score]).abs() / value.abs().max(1.0);
            assert!(apart < 1e-4, "{name}: {score} {one:?} {other:?}");
        }
    }
    assert_eq!(evals(several).len(), evals(one).len(), "{name}");
}

fn t5() -> Bench {
    Bench::recipes()
}

fn clip() -> Bench {
    pictures::bench(60, 13)
}

fn deberta() -> Bench {
    deberta::texts()
}

fn hybrid_cnn_lstm() -> Bench {
    let mut bench = hybrid::series();
    bench.set("/model/config/norm", json!("layer"));
    bench
}

fn mu_sota() -> Bench {
    mu_sota::bench(100)
}

for_each_architecture! {
    expect_three_to_change_nothing, expect_no_number_to_change_anything:
    t5, clip, bert, bert_with_weights_of_classes, deberta, hybrid_cnn_lstm, mu_sota, bag_of_words, vit
}

/// Batch norm takes the mean and variance of the samples of all ranks: those of one rank with all of them.
#[track_caller]
fn expect_batch_norm_over_all_ranks(mut bench: Bench, steps: u32, counts: &[(u32, u32)]) {
    bench.set("/train/effective_batch", json!(13)).set("/train/steps", json!(steps));
    bench.set("/train/optimizer/eps", json!(1e-4)).set("/evaluate/every", json!(steps / 2));
    let mut run = |count: u32, batch: u32| {
        let folder = bench.path(&format!("run-{count}-{batch}"));
        bench.set("/run", json!(folder)).set("/train/batch", json!(batch));
        ranks(&mut bench, count).train().expect(0)
    };
    let one = run(1, 13);
    for (count, batch) in counts {
        let several = run(*count, *batch);
        let apart = furthest(&losses(&one), &losses(&several));
        assert!(apart < 1e-5, "{count} ranks: {apart}\n{:?}\n{:?}", losses(&one), losses(&several));
        assert!(several.warnings().is_empty(), "{:?}", several.warnings());
    }
}

#[test]
fn batch_norm() {
    expect_batch_norm_over_all_ranks(hybrid::series(), 10, &[(3, 5)]);
}

#[test]
#[ignore = "test-all"]
fn batch_norm_over_any_number() {
    expect_batch_norm_over_all_ranks(hybrid::series(), 30, &[(2, 7), (3, 5), (4, 4), (4, 13)]);
}

#[test]
fn batch_norm_of_pictures() {
    expect_batch_norm_over_all_ranks(resnet(), 10, &[(3, 5)]);
}

fn bench() -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/train/steps", json!(9)).set("/save/every", json!(2)).set("/evaluate/every", json!(4));
    bench.set("/train/effective_batch", json!(13)).set("/train/batch", json!(2));
    bench
}

/// With the same number of ranks the same bits, in every precision; and whether each rank keeps all of the optimizer's state or its
/// share makes no difference to a single one.
#[track_caller]
fn expect_the_same_bits(cases: &[(&str, &str)]) {
    for (optimizer, precision) in cases {
        let run = |shard: &str| {
            let mut bench = bench();
            bench.set("/train/precision", json!(precision)).set("/train/optimizer/kind", json!(optimizer));
            bench.set("/train/deterministic", json!(true)).set("/train/shard", json!(shard));
            let curve = ranks(&mut bench, 3).train().expect(0).curve();
            (curve, bench.checkpoint_digests(9))
        };
        let first = run("none");
        assert_eq!(run("none"), first, "{optimizer} {precision}");
        assert_eq!(run("optimizer"), first, "{optimizer} {precision}");
    }
}

#[test]
fn the_same_ranks_give_the_same_bits() {
    expect_the_same_bits(&[("adamw", "fp32"), ("adamw8bit", "fp32"), ("adafactor", "bf16")]);
}

#[test]
#[ignore = "test-all"]
fn the_same_ranks_give_the_same_bits_in_every_precision() {
    expect_the_same_bits(&[("adamw", "bf16"), ("adamw", "fp16-mixed")]);
}

/// A checkpoint is the same file for any number of ranks: what 4 began, 1 and 3 go on with.
#[test]
fn another_number_of_ranks_goes_on() {
    let whole = losses(&bench().train().expect(0));
    for shard in ["none", "optimizer"] {
        let mut bench = bench();
        bench.set("/train/shard", json!(shard)).set("/save/keep", json!(20));
        let mut got = Vec::new();
        for (count, until) in [(4, 2), (1, 4), (3, 6), (2, 9)] {
            bench.set("/rank", json!({ "index": 0, "count": count })).set("/train/ranks", json!(count));
            got.extend(losses(&stop_after(&bench, until)));
        }
        let apart = furthest(&whole, &got);
        assert!(apart < 1e-5, "shard {shard}: {apart}\n{whole:?}\n{got:?}");
    }
}

/// Trains to the end, or to that step and not further.
fn stop_after(bench: &Bench, step: u64) -> Ended {
    let ended = bench.train().expect(0);
    bench.remove_checkpoints_after(step);
    let mut ended = ended;
    ended.events.retain(|event| !matches!(event, EventKind::Step(it) if it.step > step));
    ended
}

/// The processes of the ranks, by number.
pub fn processes(launcher: &Child) -> BTreeMap<u32, u32> {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", launcher.id())).unwrap_or_default();
    let rank = |process: &str| {
        let line = fs::read(format!("/proc/{process}/cmdline")).ok()?;
        let words: Vec<String> =
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let at = words.iter().position(|word| word == "--rank")?;
        Some((words[at + 1].parse().ok()?, process.parse().ok()?))
    };
    children.split_whitespace().filter_map(rank).collect()
}

/// Trains until a step is written, and sends a signal to some of the ranks, or to the process that started them.
fn strike(bench: &Bench, after: u64, signal: i32, which: impl Fn(u32) -> bool, launcher_too: bool) -> Ended {
    let mut child = bench.start();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut written = Vec::new();
    for line in lines.by_ref() {
        let line = line.unwrap();
        let is_it = line.contains(&step_line(after));
        written.push(line);
        if is_it {
            break;
        }
    }
    let targets = processes(&child);
    let chosen = targets.iter().filter(|(rank, _)| which(**rank)).map(|(_, process)| *process);
    for process in chosen.chain(launcher_too.then(|| child.id())) {
        // SAFETY: kill takes two integers, and these are ours.
        unsafe { libc::kill(process.cast_signed(), signal) };
    }
    let rest = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
    let output = child.wait_with_output().unwrap();
    written.extend(rest.join().unwrap());
    for process in targets.values() {
        wait_for("the end of every rank", || fs::metadata(format!("/proc/{process}/fd")).is_err().then_some(()));
    }
    let events = written.iter().filter_map(|line| pipe_spec::Event::parse(line)).map(|event| event.kind).collect();
    Ended { code: output.status.code(), stderr: String::from_utf8_lossy(&output.stderr).into_owned(), events }
}

pub fn long_bench() -> Bench {
    let mut bench = bench();
    bench.set("/train/steps", json!(40)).set("/save/every", json!(10)).set("/evaluate/every", json!(0));
    ranks(&mut bench, 3);
    bench
}

/// The losses of `long_bench` where nothing happens to it.
fn undisturbed() -> &'static [f64] {
    static LOSSES: OnceLock<Vec<f64>> = OnceLock::new();
    LOSSES.get_or_init(|| losses(&long_bench().train().expect(0)))
}

pub fn last_saved(bench: &Bench) -> u64 {
    let names = fs::read_dir(bench.run_folder().checkpoints()).unwrap().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix("step-")?.parse().ok()).max().unwrap_or(0)
}

/// One rank is killed: the others end, the first saves the last completed step, and the run goes on as if nothing had happened.
#[test]
fn a_rank_that_is_killed_costs_nothing() {
    let whole = undisturbed();
    for (rank, shard) in [(1, "none"), (2, "optimizer"), (0, "none")] {
        let mut bench = long_bench();
        bench.set("/train/shard", json!(shard));
        let struck = strike(&bench, 5, libc::SIGKILL, |other| other == rank, false);
        assert_eq!(struck.code, Some(137), "rank {rank}: {}", struck.stderr);
        let message = format!("error: rank {rank}: it was killed by signal 9");
        assert!(struck.stderr.contains(&message), "{}", struck.stderr);
        let done = struck.curve().len() as u64;
        // The first rank saves what it has. Its own death, and the loss of a share, cost the steps since the last checkpoint.
        let saves = rank != 0 && shard == "none";
        assert_eq!(
            last_saved(&bench),
            if saves { done } else { done / 10 * 10 },
            "rank {rank}, {shard}: {}",
            struck.stderr
        );
        let rest = losses(&bench.train().expect(0));
        assert_eq!(rest, whole[whole.len() - rest.len()..], "rank {rank}");
    }
}

#[test]
fn all_ranks_or_their_launcher_killed_cost_the_steps_since_the_last_checkpoint() {
    let whole = undisturbed();
    for launcher in [false, true] {
        let bench = long_bench();
        let struck = strike(&bench, 12, libc::SIGKILL, |_| !launcher, launcher);
        assert!(struck.code.is_none_or(|code| code == 137), "{:?} {}", struck.code, struck.stderr);
        let rest = losses(&bench.train().expect(0));
        assert_eq!(rest, whole[whole.len() - rest.len()..]);
        assert!(rest.len() <= 30, "{}", rest.len());
    }
}

/// Stopped by the launcher, or by any one of the ranks: all stop after the same step, which is saved.
#[test]
fn a_stop_is_agreed_between_ranks() {
    expect_a_stop_to_be_agreed(&[(None, "none"), (Some(2), "optimizer")]);
}

#[test]
#[ignore = "test-all"]
fn a_stop_of_any_rank_is_agreed_between_ranks() {
    expect_a_stop_to_be_agreed(&[(None, "optimizer"), (Some(0), "none")]);
}

/// A request to stop for one rank, or for the launcher: all end at the same step.
fn expect_a_stop_to_be_agreed(struck: &[(Option<u32>, &str)]) {
    let whole = undisturbed();
    for (rank, shard) in struck.iter().copied() {
        let mut bench = long_bench();
        bench.set("/train/shard", json!(shard));
        let struck = strike(&bench, 4, libc::SIGTERM, |other| Some(other) == rank, rank.is_none());
        assert_eq!(struck.code, Some(143), "{rank:?}: {}", struck.stderr);
        let done = struck.curve().len();
        assert!((4..40).contains(&done), "{done}");
        assert_eq!(last_saved(&bench), done as u64, "{rank:?} {shard}: {}", struck.stderr);
        let rest = losses(&bench.train().expect(0));
        assert_eq!(rest, whole[done..], "{rank:?}");
    }
}

/// A rank that hangs is named, and given up after train.rank_timeout; the others save.
#[test]
fn a_rank_that_hangs_is_found() {
    let whole = undisturbed();
    let mut bench = long_bench();
    bench.set("/train/rank_timeout", json!(2));
    let struck = strike(&bench, 3, libc::SIGSTOP, |rank| rank == 1, false);
    assert_eq!(struck.code, Some(1), "{}", struck.stderr);
    assert!(struck.stderr.contains("error: rank 1: it did nothing in phase "), "{}", struck.stderr);
    assert!(struck.stderr.contains("hint: raise train.rank_timeout"), "{}", struck.stderr);
    assert_eq!(last_saved(&bench), struck.curve().len() as u64, "{}", struck.stderr);
    let rest = losses(&bench.train().expect(0));
    assert_eq!(rest, whole[whole.len() - rest.len()..]);
}

/// A rank that cannot begin ends all of them, with its own words and exit code, and none waits for it.
#[test]
fn what_is_wrong_is_said_once() {
    let mut bench = bench();
    bench.set("/data/train", json!(bench.path("nowhere.jsonl")));
    let ended = ranks(&mut bench, 3).train().expect(3);
    assert_eq!(ended.stderr.matches("error: ").count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("nowhere.jsonl"), "{}", ended.stderr);
}
