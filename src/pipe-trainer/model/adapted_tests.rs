//! A model with an adapter computes the same for samples that stand one behind the other as for rows, dropout included.

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Adapter;
use tch::{Device, Tensor};

use super::{Definition, Drawn, Mode, Model, Setup, Start};
use crate::data::{Column, IGNORED, Padding, PartShape, Sample};

const LENGTHS: [usize; 4] = [9, 5, 3, 2];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// Its files have no adapter, so its second matrices are 0: what it drops is seen in their gradients.
fn model(definition: &Definition) -> Box<dyn Model> {
    let files = definition.trained().unwrap().unwrap();
    let setup = Setup { dropout: Some(0.1), ..Setup::plain() };
    definition.build(&Start::Tensors { files: &files, seed: 5 }, &setup).unwrap()
}

fn adapted(name: &str) -> Definition {
    let adapter = Adapter { dropout: 0.3, ..Adapter::default() };
    Definition::from_folder(&fixture(name)).unwrap().with_adapter(Some(&adapter)).unwrap()
}

fn tokens(length: usize, first: usize) -> Vec<i64> {
    (0..length as i64).map(|at| 4 + (at * 7 + first as i64 * 5) % 50).collect()
}

fn same(definition: &Definition, samples: &[Sample]) {
    let model = model(definition);
    let padding = |(column, with)| Padding { column, with, length: None, most: 16 };
    let names = [("input_ids", 0), ("ids", 0), ("labels", IGNORED), ("rejected_ids", 0), ("rejected_labels", IGNORED)];
    let rows = PartShape::new(&names.map(padding), Device::Cpu);
    let compute = |shape: &PartShape| -> (f64, i64, Vec<Tensor>) {
        model.weights().forget_gradients().unwrap();
        let part = shape.collate(samples).unwrap();
        let loss = model.loss_sum(&part, Mode::Train(Drawn::new(7, 3))).unwrap();
        loss.backward();
        let gradients = model.weights().gradients().unwrap().iter().map(Tensor::copy).collect();
        (loss.double_value(&[]), model.targets(&part).unwrap(), gradients)
    };
    let (loss, targets, gradients) = compute(&rows);
    for shape in [rows.clone().packed(4), rows.packed(4).in_few_lengths()] {
        let packed = compute(&shape);
        assert!((packed.0 - loss).abs() < 1e-5 * loss.abs(), "{} and {loss}", packed.0);
        assert_eq!(packed.1, targets);
        assert_eq!(packed.2.len(), gradients.len());
        for ((name, _), (got, want)) in model.weights().trained().zip(packed.2.iter().zip(&gradients)) {
            assert!(got.allclose(want, 1e-4, 1e-5, false), "{name}");
        }
        assert!(gradients.iter().any(|gradient| gradient.abs().max().double_value(&[]) > 1e-4));
    }
}

#[test]
fn sources_and_targets() {
    let sample = |(number, length): (usize, &usize)| Sample {
        columns: vec![
            ("input_ids", Column::Tokens(tokens(*length, number))),
            ("attention_mask", Column::Tokens(vec![1; *length])),
            ("labels", Column::Tokens(tokens(11 - length, number + 1))),
        ],
        targets: 11 - *length as u64,
    };
    same(&adapted("t5-lora"), &LENGTHS.iter().enumerate().map(sample).collect::<Vec<_>>());
}

#[test]
fn texts_with_a_class() {
    let sample = |(number, length): (usize, &usize)| Sample {
        columns: vec![
            ("input_ids", Column::Tokens(tokens(*length, number))),
            ("attention_mask", Column::Tokens(vec![1; *length])),
            ("token_type_ids", Column::Tokens(vec![0; *length])),
            ("labels", Column::Whole(number as i64 % 3)),
        ],
        targets: 1,
    };
    same(&adapted("bert-lora"), &LENGTHS.iter().enumerate().map(sample).collect::<Vec<_>>());
}

/// A pair of answers, of which the third are as long as each other.
#[test]
fn pairs_of_answers() {
    let side = |length: usize, number: usize| {
        let ids = tokens(length, number);
        let labels = ids.iter().enumerate().map(|(at, id)| if at == 0 { IGNORED } else { *id }).collect();
        (Column::Tokens(ids), Column::PerToken(labels))
    };
    let samples = LENGTHS.iter().zip([4, 8, 3, 7]).enumerate().map(|(number, (length, other))| {
        let ((ids, labels), (rejected, rejected_labels)) = (side(*length, number), side(other, number + 3));
        let columns =
            vec![("ids", ids), ("labels", labels), ("rejected_ids", rejected), ("rejected_labels", rejected_labels)];
        Sample { columns, targets: 1 }
    });
    let samples: Vec<Sample> = samples.collect();
    same(&adapted("llama-lora").of_pairs(), &samples);
    same(&Definition::from_folder(&fixture("llama-lora")).unwrap().of_pairs(), &samples);
}
