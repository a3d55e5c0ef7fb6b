//! The models: what every architecture can do, and the choice among them.

mod activation;
mod bert;
pub mod classification;
mod clip;
mod deberta;
mod definition;
mod hybrid_cnn_lstm;
mod layers;
mod mu_sota;
mod pass;
mod t5;

pub use definition::{Definition, Setup, Start};
pub use pipe_model::{ConfigKeys, Expects, Labels};

use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use crate::data::{IGNORED, Part};
use crate::error::TrainerError;
use crate::weights::Weights;

pub trait Model {
    fn weights(&self) -> &Weights;

    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;

    /// The losses of a part, summed over its targets and not averaged: a step divides by the count of all its parts.
    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;

    /// How many targets a part has: what its losses are the sum of.
    fn targets(&self, part: &Part) -> Result<i64, TrainerError> {
        Ok(part.get("labels")?.f_ne(IGNORED)?.f_sum(Kind::Int64)?.f_int64_value(&[])?)
    }

    /// The keys of `config.json`, as transformers reads them.
    fn config(&self) -> Map<String, Value>;

    /// For a model that writes texts.
    fn writer(&self) -> Option<&dyn Writer> {
        None
    }

    /// For a model that encodes texts.
    fn encoder(&self) -> Option<&dyn Encoder> {
        None
    }

    /// For a model whose loss compares the samples of a step with each other.
    fn contrast(&self) -> Option<&dyn Contrast> {
        None
    }

    /// Why its training is not the same with another batch, if it is not.
    fn depends_on_batch(&self) -> Option<&'static str> {
        None
    }

    /// Told after each step, for a model that remembers more than what is learned: what it saw counts when the step was done,
    /// and not when the step is to be done over.
    fn step_ended(&self, _done: bool) -> Result<(), TrainerError> {
        Ok(())
    }
}

pub trait Writer {
    /// What the model writes after each row of a part, without dropout and without gradients. Labels are not looked at.
    fn generate(&self, part: &Part, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError>;
}

pub trait Encoder {
    /// What its last layer gives, [samples, length, width], without dropout.
    fn last_hidden_state(&self, part: &Part) -> Result<Tensor, TrainerError>;
}

/// A loss over all samples of a step, by way of their embeddings, which parts can be computed one by one.
pub trait Contrast {
    /// Each [samples, width], of length 1.
    fn embed(&self, part: &Part, mode: Mode) -> Result<Embeddings, TrainerError>;

    /// The mean loss over all samples.
    fn loss(&self, all: &Embeddings) -> Result<Tensor, TrainerError>;
}

/// Sample by sample, the two sides that belong together.
pub struct Embeddings {
    pub images: Tensor,
    pub texts: Tensor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With dropout, which is a function of this seed.
    Train { seed: u64 },
    /// Without.
    Eval,
}

/// How text is generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation {
    /// Tokens of an answer at most, its end token included.
    pub max_length: i64,
    /// How many beginnings are kept side by side; 1 takes the most probable token each time.
    pub beams: i64,
    /// How freely a language model chooses; 0 takes the most probable token.
    pub temperature: f64,
    /// It chooses among the most probable tokens that together have this probability.
    pub top_p: f64,
    /// What its choices are a function of, with the number of the row.
    pub seed: u64,
    /// The number of the part's first row among all that something is written for.
    pub first_row: u64,
    /// What ends a text, for a model whose config does not say.
    pub end_token: Option<i64>,
}

impl Generation {
    /// The most probable token each time.
    pub const fn greedy(max_length: i64) -> Self {
        Self { max_length, beams: 1, temperature: 0.0, top_p: 1.0, seed: 0, first_row: 0, end_token: None }
    }
}
