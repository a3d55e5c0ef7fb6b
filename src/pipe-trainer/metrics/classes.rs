//! How well classes are predicted: counts of wanted against predicted classes.

use std::collections::BTreeMap;

/// How often each class was taken for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confusion(BTreeMap<(i64, i64), u64>);

/// What happened to one class.
#[derive(Clone, Copy, Default)]
struct Tally {
    wanted: u64,
    predicted: u64,
    right: u64,
}

impl Confusion {
    pub fn add(&mut self, wanted: i64, predicted: i64) {
        *self.0.entry((wanted, predicted)).or_default() += 1;
    }

    /// The share of samples whose class was right.
    pub fn accuracy(&self) -> f64 {
        let right: u64 = self.tallies().values().map(|tally| tally.right).sum();
        share(right as f64, self.total() as f64)
    }

    /// The harmonic mean of precision and recall, averaged over the classes that were wanted or predicted, as scikit-learn's
    /// `f1_score(average="macro")`.
    pub fn macro_f1(&self) -> f64 {
        let tallies = self.tallies();
        let f1 = |tally: &Tally| share(2.0 * tally.right as f64, (tally.wanted + tally.predicted) as f64);
        share(tallies.values().map(f1).sum(), tallies.len() as f64)
    }

    /// The correlation coefficient of Matthews (1975) for any number of classes (Gorodkin, 2004); 0 where one of the two is
    /// always the same.
    pub fn matthews(&self) -> f64 {
        let tallies = self.tallies();
        let sum = |of: &dyn Fn(&Tally) -> f64| tallies.values().map(of).sum::<f64>();
        let total = self.total() as f64;
        let right = sum(&|tally| tally.right as f64);
        let both = sum(&|tally| tally.wanted as f64 * tally.predicted as f64);
        let wanted = sum(&|tally| (tally.wanted as f64).powi(2));
        let predicted = sum(&|tally| (tally.predicted as f64).powi(2));
        let scale = ((total * total - wanted) * (total * total - predicted)).sqrt();
        share(right * total - both, scale)
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    fn tallies(&self) -> BTreeMap<i64, Tally> {
        let mut tallies: BTreeMap<i64, Tally> = BTreeMap::new();
        for ((wanted, predicted), count) in &self.0 {
            tallies.entry(*wanted).or_default().wanted += count;
            tallies.entry(*predicted).or_default().predicted += count;
            if wanted == predicted {
                tallies.entry(*wanted).or_default().right += count;
            }
        }
        tallies
    }
}

/// 0 of nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_tables() {
        type Case = (&'static [i64], &'static [i64], [f64; 3]);
        let cases: [Case; 7] = [
            // Examples of scikit-learn's documentation: accuracy_score, f1_score, matthews_corrcoef.
            (&[0, 1, 2, 3], &[0, 2, 1, 3], [0.5, 0.5, 1.0 / 3.0]),
            (&[0, 1, 2, 0, 1, 2], &[0, 2, 1, 0, 0, 1], [1.0 / 3.0, 0.8 / 3.0, 0.0]),
            (&[1, 1, 1, 0], &[1, 0, 1, 1], [0.5, (4.0 / 6.0) / 2.0, -1.0 / 3.0]),
            (&[0, 1, 2], &[0, 1, 2], [1.0, 1.0, 1.0]),
            (&[0, 1, 0, 1], &[1, 0, 1, 0], [0.0, 0.0, -1.0]),
            // Only one class is predicted; a class that never occurs does not count.
            (&[0, 0, 5, 5], &[0, 0, 0, 0], [0.5, (4.0 / 6.0) / 2.0, 0.0]),
            (&[], &[], [0.0, 0.0, 0.0]),
        ];
        for (wanted, predicted, want) in cases {
            let mut table = Confusion::default();
            wanted.iter().zip(predicted).for_each(|(wanted, predicted)| table.add(*wanted, *predicted));
            let got = [table.accuracy(), table.macro_f1(), table.matthews()];
            assert!(
                got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12),
                "{wanted:?} {predicted:?}: {got:?} {want:?}"
            );
        }
    }
}
