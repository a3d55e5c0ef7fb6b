//! Texts that a language model writes, one token at a time: the most probable token each time, or one drawn from the most probable ones.

use tch::Tensor;

use super::interface::Generation;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};

/// The tokens that follow each row of `prompt` [rows, length]: up to `max_length`, or to an end token, which is the last of its row. A
/// row's choices are a function of the seed and its number in `numbers` alone. `read` takes the prompt, then one more token of each row
/// at a time, and gives the scores of what follows, [rows, words] in fp32.
pub fn continue_rows(
    prompt: &Tensor,
    numbers: &[u64],
    limits: &Generation,
    ends: &[i64],
    mut read: impl FnMut(&Tensor) -> Result<Tensor, TrainerError>,
) -> Result<Vec<Vec<i64>>, TrainerError> {
    let mut randoms: Vec<Random> =
        numbers.iter().map(|number| Random::new(Purpose::Text, limits.seed, &[*number])).collect();
    let is_end = |token: &i64| limits.end_token.as_ref() == Some(token) || ends.contains(token);
    let has_ended = |text: &Vec<i64>| text.last().is_some_and(is_end);
    let mut texts = vec![Vec::new(); numbers.len()];
    let mut tokens = prompt.shallow_clone();
    for _ in 0..limits.max_length.max(0) {
        let scores = read(&tokens)?;
        let words = scores.size2()?.1 as usize;
        let scores = Vec::<f32>::try_from(scores.f_reshape([-1])?)?;
        let next: Vec<i64> =
            scores.chunks(words).zip(&mut randoms).map(|(scores, random)| choose(scores, limits, random)).collect();
        for (text, token) in texts.iter_mut().zip(&next).filter(|(text, _)| !has_ended(text)) {
            text.push(*token);
        }
        if texts.iter().all(has_ended) {
            break;
        }
        tokens = Tensor::f_from_slice(&next)?.f_unsqueeze(1)?.f_to_device(prompt.device())?;
    }
    Ok(texts)
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
