//! Packed samples against a row for each: the same loss and the same gradients, with dropout, for every model that takes both.

use serde_json::{Value, json};
use tch::{Device, Tensor};

use super::pass::Setup;
use super::{Definition, Drawn, Mode, Model, Start};
use crate::data::{Column, IGNORED, Padding, Part, PartShape, Sample};

const WORDS: i64 = 40;

/// Longest first, as in a training.
const RAGGED: &[usize] = &[9, 7, 7, 4, 3, 1];

fn tokens(length: usize, sample: usize) -> Vec<i64> {
    (0..length as i64).map(|at| 2 + (at * at * 7 + 11 * sample as i64 + 3 * at) % (WORDS - 2)).collect()
}

/// Texts with a mask. In each whose number is even, some columns after the first token are hidden.
fn text(length: usize, number: usize, hides: bool) -> Vec<(&'static str, Column)> {
    let mut mask = vec![1; length];
    if hides && number.is_multiple_of(2) {
        mask.iter_mut().skip(2).take(2).for_each(|shown| *shown = 0);
    }
    vec![("input_ids", Column::Tokens(tokens(length, number))), ("attention_mask", Column::Tokens(mask))]
}

fn classes(lengths: &[usize], hides: bool) -> Vec<Sample> {
    let sample = |(number, length): (usize, &usize)| {
        let label = ("labels", Column::Whole(number as i64 % 2));
        Sample { columns: text(*length, number, hides).into_iter().chain([label]).collect(), targets: 1 }
    };
    lengths.iter().enumerate().map(sample).collect()
}

fn token_labels(lengths: &[usize]) -> Vec<Sample> {
    let sample = |(number, length): (usize, &usize)| {
        let label = |at: usize| if (at + number).is_multiple_of(3) { IGNORED } else { (at % 2) as i64 };
        let labels = ("labels", Column::PerToken((0..*length).map(label).collect()));
        Sample { columns: text(*length, number, false).into_iter().chain([labels]).collect(), targets: 1 }
    };
    lengths.iter().enumerate().map(sample).collect()
}

fn pairs_of_texts(lengths: &[usize]) -> Vec<Sample> {
    let sample = |(number, length): (usize, &usize)| {
        let labels = ("labels", Column::Tokens(tokens(2 + (5 * number) % 8, number + 20)));
        Sample { columns: text(*length, number, false).into_iter().chain([labels]).collect(), targets: 1 }
    };
    lengths.iter().enumerate().map(sample).collect()
}

fn rows_of_text(lengths: &[usize]) -> Vec<Sample> {
    let sample = |(number, length): (usize, &usize)| {
        let ids = tokens(*length, number);
        Sample { columns: vec![("ids", Column::Tokens(ids.clone())), ("labels", Column::PerToken(ids))], targets: 1 }
    };
    lengths.iter().enumerate().map(sample).collect()
}

/// Pictures with texts that end with token 1, which is padding too.
fn pairs(lengths: &[usize]) -> Vec<Sample> {
    let sample = |(number, length): (usize, &usize)| {
        let ids = tokens(length - 1, number).into_iter().chain([1]).collect();
        let values = (0..3 * 8 * 8).map(|at| ((at * (number + 3)) % 17) as f32 / 8.0 - 1.0).collect();
        let picture = Column::Values { shape: vec![3, 8, 8], values };
        Sample { columns: vec![("pixel_values", picture), ("input_ids", Column::Tokens(ids))], targets: 1 }
    };
    lengths.iter().enumerate().map(sample).collect()
}

fn model(arch: &str, config: &Value, setup: &Setup) -> Box<dyn Model> {
    let model = serde_json::from_value(json!({ "arch": arch, "config": config })).unwrap();
    Definition::from_spec(&model).unwrap().build(&Start::Random { seed: 3 }, setup).unwrap()
}

/// The loss of a part and its gradient, where the part begins with the sixth sample of its step.
fn computed(model: &dyn Model, part: &Part) -> (f64, Tensor) {
    model.weights().forget_gradients().unwrap();
    let mode = Mode::Train(Drawn::new(7, 5));
    let loss = match model.contrastive() {
        Some(contrastive) => contrastive.loss(&contrastive.embed(part, mode).unwrap()).unwrap(),
        None => model.loss_sum(part, mode).unwrap(),
    };
    loss.backward();
    let gradients: Vec<Tensor> = model.weights().gradients().unwrap().iter().map(|part| part.reshape([-1])).collect();
    (loss.double_value(&[]), Tensor::cat(&gradients, 0))
}

/// With and without rounding, checkpointing and dropout.
fn compare(arch: &str, config: &Value, samples: &[Sample]) {
    let pad = |column, with| Padding { column, with, length: None, most: 12 };
    let contrasts = arch == "clip";
    let paddings = [pad("input_ids", i64::from(contrasts)), pad("ids", 0), pad("labels", IGNORED)];
    let shape = PartShape::new(&paddings, Device::Cpu);
    let packed = shape.clone().packed(samples.len() as u32);
    let mut undropped = None;
    for (dropout, checkpointing) in [(0.0, false), (0.3, false), (0.3, true)] {
        let setup = Setup { dropout: Some(dropout), checkpointing, ..Setup::plain() };
        let model = model(arch, config, &setup);
        assert!(model.takes_packed(), "{arch}");
        let (want, gradient) = computed(model.as_ref(), &shape.collate(samples).unwrap());
        let mut shapes = vec![packed.clone(), packed.clone().in_multiples_of(8), packed.clone().in_few_lengths()];
        if arch.ends_with("bert") || arch == "roberta" {
            shapes.push(packed.clone().in_few_lengths().shaped_by_tokens(16));
        }
        for shape in shapes {
            let part = shape.collate(samples).unwrap();
            assert_eq!(part.find("attention_mask").map(Tensor::size), None, "nothing is hidden in packed samples");
            let (got, other) = computed(model.as_ref(), &part);
            let apart = ((&other - &gradient).norm() / gradient.norm()).double_value(&[]);
            let what = format!("{arch} dropout {dropout} checkpointing {checkpointing} {config}");
            assert!((got - want).abs() < 2e-5 * want.abs(), "{what}: {got} and {want}");
            assert!(apart < 1e-4, "{what}: gradients {apart} apart");
        }
        let same = *undropped.get_or_insert(want) == want;
        assert_eq!(same, dropout == 0.0, "{arch}: what is dropped changes the loss");
    }
}

fn encoder(more: &Value) -> Value {
    let mut config = json!({
        "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 16, "pad_token_id": 0, "initializer_range": 0.3,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn deberta(more: &Value) -> Value {
    let mut config = encoder(&json!({
        "relative_attention": true, "position_buckets": 4, "max_relative_positions": 12, "norm_rel_ebd": "layer_norm", "share_att_key": true,
        "pos_att_type": "p2c|c2p", "position_biased_input": false,
    }));
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn labelling(config: &Value, class: &str) -> Value {
    let mut config = config.clone();
    config["architectures"] = json!([class]);
    config
}

#[test]
fn deberta_is_the_same() {
    for more in [
        json!({}),
        json!({ "conv_kernel_size": 5, "conv_act": "gelu" }),
        json!({ "position_biased_input": true, "relative_attention": false, "type_vocab_size": 2 }),
        json!({ "pos_att_type": "c2p", "share_att_key": false, "position_biased_input": true }),
    ] {
        for lengths in [RAGGED, &[5; 4], &[1]] {
            compare("deberta-v3", &deberta(&more), &classes(lengths, false));
        }
    }
    let labelling = labelling(&deberta(&json!({ "conv_kernel_size": 3 })), "DebertaV2ForTokenClassification");
    compare("deberta-v3", &labelling, &token_labels(RAGGED));
}

/// Distances are those of the text, and not of what is left of it.
#[test]
fn deberta_is_the_same_where_the_middle_of_a_text_is_hidden() {
    for conv in [0, 3] {
        compare("deberta-v3", &deberta(&json!({ "conv_kernel_size": conv })), &classes(RAGGED, true));
    }
}

#[test]
fn the_bert_family_is_the_same() {
    // Spare samples are behind spare tokens, or where there are none.
    for lengths in [RAGGED, &[5; 4], &[12; 3]] {
        compare("bert", &encoder(&json!({})), &classes(lengths, false));
        compare("roberta", &encoder(&json!({})), &classes(lengths, false));
    }
    compare("bert", &labelling(&encoder(&json!({})), "BertForTokenClassification"), &token_labels(RAGGED));
}

#[test]
fn t5_is_the_same() {
    let config = json!({
        "vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2,
        "relative_attention_num_buckets": 6, "relative_attention_max_distance": 10,
    });
    for lengths in [RAGGED, &[5; 4]] {
        compare("t5", &config, &pairs_of_texts(lengths));
    }
}

#[test]
fn decoder_models_are_the_same() {
    let config = json!({
        "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 16,
    });
    for lengths in [RAGGED, &[5; 4]] {
        compare("llama", &config, &rows_of_text(lengths));
    }
}

#[test]
fn clip_is_the_same() {
    let tower = json!({
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": WORDS,
        "max_position_embeddings": 12, "image_size": 8, "patch_size": 4, "eos_token_id": 1, "pad_token_id": 1, "bos_token_id": 0,
    });
    let config = json!({ "projection_dim": 12, "text_config": tower, "vision_config": tower });
    for lengths in [RAGGED, &[5; 4]] {
        compare("clip", &config, &pairs(lengths));
    }
}
