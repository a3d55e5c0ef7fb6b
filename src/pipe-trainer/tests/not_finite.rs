//! Weights that are not finite are never saved: the last good checkpoint stays.

use std::fs;
use std::path::PathBuf;

use crate::support::Bench;
use safetensors::SafeTensors;
use serde_json::json;

/// Every value of every tensor of a file.
fn values(file: &PathBuf) -> Vec<f32> {
    let bytes = fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let all = tensors.tensors().into_iter().flat_map(|(_, view)| view.data().to_vec()).collect::<Vec<u8>>();
    all.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// The names of the checkpoints that are there, all of which must hold numbers only.
fn checkpoints(bench: &Bench) -> Vec<String> {
    let folder = bench.run_folder().checkpoints();
    let mut names: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in &names {
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let bad = values(&folder.join(name).join(file)).iter().filter(|value| !value.is_finite()).count();
            assert_eq!(bad, 0, "{name}/{file}");
        }
    }
    names
}

fn bench(lr: f64) -> Bench {
    let mut bench = Bench::golden();
    bench.set("/train/optimizer/lr", json!(lr)).set("/train/clip", json!(0.0));
    bench.set("/save", json!({ "every": 1, "keep": 1 }));
    bench
}

#[test]
fn weights_that_became_infinite_do_not_replace_the_last_good_ones() {
    let mut bench = bench(1e39);
    // The first step changes nothing; the second makes the weights infinite, at a loss that is still a number.
    bench.set("/train/schedule", json!({ "warmup": 1 }));
    let ended = bench.train().expect(44);
    assert_eq!(ended.curve().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2], "{}", ended.stderr);
    assert!(ended.stderr.contains("error: step 2: "), "{}", ended.stderr);
    assert!(ended.stderr.contains(" is not finite, so nothing of this step was saved"), "{}", ended.stderr);
    assert!(ended.stderr.contains("step-00000001"), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: lower train.optimizer.lr"), "{}", ended.stderr);
    assert_eq!(checkpoints(&bench), ["step-00000001"]);
    assert!(!bench.run_folder().model().exists());

    // The same at the end of the training, where the last step is saved and exported.
    bench.set("/train/steps", json!(2)).set("/save/every", json!(0)).set("/attempt", json!(2));
    bench.train().expect(44);
    assert_eq!(checkpoints(&bench), ["step-00000001"]);
    assert!(!bench.run_folder().model().exists());
}

#[test]
fn a_loss_that_is_not_finite_saves_nothing() {
    // Large, but finite, after the first step; the loss of the second is not.
    let bench = bench(1e30);
    let ended = bench.train().expect(44);
    assert!(ended.stderr.contains("error: step 2: the "), "{}", ended.stderr);
    assert_eq!(checkpoints(&bench), ["step-00000001"]);
}
