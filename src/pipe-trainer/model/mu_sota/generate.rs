//! Text generation, one token at a time, with cached keys and values.
//!
//! The choice of a token: the most probable one, or one drawn from the most probable ones.

use tch::{Kind, Tensor};

use super::MuSota;
use super::layers::{Past, Projections};
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::interface::{Generation, TextGenerator};
use crate::model::pass::Pass;
use crate::random::{Purpose, Random};

impl TextGenerator for MuSota {
    /// The tokens that follow each row of `prompt` [rows, length], an end token included unless the limit or `max_seq_len` came
    /// first. A row's choices are a function of the seed and its number alone.
    fn generate(&self, part: &Part, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError> {
        let _guard = tch::no_grad_guard();
        let prompt = part.get("prompt")?;
        let (rows, length) = prompt.size2()?;
        let most = limits.max_length.min(self.config.max_seq_len - length).max(0);
        let mut randoms: Vec<Random> =
            (0..rows as u64).map(|row| Random::new(Purpose::Text, limits.seed, &[limits.first_row + row])).collect();
        let mut texts = vec![Vec::new(); rows as usize];
        let mut reader = Reader::new(self)?;
        let mut tokens = prompt.shallow_clone();
        for _ in 0..most {
            let scores = Vec::<f32>::try_from(reader.read(&tokens)?.f_reshape([-1])?)?;
            let scores = scores.chunks(self.config.vocab_size as usize);
            let next: Vec<i64> =
                scores.zip(&mut randoms).map(|(scores, random)| choose(scores, limits, random)).collect();
            for (text, token) in texts.iter_mut().zip(&next) {
                if !has_ended(text, limits) {
                    text.push(*token);
                }
            }
            if texts.iter().all(|text| has_ended(text, limits)) {
                break;
            }
            tokens = Tensor::f_from_slice(&next)?.f_unsqueeze(1)?.f_to_device(prompt.device())?;
        }
        Ok(texts)
    }
}

fn has_ended(text: &[i64], limits: &Generation) -> bool {
    limits.end_token.is_some() && text.last() == limits.end_token.as_ref()
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

/// A token by its scores. The same scores and the same random numbers choose the same.
pub fn choose(scores: &[f32], limits: &Generation, random: &mut Random) -> i64 {
    let best = best(scores);
    if limits.temperature <= 0.0 {
        return best as i64;
    }
    let candidates = nucleus(scores, scores[best], limits);
    let mut rest = random.unit() * candidates.iter().map(|(_, weight)| weight).sum::<f64>();
    for (token, weight) in &candidates {
        rest -= weight;
        if rest < 0.0 {
            return *token as i64;
        }
    }
    best as i64
}

/// The first of the highest.
fn best(scores: &[f32]) -> usize {
    scores.iter().enumerate().fold(0, |best, (token, score)| if *score > scores[best] { token } else { best })
}

/// The fewest of the most probable tokens that together have the probability `top_p`, each with its weight (Holtzman et al.,
/// 2020); most probable first.
fn nucleus(scores: &[f32], highest: f32, limits: &Generation) -> Vec<(usize, f64)> {
    let weight = |score: &f32| (f64::from(score - highest) / limits.temperature).exp();
    let total: f64 = scores.iter().map(weight).sum();
    // All that are less probable than this have together less than the rest: they are never needed, and need no sorting.
    let least = total * (1.0 - limits.top_p) / scores.len() as f64;
    let mut candidates: Vec<(usize, f64)> =
        scores.iter().map(weight).enumerate().filter(|(_, weight)| *weight >= least).collect();
    candidates.sort_unstable_by(|(a, x), (b, y)| y.total_cmp(x).then(a.cmp(b)));
    let mut sum = 0.0;
    let needed = candidates.iter().position(|(_, weight)| {
        sum += weight;
        sum >= limits.top_p * total
    });
    candidates.truncate(needed.map_or(candidates.len(), |last| last + 1));
    candidates
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Precision;
    use serde_json::json;

    use super::*;
    use crate::model::mu_sota::MuSotaConfig;
    use crate::model::setup::Kinds;
    use crate::model::{Mode, Model, Setup, Start};

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

#[cfg(test)]
mod choice_tests {
    use super::*;
    use crate::random::Purpose;

    fn limits(temperature: f64, top_p: f64) -> Generation {
        Generation { temperature, top_p, ..Generation::greedy(1) }
    }

    /// How often each token is chosen in 10000 draws.
    fn counts(probabilities: &[f32], limits: &Generation) -> Vec<u32> {
        let scores: Vec<f32> = probabilities.iter().map(|probability| probability.ln()).collect();
        let mut random = Random::new(Purpose::Text, 1, &[]);
        let mut counts = vec![0; scores.len()];
        (0..10_000).for_each(|_| counts[choose(&scores, limits, &mut random) as usize] += 1);
        counts
    }

    #[test]
    fn tokens_come_as_often_as_they_are_probable() {
        let near = |got: &[u32], want: &[u32]| got.iter().zip(want).all(|(got, want)| got.abs_diff(*want) < 250);
        let probabilities = [0.1, 0.5, 0.15, 0.25];
        let all = counts(&probabilities, &limits(1.0, 1.0));
        assert!(near(&all, &[1000, 5000, 1500, 2500]), "{all:?}");
        // The two most probable have exactly three quarters.
        let most = counts(&probabilities, &limits(1.0, 0.75));
        assert!(near(&most, &[0, 6667, 0, 3333]) && most[0] + most[2] == 0, "{most:?}");
        let three = counts(&probabilities, &limits(1.0, 0.76));
        assert!(three[0] == 0 && three[2] > 0, "{three:?}");
        // Squared, and then divided by their sum.
        let cold = counts(&probabilities, &limits(0.5, 1.0));
        assert!(near(&cold, &[290, 7246, 652, 1812]), "{cold:?}");
        let hot = counts(&probabilities, &limits(1e6, 1.0));
        assert!(near(&hot, &[2500; 4]), "{hot:?}");
    }

    #[test]
    fn without_temperature_and_with_a_tiny_share_the_best_is_chosen() {
        for limits in [limits(0.0, 1.0), limits(1.0, 1e-9), limits(1e-3, 1.0)] {
            assert_eq!(counts(&[0.2, 0.3, 0.3, 0.2], &Generation { top_p: 1e-9, ..limits })[1], 10_000);
        }
        assert_eq!(counts(&[0.2, 0.3, 0.4, 0.1], &limits(1e-3, 1.0))[2], 10_000);
    }
}
