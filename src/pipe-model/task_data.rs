//! What a model's data must be like: one variant for each task.

use pipe_spec::pipeline::Task;

use crate::Labels;

#[derive(Clone, Debug, PartialEq)]
pub enum TaskData {
    Seq2Seq {
        vocab_size: u64,
        pad_token_id: i64,
        /// What every text must end with.
        eos_token_id: i64,
    },
    /// One text or two, and a class or a number.
    Classification {
        vocab_size: u64,
        pad_token_id: i64,
        /// Tokens of a text at most.
        max_length: u32,
        /// Whether the model takes token types: which of two texts a token belongs to.
        token_types: bool,
        /// Absent when the data decides: the model's head is new.
        labels: Option<Labels>,
    },
    /// A picture and a text.
    Contrastive {
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
    TimeSeries {
        features: i64,
        sequence_length: i64,
        classes: i64,
        /// The class names of a trained model; absent when the data decides.
        names: Option<Vec<String>>,
        /// How a trained model scales its features; absent when the data decides.
        scale: Option<Scale>,
    },
    /// A row of tokens.
    Language {
        vocab_size: u64,
        /// Tokens of a row at most.
        max_length: u32,
    },
}

impl TaskData {
    pub fn task(&self) -> Task {
        match self {
            Self::Seq2Seq { .. } => Task::Seq2Seq,
            Self::Classification { .. } => Task::Classification,
            Self::Contrastive { .. } => Task::Contrastive,
            Self::TimeSeries { .. } => Task::TimeSeries,
            Self::Language { .. } => Task::Language,
        }
    }
}

/// The mean and standard deviation of features.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Their names, in order.
    pub names: Vec<String>,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}
