//! A training on a card of 16 GiB where a batch holds 2 GiB and 100 MiB for each sample.

use std::fs;

use pipe_spec::event::{OomRecord, Point, RankUse, Step};
use pipe_spec::pipeline::Precision;
use pipe_spec::{EventKind, Phase, TrainerExit, TrainerSpec};

use crate::events::{Events, MIB, Shortage, job_folder, rehearsed, step};

pub const TOTAL: u64 = 16 * 1024 * MIB;

fn needed(batch: u32) -> u64 {
    (2048 + 100 * u64::from(batch)) * MIB
}

/// Runs out of memory for the reason in the first word: `free` none but the batch, `crowded` other processes while the file that
/// follows exists, `fragmented` unless segments can grow, `model` the model itself unless it is computed in bf16. The last of several
/// ranks is the one that does.
pub fn run(spec: &TrainerSpec, events: &mut Events, words: &[&str]) {
    let batch = spec.train.batch();
    match words[0] {
        "crowded" if fs::exists(words[1]).unwrap_or(false) => {
            fail(spec, events, shortage(Phase::Forward, 4096, 4000, 100, 12_188));
        }
        "fragmented" if !spec.memory.allocator.expandable_segments => {
            fail(spec, events, shortage(Phase::Backward, 14_000, 13_000, 300, 0));
        }
        "model" if spec.train.precision != Precision::Bf16 => {
            fail(spec, events, shortage(Phase::Load, 16_000, 16_000, 300, 0));
        }
        _ if needed(batch) > TOTAL => {
            let points = [8, 16].map(|batch| Point { batch, peak: needed(batch) }).to_vec();
            fail(spec, events, Shortage { points, ..shortage(Phase::Backward, 16_000, 16_000, 300, 0) });
        }
        _ => {
            events.emit(rehearsed(batch, needed(batch)));
            (1..=3).for_each(|number| events.emit(EventKind::Step(shared_step(spec, number))));
        }
    }
}

/// A step as several ranks do it: each holds 100 MiB more than the one before, and is slower.
pub fn shared_step(spec: &TrainerSpec, number: u64) -> Step {
    let one = |rank: u64| RankUse {
        peak: (rank + 1) * 100 * MIB,
        ms: 10.0 * (rank + 1) as f64,
        parts: 1,
        ..RankUse::default()
    };
    let ranks: Vec<RankUse> = (0..u64::from(spec.rank.count)).map(one).collect();
    let plain = step(number, 10.0 / number as f64);
    match ranks.len() {
        1 => plain,
        _ => Step { peak: ranks.iter().map(|rank| rank.peak).max().unwrap_or(0), ranks, ..plain },
    }
}

/// Sizes in MiB.
fn shortage(phase: Phase, reserved: u64, allocated: u64, free: u64, others: u64) -> Shortage {
    Shortage {
        phase,
        reserved: reserved * MIB,
        allocated: allocated * MIB,
        free: free * MIB,
        others: others * MIB,
        points: Vec::new(),
    }
}

fn fail(spec: &TrainerSpec, events: &mut Events, shortage: Shortage) -> ! {
    let record = OomRecord { rank: spec.rank.count - 1, ..shortage.record(spec.train.batch(), TOTAL) };
    let text = serde_json::to_string(&record).expect("a record is plain data");
    fs::write(job_folder(spec).oom(), text).expect("the record");
    events.emit(EventKind::Oom(record));
    crate::exit(TrainerExit::DeviceOutOfMemory)
}
