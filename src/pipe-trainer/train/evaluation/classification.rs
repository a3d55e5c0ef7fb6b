//! Models that predict a class, several labels or a number.

use pipe_model::LabelUnit;
use pipe_spec::evaluation::{ClassDetails, EvaluationDetails, Mistake, RetrievalExample};
use pipe_spec::event::{Headline, Scores};
use tch::{Kind, Tensor};

use super::contrastive::png;
use super::{Measures, Pass};
use crate::data::{IGNORED, Sample, Source};
use crate::error::TrainerError;
use crate::metrics::{self, Confusion, LabelCounts, Reliability};
use crate::model::{Mode, classification};

/// Predictions for every sample, as counts and sums.
#[derive(Default)]
pub struct Predictions {
    unit: LabelUnit,
    loss: f64,
    classes: Confusion,
    reliability: Reliability,
    /// Where numbers are predicted: what was wanted, and what was predicted.
    numbers: (Vec<f64>, Vec<f64>),
    samples: u64,
    /// The surest of the wrong predictions, the surest first.
    wrong: Vec<Wrong>,
}

/// A prediction that is wrong.
#[derive(Clone, Copy)]
struct Wrong {
    index: usize,
    wanted: i64,
    predicted: i64,
    /// To four digits: other parts with other rounding have the same order.
    confidence: f64,
}

pub fn evaluate(pass: &Pass<'_>) -> Result<Measures, TrainerError> {
    if pass.labels_per_text > 0 {
        return evaluate_several(pass);
    }
    let mut predictions = Predictions::new(pass.state.model.label_unit());
    let unit = predictions.unit;
    let compute = |samples: &[Sample]| {
        let part = pass.splitter.shape().collate(samples)?;
        Judged::of(&pass.state.model.logits(&part, Mode::Eval)?, part.get("labels")?, unit).map(|judged| judged.0)
    };
    pass.for_each_row(
        |samples| Judged::numbers(samples.len()),
        compute,
        |indices, samples, numbers| {
            predictions.take(indices, numbers, samples.iter().map(|sample| sample.targets).sum());
        },
    )?;
    let source = pass.reader.source.as_ref();
    let mistakes = predictions.wrong.iter().map(|wrong| wrong.shown(source, pass.class_names)).collect();
    let classes = predictions.details(pass.class_names);
    Ok(Measures {
        loss: predictions.loss(),
        scores: predictions.scores(),
        details: EvaluationDetails { classes, mistakes, ..EvaluationDetails::default() },
        headline: predictions.headline(pass.class_names),
        samples: None,
    })
}

/// The name of a class; its number where it has none.
pub fn name_of(class: i64, names: &[String]) -> String {
    let name = usize::try_from(class).ok().and_then(|class| names.get(class)).filter(|name| !name.is_empty());
    name.map_or_else(|| class.to_string(), |name| name.chars().take(NAME).collect())
}

/// Characters of the name of a class.
const NAME: usize = 100;

impl Wrong {
    /// Parts that cannot be read are left out.
    fn shown(&self, source: &dyn Source, names: &[String]) -> Mistake {
        let text = source.caption(self.index).ok().flatten().unwrap_or_default();
        let picture = source.thumbnail(self.index, RetrievalExample::PICTURE_EDGE).ok().flatten();
        Mistake {
            rows: source.rows(self.index).map(|row| row as u64 + 1),
            text: text.chars().take(Mistake::TEXT).collect(),
            picture: picture.and_then(|picture| png(&picture)).unwrap_or_default(),
            class: name_of(self.wanted, names),
            predicted: name_of(self.predicted, names),
            confidence: self.confidence,
        }
    }
}

/// Models that predict several labels.
fn evaluate_several(pass: &Pass<'_>) -> Result<Measures, TrainerError> {
    let mut found = SeveralLabels::new(pass.session.spec.evaluate.threshold);
    let threshold = found.threshold;
    let compute = |samples: &[Sample]| {
        let part = pass.splitter.shape().collate(samples)?;
        SeveralLabels::judge(&pass.state.model.logits(&part, Mode::Eval)?, part.get("labels")?, threshold)
    };
    let numbers = |_: &[Sample]| SeveralLabels::numbers(pass.labels_per_text);
    pass.for_each_part(numbers, compute, |samples, numbers| found.take(numbers, samples.len() as u64))?;
    let details = EvaluationDetails { classes: Some(found.counts.details(pass.class_names)), ..Default::default() };
    let headline = found.counts.most_frequent().map(|(number, f1)| {
        let name = format!("always answering {}", name_of(number as i64, pass.class_names));
        Headline::new("micro_f1", found.samples()).against(name, f1)
    });
    Ok(Measures { loss: found.loss(), scores: found.scores(), details, headline, ..Measures::default() })
}

/// Predictions of several labels for every sample, as counts and sums.
pub struct SeveralLabels {
    /// The probability from which a label applies.
    threshold: f64,
    loss: f64,
    samples: u64,
    counts: LabelCounts,
}

impl SeveralLabels {
    pub fn new(threshold: f64) -> Self {
        Self { threshold, loss: 0.0, samples: 0, counts: LabelCounts::default() }
    }

    /// Adds the samples of a part.
    pub fn add(&mut self, logits: &Tensor, labels: &Tensor) -> Result<(), TrainerError> {
        let numbers = Self::judge(logits, labels, self.threshold)?;
        self.take(&numbers, labels.size2()?.0.unsigned_abs());
        Ok(())
    }

    /// How many numbers a part has.
    fn numbers(labels: usize) -> usize {
        2 + 3 * labels
    }

    /// The loss, how many samples are all right, and of each label how often it was wanted, predicted and both.
    fn judge(logits: &Tensor, labels: &Tensor, threshold: f64) -> Result<Vec<f64>, TrainerError> {
        let loss = classification::loss_sum(logits, labels)?.f_double_value(&[])?;
        let wanted = labels.f_gt(0.5)?;
        let predicted = logits.f_to_kind(Kind::Float)?.f_sigmoid()?.f_ge(threshold)?;
        let exact = wanted.f_eq_tensor(&predicted)?.f_all_dim(1, false)?.f_sum(Kind::Double)?.f_double_value(&[])?;
        let sums = |which: &Tensor| -> Result<Vec<f64>, TrainerError> {
            Ok(Vec::<f64>::try_from(which.f_sum_dim_intlist([0i64].as_slice(), false, Kind::Double)?)?)
        };
        let each = [sums(&wanted)?, sums(&predicted)?, sums(&wanted.f_logical_and(&predicted)?)?];
        let mut all = vec![loss, exact];
        (0..each[0].len()).for_each(|label| all.extend(each.iter().map(|sums| sums[label])));
        Ok(all)
    }

    /// The numbers of `judge`.
    fn take(&mut self, numbers: &[f64], samples: u64) {
        let (of_part, labels) = numbers.split_at(2);
        let labels: Vec<[u64; 3]> =
            labels.chunks_exact(3).map(|label| [label[0] as u64, label[1] as u64, label[2] as u64]).collect();
        (self.loss, self.samples) = (self.loss + of_part[0], self.samples + samples);
        self.counts.add(samples, of_part[1] as u64, &labels);
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The mean over the samples.
    pub fn loss(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    pub fn scores(&self) -> Scores {
        self.counts.scores().into_iter().map(|(name, score)| (name.to_owned(), score)).collect()
    }
}

/// The answer of a model to a part, as numbers: the loss, whether numbers are predicted, and of each sample what was wanted, what was
/// predicted and with which confidence.
struct Judged(Vec<f64>);

/// Numbers of a part, and of each of its samples.
const OF_A_PART: usize = 2;
const OF_A_SAMPLE: usize = 3;

impl Judged {
    /// How many numbers a part of so many samples has.
    fn numbers(samples: usize) -> usize {
        OF_A_PART + OF_A_SAMPLE * samples
    }

    fn of(logits: &Tensor, labels: &Tensor, unit: LabelUnit) -> Result<Self, TrainerError> {
        let loss =
            classification::loss_sum(logits, &classification::standardised(labels, unit)?)?.f_double_value(&[])?;
        let are_numbers = labels.is_floating_point() || logits.size2()?.1 == 1;
        let list = |tensor: &Tensor| Vec::<f64>::try_from(tensor.f_to_kind(Kind::Double)?);
        let (predicted, confidences) = match are_numbers {
            true => {
                let predicted = list(&logits.f_select(1, 0)?)?;
                let predicted: Vec<f64> = predicted.into_iter().map(|number| unit.restore(number)).collect();
                let none = vec![0.0; predicted.len()];
                (predicted, none)
            }
            false => {
                let probabilities = logits.f_softmax(1, Kind::Float)?.f_amax([1i64].as_slice(), false)?;
                (list(&logits.f_argmax(1, false)?)?, list(&probabilities)?)
            }
        };
        let mut all = vec![loss, f64::from(u8::from(are_numbers))];
        for ((wanted, predicted), confidence) in list(labels)?.into_iter().zip(predicted).zip(confidences) {
            all.extend([wanted, predicted, confidence]);
        }
        Ok(Self(all))
    }
}

impl Predictions {
    /// Numbers are scored in this unit.
    pub fn new(unit: LabelUnit) -> Self {
        Self { unit, ..Self::default() }
    }

    /// Adds samples that together have so many targets.
    pub fn add(&mut self, logits: &Tensor, labels: &Tensor, targets: u64) -> Result<(), TrainerError> {
        self.take(&[], &Judged::of(logits, labels, self.unit)?.0, targets);
        Ok(())
    }

    /// The numbers of `Judged`, with the indices of the samples where they are known.
    fn take(&mut self, indices: &[usize], numbers: &[f64], targets: u64) {
        let (of_part, samples) = numbers.split_at(OF_A_PART);
        (self.loss, self.samples) = (self.loss + of_part[0], self.samples + targets);
        for (at, sample) in samples.chunks_exact(OF_A_SAMPLE).enumerate() {
            let (wanted, predicted, confidence) = (sample[0], sample[1], sample[2]);
            if of_part[1] > 0.0 {
                self.numbers.0.push(wanted);
                self.numbers.1.push(predicted);
            } else if wanted as i64 != IGNORED {
                self.classes.add(wanted as i64, predicted as i64);
                self.reliability.add(confidence, wanted == predicted);
                if let Some(index) = indices.get(at).filter(|_| wanted != predicted) {
                    let (wanted, predicted) = (wanted as i64, predicted as i64);
                    self.keep(Wrong { index: *index, wanted, predicted, confidence: metrics::rounded(confidence) });
                }
            }
        }
    }

    /// Keeps the surest; of equals the earlier rows.
    fn keep(&mut self, wrong: Wrong) {
        let before = |other: &Wrong| {
            other.confidence.total_cmp(&wrong.confidence).reverse().then(other.index.cmp(&wrong.index)).is_lt()
        };
        let position = self.wrong.iter().position(|other| !before(other)).unwrap_or(self.wrong.len());
        self.wrong.insert(position, wrong);
        self.wrong.truncate(Mistake::MOST);
    }

    /// The accuracy against the class that most rows have, the error against the mean: the best answers that ignore the input.
    fn headline(&self, names: &[String]) -> Option<Headline> {
        let numbers = &self.numbers.0;
        if !numbers.is_empty() {
            let headline = Headline::new("mse", numbers.len() as u64);
            return Some(headline.against("always answering the mean", metrics::variance(numbers)));
        }
        let wanted = self.classes.wanted();
        let rows: u64 = wanted.values().sum();
        let common = self.classes.most_frequent()?;
        let share = wanted[&common] as f64 / rows as f64;
        let headline = Headline { classes: Some(wanted.len() as u64), ..Headline::new("accuracy", rows) };
        Some(headline.against(format!("always answering {}", name_of(common, names)), share))
    }

    /// Nothing where numbers are predicted.
    fn details(&self, names: &[String]) -> Option<ClassDetails> {
        let details = self.classes.details(names);
        let known = self.numbers.0.is_empty() && self.samples > 0;
        known.then(|| ClassDetails { calibration: self.reliability.details(), ..details })
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The mean over the samples.
    pub fn loss(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    pub fn scores(&self) -> Scores {
        let (wanted, predicted) = &self.numbers;
        let scores = if wanted.is_empty() {
            vec![
                ("accuracy", Some(self.classes.accuracy())),
                ("macro_f1", Some(self.classes.macro_f1())),
                // The older name of the same figure.
                ("f1", Some(self.classes.macro_f1())),
                ("mcc", Some(self.classes.matthews())),
            ]
        } else {
            vec![
                ("mse", Some(metrics::mean_squared_error(wanted, predicted))),
                ("pearson", metrics::pearson(wanted, predicted)),
                ("r2", metrics::r_squared(wanted, predicted)),
            ]
        };
        let known = |(name, score): (&str, Option<f64>)| score.map(|score| (name.to_owned(), score));
        scores.into_iter().filter_map(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of a class, the class predicted, and the confidence.
    fn predictions(rows: &[(i64, i64, f64)]) -> Predictions {
        let mut predictions = Predictions::default();
        for (index, (wanted, predicted, confidence)) in rows.iter().enumerate() {
            predictions.take(&[index], &[0.0, 0.0, *wanted as f64, *predicted as f64, *confidence], 1);
        }
        predictions
    }

    #[test]
    fn the_surest_mistakes_are_kept() {
        let rows = (0..20).map(|row| (row % 2, 0, f64::from(row as u32 / 4) / 10.0)).collect::<Vec<_>>();
        let kept: Vec<(usize, i64, f64)> =
            predictions(&rows).wrong.iter().map(|wrong| (wrong.index, wrong.wanted, wrong.confidence)).collect();
        assert_eq!(kept.len(), Mistake::MOST);
        assert_eq!(kept[..3], [(17, 1, 0.4), (19, 1, 0.4), (13, 1, 0.3)]);
    }

    #[test]
    fn against_the_most_frequent_class() {
        let names = ["soup", "cake", "pie"].map(str::to_owned);
        let rows = predictions(&[(0, 0, 0.9), (1, 0, 0.9), (1, 1, 0.9), (1, 1, 0.9), (IGNORED, 0, 0.9)]);
        let Headline { metric, rows, classes, baseline } = rows.headline(&names).unwrap();
        let baseline = baseline.unwrap();
        assert_eq!((metric.as_str(), rows, classes), ("accuracy", 4, Some(2)));
        assert_eq!((baseline.name.as_str(), baseline.value), ("always answering cake", 0.75));
        assert_eq!(predictions(&[(7, 7, 0.9)]).headline(&names).unwrap().baseline.unwrap().name, "always answering 7");
        assert_eq!(predictions(&[]).headline(&names), None);
    }

    #[test]
    fn numbers_against_their_mean() {
        let mut predictions = Predictions::default();
        predictions.take(&[0, 1], &[0.0, 1.0, 1.0, 1.5, 0.0, 3.0, 2.5, 0.0], 2);
        let headline = predictions.headline(&[]).unwrap();
        assert_eq!((headline.metric.as_str(), headline.rows, headline.baseline.unwrap().value), ("mse", 2, 1.0));
        assert!(predictions.wrong.is_empty());
    }
}
