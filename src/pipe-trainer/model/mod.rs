//! The models: what every architecture can do, and the choice among them.

mod config_keys;
mod definition;
mod t5;

pub use config_keys::ConfigKeys;
pub use definition::{Definition, Setup, Start};

use serde_json::{Map, Value};
use tch::Tensor;

use crate::data::Part;
use crate::error::TrainerError;
use crate::weights::Weights;

pub trait Model {
    fn weights(&self) -> &Weights;

    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;

    /// The losses of a part, summed over its targets and not averaged: a step divides by the count of all its parts.
    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError>;

    /// An answer to each source of a part, without dropout and without gradients. Labels are not looked at.
    fn generate(&self, part: &Part, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError>;

    /// The keys of `config.json`, as transformers reads them.
    fn config(&self) -> Map<String, Value>;

    fn vocab_size(&self) -> u64;

    fn pad_token_id(&self) -> i64;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With dropout, which is a function of this seed.
    Train { seed: u64 },
    /// Without.
    Eval,
}

/// How text is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Tokens of an answer at most, its end token included.
    pub max_length: i64,
    /// How many beginnings are kept side by side; 1 takes the most probable token each time.
    pub beams: i64,
}
