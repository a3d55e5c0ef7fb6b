//! Models that label every token: the loss over the labelled tokens, and the entities that are found.

use pipe_spec::evaluation::{ClassDetails, EvaluationDetails};
use pipe_spec::event::{Headline, Scores};
use tch::{Kind, Tensor};

use super::classification::name_of;
use super::{Measures, Pass};
use crate::data::{Column, IGNORED, Sample};
use crate::error::TrainerError;
use crate::metrics::{Confusion, EntityCounts};
use crate::model::{Mode, classification};

pub fn evaluate(pass: &Pass<'_>) -> Result<Measures, TrainerError> {
    let mut found = TaggedTexts::new(pass.class_names);
    let compute = |samples: &[Sample]| {
        let part = pass.splitter.shape().clone().padded().collate(samples)?;
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
            found.add(&wanted, &predicted);
        }
    })?;
    let details = EvaluationDetails { classes: Some(found.details()), ..EvaluationDetails::default() };
    let (loss, scores, headline) = (found.loss(), found.scores(), found.headline());
    Ok(Measures { loss, scores, details, headline, ..Measures::default() })
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

/// Whether labels are numbers, which name no entities.
pub fn are_numbers(names: &[String]) -> bool {
    !names.is_empty() && names.iter().all(|name| name.parse::<i64>().is_ok())
}

/// Texts with the tags that were wanted and those that were predicted, as counts and sums.
pub struct TaggedTexts {
    names: Vec<String>,
    loss: f64,
    targets: u64,
    texts: u64,
    counts: TagCounts,
}

/// Labels that are numbers say nothing of entities: each token counts by itself.
enum TagCounts {
    Entities(EntityCounts),
    Tokens(Confusion),
}

impl TaggedTexts {
    /// `names` are those of the labels by number.
    pub fn new(names: &[String]) -> Self {
        let counts = match are_numbers(names) {
            true => TagCounts::Tokens(Confusion::default()),
            false => TagCounts::Entities(EntityCounts::default()),
        };
        Self { names: names.to_vec(), loss: 0.0, targets: 0, texts: 0, counts }
    }

    /// Adds a loss, summed over so many tokens.
    pub fn add_loss(&mut self, loss: f64, targets: u64) {
        (self.loss, self.targets) = (self.loss + loss, self.targets + targets);
    }

    /// Adds a text by the labels of its words.
    fn add(&mut self, wanted: &[i64], predicted: &[i64]) {
        self.texts += 1;
        let names = &self.names;
        let name =
            |label: &i64| usize::try_from(*label).ok().and_then(|label| names.get(label)).map_or("O", String::as_str);
        match &mut self.counts {
            TagCounts::Tokens(counts) => {
                wanted.iter().zip(predicted).for_each(|(wanted, predicted)| counts.add(*wanted, *predicted));
            }
            TagCounts::Entities(counts) => {
                let (wanted, predicted): (Vec<&str>, Vec<&str>) =
                    (wanted.iter().map(name).collect(), predicted.iter().map(name).collect());
                counts.add(&wanted, &predicted);
            }
        }
    }

    /// The same by the labels that were predicted for its tokens.
    pub fn add_sample(&mut self, sample: &Sample, predicted: &[i64]) {
        let (wanted, predicted): (Vec<i64>, Vec<i64>) = labelled(sample, predicted).unzip();
        self.add(&wanted, &predicted);
    }

    pub fn texts(&self) -> u64 {
        self.texts
    }

    /// The mean over the labelled tokens.
    pub fn loss(&self) -> f64 {
        self.loss / self.targets.max(1) as f64
    }

    pub fn scores(&self) -> Scores {
        match &self.counts {
            TagCounts::Entities(counts) => counts.scores(),
            TagCounts::Tokens(counts) => {
                let scores = [("token_accuracy", counts.accuracy()), ("token_macro_f1", counts.macro_f1_of_others())];
                scores.into_iter().map(|(name, score)| (name.to_owned(), score)).collect()
            }
        }
    }

    fn details(&self) -> ClassDetails {
        match &self.counts {
            TagCounts::Entities(counts) => counts.details(),
            TagCounts::Tokens(counts) => counts.details(&self.names),
        }
    }

    /// The best answer that ignores the text: no entity, or the most frequent label.
    fn headline(&self) -> Option<Headline> {
        match &self.counts {
            TagCounts::Entities(_) => Some(Headline::new("entity_f1", self.texts).against("finding no entity", 0.0)),
            TagCounts::Tokens(counts) => {
                let (common, wanted) = (counts.most_frequent()?, counts.wanted());
                let share = wanted[&common] as f64 / wanted.values().sum::<u64>() as f64;
                let name = format!("always answering {}", name_of(common, &self.names));
                Some(Headline::new("token_accuracy", self.texts).against(name, share))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_judged_by_token() {
        let names = ["0", "1", "2"].map(str::to_owned);
        let mut found = TaggedTexts::new(&names);
        found.add(&[0, 0, 0, 1, 2], &[0, 0, 0, 1, 0]);
        let headline = found.headline().unwrap();
        let baseline = headline.baseline.unwrap();
        assert_eq!((headline.metric.as_str(), headline.rows), ("token_accuracy", 1));
        assert_eq!((baseline.name.as_str(), baseline.value), ("always answering 0", 0.6));
        let scores: Vec<(String, f64)> = found.scores().into_iter().collect();
        // The label 1 has an F1 of 1, and 2 of 0.
        assert_eq!(scores, [("token_accuracy".to_owned(), 0.8), ("token_macro_f1".to_owned(), 0.5)]);
        assert_eq!(found.details().count, 3);
        let named = TaggedTexts::new(&["O", "B-1"].map(str::to_owned));
        assert_eq!(named.headline().unwrap().metric, "entity_f1");
    }
}
