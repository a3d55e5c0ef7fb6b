//! Predictions of classes, of several labels and of numbers, and of which picture belongs to which text.
//!
//! Predictions of a label for each word of a text, and the spans of words that belong together.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use pipe_model::{Labels, TaskData};
use pipe_spec::trainer::Predicted;
use tch::{Device, Kind, Tensor};

use super::batches::{Field, Fields, Head, Span};
use super::{Prediction, evaluation};
use crate::data::{Column, IGNORED, Part, PartShape, Sample, Source, Words};
use crate::error::TrainerError;
use crate::metrics::entities;
use crate::model::{Contrastive, Embeddings, Mode, Model, classification};
use crate::train::{
    Figures, Predictions, SeveralLabels, TaggedTexts, are_numbers, contrastive_figures, predicted_labels,
};

/// Models that predict classes or a number, for texts, for windows of time series and for rows of tables.
pub fn predict_classes(
    prediction: &mut Prediction,
    task_data: &TaskData,
    labels: Labels,
) -> Result<Predicted, TrainerError> {
    let (sources, shape) = prediction.open(task_data)?;
    let model = Rc::clone(&prediction.model);
    let predictions = Predictions::new(model.label_unit());
    let mut head = ClassHead { model, shape, labels, predictions };
    let predicted = prediction.write(&sources.train, &mut head)?;
    let found = &head.predictions;
    Ok(Predicted { evaluation: evaluation(found.samples(), found.loss(), found.scores()), ..predicted })
}

struct ClassHead {
    model: Rc<dyn Model>,
    shape: PartShape,
    labels: Labels,
    predictions: Predictions,
}

impl Head for ClassHead {
    type Output = Fields;

    fn compute(&mut self, _: &[usize], samples: &[Sample]) -> Result<Vec<Fields>, TrainerError> {
        let part = self.shape.collate(samples)?;
        let logits = self.model.logits(&part, Mode::Eval)?;
        let width = logits.size2()?.1 as usize;
        let scores = match &self.labels {
            Labels::Number => logits.f_to_kind(Kind::Float)?,
            Labels::Classes(_) | Labels::Several(_) => logits.f_softmax(-1, Kind::Float)?,
        };
        let scores = Vec::<f32>::try_from(scores.f_contiguous()?.f_reshape([-1])?)?;
        let fields = scores.chunks(width).zip(samples).map(|(scores, sample)| self.fields_of(scores, sample)).collect();
        let labelled: Vec<i64> =
            (0..).zip(samples).filter(|(_, sample)| is_labelled(sample)).map(|(at, _)| at).collect();
        if let (false, Some(labels)) = (labelled.is_empty(), part.find("labels")) {
            let at = Tensor::f_from_slice(&labelled)?.f_to_device(logits.device())?;
            let (logits, labels) = (logits.f_index_select(0, &at)?, labels.f_index_select(0, &at)?);
            self.predictions.add(&logits, &labels, labelled.len() as u64)?;
        }
        Ok(fields)
    }

    fn fields(mut pieces: Vec<Fields>) -> Fields {
        pieces.swap_remove(0)
    }
}

impl ClassHead {
    fn fields_of(&self, scores: &[f32], sample: &Sample) -> Fields {
        let Labels::Classes(names) = &self.labels else {
            let value = self.model.label_unit().restore(scores[0].into()) as f32;
            let mut fields = vec![("value", Field::Real(value))];
            if let Some(Column::Real(number)) = sample.column("labels").filter(|_| is_labelled(sample)) {
                fields.push(("expected", Field::Real(*number)));
            }
            return fields;
        };
        let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let best = (0..scores.len()).rev().max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or(0);
        let mut fields = vec![
            ("label", Field::Text(name(best))),
            ("score", Field::Real(scores[best])),
            ("scores", Field::Named(scores.iter().enumerate().map(|(class, score)| (name(class), *score)).collect())),
        ];
        if let (true, Some(class)) = (is_labelled(sample), sample.class()) {
            fields.push(("expected", Field::Text(name(class as usize))));
        }
        fields
    }
}

/// Models that predict any number of labels for a text.
pub fn predict_several(
    prediction: &mut Prediction,
    task_data: &TaskData,
    names: Vec<String>,
) -> Result<Predicted, TrainerError> {
    let (sources, shape) = prediction.open(task_data)?;
    let (model, threshold) = (Rc::clone(&prediction.model), prediction.threshold);
    let mut head = SeveralHead { model, shape, names, threshold, found: SeveralLabels::new(threshold.into()) };
    let predicted = prediction.write(&sources.train, &mut head)?;
    let found = &head.found;
    Ok(Predicted { evaluation: evaluation(found.samples(), found.loss(), found.scores()), ..predicted })
}

struct SeveralHead {
    model: Rc<dyn Model>,
    shape: PartShape,
    names: Vec<String>,
    threshold: f32,
    found: SeveralLabels,
}

impl Head for SeveralHead {
    type Output = Fields;

    fn compute(&mut self, _: &[usize], samples: &[Sample]) -> Result<Vec<Fields>, TrainerError> {
        let part = self.shape.collate(samples)?;
        let logits = self.model.logits(&part, Mode::Eval)?;
        let scores = logits.f_to_kind(Kind::Float)?.f_sigmoid()?.f_contiguous()?.f_reshape([-1])?;
        let scores = Vec::<f32>::try_from(scores)?;
        let fields: Vec<Fields> = scores
            .chunks(self.names.len())
            .zip(samples)
            .map(|(scores, sample)| self.fields_of(scores, labels_of(sample)))
            .collect();
        let labelled: Vec<i64> =
            (0..).zip(samples).filter(|(_, sample)| labels_of(sample).is_some()).map(|(at, _)| at).collect();
        if !labelled.is_empty() {
            let at = Tensor::f_from_slice(&labelled)?.f_to_device(logits.device())?;
            self.found.add(&logits.f_index_select(0, &at)?, &part.get("labels")?.f_index_select(0, &at)?)?;
        }
        Ok(fields)
    }

    fn fields(mut pieces: Vec<Fields>) -> Fields {
        pieces.swap_remove(0)
    }
}

impl SeveralHead {
    fn fields_of(&self, scores: &[f32], wanted: Option<&[f32]>) -> Fields {
        let applying = |values: &[f32], from: f32| {
            let named = values.iter().zip(&self.names).filter(|(value, _)| **value >= from);
            Field::Texts(named.map(|(_, name)| name.clone()).collect())
        };
        let named = self.names.iter().cloned().zip(scores.iter().copied()).collect();
        let mut fields = vec![("labels", applying(scores, self.threshold)), ("scores", Field::Named(named))];
        fields.extend(wanted.map(|wanted| ("expected", applying(wanted, 0.5))));
        fields
    }
}

/// 1 for each label that applies, where the row says which.
fn labels_of(sample: &Sample) -> Option<&[f32]> {
    match sample.column("labels") {
        Some(Column::Values { values, .. }) if values.iter().all(|value| !value.is_nan()) => Some(values),
        _ => None,
    }
}

/// Whether the row has a label.
fn is_labelled(sample: &Sample) -> bool {
    match sample.column("labels") {
        Some(Column::Whole(class)) => *class != IGNORED,
        Some(Column::Real(number)) => !number.is_nan(),
        _ => false,
    }
}

/// Models of pictures and texts: how well the two of a row fit, or the embedding of the one that there is.
pub fn predict_pairs(prediction: &mut Prediction, task_data: &TaskData) -> Result<Predicted, TrainerError> {
    let (sources, shape) = prediction.open(task_data)?;
    let mut head = PairHead { model: Rc::clone(&prediction.model), shape, indices: Vec::new(), pairs: Vec::new() };
    let predicted = prediction.write(&sources.train, &mut head)?;
    if head.pairs.is_empty() {
        return Ok(predicted);
    }
    let rows = head.indices.len() as u64;
    let effective_batch = prediction.spec.settings.train.effective_batch;
    let Figures { loss, scores, .. } = contrastive_figures(head.contrastive(), &head.all_pairs()?, effective_batch)?;
    Ok(Predicted { evaluation: evaluation(rows, loss, scores), ..predicted })
}

struct PairHead {
    model: Rc<dyn Model>,
    shape: PartShape,
    /// The rows that have both a picture and a text, as they were computed, and their embeddings.
    indices: Vec<usize>,
    pairs: Vec<Embeddings>,
}

impl PairHead {
    fn contrastive(&self) -> &dyn Contrastive {
        self.model.contrastive().unwrap_or_else(|| panic!("a model that compares nothing"))
    }

    /// In the order of the rows.
    fn all_pairs(&self) -> Result<Embeddings, TrainerError> {
        let mut order: Vec<i64> = (0..self.indices.len() as i64).collect();
        order.sort_by_key(|at| self.indices[*at as usize]);
        let order = Tensor::f_from_slice(&order)?.f_to_device(self.pairs[0].images.device())?;
        let all = |side: fn(&Embeddings) -> &Tensor| {
            let parts: Vec<&Tensor> = self.pairs.iter().map(side).collect();
            Tensor::f_cat(&parts, 0)?.f_index_select(0, &order)
        };
        Ok(Embeddings { images: all(|pair| &pair.images)?, texts: all(|pair| &pair.texts)? })
    }
}

impl Head for PairHead {
    type Output = Fields;

    fn compute(&mut self, indices: &[usize], samples: &[Sample]) -> Result<Vec<Fields>, TrainerError> {
        let part: Part = self.shape.collate(samples)?;
        let model = self.contrastive();
        let has = |name: &str| part.find(name).is_some();
        let embeddings = match (has("pixel_values"), has("input_ids")) {
            (true, true) => {
                let pair = model.embed(&part, Mode::Eval)?;
                let products = pair.images.f_mul(&pair.texts)?;
                let scores = products.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
                let scores = Vec::<f32>::try_from(scores)?;
                self.indices.extend(indices);
                self.pairs.push(pair);
                return Ok(scores.into_iter().map(|score| vec![("score", Field::Real(score))]).collect());
            }
            (true, false) => model.embed_images(&part, Mode::Eval)?,
            (false, _) => model.embed_texts(&part, Mode::Eval)?,
        };
        let width = embeddings.size2()?.1 as usize;
        let values = Vec::<f32>::try_from(embeddings.f_contiguous()?.f_reshape([-1])?)?;
        Ok(values.chunks(width).map(|row| vec![("embedding", Field::Reals(row.to_vec()))]).collect())
    }

    fn fields(mut pieces: Vec<Fields>) -> Fields {
        pieces.swap_remove(0)
    }
}

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
