//! A published model: all-MiniLM-L6-v2, a BERT that was trained to embed sentences.

use std::collections::HashMap;
use std::path::PathBuf;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite, suite};
use crate::small_t5::{curve, events, run_parity, run_trainer};

pub fn tests(suite: &mut Suite) {
    suite.test("minilm::embeddings_are_those_of_transformers", Needs::MiniLm, embeddings);
    suite.test("minilm::learns_another_task", Needs::MiniLm, learns);
}

fn model(file: &str) -> PathBuf {
    suite::minilm().join(file)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn embeddings() {
    let expected = std::fs::read(repository().join("tests/fixtures/minilm/expect.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let rows = tokenized(&expected);
    let hidden = last_hidden_states(&rows);
    let embeddings: Vec<Vec<f64>> = hidden.iter().map(|states| mean(states)).collect();
    let lengths: Vec<f64> = embeddings.iter().map(|row| dot(row, row).sqrt()).collect();
    for (row, embedding) in embeddings.iter().enumerate() {
        near(&embedding[..8], &numbers(&expected["beginnings"][row]), 1e-5);
        let cosine = |other: usize| dot(embedding, &embeddings[other]) / (lengths[row] * lengths[other]);
        let cosines: Vec<f64> = (0..embeddings.len()).map(cosine).collect();
        near(&cosines, &numbers(&expected["cosines"][row]), 1e-5);
    }
    near(&lengths, &numbers(&expected["lengths"]), 1e-4);
}

#[track_caller]
fn near(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() <= tolerance), "{got:?} and {want:?}");
}

/// The tokens of the sentences, which are those that transformers makes of them.
fn tokenized(expected: &Value) -> Vec<Vec<i64>> {
    let mut tokenizer = Tokenizer::from_file(model("tokenizer.json")).unwrap();
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).unwrap();
    let mut rows = Vec::new();
    for (sentence, want) in
        expected["sentences"].as_array().unwrap().iter().zip(expected["input_ids"].as_array().unwrap())
    {
        let encoding = tokenizer.encode(sentence.as_str().unwrap(), true).unwrap();
        let ids: Vec<i64> = encoding.get_ids().iter().map(|id| i64::from(*id)).collect();
        assert_eq!(Value::from(ids.clone()), *want, "{sentence}");
        rows.push(ids);
    }
    rows
}

/// The states of the tokens of each row.
fn last_hidden_states(rows: &[Vec<i64>]) -> Vec<Vec<Vec<f64>>> {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let longest = rows.iter().map(Vec::len).max().unwrap();
    let padded = |fill: &dyn Fn(&[i64], usize) -> i64| -> Vec<u8> {
        let places = rows.iter().flat_map(|row| (0..longest).map(move |index| (row, index)));
        places.flat_map(|(row, index)| fill(row, index).to_le_bytes()).collect()
    };
    let ids = padded(&|row, index| row.get(index).copied().unwrap_or(0));
    let mask = padded(&|row, index| i64::from(index < row.len()));
    let labels = vec![0; 8 * rows.len()];
    let shape = vec![rows.len(), longest];
    let tensors: HashMap<&str, TensorView<'_>> =
        [("input_ids", shape.clone(), &ids), ("attention_mask", shape, &mask), ("labels", vec![rows.len()], &labels)]
            .into_iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::I64, shape, bytes).unwrap()))
            .collect();
    folder.write("batch.safetensors", safetensors::serialize(tensors, None).unwrap());
    let (batch, out) = (path("batch.safetensors"), path("out.safetensors"));
    let index = suite::minilm().display().to_string();
    run_parity(&index, &batch, &out).exits(0);

    let bytes = std::fs::read(&out).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let hidden = file.tensor("last_hidden_state").unwrap();
    assert_eq!(hidden.shape(), [rows.len(), longest, 384]);
    let values: Vec<f64> =
        hidden.data().chunks_exact(4).map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()))).collect();
    let states: Vec<Vec<f64>> = values.chunks(384).map(<[f64]>::to_vec).collect();
    states.chunks(longest).zip(rows).map(|(states, row)| states[..row.len()].to_vec()).collect()
}

fn mean(states: &[Vec<f64>]) -> Vec<f64> {
    (0..384).map(|index| states.iter().map(|state| state[index]).sum::<f64>() / states.len() as f64).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Its encoder and a new head learn to classify dishes.
fn learns() {
    let folder = Folder::new();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    run_trainer(&["data", "texts", "--rows", "400", "--eval-rows", "60", "--seed", "5", "--out", data]).exits(0);
    folder.write(
        "minilm.yaml",
        format!(
            "version: 1\nname: minilm\nmodel: {{arch: bert, from: {}}}\n\
             data: {{train: data/train.jsonl, eval: data/eval.jsonl, max_length: 40}}\n\
             train: {{steps: 32, batch: 8, optimizer: {{lr: 2.0e-4}}, schedule: {{kind: linear, warmup: 4}}, clip: 1.0}}\n\
             evaluate: {{batch: 20}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
            suite::minilm().display()
        ),
    );
    folder.pipe(&["run", "minilm.yaml", "--engine", "process"]).exits(0);
    let run = folder.run_folder();
    let losses: Vec<f64> = curve(&run).into_iter().map(|(_, _, loss)| loss).collect();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[26..]) < 0.7 * mean(&losses[..6]), "{losses:?}");
    let events = events(&run);
    let eval = events.iter().find(|event| event["type"] == "eval").unwrap();
    // A third would be chance.
    assert!(eval["accuracy"].as_f64().unwrap() > 0.7, "{eval}");
    let warning = events.iter().find(|event| event["type"] == "warning").unwrap();
    assert!(warning["message"].as_str().unwrap().contains("classifier.weight, classifier.bias"), "{warning}");
}
