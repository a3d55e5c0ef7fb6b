//! From files to the parts of a step: where samples come from, their order, and a loader that prepares steps ahead.

mod classes;
mod csv;
mod documents;
mod jsonl;
mod labelling;
mod language;
mod loader;
mod longest;
mod packed;
mod pairs;
mod part;
mod picture_table;
mod pictures;
mod plan;
mod preprocessor;
mod ready;
mod resample;
mod rows;
mod sample;
mod seq2seq;
mod series;
mod source;
mod standard;
mod tensors;
mod tokens;
mod windows;

pub use loader::{Loaded, Loader, Reader, workers};
pub use part::{BESIDE, IGNORED, Padding, Part, PartShape};
pub use plan::Plan;
pub use preprocessor::Preprocessor;
pub use sample::{Column, Sample};
pub use source::{Source, Sources};
pub use tokens::Tokens;
