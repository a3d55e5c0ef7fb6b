//! Evaluation measures the model and shows what it writes, and changes nothing.

use crate::support::{Bench, Ended};
use pipe_spec::event::{Eval, EventKind, Sample};
use serde_json::json;

fn evals(ended: &Ended) -> Vec<&Eval> {
    let mut evals = Vec::new();
    for event in &ended.events {
        if let EventKind::Eval(eval) = event {
            evals.push(eval);
        }
    }
    evals
}

fn samples(ended: &Ended) -> Vec<&Sample> {
    let mut samples = Vec::new();
    for event in &ended.events {
        if let EventKind::Sample(sample) = event {
            samples.push(sample);
        }
    }
    samples
}

fn bench(evaluate: serde_json::Value) -> Bench {
    let mut bench = Bench::recipes();
    bench.set("/train/steps", json!(6)).set("/save/every", json!(3)).set("/evaluate", evaluate);
    bench
}

#[test]
fn a_run_that_is_watched_ends_with_the_same_bits() {
    let watched = bench(json!({ "every": 2, "generate": 2, "batch": 3 }));
    let mut alone = bench(json!({}));
    alone.set("/data/eval", json!(null));
    let (ended, undisturbed) = (watched.train().expect(0), alone.train().expect(0));
    assert_eq!(ended.curve(), undisturbed.curve());
    assert_eq!(watched.checkpoint_digests(6), alone.checkpoint_digests(6));
    assert_eq!((evals(&ended).len(), samples(&ended).len()), (3, 6));
    assert!(evals(&undisturbed).is_empty());
}

#[test]
fn texts_are_written_where_they_are_asked_for() {
    let silent = bench(json!({ "every": 3 })).train().expect(0);
    assert!(samples(&silent).is_empty());
    assert!(evals(&silent).iter().all(|eval| !eval.scores.contains_key("exact_match")));
    // More than there are rows for.
    let all = bench(json!({ "generate": 1000 })).train().expect(0);
    assert_eq!(samples(&all).len() as u64, evals(&all)[0].samples);
}

#[test]
fn a_model_that_has_learned_its_data_writes_it() {
    let mut bench = Bench::golden();
    let rows = std::fs::read_to_string(crate::support::fixture().join("train.jsonl")).unwrap();
    let rows: Vec<&str> = rows.lines().take(4).collect();
    std::fs::write(bench.path("few.jsonl"), rows.join("\n")).unwrap();
    let few = json!(bench.path("few.jsonl"));
    bench
        .set("/data/train", few.clone())
        .set("/data/eval", few)
        .set("/evaluate", json!({ "every": 20, "generate": 2 }));
    bench.set("/data/max_target", json!(128));
    bench.set("/train/steps", json!(120)).set("/train/batch", json!(4)).set("/train/effective_batch", json!(4));
    let ended = bench.train().expect(0);
    let evals = evals(&ended);
    let (first, last) = (evals[0], evals[evals.len() - 1]);
    assert!(
        first.scores["exact_match"] < 1.0 && first.scores["rouge_l"] < last.scores["rouge_l"],
        "{first:?} {last:?}"
    );
    assert_eq!(
        (last.scores["exact_match"], last.scores["rouge_l"]),
        (1.0, 1.0),
        "{last:?} {:?}",
        samples(&ended).last()
    );
    let written = samples(&ended);
    let [.., one, two] = written.as_slice() else { panic!("{written:?}") };
    for (sample, row) in [one, two].into_iter().zip(rows) {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!((json!(sample.source), json!(sample.target)), (row["source"].clone(), row["target"].clone()));
        assert_eq!((sample.step, &sample.generated), (120, &sample.target));
    }
}

/// A fifth of 100 rows, no two of which are the same, is kept for evaluation.
fn share(seed: u64) -> Bench {
    let mut bench = bench(json!({ "generate": 100 }));
    let all = std::fs::read_to_string(bench.path("data/train.jsonl")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let source = |row: &str| serde_json::from_str::<serde_json::Value>(row).unwrap()["ingredients"].to_string();
    let rows: Vec<&str> = all.lines().filter(|row| seen.insert(source(row))).take(100).collect();
    let path = bench.path("rows.jsonl");
    std::fs::write(&path, rows.join("\n")).unwrap();
    bench.set("/data/train", json!(path)).set("/data/eval", json!(null)).set("/data/eval_share", json!(0.2));
    bench.set("/train/steps", json!(null)).set("/train/epochs", json!(1)).set("/train/seed", json!(seed));
    bench
}

#[test]
fn a_share_of_the_rows_is_kept_for_evaluation() {
    let kept = |ended: &Ended| samples(ended).iter().map(|sample| json!(sample.source)).collect::<Vec<_>>();
    let mut bench = share(1);
    let ended = bench.train().expect(0);
    let started =
        ended.events.iter().find_map(|event| if let EventKind::Started(one) = event { Some(one) } else { None });
    assert_eq!((evals(&ended)[0].samples, started.unwrap().samples), (20, 80));
    assert_ne!(kept(&ended), kept(&share(2).train().expect(0)));
    // As two files would be: the same rows are trained on, the others evaluated.
    let all = std::fs::read_to_string(bench.path("rows.jsonl")).unwrap();
    let sources = kept(&ended);
    let is_kept =
        |row: &&str| sources.contains(&serde_json::from_str::<serde_json::Value>(row).unwrap()["ingredients"]);
    let (eval, train): (Vec<&str>, Vec<&str>) = all.lines().partition(is_kept);
    for (key, rows) in [("train", train), ("eval", eval)] {
        let path = bench.path(&format!("{key}-part.jsonl"));
        std::fs::write(&path, rows.join("\n")).unwrap();
        bench.set(&format!("/data/{key}"), json!(path));
    }
    std::fs::remove_dir_all(bench.run_folder().path()).unwrap();
    let files = bench.set("/data/eval_share", json!(0.0)).train().expect(0);
    assert_eq!(files.curve(), ended.curve());
    assert_eq!((evals(&files)[0].loss, kept(&files)), (evals(&ended)[0].loss, sources));
}
