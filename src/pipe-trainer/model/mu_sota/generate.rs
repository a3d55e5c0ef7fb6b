//! Text generation, one token at a time, with cached keys and values.

use tch::{Kind, Tensor};

use super::{MuSota, Past, Projections};
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::interface::{Generation, TextGenerator};
use crate::model::pass::Pass;
use crate::model::sampling;

impl TextGenerator for MuSota {
    /// The tokens that follow each row of `prompt` [rows, length], an end token included unless the limit or `max_seq_len` came
    /// first. A row's choices are a function of the seed and its number alone.
    fn generate(&self, part: &Part, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError> {
        let _guard = tch::no_grad_guard();
        let prompt = part.get("prompt")?;
        let (rows, length) = prompt.size2()?;
        let numbers: Vec<u64> = (limits.first_row..).take(rows as usize).collect();
        let limits = Generation { max_length: limits.max_length.min(self.config.max_seq_len - length), ..*limits };
        let mut reader = Reader::new(self)?;
        sampling::continue_rows(prompt, &numbers, &limits, &[], |tokens| reader.read(tokens))
    }
}

/// Reads tokens, with cached keys and values.
struct Reader<'a> {
    model: &'a MuSota,
    projections: Vec<Projections>,
    pasts: Vec<Past>,
    length: i64,
    pass: Pass,
}

impl<'a> Reader<'a> {
    /// In the kind of the weights: nothing is saved here by computing in a narrower one.
    fn new(model: &'a MuSota) -> Result<Self, TrainerError> {
        let pass = Pass::quiet(model.setup.kinds.weights);
        let pasts = model.layers.iter().map(|_| Past::default()).collect();
        Ok(Self { model, projections: model.blocks.projections(pass.compute)?, pasts, length: 0, pass })
    }

    /// The scores [rows, vocab_size] in fp32 of what follows `tokens` [rows, length]: a beginning, or one more token.
    fn read(&mut self, tokens: &Tensor) -> Result<Tensor, TrainerError> {
        let mut hidden = self.model.embed(tokens, self.length)?;
        self.length += tokens.size2()?.1;
        for ((layer, projections), past) in self.model.layers.iter().zip(&self.projections).zip(&mut self.pasts) {
            hidden = layer.step(&hidden, projections.tensors(), Some(past), self.pass)?;
        }
        let last = self.model.ln_f.forward(&hidden.f_select(1, -1)?)?;
        Ok(last.f_linear(&self.model.tok_emb, None::<&Tensor>)?.f_to_kind(Kind::Float)?)
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Precision;
    use serde_json::json;

    use super::*;
    use crate::model::mu_sota::MuSotaConfig;
    use crate::model::pass::Kinds;
    use crate::model::sampling::choose;
    use crate::model::{Mode, Model, Setup, Start};
    use crate::random::{Purpose, Random};

    /// Large weights make its texts differ.
    fn model(kinds: Kinds) -> MuSota {
        let config = json!({
            "vocab_size": 40, "n_layers": 3, "n_blocks": 3, "block_dim": 4, "block_heads": 2, "cross_heads": 3,
            "ffn_dim": 30, "max_seq_len": 24,
        });
        let config = MuSotaConfig::read(config.as_object().unwrap()).unwrap();
        let setup = Setup { kinds, ..Setup::plain() };
        let model = MuSota::build(config, &Start::Random { seed: 5 }, &setup).unwrap();
        tch::no_grad(|| {
            for (name, tensor) in model.weights.iter().filter(|(name, _)| name.ends_with("weight")) {
                let _ = tensor.shallow_clone().g_mul_scalar_(if name.contains("ln") { 1.0 } else { 25.0 });
            }
        });
        model
    }

    fn prompts() -> Tensor {
        Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7, 9, 3]).reshape([5, 3])
    }

    fn part(prompt: &Tensor) -> Part {
        Part::default().with("prompt", prompt.shallow_clone())
    }

    fn sampling() -> Generation {
        Generation { temperature: 0.8, top_p: 0.9, seed: 11, ..Generation::greedy(16) }
    }

    /// Every token from a pass over all that stands before it.
    fn recomputed(model: &MuSota, limits: &Generation) -> Vec<Vec<i64>> {
        let mut texts = Vec::new();
        for row in 0..5 {
            let mut random = Random::new(Purpose::Text, limits.seed, &[row as u64]);
            let mut tokens = Vec::<i64>::try_from(prompts().get(row)).unwrap();
            for _ in 0..limits.max_length {
                let ids = Tensor::from_slice(&tokens).unsqueeze(0);
                let logits = model.logits(&Part::default().with("ids", ids), Mode::Eval).unwrap();
                let scores = Vec::<f32>::try_from(logits.get(0).get(-1).to_kind(Kind::Float)).unwrap();
                tokens.push(choose(&scores, limits, &mut random));
            }
            texts.push(tokens.split_off(3));
        }
        texts
    }

    #[test]
    fn what_is_kept_gives_the_same_text_as_computing_it_again() {
        let model = model(Kinds::FP32);
        for limits in [Generation::greedy(21), sampling()] {
            let texts = model.generate(&part(&prompts()), &limits).unwrap();
            assert_eq!(texts, tch::no_grad(|| recomputed(&model, &limits)));
            assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
        }
    }

    #[test]
    fn texts_are_a_function_of_seed_and_row() {
        let model = model(Kinds::FP32);
        let texts = |limits: &Generation| model.generate(&part(&prompts()), limits).unwrap();
        let together = texts(&sampling());
        assert_eq!(together, texts(&sampling()));
        assert_ne!(together, texts(&Generation { seed: 12, ..sampling() }));
        assert_ne!(together, texts(&Generation { first_row: 1, ..sampling() }));
        for row in 0..5 {
            let limits = Generation { first_row: row, ..sampling() };
            let alone = model.generate(&part(&prompts().narrow(0, row as i64, 1)), &limits).unwrap();
            assert_eq!(alone[0], together[row as usize]);
        }
    }

    #[test]
    fn a_text_ends_with_its_end_token_or_where_there_is_no_more_room() {
        let model = model(Kinds::FP32);
        let whole = model.generate(&part(&prompts()), &Generation::greedy(1000)).unwrap();
        assert!(whole.iter().all(|text| text.len() == 21), "{whole:?}");
        let limits = Generation { end_token: Some(whole[0][4]), ..Generation::greedy(1000) };
        for (text, whole) in model.generate(&part(&prompts()), &limits).unwrap().iter().zip(&whole) {
            let end = whole.iter().position(|token| Some(*token) == limits.end_token).map_or(21, |index| index + 1);
            assert_eq!(*text, whole[..end]);
        }
    }

    #[test]
    fn narrow_weights_write_too() {
        let model = model(Kinds::of(Precision::Bf16));
        let texts = model.generate(&part(&prompts()), &sampling()).unwrap();
        assert!(texts.iter().all(|text| text.len() == 16), "{texts:?}");
    }
}
