//! Models that predict classes or a number.

use pipe_spec::evaluation::{ClassDetails, EvaluationDetails};
use pipe_spec::event::Scores;
use tch::{Kind, Tensor};

use super::evaluated::Measures;
use super::pass::Pass;
use crate::data::IGNORED;
use crate::error::TrainerError;
use crate::metrics::{self, Confusion, Reliability};
use crate::model::{Mode, classification};

/// What the model predicted for every sample.
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
    pass.for_each_part(|samples| {
        let part = pass.cut.shape().collate(samples)?;
        let targets = samples.iter().map(|sample| sample.targets).sum();
        predictions.add(&pass.state.model.logits(&part, Mode::Eval)?, part.get("labels")?, targets)
    })?;
    let details = EvaluationDetails { classes: predictions.details(pass.class_names), ..EvaluationDetails::default() };
    Ok(Measures { loss: predictions.loss(), scores: predictions.scores(), details })
}

impl Predictions {
    /// Of samples that together have so many targets.
    pub fn add(&mut self, logits: &Tensor, labels: &Tensor, targets: u64) -> Result<(), TrainerError> {
        let loss = classification::loss_sum(logits, labels)?.f_double_value(&[])?;
        (self.loss, self.samples) = (self.loss + loss, self.samples + targets);
        if labels.is_floating_point() || logits.size2()?.1 == 1 {
            let numbers = |tensor: &Tensor| Vec::<f64>::try_from(tensor.f_to_kind(Kind::Double)?);
            self.numbers.0.extend(numbers(labels)?);
            self.numbers.1.extend(numbers(&logits.f_select(1, 0)?)?);
            return Ok(());
        }
        let (wanted, predicted) = (Vec::<i64>::try_from(labels)?, Vec::<i64>::try_from(logits.f_argmax(1, false)?)?);
        let probabilities = logits.f_softmax(1, Kind::Float)?.f_amax([1i64].as_slice(), false)?;
        let confidences = Vec::<f64>::try_from(probabilities.f_to_kind(Kind::Double)?)?;
        for ((wanted, predicted), confidence) in wanted.into_iter().zip(predicted).zip(confidences) {
            if wanted != IGNORED {
                self.classes.add(wanted, predicted);
                self.reliability.add(confidence, wanted == predicted);
            }
        }
        Ok(())
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
