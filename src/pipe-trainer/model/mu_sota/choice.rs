//! The choice of a token: the most probable one, or one drawn from the most probable ones.

use crate::model::generation::Generation;
use crate::random::Random;

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
