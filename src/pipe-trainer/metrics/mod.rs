//! How good a model is, as numbers. Pure: knows words, classes and numbers, never tensors.
//!
//! How near predicted texts and numbers are to those that were wanted.

mod classes;
mod entities;

pub use classes::{Confusion, LabelCounts, Reliability};
pub use entities::{EntityCounts, entities};

/// To four digits, as files have it: what rounding in the model changes is not seen. JSON has no other numbers than finite
/// ones: 0 where it is none.
pub fn rounded(value: f64) -> f64 {
    if value.is_finite() { (value * 1e4).round() / 1e4 } else { 0.0 }
}

/// Whether two texts are the same but for their white space, which no tokenizer keeps.
pub fn exact_match(wanted: &str, text: &str) -> bool {
    wanted.split_whitespace().eq(text.split_whitespace())
}

/// ROUGE-L (Lin 2004) with beta = 1: the harmonic mean of the shares of both texts that their longest common
/// subsequence of words makes up. Case does not count.
pub fn rouge_l(wanted: &str, text: &str) -> f64 {
    let (wanted, text) = (wanted.to_lowercase(), text.to_lowercase());
    let (wanted, text): (Vec<&str>, Vec<&str>) =
        (wanted.split_whitespace().collect(), text.split_whitespace().collect());
    match wanted.len() + text.len() {
        0 => 1.0,
        words => 2.0 * longest_common_subsequence(&wanted, &text) as f64 / words as f64,
    }
}

fn longest_common_subsequence(a: &[&str], b: &[&str]) -> usize {
    // One row of the table: lengths for the words of `a` so far and each beginning of `b`.
    let mut lengths = vec![0; b.len() + 1];
    for word in a {
        let mut diagonal = 0;
        for (index, other) in b.iter().enumerate() {
            let above = lengths[index + 1];
            lengths[index + 1] = if word == other { diagonal + 1 } else { above.max(lengths[index]) };
            diagonal = above;
        }
    }
    lengths[b.len()]
}

pub fn mean_squared_error(wanted: &[f64], predicted: &[f64]) -> f64 {
    mean(&wanted.iter().zip(predicted).map(|(wanted, predicted)| (wanted - predicted).powi(2)).collect::<Vec<_>>())
}

/// Pearson's correlation coefficient; there is none where one of the two is always the same.
pub fn pearson(wanted: &[f64], predicted: &[f64]) -> Option<f64> {
    let centred = |values: &[f64]| -> Vec<f64> {
        let mean = mean(values);
        values.iter().map(|value| value - mean).collect()
    };
    let (wanted, predicted) = (centred(wanted), centred(predicted));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let scale = (product(&wanted, &wanted) * product(&predicted, &predicted)).sqrt();
    (scale > 0.0).then(|| product(&wanted, &predicted) / scale)
}

/// The mean squared error of answering the mean of all.
pub fn variance(values: &[f64]) -> f64 {
    mean_squared_error(values, &vec![mean(values); values.len()])
}

/// The perplexity of tokens for a model that knows how often each occurs, and nothing else.
pub fn unigram_perplexity(counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let entropy = |count: &u64| *count as f64 / total * (total / *count as f64).ln();
    counts.iter().filter(|count| **count > 0).map(entropy).sum::<f64>().exp()
}

/// The share of the variance that is predicted, as scikit-learn's `r2_score`; there is none where what is wanted is always the same.
pub fn r_squared(wanted: &[f64], predicted: &[f64]) -> Option<f64> {
    let variance = variance(wanted);
    (variance > 0.0).then(|| 1.0 - mean_squared_error(wanted, predicted) / variance)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_match_exactly() {
        let cases = [
            ("a b", "a b", true),
            (" a  b\n", "a b", true),
            ("a b", "A b", false),
            ("a", "a b", false),
            ("", "", true),
        ];
        for (wanted, text, want) in cases {
            assert_eq!(exact_match(wanted, text), want, "{wanted:?} {text:?}");
        }
    }

    #[test]
    fn rouge_l_of_known_pairs() {
        let cases = [
            // The examples of Lin (2004), section 3.
            ("police killed the gunman", "police kill the gunman", 0.75),
            ("police killed the gunman", "the gunman kill police", 0.5),
            ("police killed the gunman", "the gunman police killed", 0.5),
            ("Chop the salt.", "chop THE salt.", 1.0),
            ("a b c d", "a c", 2.0 * (1.0 * 0.5) / (1.0 + 0.5)),
            ("a b c", "c b a", 1.0 / 3.0),
            ("a a b", "a b b", 2.0 / 3.0),
            ("a", "b", 0.0),
            ("a", "", 0.0),
            ("", "a", 0.0),
            ("", "", 1.0),
        ];
        for (wanted, text, want) in cases {
            let got = rouge_l(wanted, text);
            assert!((got - want).abs() < 1e-12, "{wanted:?} {text:?}: {got}");
        }
    }

    #[test]
    fn answers_that_ignore_the_input() {
        assert_eq!((variance(&[1.0, 3.0, 5.0, 7.0]), variance(&[2.0]), variance(&[])), (5.0, 0.0, 0.0));
        for (counts, want) in [(&[5, 5, 5, 5][..], 4.0), (&[7], 1.0), (&[0, 3], 1.0), (&[], 1.0)] {
            assert!((unigram_perplexity(counts) - want).abs() < 1e-12, "{counts:?}");
        }
        // The entropy of 3/4 and 1/4 is 0.8113 bits.
        assert!((unigram_perplexity(&[3, 1]).log2() - 0.8113).abs() < 1e-4);
    }

    #[test]
    fn the_share_of_the_variance_as_scikit_learn_has_it() {
        let score = r_squared(&[3.0, -0.5, 2.0, 7.0], &[2.5, 0.0, 2.0, 8.0]).unwrap();
        assert!((score - 0.948_608_137).abs() < 1e-9, "{score}");
        assert_eq!((r_squared(&[1.0, 3.0], &[2.0, 2.0]), r_squared(&[4.0], &[4.0])), (Some(0.0), None));
    }

    #[test]
    fn known_pairs() {
        type Case = (&'static [f64], &'static [f64], f64, Option<f64>);
        let cases: [Case; 5] = [
            // The example of scikit-learn's mean_squared_error; its correlation from the sums of products of centred values.
            (&[3.0, -0.5, 2.0, 7.0], &[2.5, 0.0, 2.0, 8.0], 0.375, Some(31.5625 / (29.1875f64 * 35.1875).sqrt())),
            (&[1.0, 2.0, 3.0], &[2.0, 4.0, 6.0], 14.0 / 3.0, Some(1.0)),
            (&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0], 8.0 / 3.0, Some(-1.0)),
            (&[1.0, 2.0], &[5.0, 5.0], 12.5, None),
            (&[], &[], 0.0, None),
        ];
        for (wanted, predicted, error, correlation) in cases {
            let got = (mean_squared_error(wanted, predicted), pearson(wanted, predicted));
            assert!((got.0 - error).abs() < 1e-12, "{got:?}");
            match (got.1, correlation) {
                (Some(got), Some(want)) => assert!((got - want).abs() < 1e-12, "{got} {want}"),
                (got, want) => assert_eq!(got, want),
            }
        }
    }
}
