//! Models that predict classes or a number.

use pipe_spec::evaluation::{ClassDetails, EvaluationDetails};
use pipe_spec::event::Scores;
use tch::{Kind, Tensor};

use super::pass::{Measures, Pass};
use crate::data::{IGNORED, Sample};
use crate::error::TrainerError;
use crate::metrics::{self, Confusion, Reliability};
use crate::model::{Mode, classification};

/// Predictions for every sample, as counts and sums.
#[derive(Default)]
pub struct Predictions {
    loss: f64,
    classes: Confusion,
    reliability: Reliability,
    /// Where numbers are predicted: what was wanted, and what was predicted.
    numbers: (Vec<f64>, Vec<f64>),
    samples: u64,
}

pub fn evaluate(pass: &Pass<'_>) -> Result<Measures, TrainerError> {
    let mut predictions = Predictions::default();
    let compute = |samples: &[Sample]| {
        let part = pass.splitter.shape().collate(samples)?;
        Judged::of(&pass.state.model.logits(&part, Mode::Eval)?, part.get("labels")?).map(|judged| judged.0)
    };
    pass.for_each_part(Judged::numbers, compute, |samples, numbers| {
        predictions.take(numbers, samples.iter().map(|sample| sample.targets).sum());
    })?;
    let details = EvaluationDetails { classes: predictions.details(pass.class_names), ..EvaluationDetails::default() };
    Ok(Measures { loss: predictions.loss(), scores: predictions.scores(), details, ..Measures::default() })
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

    fn of(logits: &Tensor, labels: &Tensor) -> Result<Self, TrainerError> {
        let loss = classification::loss_sum(logits, labels)?.f_double_value(&[])?;
        let are_numbers = labels.is_floating_point() || logits.size2()?.1 == 1;
        let list = |tensor: &Tensor| Vec::<f64>::try_from(tensor.f_to_kind(Kind::Double)?);
        let (predicted, confidences) = match are_numbers {
            true => {
                let predicted = list(&logits.f_select(1, 0)?)?;
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
    /// Adds samples that together have so many targets.
    pub fn add(&mut self, logits: &Tensor, labels: &Tensor, targets: u64) -> Result<(), TrainerError> {
        self.take(&Judged::of(logits, labels)?.0, targets);
        Ok(())
    }

    /// The numbers of `Judged`.
    fn take(&mut self, numbers: &[f64], targets: u64) {
        let (of_part, samples) = numbers.split_at(OF_A_PART);
        (self.loss, self.samples) = (self.loss + of_part[0], self.samples + targets);
        for sample in samples.chunks_exact(OF_A_SAMPLE) {
            let (wanted, predicted, confidence) = (sample[0], sample[1], sample[2]);
            if of_part[1] > 0.0 {
                self.numbers.0.push(wanted);
                self.numbers.1.push(predicted);
            } else if wanted as i64 != IGNORED {
                self.classes.add(wanted as i64, predicted as i64);
                self.reliability.add(confidence, wanted == predicted);
            }
        }
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
            ]
        };
        let known = |(name, score): (&str, Option<f64>)| score.map(|score| (name.to_owned(), score));
        scores.into_iter().filter_map(known).collect()
    }
}
