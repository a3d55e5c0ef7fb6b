//! The data of a training, opened.

use std::sync::Arc;

use pipe_model::Labels;

use super::part::Padding;
use super::source::Source;
use super::tokens::Tokens;

/// The data of a training.
pub struct Sources {
    pub train: Arc<dyn Source>,
    pub eval: Option<Arc<dyn Source>>,
    pub paddings: Vec<Padding>,
    /// What writes the tokens of a model as words.
    pub tokens: Option<Arc<Tokens>>,
    /// The labels, where the data decides them.
    pub labels: Option<Labels>,
    /// How many classes there are, where classes are predicted.
    pub classes: Option<usize>,
    /// What the user is to be told about the data.
    pub notices: Vec<String>,
}
