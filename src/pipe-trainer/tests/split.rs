//! `train.split: fill`: parts by what they hold instead of by count.

use pipe_spec::EventKind;
use pipe_spec::event::{Rehearsed, Step};
use serde_json::json;

use crate::support::{Bench, Ended, furthest, losses, step_line, struck};

/// Recipes are shorter than their limits, so that a part of full length holds several times as many of them.
fn bench(split: &str) -> Bench {
    let mut bench = Bench::recipes();
    bench
        .set("/train/effective_batch", json!(24))
        .set("/train/batch", json!(3))
        .set("/train/split", json!(split))
        .set("/data/max_source", json!(256))
        .set("/data/max_target", json!(256));
    bench
}

fn steps(ended: &Ended) -> Vec<Step> {
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
    let (fixed, fill) = (bench("fixed").train().expect(0), bench("fill").run("train").expect(0));
    assert!(steps(&fixed).iter().all(|step| step.parts == 8 && step.filled.is_none()), "{:?}", steps(&fixed));
    for step in steps(&fill) {
        let filled = step.filled.unwrap();
        assert!(step.parts <= 3 && filled > 0.2 && filled <= 1.0, "{step:?}");
    }
    let apart = furthest(&losses(&fixed), &losses(&fill));
    assert!(apart < 1e-5, "{apart}");
    // What is rehearsed is as large as what is trained.
    assert!(rehearsed(&fill).peak >= steps(&fill).iter().map(|step| step.peak).max().unwrap() / 10 * 9);
}

#[test]
fn a_killed_run_ends_with_the_same_bits() {
    let filled = || {
        let mut bench = bench("fill");
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
    assert!(steps(&bench.train().expect(0)).iter().all(|step| step.parts < 6));
}
