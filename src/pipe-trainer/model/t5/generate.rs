//! Text generation: greedy, or by beam search.

use super::T5;
use super::beams;
use super::decode::Decoder;
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::generation::Generation;
use crate::model::interface::TextGenerator;

impl TextGenerator for T5 {
    /// The tokens of an answer to each source, its end token included unless `max_length` came first.
    fn generate(&self, part: &Part, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError> {
        let _guard = tch::no_grad_guard();
        let mut decoder = Decoder::begin(self, part, limits.max_length)?;
        match limits.beams {
            0 | 1 => greedy(&mut decoder, limits.max_length),
            _ => beams::search(&mut decoder, limits),
        }
    }
}

fn greedy(decoder: &mut Decoder<'_>, max_length: i64) -> Result<Vec<Vec<i64>>, TrainerError> {
    let end = decoder.end_token();
    let mut answers = vec![Vec::new(); decoder.sources() as usize];
    let mut tokens = decoder.start(decoder.sources())?;
    for _ in 0..max_length {
        tokens = decoder.step(&tokens)?.f_argmax(-1, false)?;
        let next = Vec::<i64>::try_from(&tokens)?;
        for (answer, token) in answers.iter_mut().zip(next) {
            if answer.last() != Some(&end) {
                answer.push(token);
            }
        }
        if answers.iter().all(|answer| answer.last() == Some(&end)) {
            break;
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pipe_spec::pipeline::Precision;
    use serde_json::json;
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::model::t5::T5Config;
    use crate::model::{Mode, Model, Setup, Start};
    use crate::precision::Kinds;
    use crate::storage::TensorFiles;

    const LIMITS: Generation = Generation::greedy(24);

    fn golden() -> T5 {
        golden_in(Kinds::FP32)
    }

    fn golden_in(kinds: Kinds) -> T5 {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/t5-gated");
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let files = TensorFiles::open_folder(&folder).unwrap();
        let setup = Setup { kinds, ..Setup::plain() };
        T5::build(T5Config::read(&config).unwrap(), &Start::Tensors { files: &files, seed: 0 }, &setup).unwrap()
    }

    /// With tied embeddings, few buckets and a plain feed-forward layer. Large weights make its answers differ.
    fn random() -> T5 {
        let config = json!({
            "vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 3,
            "num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
            "initializer_factor": 1.5,
        });
        let config = T5Config::read(config.as_object().unwrap()).unwrap();
        T5::build(config, &Start::Random { seed: 5 }, &Setup::plain()).unwrap()
    }

    fn sources() -> Part {
        let rows: [&[i64]; 5] =
            [&[7, 3, 22, 41, 9, 1], &[5, 1], &[30, 31, 32, 33, 34, 35, 36, 1], &[11, 1], &[2, 2, 48, 1]];
        let padded = |make: &dyn Fn(&[i64]) -> Vec<i64>| {
            let row = |row: &&[i64]| {
                let mut row = make(row);
                row.resize(8, 0);
                row
            };
            Tensor::from_slice(&rows.iter().flat_map(row).collect::<Vec<_>>()).reshape([rows.len() as i64, 8])
        };
        let labels = Tensor::zeros([rows.len() as i64, 1], (Kind::Int64, Device::Cpu));
        Part::default()
            .with("input_ids", padded(&|row| row.to_vec()))
            .with("attention_mask", padded(&|row| vec![1; row.len()]))
            .with("labels", labels)
    }

    /// [sources, answer length, vocab_size] in one pass over whole answers, which end in anything.
    fn log_probabilities(model: &T5, answers: &[Vec<i64>]) -> Tensor {
        let longest = answers.iter().map(Vec::len).max().unwrap();
        let row = |answer: &Vec<i64>| {
            let mut row = answer.clone();
            row.resize(longest, 0);
            row
        };
        let labels = Tensor::from_slice(&answers.iter().flat_map(row).collect::<Vec<_>>());
        let part = sources().with("labels", labels.reshape([answers.len() as i64, longest as i64]));
        tch::no_grad(|| model.logits(&part, Mode::Eval).unwrap().log_softmax(-1, Kind::Float))
    }

    /// The mean log probability of each answer's tokens.
    fn scores(model: &T5, answers: &[Vec<i64>]) -> Vec<f64> {
        let all = log_probabilities(model, answers);
        let score = |(row, answer): (usize, &Vec<i64>)| {
            let token = |(index, token): (usize, &i64)| all.double_value(&[row as i64, index as i64, *token]);
            answer.iter().enumerate().map(token).sum::<f64>() / answer.len() as f64
        };
        answers.iter().enumerate().map(score).collect()
    }

    fn recomputed(model: &T5) -> Vec<Vec<i64>> {
        let mut answers = vec![Vec::new(); sources().get("input_ids").unwrap().size()[0] as usize];
        for index in 0..LIMITS.max_length {
            let begun: Vec<Vec<i64>> =
                answers.iter().map(|answer: &Vec<i64>| [answer.as_slice(), &[0]].concat()).collect();
            let all = log_probabilities(model, &begun);
            for (row, answer) in answers.iter_mut().enumerate() {
                if answer.last() != Some(&model.config.eos_token_id) {
                    answer.push(all.get(row as i64).get(index).argmax(-1, false).int64_value(&[]));
                }
            }
        }
        answers
    }

    #[test]
    fn what_is_kept_gives_the_same_tokens_as_computing_it_again() {
        for model in [golden(), random()] {
            let answers = model.generate(&sources(), &LIMITS).unwrap();
            assert_eq!(answers, recomputed(&model));
            assert!(answers.iter().any(|answer| *answer != answers[0]), "{answers:?}");
        }
    }

    #[test]
    fn an_answer_ends_with_its_end_token_or_at_the_limit() {
        let mut model = golden();
        model.config.eos_token_id = model.generate(&sources(), &LIMITS).unwrap()[0][1];
        for beams in [1, 3] {
            let answers = model.generate(&sources(), &Generation { max_length: 6, beams, ..LIMITS }).unwrap();
            for answer in &answers {
                let ends = answer.iter().position(|token| *token == model.config.eos_token_id);
                assert_eq!(answer.len(), ends.map_or(6, |index| index + 1), "{answer:?}");
            }
            assert!(beams > 1 || answers[0].len() < 6, "{answers:?}");
        }
    }

    #[test]
    fn one_beam_is_greedy_and_four_are_no_worse() {
        for model in [golden(), random()] {
            let greedy = model.generate(&sources(), &LIMITS).unwrap();
            let mut decoder = Decoder::begin(&model, &sources(), LIMITS.max_length).unwrap();
            assert_eq!(tch::no_grad(|| beams::search(&mut decoder, &LIMITS)).unwrap(), greedy);

            let four = model.generate(&sources(), &Generation { beams: 4, ..LIMITS }).unwrap();
            let (greedy, four) = (scores(&model, &greedy), scores(&model, &four));
            assert!(greedy.iter().zip(&four).all(|(greedy, four)| *four > greedy - 1e-5), "{greedy:?} {four:?}");
            assert!(greedy.iter().sum::<f64>() < four.iter().sum::<f64>() - 1e-3, "{greedy:?} {four:?}");
        }
    }

    /// Near ties fall differently, so the answers are compared in fp32.
    #[test]
    fn narrow_weights_answer_as_well() {
        let mean = |answers: &[Vec<i64>]| scores(&golden(), answers).iter().sum::<f64>() / answers.len() as f64;
        for beams in [1, 4] {
            let limits = Generation { beams, ..LIMITS };
            let narrow = golden_in(Kinds::of(Precision::Bf16)).generate(&sources(), &limits).unwrap();
            let wide = golden().generate(&sources(), &limits).unwrap();
            assert!((mean(&narrow) - mean(&wide)).abs() < 0.05, "{} and {}", mean(&narrow), mean(&wide));
        }
    }

    #[test]
    fn an_answer_does_not_depend_on_its_neighbours() {
        let model = golden();
        let all = sources();
        for beams in [1, 4] {
            let limits = Generation { beams, ..LIMITS };
            let together = model.generate(&all, &limits).unwrap();
            for row in 0..all.get("input_ids").unwrap().size()[0] {
                let one = |part: Part, name: &str| part.with(name, all.get(name).unwrap().narrow(0, row, 1));
                let alone = ["input_ids", "attention_mask", "labels"].into_iter().fold(Part::default(), one);
                assert_eq!(model.generate(&alone, &limits).unwrap(), together[row as usize..=row as usize]);
            }
        }
    }
}
