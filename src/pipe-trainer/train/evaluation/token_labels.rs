//! Models that label every token: the loss over the labelled tokens, and the entities that are found.

use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::{Headline, Scores};
use tch::{Kind, Tensor};

use super::pass::{Measures, Pass};
use crate::data::{Column, IGNORED, Sample};
use crate::error::TrainerError;
use crate::metrics::EntityCounts;
use crate::model::{Mode, classification};

pub fn evaluate(pass: &Pass<'_>) -> Result<Measures, TrainerError> {
    let mut found = TaggedTexts::default();
    let compute = |samples: &[Sample]| {
        let part = pass.splitter.shape().collate(samples)?;
        let logits = pass.state.model.logits(&part, Mode::Eval)?;
        let loss = classification::loss_sum(&logits, part.get("labels")?)?.f_double_value(&[])?;
        let labels = predicted_labels(&logits)?;
        let predicted = samples.iter().zip(&labels).flat_map(|(sample, labels)| labelled(sample, labels));
        Ok(std::iter::once(loss).chain(predicted.map(|(_, predicted)| predicted as f64)).collect())
    };
    let numbers = |samples: &[Sample]| 1 + targets(samples);
    pass.for_each_part(numbers, compute, |samples, numbers| {
        let mut rest = &numbers[1..];
        found.add_loss(numbers[0], targets(samples) as u64);
        for sample in samples {
            let (own, after) = rest.split_at(sample.targets as usize);
            rest = after;
            let wanted: Vec<i64> = wanted(sample).iter().copied().filter(|label| *label != IGNORED).collect();
            let predicted: Vec<i64> = own.iter().map(|label| *label as i64).collect();
            found.add(&wanted, &predicted, pass.class_names);
        }
    })?;
    let details = EvaluationDetails { classes: Some(found.counts.details()), ..EvaluationDetails::default() };
    let headline = Headline::new("entity_f1", found.texts()).against("finding no entity", 0.0);
    let (loss, scores) = (found.loss(), found.scores());
    Ok(Measures { loss, scores, details, headline: Some(headline), ..Measures::default() })
}

fn targets(samples: &[Sample]) -> usize {
    samples.iter().map(|sample| sample.targets as usize).sum()
}

/// The label of each token.
fn wanted(sample: &Sample) -> &[i64] {
    match sample.column("labels") {
        Some(Column::PerToken(labels)) => labels,
        _ => &[],
    }
}

/// The labels that are wanted and predicted, of the tokens that have one.
fn labelled<'a>(sample: &'a Sample, predicted: &'a [i64]) -> impl Iterator<Item = (i64, i64)> + 'a {
    wanted(sample).iter().copied().zip(predicted.iter().copied()).filter(|(wanted, _)| *wanted != IGNORED)
}

/// The most probable label of each token of each sample; the first of equals. `logits` is [samples, length, labels].
pub fn predicted_labels(logits: &Tensor) -> Result<Vec<Vec<i64>>, TrainerError> {
    Ok(Vec::<Vec<i64>>::try_from(logits.f_argmax(2, false)?.f_to_kind(Kind::Int64)?.f_to_device(tch::Device::Cpu)?)?)
}

/// Texts with the tags that were wanted and those that were predicted, as counts and sums.
#[derive(Default)]
pub struct TaggedTexts {
    loss: f64,
    targets: u64,
    texts: u64,
    counts: EntityCounts,
}

impl TaggedTexts {
    /// Adds a loss, summed over so many tokens.
    pub fn add_loss(&mut self, loss: f64, targets: u64) {
        (self.loss, self.targets) = (self.loss + loss, self.targets + targets);
    }

    /// Adds a text by the labels of its words.
    fn add(&mut self, wanted: &[i64], predicted: &[i64], names: &[String]) {
        let name =
            |label: &i64| usize::try_from(*label).ok().and_then(|label| names.get(label)).map_or("O", String::as_str);
        let (wanted, predicted): (Vec<&str>, Vec<&str>) =
            (wanted.iter().map(name).collect(), predicted.iter().map(name).collect());
        self.texts += 1;
        self.counts.add(&wanted, &predicted);
    }

    /// The same by the labels that were predicted for its tokens.
    pub fn add_sample(&mut self, sample: &Sample, predicted: &[i64], names: &[String]) {
        let (wanted, predicted): (Vec<i64>, Vec<i64>) = labelled(sample, predicted).unzip();
        self.add(&wanted, &predicted, names);
    }

    pub fn texts(&self) -> u64 {
        self.texts
    }

    /// The mean over the labelled tokens.
    pub fn loss(&self) -> f64 {
        self.loss / self.targets.max(1) as f64
    }

    pub fn scores(&self) -> Scores {
        self.counts.scores()
    }
}
