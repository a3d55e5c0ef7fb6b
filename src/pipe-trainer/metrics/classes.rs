//! How well classes are predicted: counts by true and predicted class, and how far probabilities can be relied on.

use std::collections::{BTreeMap, BTreeSet};

use pipe_spec::evaluation::{Calibration, CalibrationBin, ClassDetails, ClassScores, ConfusionCell};

use super::rounded;

/// Characters of the name of a class, in files.
const NAME: usize = 200;

/// How often each class was taken for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confusion(BTreeMap<(i64, i64), u64>);

/// The counts of one class.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub wanted: u64,
    pub predicted: u64,
    pub right: u64,
}

impl Confusion {
    pub fn add(&mut self, wanted: i64, predicted: i64) {
        *self.0.entry((wanted, predicted)).or_default() += 1;
    }

    /// How many samples have each class.
    pub fn wanted(&self) -> BTreeMap<i64, u64> {
        let mut wanted = BTreeMap::new();
        self.0.iter().for_each(|((class, _), count)| *wanted.entry(*class).or_default() += count);
        wanted
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
        share(tallies.values().map(|tally| tally.f1()).sum(), tallies.len() as f64)
    }

    /// The same without the class that is wanted most often, which says the least.
    pub fn macro_f1_of_others(&self) -> f64 {
        let mut tallies = self.tallies();
        if let Some(common) = self.most_frequent() {
            tallies.remove(&common);
        }
        share(tallies.values().map(|tally| tally.f1()).sum(), tallies.len() as f64)
    }

    /// The class that is wanted most often; the first of equals.
    pub fn most_frequent(&self) -> Option<i64> {
        self.wanted().into_iter().rev().max_by_key(|(_, count)| *count).map(|(class, _)| class)
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

    /// The figures of every class. `names` are those of the classes by number; classes without one have their number.
    pub fn details(&self, names: &[String]) -> ClassDetails {
        let tallies = self.tallies();
        let found = tallies.keys().filter_map(|class| u64::try_from(*class).ok()).max().map_or(0, |last| last + 1);
        let count = found.max(names.len() as u64);
        let scores = |class: u64| {
            let tally = tallies.get(&(class as i64)).copied().unwrap_or_default();
            let name = usize::try_from(class).ok().and_then(|class| names.get(class));
            tally.scores(class, name.map_or_else(|| class.to_string(), |name| name.chars().take(NAME).collect()))
        };
        let mut details = ClassDetails { count, scores: (0..count).map(scores).collect(), ..ClassDetails::default() };
        details.scores = details.largest(ClassDetails::MOST_SCORES).into_iter().cloned().collect();
        let shown: BTreeSet<u64> =
            details.largest(ClassDetails::MOST_CONFUSED).iter().map(|class| class.class).collect();
        let cell = |((class, predicted), rows): (&(i64, i64), &u64)| {
            let (class, predicted) = (u64::try_from(*class).ok()?, u64::try_from(*predicted).ok()?);
            let is_shown = shown.contains(&class) && shown.contains(&predicted);
            is_shown.then_some(ConfusionCell { class, predicted, rows: *rows })
        };
        details.confusion = self.0.iter().filter_map(cell).collect();
        details
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

impl Tally {
    pub fn and(self, other: Self) -> Self {
        Self {
            wanted: self.wanted + other.wanted,
            predicted: self.predicted + other.predicted,
            right: self.right + other.right,
        }
    }

    fn f1(self) -> f64 {
        share(2.0 * self.right as f64, (self.wanted + self.predicted) as f64)
    }

    pub fn scores(self, class: u64, name: String) -> ClassScores {
        let Self { wanted, predicted, right } = self;
        let of = |part: u64, whole: u64| (whole > 0).then(|| rounded(part as f64 / whole as f64));
        ClassScores {
            class,
            name,
            rows: wanted,
            predicted,
            precision: of(right, predicted),
            recall: of(right, wanted),
            f1: of(2 * right, wanted + predicted),
        }
    }
}

/// 0 of nothing.
pub fn share(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

/// Predictions of any number of labels for each text: the counts of each label.
#[derive(Clone, Debug, Default)]
pub struct LabelCounts {
    labels: Vec<Tally>,
    texts: u64,
    /// Texts whose labels are all right.
    exact: u64,
}

impl LabelCounts {
    /// Adds texts: of how many all labels are right, and the counts of each label, as `wanted`, `predicted`, `right`.
    pub fn add(&mut self, texts: u64, exact: u64, labels: &[[u64; 3]]) {
        (self.texts, self.exact) = (self.texts + texts, self.exact + exact);
        self.labels.resize(labels.len(), Tally::default());
        for (tally, [wanted, predicted, right]) in self.labels.iter_mut().zip(labels) {
            *tally = tally.and(Tally { wanted: *wanted, predicted: *predicted, right: *right });
        }
    }

    /// As scikit-learn's `f1_score` with `average="micro"` and `"macro"`, and `accuracy_score`.
    pub fn scores(&self) -> [(&'static str, f64); 3] {
        let all = self.labels.iter().fold(Tally::default(), |all, label| all.and(*label));
        let mean = share(self.labels.iter().map(|label| label.f1()).sum(), self.labels.len() as f64);
        [("micro_f1", all.f1()), ("macro_f1", mean), ("exact_match", share(self.exact as f64, self.texts as f64))]
    }

    /// The label that most texts have, and the micro F1 of an answer that gives it to every text.
    pub fn most_frequent(&self) -> Option<(usize, f64)> {
        let wanted: u64 = self.labels.iter().map(|label| label.wanted).sum();
        let (number, most) = self.labels.iter().enumerate().rev().max_by_key(|(_, label)| label.wanted)?;
        Some((number, share(2.0 * most.wanted as f64, (wanted + self.texts) as f64)))
    }

    /// The figures of each label. A text with several has no single one that it is taken for.
    pub fn details(&self, names: &[String]) -> ClassDetails {
        let named = |number: usize| names.get(number).map_or_else(|| number.to_string(), Clone::clone);
        let scores =
            |(number, tally): (usize, &Tally)| tally.scores(number as u64, named(number).chars().take(NAME).collect());
        let scores = self.labels.iter().enumerate().map(scores).collect();
        let mut details = ClassDetails { count: self.labels.len() as u64, scores, ..ClassDetails::default() };
        details.scores = details.largest(ClassDetails::MOST_SCORES).into_iter().cloned().collect();
        details
    }
}

const BINS: usize = 10;

/// Predictions by their confidence, in bins of the same width; a bin contains its upper end.
#[derive(Clone, Debug, Default)]
pub struct Reliability([Bin; BINS]);

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    rows: u64,
    right: u64,
    confidence: f64,
}

impl Reliability {
    /// Adds a prediction. `confidence` is the probability that the model gave to the class that it predicted.
    pub fn add(&mut self, confidence: f64, right: bool) {
        // The probabilities of a model that has diverged are no numbers.
        let confidence = if confidence.is_finite() { confidence.clamp(0.0, 1.0) } else { 0.0 };
        let index = (confidence * BINS as f64).ceil() as usize;
        let bin = &mut self.0[index.clamp(1, BINS) - 1];
        bin.rows += 1;
        bin.right += u64::from(right);
        bin.confidence += confidence;
    }

    pub fn details(&self) -> Calibration {
        let rows: u64 = self.0.iter().map(|bin| bin.rows).sum();
        let apart: f64 = self.0.iter().map(|bin| (bin.right as f64 - bin.confidence).abs()).sum();
        Calibration { error: rounded(apart / rows.max(1) as f64), bins: self.0.iter().map(Bin::details).collect() }
    }
}

impl Bin {
    fn details(&self) -> CalibrationBin {
        let mean = |sum: f64| (self.rows > 0).then(|| rounded(sum / self.rows as f64));
        CalibrationBin { rows: self.rows, confidence: mean(self.confidence), accuracy: mean(self.right as f64) }
    }
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

    fn table(pairs: &[(i64, i64)]) -> Confusion {
        let mut table = Confusion::default();
        pairs.iter().for_each(|(wanted, predicted)| table.add(*wanted, *predicted));
        table
    }

    #[test]
    fn details_of_a_table_that_was_counted_by_hand() {
        let names = ["cake", "salad", "soup", "pie"].map(str::to_owned);
        let pairs = [(0, 0), (0, 0), (0, 2), (1, 1), (2, 0), (2, 2), (2, 2), (2, 2)];
        let details = table(&pairs).details(&names);
        assert_eq!((details.count, details.scores.len()), (4, 4));
        let scores = |class: usize| {
            let ClassScores { name, rows, predicted, precision, recall, f1, .. } = details.scores[class].clone();
            (name, rows, predicted, [precision, recall, f1])
        };
        assert_eq!(scores(0), ("cake".to_owned(), 3, 3, [Some(0.6667), Some(0.6667), Some(0.6667)]));
        assert_eq!(scores(1), ("salad".to_owned(), 1, 1, [Some(1.0); 3]));
        assert_eq!(scores(2), ("soup".to_owned(), 4, 4, [Some(0.75); 3]));
        assert_eq!(scores(3), ("pie".to_owned(), 0, 0, [None; 3]));
        let cells: Vec<_> = details.confusion.iter().map(|cell| (cell.class, cell.predicted, cell.rows)).collect();
        assert_eq!(cells, [(0, 0, 2), (0, 2, 1), (1, 1, 1), (2, 0, 1), (2, 2, 3)]);
    }

    #[test]
    fn of_very_many_classes_the_largest_are_kept() {
        // Class n has n rows, all right.
        let mut all = Confusion::default();
        (0..1500i64).for_each(|class| *all.0.entry((class, class)).or_default() += class as u64);
        let details = all.details(&[]);
        assert_eq!((details.count, details.scores.len()), (1500, ClassDetails::MOST_SCORES));
        assert_eq!((details.scores[0].class, details.scores[0].name.as_str()), (500, "500"));
        assert_eq!(details.confusion.len(), ClassDetails::MOST_CONFUSED);
        assert_eq!(details.confusion[0].class, 1400);
    }

    #[test]
    fn several_labels_a_text() {
        // wanted [[1, 1, 0], [0, 1, 0], [0, 0, 0]], predicted [[1, 0, 0], [0, 1, 0], [0, 1, 0]]: scikit-learn gives
        // micro 2/3, macro (1 + 1/2 + 0) / 3, accuracy 1/3.
        let mut counts = LabelCounts::default();
        counts.add(2, 1, &[[1, 1, 1], [2, 1, 1], [0, 0, 0]]);
        counts.add(1, 0, &[[0, 0, 0], [0, 1, 0], [0, 0, 0]]);
        let got = counts.scores();
        let want = [("micro_f1", 2.0 / 3.0), ("macro_f1", 0.5), ("exact_match", 1.0 / 3.0)];
        assert!(got.iter().zip(want).all(|(got, want)| got.0 == want.0 && (got.1 - want.1).abs() < 1e-12), "{got:?}");
        let details = counts.details(&["a".to_owned(), "b".to_owned()]);
        let rows: Vec<_> =
            details.scores.iter().map(|label| (label.name.as_str(), label.rows, label.predicted)).collect();
        assert_eq!(rows, [("a", 1, 1), ("b", 2, 2), ("2", 0, 0)]);
    }

    #[test]
    fn known_predictions() {
        let mut reliability = Reliability::default();
        let predictions =
            [(0.95, true), (0.91, true), (0.93, false), (1.0, true), (0.5, true), (0.45, false), (f64::NAN, false)];
        predictions.iter().for_each(|(confidence, right)| reliability.add(*confidence, *right));
        let Calibration { error, bins } = reliability.details();
        let bin = |rows, confidence, accuracy| CalibrationBin { rows, confidence, accuracy };
        assert_eq!(bins.len(), BINS);
        assert_eq!(bins[0], bin(1, Some(0.0), Some(0.0)));
        assert_eq!(bins[4], bin(2, Some(0.475), Some(0.5)));
        assert_eq!(bins[5], bin(0, None, None));
        assert_eq!(bins[9], bin(4, Some(0.9475), Some(0.75)));
        assert_eq!(bins.iter().map(|bin| bin.rows).sum::<u64>(), predictions.len() as u64);
        // (0 * 1 + |0.5 - 0.475| * 2 + |0.75 - 0.9475| * 4) / 7
        assert!((error - 0.84 / 7.0).abs() < 1e-4, "{error}");
    }
}
