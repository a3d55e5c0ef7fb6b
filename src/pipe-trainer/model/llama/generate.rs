//! Text generation, one token at a time, with cached keys and values.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::{Llama, Past, Rows};
use crate::data::{IGNORED, Part};
use crate::error::TrainerError;
use crate::model::interface::{Generation, TextGenerator};
use crate::model::pass::Pass;
use crate::model::sampling;

impl TextGenerator for Llama {
    /// The tokens that follow each row of `prompt` [rows, length], whose padding is `IGNORED`; an end token is included unless the limit
    /// or the last position came first. Rows of one length are continued together.
    fn generate(&self, part: &Part, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError> {
        let _guard = tch::no_grad_guard();
        let prompt = part.get("prompt")?;
        let lengths = Vec::<i64>::try_from(prompt.f_ne(IGNORED)?.f_sum_dim_intlist(1i64, false, Kind::Int64)?)?;
        let mut by_length: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for (row, length) in (0i64..).zip(&lengths) {
            by_length.entry(*length).or_default().push(row);
        }
        let ends = self.config.end_tokens();
        let mut texts = vec![Vec::new(); lengths.len()];
        for (length, rows) in by_length {
            let chosen = Tensor::f_from_slice(&rows)?.f_to_device(prompt.device())?;
            let prompt = prompt.f_index_select(0, &chosen)?.f_narrow(1, 0, length)?;
            let numbers: Vec<u64> = rows.iter().map(|row| limits.first_row + *row as u64).collect();
            let most = limits.max_length.min(self.config.max_position_embeddings - length);
            let limits = Generation { max_length: most, ..*limits };
            let mut reader = Reader::new(self);
            let written = sampling::continue_rows(&prompt, &numbers, &limits, &ends, |tokens| reader.read(tokens))?;
            rows.iter().zip(written).for_each(|(row, text)| texts[*row as usize] = text);
        }
        Ok(texts)
    }
}

/// Reads tokens, with cached keys and values.
struct Reader<'a> {
    model: &'a Llama,
    pasts: Vec<Past>,
    length: i64,
}

impl<'a> Reader<'a> {
    fn new(model: &'a Llama) -> Self {
        Self { model, pasts: model.layers.iter().map(|_| Past::default()).collect(), length: 0 }
    }

    /// The scores [rows, vocab_size] in fp32 of what follows `tokens` [rows, length]: a beginning, or one more token.
    fn read(&mut self, tokens: &Tensor) -> Result<Tensor, TrainerError> {
        let model = self.model;
        let pass = Pass::quiet(model.setup.kinds.compute);
        let length = tokens.size2()?.1;
        let [cosines, sines] = model.rotary.turns(self.length, length, pass.compute)?;
        self.length += length;
        let mut hidden = model.embed(tokens)?;
        for (layer, past) in model.layers.iter().zip(&mut self.pasts) {
            hidden = layer.step(&hidden, [&cosines, &sines], Rows::After(past), pass)?;
        }
        let last = model.norm.forward(&hidden.f_select(1, -1)?)?.f_to_kind(pass.compute)?;
        Ok(last.f_linear(&model.head()?, None::<&Tensor>)?.f_to_kind(Kind::Float)?)
    }
}

#[cfg(test)]
mod tests {
    use pipe_model::llama::LlamaConfig;
    use pipe_spec::pipeline::Arch;
    use serde_json::json;

    use super::*;
    use crate::model::sampling::choose;
    use crate::model::{Mode, Model, Setup, Start};
    use crate::random::{Purpose, Random};

    /// Large weights make its texts differ; a window is shorter than the texts.
    fn model() -> Llama {
        let config = json!({
            "vocab_size": 40, "hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 24, "eos_token_id": 39,
            "use_sliding_window": true, "sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"],
        });
        let config = LlamaConfig::read(Arch::Qwen3, config.as_object().unwrap()).unwrap();
        let model = Llama::build(config, &Start::Random { seed: 5 }, &Setup::plain()).unwrap();
        tch::no_grad(|| {
            for (name, tensor) in model.weights.iter() {
                let _ = tensor.shallow_clone().g_mul_scalar_(if name.contains("norm") { 1.0 } else { 25.0 });
            }
        });
        model
    }

    /// Rows of 3, 5 and 3 tokens.
    fn prompts() -> (Tensor, [Vec<i64>; 3]) {
        let rows = [vec![3, 1, 4], vec![1, 5, 9, 2, 6], vec![35, 8, 9]];
        let padded: Vec<i64> =
            rows.iter().flat_map(|row| row.iter().copied().chain(std::iter::repeat(IGNORED)).take(5)).collect();
        (Tensor::from_slice(&padded).reshape([3, 5]), rows)
    }

    /// Every token from a pass over all that stands before it.
    fn recomputed(model: &Llama, limits: &Generation) -> Vec<Vec<i64>> {
        let continued = |(number, prompt): (usize, &Vec<i64>)| {
            let mut random = Random::new(Purpose::Text, limits.seed, &[number as u64]);
            let mut tokens = prompt.clone();
            for _ in 0..limits.max_length.min(24 - prompt.len() as i64) {
                let part = Part::default().with("input_ids", Tensor::from_slice(&tokens).unsqueeze(0));
                let logits = model.logits(&part, Mode::Eval).unwrap();
                let scores = Vec::<f32>::try_from(logits.get(0).get(-1)).unwrap();
                tokens.push(choose(&scores, limits, &mut random));
                if tokens.last() == Some(&39) {
                    break;
                }
            }
            tokens.split_off(prompt.len())
        };
        prompts().1.iter().enumerate().map(continued).collect()
    }

    #[test]
    fn what_is_kept_gives_the_same_text_as_computing_it_again() {
        let model = model();
        let part = Part::default().with("prompt", prompts().0);
        let sampling = Generation { temperature: 0.8, top_p: 0.9, seed: 11, ..Generation::greedy(16) };
        for limits in [Generation::greedy(40), sampling] {
            let texts = model.generate(&part, &limits).unwrap();
            assert_eq!(texts, tch::no_grad(|| recomputed(&model, &limits)));
            assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
        }
    }
}
