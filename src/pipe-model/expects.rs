//! What a model's data must be like.

use crate::Labels;

#[derive(Clone, Debug, PartialEq)]
pub enum Expects {
    Seq2Seq {
        vocab_size: u64,
        pad_token_id: i64,
    },
    /// One text or two, and a class or a number.
    Classes {
        vocab_size: u64,
        pad_token_id: i64,
        /// Tokens of a text at most.
        max_length: u32,
        /// Whether the model is told which of two texts a token belongs to.
        token_types: bool,
        /// Absent when the data decides: the model's head is new.
        labels: Option<Labels>,
    },
    /// A picture and a text.
    Pairs {
        vocab_size: u64,
        pad_token_id: i64,
        /// What every text must have, if the model looks for it.
        eos_token_id: Option<i64>,
        /// Tokens of a text at most.
        max_length: u32,
        num_channels: i64,
        /// Height and width of a picture.
        image_size: i64,
    },
    /// A window of a time series and a class.
    Windows {
        features: i64,
        sequence_length: i64,
        classes: i64,
        /// What a trained model calls its classes; absent when the data decides.
        names: Option<Vec<String>>,
        /// How a trained model measures its features; absent when the data decides.
        scale: Option<Scale>,
    },
    /// A row of tokens.
    Tokens {
        vocab_size: u64,
        /// Tokens of a row at most.
        max_length: u32,
    },
}

/// What features are measured by.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Their names, in order.
    pub names: Vec<String>,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}
