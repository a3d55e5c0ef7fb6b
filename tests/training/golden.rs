//! What Hugging Face computes: the fixtures hold models, batches and the answers of transformers.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::harness::folder::repository;
use crate::harness::suite::transformers;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, run_parity_with};

/// A model of `tests/fixtures` that has been trained by transformers.
struct Golden {
    fixture: &'static str,
    arch: &'static str,
    /// The pipeline's `data`; `{}` is the fixture's folder.
    data: &'static str,
}

const MODELS: &[Golden] = &[
    Golden {
        fixture: "t5-gated",
        arch: "t5",
        data: "{train: {}/train.jsonl, max_source: 48, max_target: 64, shuffle: false}",
    },
    Golden { fixture: "bert", arch: "bert", data: "{train: {}/train.jsonl, max_length: 40, shuffle: false}" },
    Golden { fixture: "roberta", arch: "roberta", data: "{train: {}/train.jsonl, max_length: 40, shuffle: false}" },
    Golden {
        fixture: "deberta-v3",
        arch: "deberta-v3",
        data: "{train: {}/train.jsonl, max_length: 40, shuffle: false}",
    },
    Golden { fixture: "clip", arch: "clip", data: "{train: {}/train.jsonl, shuffle: false}" },
];

/// Other configurations, for which transformers has computed one batch.
const OTHERS: &[&str] = &[
    "t5-tied-relu",
    "t5-uneven",
    "t5-silu",
    "bert-regression",
    "bert-several",
    "bert-tokens",
    "roberta-tokens",
    "deberta-tokens",
    "bert-encoder",
    "roberta-encoder",
    "xlm-roberta",
    "clip-gelu",
    "clip-greatest",
    "deberta-own-keys",
    "deberta-c2p",
    "deberta-p2c",
    "deberta-conv",
    "deberta-absolute",
    "deberta-encoder",
    "t5-lora",
    "bert-lora",
    "roberta-lora",
    "deberta-lora",
    "clip-lora",
    "llama-biases",
    "llama-linear",
    "llama-lora",
    "llama-nf4",
    "llama-rope3",
    "llama-yarn",
    "mistral-window",
    "qwen2-window",
    "qwen3",
];

pub fn tests(suite: &mut Suite) {
    for name in MODELS.iter().map(|model| model.fixture).chain(OTHERS.iter().copied()) {
        let test = move || drop(compare(name, &fixture(name)));
        suite.test(&format!("golden::logits_and_gradients::{name}"), Needs::Nothing, test);
        let packed = move || drop(compare_parts(name, &fixture(name), true));
        suite.test(&format!("golden::packed_samples::{name}"), Needs::Nothing, packed);
    }
    for model in MODELS {
        let name = model.fixture;
        suite.test(&format!("golden::export_is_what_was_loaded::{name}"), Needs::Nothing, || drop(exported(model)));
        suite.test(&format!("golden::export_loads_in_transformers::{name}"), Needs::Transformers, || {
            in_transformers(model);
        });
        for batch in [8, 3] {
            let test = move || loss_curve(model, batch);
            suite.test(&format!("golden::loss_curve::{name}::batch_{batch}"), Needs::Nothing, test);
        }
        suite.thorough(&format!("golden::loss_curve::{name}::batch_4"), Needs::Nothing, || loss_curve(model, 4));
    }
}

impl Golden {
    fn folder(&self) -> PathBuf {
        fixture(self.fixture)
    }

    /// A pipeline that trains it as `train` says.
    fn pipeline(&self, train: &str) -> String {
        let folder = self.folder().display().to_string();
        format!(
            "version: 1\nname: golden\nmodel: {{arch: {}, from: {folder}}}\ndata: {}\ntrain: {train}\n\
             container: {{gpus: 0, cpus: 1}}\n",
            self.arch,
            self.data.replace("{}", &folder)
        )
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
    compare_with(name, model, &[])
}

/// The same where samples may be `packed`, one behind the other: then nothing is computed for padding.
fn compare_parts(name: &str, model: &Path, packed: bool) -> Folder {
    compare_with(name, model, if packed { &["--packed"] } else { &[] })
}

/// The same with more arguments.
pub fn compare_with(name: &str, model: &Path, more: &[&str]) -> Folder {
    let folder = Folder::new();
    let text = |path: PathBuf| path.display().to_string();
    let (batch, out) = (text(fixture(name).join("batch.safetensors")), text(folder.path().join("out.safetensors")));
    let model = text(model.to_owned());
    let packed = more.contains(&"--packed");
    let figures = run_parity_with(&model, &batch, &out, more).exits(0).json();
    let expected = expected(name);
    for key in ["loss", "grad_norm"] {
        // A newly initialised head has no expected value.
        let Some(want) = expected[key].as_f64() else { continue };
        let got = figures[key].as_f64().unwrap();
        assert!((got - want).abs() < 1e-4 * want.abs(), "{key}: {got} and {want}");
    }
    let batch = std::fs::read(&batch).unwrap();
    let batch = SafeTensors::deserialize(&batch).unwrap();
    let (got, want) = (std::fs::read(&out).unwrap(), std::fs::read(fixture(name).join("expect.safetensors")).unwrap());
    let (got, want) = (SafeTensors::deserialize(&got).unwrap(), SafeTensors::deserialize(&want).unwrap());
    let outputs = ["logits", "last_hidden_state", "logits_per_image"];
    assert!(want.names().iter().any(|name| outputs.contains(name)));
    // A gradient that is only rounding, such as that of the bias of keys, is not compared.
    let rounding = expected["grad_norm"].as_f64().unwrap_or(0.0) as f32 * 1e-3;
    // The logits after a short training are compared elsewhere.
    for name in want.names().into_iter().filter(|name| *name != "trained") {
        let want = want.tensor(name).unwrap();
        let are_tokens = are_tokens(&batch, want.shape()).filter(|_| packed && outputs.contains(&name));
        let (got, want) = (floats(&got.tensor(name).unwrap()), floats(&want));
        assert_eq!(got.len(), want.len(), "{name}");
        let largest = want.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let width = are_tokens.as_ref().map_or(1, |are_tokens| want.len() / are_tokens.len());
        let is_compared = |at: &usize| are_tokens.as_ref().is_none_or(|are_tokens| are_tokens[at / width]);
        let compared: Vec<usize> = (0..want.len()).filter(is_compared).collect();
        assert!(compared.len() * 2 > want.len(), "{name}: little is compared");
        let apart = compared.iter().fold(0.0f32, |most, at| most.max((got[*at] - want[*at]).abs()));
        let tolerance = 1e-4 * if name.starts_with("grad.") { largest.max(rounding) } else { largest };
        assert!(apart <= tolerance, "{name}: {apart} apart, the largest entry is {largest}");
    }
    folder
}

/// Whether there is a token, for outputs of this shape that has one row for each: where the mask of the text says so, or a label counts.
fn are_tokens(batch: &SafeTensors<'_>, shape: &[usize]) -> Option<Vec<bool>> {
    let &[samples, length, _] = shape else { return None };
    ["attention_mask", "labels"].into_iter().find_map(|name| {
        let tensor = batch.tensor(name).ok().filter(|tensor| tensor.shape() == [samples, length])?;
        let numbers = tensor.data().chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()));
        Some(numbers.map(|number| if name == "labels" { number >= 0 } else { number != 0 }).collect())
    })
}

pub fn floats(tensor: &TensorView<'_>) -> Vec<f32> {
    tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// A training with a learning rate of 0 exports the model that it loaded.
fn exported(model: &Golden) -> (Folder, PathBuf) {
    let folder = Folder::new();
    folder.write("golden.yaml", model.pipeline("{steps: 1, optimizer: {lr: 0.0}}"));
    folder.pipe(&["run", "golden.yaml", "--engine", "process"]).exits(0);
    let exported = folder.run_folder().join("model");
    compare(model.fixture, &exported);
    (folder, exported)
}

fn in_transformers(model: &Golden) {
    let (_folder, exported) = exported(model);
    let compared = compare(model.fixture, &exported);
    let output = transformers()
        .arg(repository().join("tests/export_check.py"))
        .arg(&exported)
        .arg(model.folder().join("batch.safetensors"))
        .arg(compared.path().join("out.safetensors"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn loss_curve(model: &Golden, batch: u32) {
    let expected = expected(model.fixture);
    let (hyper, optimizer) = (&expected["hyper"], &expected["optimizer"]);
    let folder = Folder::new();
    let train = format!(
        "{{steps: {}, batch: {batch}, effective_batch: {}, clip: {}, optimizer: {{lr: {}, weight_decay: {}, decay: all}}}}",
        hyper["steps"], hyper["effective_batch"], hyper["clip"], optimizer["lr"], optimizer["weight_decay"],
    );
    folder.write("golden.yaml", model.pipeline(&train));
    folder.pipe(&["run", "golden.yaml", "--engine", "process"]).exits(0);
    let got = curve(&folder.run_folder());
    let want = expected["curve"].as_array().unwrap();
    assert_eq!(got.len(), want.len());
    for ((step, _, loss), want) in got.iter().zip(want) {
        let want = want.as_f64().unwrap();
        assert!((loss - want).abs() < 1e-3, "step {step}: {loss} and {want}");
    }
}
