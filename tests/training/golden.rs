//! What Hugging Face computes: the fixtures t5-* hold models, batches and the answers of transformers.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};
use crate::kitchen::{curve, run_trainer};

pub fn tests(suite: &mut Suite) {
    for name in ["t5-gated", "t5-tied-relu", "t5-uneven", "t5-silu"] {
        let test = move || drop(compare(name, &fixture(name)));
        suite.test(&format!("golden::logits_and_gradients::{name}"), Needs::Nothing, test);
    }
    suite.test("golden::export_is_what_was_loaded", Needs::Nothing, || drop(exported()));
    suite.test("golden::export_loads_in_transformers", Needs::Transformers, in_transformers);
    for batch in [8, 4, 3] {
        suite.test(&format!("golden::t5_loss_curve_at_batch_{batch}"), Needs::Nothing, move || loss_curve(batch));
    }
}

pub fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures").join(name)
}

pub fn expected(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name).join("expect.json")).unwrap()).unwrap()
}

/// What `model` computes for the batch of the fixture `name`, against what transformers computed for it. The folder that
/// comes back holds it as out.safetensors.
pub fn compare(name: &str, model: &Path) -> Folder {
    let folder = Folder::new();
    let text = |path: PathBuf| path.display().to_string();
    let (batch, out) = (text(fixture(name).join("batch.safetensors")), text(folder.path().join("out.safetensors")));
    let model = text(model.to_owned());
    let figures = run_trainer(&["parity", "--model", &model, "--batch", &batch, "--out", &out]).exits(0).json();
    let expected = expected(name);
    for key in ["loss", "grad_norm"] {
        let (got, want) = (figures[key].as_f64().unwrap(), expected[key].as_f64().unwrap());
        assert!((got - want).abs() < 1e-4 * want.abs(), "{key}: {got} and {want}");
    }
    let (got, want) = (std::fs::read(&out).unwrap(), std::fs::read(fixture(name).join("expect.safetensors")).unwrap());
    let (got, want) = (SafeTensors::deserialize(&got).unwrap(), SafeTensors::deserialize(&want).unwrap());
    assert!(want.names().contains(&"logits"));
    for name in want.names() {
        let (got, want) = (floats(&got.tensor(name).unwrap()), floats(&want.tensor(name).unwrap()));
        assert_eq!(got.len(), want.len(), "{name}");
        let largest = want.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let apart = got.iter().zip(&want).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart <= 1e-4 * largest, "{name}: {apart} apart, the largest entry is {largest}");
    }
    folder
}

fn floats(tensor: &TensorView<'_>) -> Vec<f32> {
    tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// A training whose rate is 0 exports the model it began with.
fn exported() -> (Folder, PathBuf) {
    let (folder, model) = (Folder::new(), fixture("t5-gated"));
    folder.write(
        "still.yaml",
        format!(
            "version: 1\nname: still\nmodel: {{arch: t5, from: {}}}\ndata: {{train: {}}}\n\
             train: {{steps: 1, optimizer: {{lr: 0.0}}}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
            model.display(),
            model.join("train.jsonl").display()
        ),
    );
    folder.pipe(&["run", "still.yaml", "--engine", "process"]).exits(0);
    let exported = folder.run_folder().join("model");
    compare("t5-gated", &exported);
    (folder, exported)
}

fn in_transformers() {
    let (_folder, model) = exported();
    let compared = compare("t5-gated", &model);
    let output = std::process::Command::new("python3")
        .arg(repository().join("tests/export_check.py"))
        .arg(&model)
        .arg(fixture("t5-gated").join("batch.safetensors"))
        .arg(compared.path().join("out.safetensors"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn loss_curve(batch: u32) {
    let (fixture, expected) = (fixture("t5-gated"), expected("t5-gated"));
    let (hyper, optimizer) = (&expected["hyper"], &expected["optimizer"]);
    let folder = Folder::new();
    folder.write(
        "golden.yaml",
        format!(
            "version: 1\nname: golden\nmodel: {{arch: t5, from: {}}}\n\
             data: {{train: {}, max_source: {}, max_target: {}, shuffle: false}}\n\
             train:\n  steps: {}\n  batch: {batch}\n  effective_batch: {}\n  clip: {}\n  \
             optimizer: {{lr: {}, weight_decay: {}, decay: all}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
            fixture.display(),
            fixture.join("train.jsonl").display(),
            hyper["max_source"],
            hyper["max_target"],
            hyper["steps"],
            hyper["effective_batch"],
            hyper["clip"],
            optimizer["lr"],
            optimizer["weight_decay"],
        ),
    );
    folder.pipe(&["run", "golden.yaml", "--engine", "process"]).exits(0);
    let got = curve(&folder.run_folder());
    let want = expected["curve"].as_array().unwrap();
    assert_eq!(got.len(), want.len());
    for ((step, _, loss), want) in got.iter().zip(want) {
        let want = want.as_f64().unwrap();
        assert!((loss - want).abs() < 1e-3, "step {step}: {loss} and {want}");
    }
}
