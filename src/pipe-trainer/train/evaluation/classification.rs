//! Models that predict classes or a number.

use pipe_spec::event::Scores;
use tch::{Kind, Tensor};

use super::pass::Pass;
use crate::data::IGNORED;
use crate::error::TrainerError;
use crate::metrics::{self, Confusion};
use crate::model::{Mode, classification};

/// What the model predicted for every sample.
#[derive(Default)]
struct Predictions {
    loss: f64,
    classes: Confusion,
    /// Where numbers are predicted: what was wanted, and what was predicted.
    numbers: (Vec<f64>, Vec<f64>),
    samples: u64,
}

pub fn evaluate(pass: &Pass<'_>) -> Result<(f64, Scores), TrainerError> {
    let indices: Vec<usize> = (0..pass.reader.source.len()).collect();
    let mut predictions = Predictions::default();
    for part in indices.chunks(pass.batch) {
        let samples = pass.samples(part)?;
        if samples.is_empty() {
            continue;
        }
        let part = pass.shape.collate(&samples)?;
        predictions.add(&pass.state.model.logits(&part, Mode::Eval)?, part.get("labels")?)?;
        predictions.samples += samples.iter().map(|sample| sample.targets).sum::<u64>();
    }
    Ok((predictions.loss / predictions.samples.max(1) as f64, predictions.scores()))
}

impl Predictions {
    fn add(&mut self, logits: &Tensor, labels: &Tensor) -> Result<(), TrainerError> {
        self.loss += classification::loss_sum(logits, labels)?.f_double_value(&[])?;
        if labels.is_floating_point() || logits.size2()?.1 == 1 {
            let numbers = |tensor: &Tensor| Vec::<f64>::try_from(tensor.f_to_kind(Kind::Double)?);
            self.numbers.0.extend(numbers(labels)?);
            self.numbers.1.extend(numbers(&logits.f_select(1, 0)?)?);
            return Ok(());
        }
        let (wanted, predicted) = (Vec::<i64>::try_from(labels)?, Vec::<i64>::try_from(logits.f_argmax(1, false)?)?);
        let known = wanted.into_iter().zip(predicted).filter(|(wanted, _)| *wanted != IGNORED);
        known.for_each(|(wanted, predicted)| self.classes.add(wanted, predicted));
        Ok(())
    }

    fn scores(&self) -> Scores {
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
