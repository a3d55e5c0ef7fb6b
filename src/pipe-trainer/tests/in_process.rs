//! Trainings in one process, several at once: the same bits as each in a process of its own.

use crate::support::{Bench, Ended};
use crate::{classification, hybrid, pairs};
use serde_json::json;

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
