//! From files to the parts of a step: where samples come from, their order, and a loader that prepares steps ahead.

mod classification;
mod contrastive;
mod conversations;
mod features;
mod labelling;
mod language;
mod packed;
mod packing;
mod part;
mod part_shape;
mod picture_classes;
mod pictures;
mod preferences;
mod preprocessor;
mod rows;
mod seq2seq;
mod series;
mod source;
mod table;
mod task;
mod tensors;
mod time_series;
mod token_labels;
mod words;

pub use conversations::open_questions;
pub use language::{Pieces, Prompts, TextPieces, has_prompts};
pub use packing::{PACKED_TENSORS, Packed, UNPACKED_TENSORS, UnpackedRows};
pub use part::{
    ALIGNED_COLUMNS, Column, IGNORED, LOSS_WEIGHTS, Part, Sample, next_packed_tokens, next_tokens, sort_longest_first,
};
pub use part_shape::{Padding, PartShape};
pub use preferences::REJECTED_PREFIX;
pub use preprocessor::Preprocessor;
pub use rows::KeptColumns;
pub use seq2seq::texts;
pub use source::{Loaded, Loader, Reader, SampleOrder, Source, Sources, workers};
pub use task::{open, open_for_prediction};
pub use words::Words;
