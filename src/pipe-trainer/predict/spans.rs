//! Predictions of a label for each word of a text, and the spans of words that belong together.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use pipe_model::TaskData;
use pipe_spec::predict::Predicted;
use tch::{Device, Kind, Tensor};

use super::batches::Head;
use super::output::{Field, Fields, Span};
use super::{Prediction, evaluation};
use crate::data::{Column, IGNORED, PartShape, Sample, Source, Words};
use crate::error::TrainerError;
use crate::metrics::entities;
use crate::model::{Mode, Model, classification};
use crate::train::{TaggedTexts, are_numbers, predicted_labels};

pub fn predict_spans(prediction: &mut Prediction, task_data: &TaskData) -> Result<Predicted, TrainerError> {
    let TaskData::TokenLabels { names, .. } = task_data else { panic!("not for labels of tokens: {task_data:?}") };
    let names = names.clone().unwrap_or_default();
    let (sources, shape) = prediction.open(task_data)?;
    let (model, source) = (Rc::clone(&prediction.model), Arc::clone(&sources.train));
    let found = TaggedTexts::new(&names);
    let mut head = SpanHead { model, source, shape, names, found };
    let predicted = prediction.write(&sources.train, &mut head)?;
    let found = &head.found;
    Ok(Predicted { evaluation: evaluation(found.texts(), found.loss(), found.scores()), ..predicted })
}

struct SpanHead {
    model: Rc<dyn Model>,
    source: Arc<dyn Source>,
    shape: PartShape,
    names: Vec<String>,
    found: TaggedTexts,
}

/// The words of a text, or of a piece of one, with what was predicted.
struct Tagged {
    words: Words,
    tags: Vec<String>,
    probabilities: Vec<f32>,
    /// Whether labels are numbers: there are no spans then.
    is_numbered: bool,
}

impl Head for SpanHead {
    type Output = Tagged;

    const JOINED: bool = true;

    fn compute(&mut self, indices: &[usize], samples: &[Sample]) -> Result<Vec<Tagged>, TrainerError> {
        let part = self.shape.collate(samples)?;
        let logits = self.model.logits(&part, Mode::Eval)?;
        let labels = predicted_labels(&logits)?;
        let best = logits.f_softmax(-1, Kind::Float)?.f_amax([2i64].as_slice(), false)?;
        let best = Vec::<Vec<f32>>::try_from(best.f_to_device(Device::Cpu)?)?;
        let tagged = |(at, index): (usize, &usize)| self.tagged(*index, &samples[at], &labels[at], &best[at]);
        let all = indices.iter().enumerate().map(tagged).collect::<Result<Vec<Tagged>, TrainerError>>()?;
        self.count(samples, &labels, &logits, part.get("labels")?)?;
        Ok(all)
    }

    fn fields(pieces: Vec<Tagged>) -> Fields {
        let text: Vec<char> = pieces.first().map_or(Vec::new(), |piece| piece.words.text.chars().collect());
        let is_text = pieces.first().is_some_and(|piece| piece.words.is_text);
        let places: Vec<&Range<usize>> = pieces.iter().flat_map(|piece| &piece.words.places).collect();
        let tags: Vec<&str> = pieces.iter().flat_map(|piece| piece.tags.iter().map(String::as_str)).collect();
        let probabilities: Vec<f32> = pieces.iter().flat_map(|piece| piece.probabilities.clone()).collect();
        let span = |(label, words): (String, Range<usize>)| {
            let (start, end) = (places[words.start].start, places[words.end - 1].end);
            let score = probabilities[words.clone()].iter().sum::<f32>() / words.len() as f32;
            Span { text: text[start..end].iter().collect(), label, start, end, score }
        };
        let is_numbered = pieces.iter().any(|piece| piece.is_numbered);
        let owned = |tags: Vec<&str>| Field::Texts(tags.into_iter().map(str::to_owned).collect());
        let mut fields = Vec::new();
        if !is_numbered {
            fields.push(("spans", Field::Spans(entities(&tags).into_iter().map(span).collect())));
        } else if is_text {
            let words = pieces.iter().flat_map(|piece| piece.words.words.iter().map(String::as_str));
            fields.push(("tokens", owned(words.collect())));
        }
        if !is_text || is_numbered {
            fields.push(("tags", owned(tags)));
        }
        let wanted: Option<Vec<&Vec<String>>> = pieces.iter().map(|piece| piece.words.tags.as_ref()).collect();
        if let Some(wanted) = wanted {
            fields.push(("expected", owned(wanted.into_iter().flatten().map(String::as_str).collect())));
        }
        fields
    }
}

impl SpanHead {
    /// A word has the label of its first token. One that has no token, such as a control character, is outside of every span.
    fn tagged(&self, index: usize, sample: &Sample, labels: &[i64], best: &[f32]) -> Result<Tagged, TrainerError> {
        let words = self.source.sentence(index)?.unwrap_or_else(|| panic!("a sample without words"));
        let is_numbered = are_numbers(&self.names);
        let outside = if is_numbered { &self.names[0] } else { "O" };
        let mut tags = vec![outside.to_owned(); words.words.len()];
        let mut probabilities = vec![0.0; words.words.len()];
        if let Some(Column::PerToken(firsts)) = sample.column("words") {
            for ((word, label), probability) in
                firsts.iter().zip(labels).zip(best).filter(|((word, _), _)| **word != IGNORED)
            {
                let word = *word as usize;
                tags[word] = self.names.get(*label as usize).cloned().unwrap_or_else(|| label.to_string());
                probabilities[word] = *probability;
            }
        }
        Ok(Tagged { words, tags, probabilities, is_numbered })
    }

    /// Counts the samples whose labels are known.
    fn count(
        &mut self,
        samples: &[Sample],
        labels: &[Vec<i64>],
        logits: &Tensor,
        wanted: &Tensor,
    ) -> Result<(), TrainerError> {
        let targets: u64 = samples.iter().map(|sample| sample.targets).sum();
        if targets > 0 {
            self.found.add_loss(classification::loss_sum(logits, wanted)?.f_double_value(&[])?, targets);
        }
        for (sample, labels) in samples.iter().zip(labels).filter(|(sample, _)| sample.targets > 0) {
            self.found.add_sample(sample, labels);
        }
        Ok(())
    }
}
