//! Models that write a text for a text.

use std::rc::Rc;
use std::sync::Arc;

use pipe_model::TaskData;
use pipe_spec::predict::Predicted;
use tch::Kind;

use super::batches::Head;
use super::output::{Field, Fields};
use super::{Prediction, evaluation};
use crate::data::{PartShape, Sample, Source, Tokens};
use crate::error::TrainerError;
use crate::model::{Generation, Mode, Model};
use crate::train::{TextScores, generation};

pub fn predict(prediction: &mut Prediction, task_data: &TaskData) -> Result<Predicted, TrainerError> {
    let (sources, shape) = prediction.open(task_data)?;
    let Some(tokens) = sources.tokens else { panic!("texts without a tokenizer") };
    let mut head = TextHead {
        limits: generation(&prediction.spec.settings, &tokens),
        model: Rc::clone(&prediction.model),
        source: Arc::clone(&sources.train),
        shape,
        tokens,
        loss: 0.0,
        targets: 0,
        rows: 0,
        scores: TextScores::default(),
    };
    let predicted = prediction.write(&sources.train, &mut head)?;
    let loss = head.loss / head.targets.max(1) as f64;
    Ok(Predicted { evaluation: evaluation(head.rows, loss, head.scores.scores(loss)), ..predicted })
}

struct TextHead {
    model: Rc<dyn Model>,
    source: Arc<dyn Source>,
    shape: PartShape,
    tokens: Arc<Tokens>,
    limits: Generation,
    /// Summed over the target tokens.
    loss: f64,
    targets: u64,
    /// Rows with a target.
    rows: u64,
    scores: TextScores,
}

impl Head for TextHead {
    type Output = Fields;

    fn compute(&mut self, indices: &[usize], samples: &[Sample]) -> Result<Vec<Fields>, TrainerError> {
        let Some(generator) = self.model.text_generator() else { panic!("a model that writes no texts") };
        let answers = generator.generate(&self.shape.collate(samples)?, &self.limits)?;
        let texts = answers.iter().map(|answer| self.tokens.decode(answer)).collect::<Result<Vec<_>, _>>()?;
        let wanted = indices.iter().zip(samples).map(|(index, sample)| self.target(*index, sample));
        let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
        let (loss, targets) = self.loss_sum(samples)?;
        (self.loss, self.targets) = (self.loss + loss, self.targets + targets);
        let mut all = Vec::with_capacity(texts.len());
        for (text, wanted) in texts.into_iter().zip(wanted) {
            if let Some(wanted) = &wanted {
                self.rows += 1;
                self.scores.add(wanted, &text);
            }
            let expected = wanted.map(|wanted| ("expected", Field::Text(wanted)));
            all.push([("text", Field::Text(text))].into_iter().chain(expected).collect());
        }
        Ok(all)
    }

    fn fields(mut pieces: Vec<Fields>) -> Fields {
        pieces.swap_remove(0)
    }
}

impl TextHead {
    fn target(&self, index: usize, sample: &Sample) -> Result<Option<String>, TrainerError> {
        match sample.targets {
            0 => Ok(None),
            _ => self.source.reference_texts(index).map(|(_, target)| Some(target)),
        }
    }

    /// The loss of those that have a target, and how many tokens these are.
    fn loss_sum(&self, samples: &[Sample]) -> Result<(f64, u64), TrainerError> {
        let samples: Vec<Sample> = samples.iter().filter(|sample| sample.targets > 0).cloned().collect();
        if samples.is_empty() {
            return Ok((0.0, 0));
        }
        let sum = self.model.loss_sum(&self.shape.collate(&samples)?, Mode::Eval)?;
        let targets = samples.iter().map(|sample| sample.targets).sum();
        Ok((sum.f_to_kind(Kind::Double)?.f_double_value(&[])?, targets))
    }
}
