//! What torch computes for HybridCNNLSTM: logits, gradients, and the loss of each step at any batch.

use crate::golden::{compare, expected, fixture};
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, run_trainer};

pub fn tests(suite: &mut Suite) {
    for name in ["hybrid-cnn-lstm", "hybrid-batch-norm", "hybrid-deep"] {
        let test = move || drop(compare(name, &fixture(name)));
        suite.test(&format!("golden::logits_and_gradients::{name}"), Needs::Nothing, test);
    }
    for batch in [8, 4, 3] {
        let name = format!("golden::hybrid_loss_curve_at_batch_{batch}");
        suite.test(&name, Needs::Nothing, move || loss_curve(batch));
    }
    suite.test("golden::hybrid_export_is_what_was_loaded", Needs::Nothing, export);
    suite.test("inputs::bad_series_are_named", Needs::Nothing, bad_series);
}

fn pipeline(data: &str, train: &str) -> String {
    format!(
        "version: 1\nname: hybrid\nmodel: {{arch: hybrid-cnn-lstm, from: {}}}\ndata: {{train: {data}}}\n\
         train: {{{train}}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
        fixture("hybrid-cnn-lstm").display()
    )
}

/// The three batches one after the other, over and over.
fn loss_curve(batch: u32) {
    let (fixture, expected) = (fixture("hybrid-cnn-lstm"), expected("hybrid-cnn-lstm"));
    let (hyper, optimizer) = (&expected["hyper"], &expected["optimizer"]);
    let files = ["batch", "batch-1", "batch-2"].map(|name| format!("{}/{name}.safetensors", fixture.display()));
    let folder = Folder::new();
    folder.write(
        "golden.yaml",
        pipeline(
            &format!("[{}], shuffle: false", files.join(", ")),
            &format!(
                "steps: {}, batch: {batch}, effective_batch: {}, clip: {}, \
                 optimizer: {{lr: {}, weight_decay: {}, decay: all}}",
                hyper["steps"], hyper["effective_batch"], hyper["clip"], optimizer["lr"], optimizer["weight_decay"],
            ),
        ),
    );
    folder.pipe(&["run", "golden.yaml", "--engine", "process"]).exits(0);
    let (got, want) = (curve(&folder.run_folder()), expected["curve"].as_array().unwrap());
    assert_eq!(got.len(), want.len());
    for ((step, _, loss), want) in got.iter().zip(want) {
        let want = want.as_f64().unwrap();
        assert!((loss - want).abs() < 1e-3, "step {step}: {loss} and {want}");
    }
}

/// A training with a learning rate of 0 exports the model that it loaded.
fn export() {
    let folder = Folder::new();
    let data = fixture("hybrid-cnn-lstm").join("batch.safetensors");
    folder.write("still.yaml", pipeline(&data.display().to_string(), "steps: 1, optimizer: {lr: 0.0}"));
    folder.pipe(&["run", "still.yaml", "--engine", "process"]).exits(0);
    compare("hybrid-cnn-lstm", &folder.run_folder().join("model"));
}

fn bad_series() {
    let folder = Folder::new();
    let data = folder.path().join("data");
    run_trainer(&["data", "series", "--rows", "80", "--seed", "1", "--features", "6", "--out", data.to_str().unwrap()])
        .exits(0);
    folder.write("series.yaml", pipeline("data/train.csv, eval_share: 0.4", "steps: 1"));
    folder.pipe(&["run", "series.yaml", "--engine", "process"]).exits(0);
    let good = folder.read("data/train.csv");
    let here = data.join("train.csv").display().to_string();
    for (from, to, want) in [
        ("\n7,", "\n7,x", format!("{here} line 9: column \"f0\" holds")),
        ("\n7,", "\n5,", format!("{here} line 9: column \"time\" falls from \"6\" to \"5\"")),
        ("f5,label", "f5,class", format!("{here} line 1: no column \"label\"; it has: time, f0")),
        ("time,", "moment,", format!("{here} line 1: 7 features (moment, f0")),
    ] {
        folder.write("data/train.csv", good.replace(from, to));
        folder.pipe(&["run", "series.yaml", "--engine", "process"]).exits(3).says(&want);
    }
    folder.write("data/train.csv", good.lines().take(40).collect::<Vec<_>>().join("\n"));
    folder.pipe(&["run", "series.yaml", "--engine", "process"]).exits(3).says(&format!("{here}: 16 rows"));
}
