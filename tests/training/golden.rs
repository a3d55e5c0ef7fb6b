//! What Hugging Face computes: `tests/fixtures/t5-gated` holds a model, a batch and the answers of transformers.

use std::path::PathBuf;

use serde_json::Value;

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};
use crate::kitchen::{curve, run_trainer};

pub fn tests(suite: &mut Suite) {
    suite.test("golden::t5_logits_and_gradients", Needs::Nothing, logits_and_gradients);
    for batch in [8, 4, 3] {
        suite.test(&format!("golden::t5_loss_curve_at_batch_{batch}"), Needs::Nothing, move || loss_curve(batch));
    }
}

fn fixture() -> PathBuf {
    repository().join("tests/fixtures/t5-gated")
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(fixture().join("expect.json")).unwrap()).unwrap()
}

fn logits_and_gradients() {
    let (fixture, folder) = (fixture(), Folder::new());
    let out = folder.path().join("out.safetensors");
    let path = |name: &str| fixture.join(name).display().to_string();
    let answer = run_trainer(&[
        "parity",
        "--model",
        fixture.to_str().unwrap(),
        "--batch",
        &path("batch.safetensors"),
        "--out",
        out.to_str().unwrap(),
    ]);
    let figures = answer.exits(0).json();
    for key in ["loss", "grad_norm"] {
        let (got, want) = (figures[key].as_f64().unwrap(), expected()[key].as_f64().unwrap());
        assert!((got - want).abs() < 1e-4 * want.abs(), "{key}: {got} and {want}");
    }
    let (got, want) = (std::fs::read(&out).unwrap(), std::fs::read(fixture.join("expect.safetensors")).unwrap());
    let got = safetensors::SafeTensors::deserialize(&got).unwrap();
    let want = safetensors::SafeTensors::deserialize(&want).unwrap();
    assert!(want.names().contains(&"logits"));
    for name in want.names() {
        let (got, want) = (floats(&got.tensor(name).unwrap()), floats(&want.tensor(name).unwrap()));
        assert_eq!(got.len(), want.len(), "{name}");
        let largest = want.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let apart = got.iter().zip(&want).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart <= 1e-4 * largest, "{name}: {apart} apart, the largest entry is {largest}");
    }
}

fn floats(tensor: &safetensors::tensor::TensorView<'_>) -> Vec<f32> {
    tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn loss_curve(batch: u32) {
    let expected = expected();
    let (hyper, optimizer) = (&expected["hyper"], &expected["optimizer"]);
    let folder = Folder::new();
    let data = fixture().join("train.jsonl").display().to_string();
    folder.write(
        "golden.yaml",
        format!(
            "version: 1\nname: golden\nmodel: {{arch: t5, from: {}}}\n\
             data: {{train: {data}, max_source: {}, max_target: {}, shuffle: false}}\n\
             train:\n  steps: {}\n  batch: {batch}\n  effective_batch: {}\n  clip: {}\n  \
             optimizer: {{lr: {}, weight_decay: {}, decay: all}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
            fixture().display(),
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
