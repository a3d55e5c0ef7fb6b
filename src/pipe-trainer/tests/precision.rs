//! Precisions and gradient checkpointing: what may change the numbers, and what must not.

use crate::support::{Bench, furthest};
use serde_json::json;

fn bench(precision: &str) -> Bench {
    let mut bench = Bench::recipes();
    bench
        .set("/train/dropout", json!(0.0))
        .set("/train/steps", json!(25))
        .set("/train/precision", json!(precision))
        .set("/save/every", json!(0));
    bench
}

fn losses(bench: &Bench) -> Vec<f64> {
    crate::support::losses(&bench.train().expect(0))
}

#[test]
fn every_precision_learns_and_stays_near_fp32() {
    let reference = losses(&bench("fp32"));
    assert!(reference[24] < 0.7 * reference[0], "{reference:?}");
    assert_eq!(losses(&bench("tf32")), reference);
    for (precision, near) in [("bf16-mixed", 0.02), ("fp16-mixed", 0.02), ("bf16", 0.05)] {
        let losses = losses(&bench(precision));
        let apart = furthest(&losses, &reference);
        assert!(apart > 0.0, "{precision} computes in fp32");
        assert!(apart < near * reference[0], "{precision} is {apart} from fp32: {losses:?} {reference:?}");
    }
}

#[test]
fn adafactor_learns() {
    let adafactor = |precision| {
        let mut bench = bench(precision);
        bench.set("/train/optimizer/kind", json!("adafactor")).set("/train/optimizer/lr", json!(0.01));
        losses(&bench)
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
        let mut plain = bench(precision);
        plain.set("/train/dropout", json!(0.2)).set("/train/steps", json!(6));
        let mut checkpointing = bench(precision);
        checkpointing.set("/train/dropout", json!(0.2)).set("/train/steps", json!(6));
        checkpointing.set("/train/checkpointing", json!(true));
        assert!(furthest(&losses(&plain), &losses(&checkpointing)) < 1e-6, "{precision}");
    }
}
