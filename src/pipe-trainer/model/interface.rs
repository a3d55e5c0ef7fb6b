//! The interface of every model, whatever its architecture.

use pipe_model::LabelUnit;
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::classification::is_several;
use super::pass::Mode;
use super::weights::Weights;
use crate::data::{IGNORED, Part};
use crate::error::TrainerError;
use crate::ranks::SharedSum;

pub trait Model {
    fn weights(&self) -> &Weights;

    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;

    /// The losses of a part, summed over its targets and not averaged: a step divides by the count of all its parts.
    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;

    /// How many targets a part has: what its losses are the sum of.
    fn targets(&self, part: &Part) -> Result<i64, TrainerError> {
        let labels = part.get("labels")?;
        match is_several(labels) {
            true => Ok(labels.size2()?.0),
            false => Ok(labels.f_ne(IGNORED)?.f_sum(Kind::Int64)?.f_int64_value(&[])?),
        }
    }

    /// The keys of `config.json`, as transformers reads them.
    fn config(&self) -> Map<String, Value>;

    /// The unit of the labels, where a number is predicted: its logits are standardised.
    fn label_unit(&self) -> LabelUnit {
        LabelUnit::default()
    }

    /// For a model that writes texts.
    fn text_generator(&self) -> Option<&dyn TextGenerator> {
        None
    }

    /// For a model that says how probable a text is.
    fn scorer(&self) -> Option<&dyn Scorer> {
        None
    }

    /// For a model that learns which of two answers is the better one.
    fn pairs(&self) -> Option<&dyn Pairs> {
        None
    }

    /// For a model that encodes texts.
    fn encoder(&self) -> Option<&dyn Encoder> {
        None
    }

    /// For a model whose loss compares the samples of a step with each other.
    fn contrastive(&self) -> Option<&dyn Contrastive> {
        None
    }

    /// Why its training is not the same with another batch, if it is not.
    fn depends_on_batch(&self) -> Option<&'static str> {
        None
    }

    /// Whether it computes parts whose samples stand one behind the other, without padding, beside those with a row for each sample.
    fn takes_packed(&self) -> bool {
        false
    }

    /// Whether parts of a training are such.
    fn packs(&self) -> bool {
        false
    }

    /// Whether packed samples become rows for attention, padded to the longest: these decide how much a part holds.
    fn unpacks_for_attention(&self) -> bool {
        false
    }

    /// Whether neither the length of the longest packed sample nor spare samples, whose labels the loss ignores, make a difference to the loss.
    fn is_shaped_by_tokens(&self) -> bool {
        false
    }

    /// The lengths of rows should be multiples of this, for the sake of the model's kernels.
    fn row_multiple(&self) -> usize {
        1
    }

    /// Whether what it launches for a part depends on nothing but shapes, and never waits for the card: then a CUDA graph of one part
    /// is that of every part of its shape.
    fn is_recordable(&self) -> bool {
        false
    }

    /// For a model that depends on the batch: several ranks compute a batch together, and sum inside the model over all of them.
    fn share_statistics(&self, _sum: &'static SharedSum) {}

    /// Called after each step, for a model with state that is not trained, such as batch norm. The state of a step counts when
    /// the step was `done`, and not when the step is repeated.
    fn step_ended(&self, _done: bool) -> Result<(), TrainerError> {
        Ok(())
    }
}

pub trait TextGenerator {
    /// Writes a text after each row of a part, without dropout and without gradients. Labels are ignored.
    fn generate(&self, part: &Part, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError>;
}

pub trait Scorer {
    /// The log probabilities of the labels of each sample, added up: [samples] in fp32.
    fn log_probabilities(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;
}

pub trait Pairs {
    /// Sums over the pairs of a part, without dropout.
    fn figures(&self, part: &Part) -> Result<PairFigures, TrainerError>;
}

/// Sums over pairs of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PairFigures {
    pub pairs: f64,
    pub loss: f64,
    /// Pairs whose better answer has the larger reward.
    pub right: f64,
    /// By how much the reward of the better answer is larger.
    pub margin: f64,
}

pub trait Encoder {
    /// The output of its last layer, [samples, length, width], without dropout.
    fn last_hidden_state(&self, part: &Part) -> Result<Tensor, TrainerError>;
}

/// A loss over all samples of a step by their embeddings, which are computed part by part.
pub trait Contrastive {
    /// Each [samples, width], normalised to length 1.
    fn embed(&self, part: &Part, mode: Mode) -> Result<Embeddings, TrainerError> {
        Ok(Embeddings { images: self.embed_images(part, mode)?, texts: self.embed_texts(part, mode)? })
    }

    /// Embeds the images of a part that may have no texts.
    fn embed_images(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;

    /// Embeds the texts of a part that may have no images.
    fn embed_texts(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;

    /// The mean loss over all samples.
    fn loss(&self, all: &Embeddings) -> Result<Tensor, TrainerError>;
}

/// Sample by sample, the two sides that belong together.
pub struct Embeddings {
    pub images: Tensor,
    pub texts: Tensor,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation {
    /// Tokens of an answer at most, its end token included.
    pub max_length: i64,
    /// Beams; 1 takes the most probable token each time.
    pub beams: i64,
    /// Sampling temperature of a language model; 0 takes the most probable token.
    pub temperature: f64,
    /// Nucleus sampling: the most probable tokens that together have this probability.
    pub top_p: f64,
    /// Seed of the sampling, with the number of the row.
    pub seed: u64,
    /// The number of the first row of the part among all rows.
    pub first_row: u64,
    /// The token that ends a text, for a model whose config does not say.
    pub end_token: Option<i64>,
}

impl Generation {
    /// The most probable token each time.
    pub const fn greedy(max_length: i64) -> Self {
        Self { max_length, beams: 1, temperature: 0.0, top_p: 1.0, seed: 0, first_row: 0, end_token: None }
    }
}
