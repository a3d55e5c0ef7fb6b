//! BERT, RoBERTa and XLM-RoBERTa.

mod config;
pub(crate) mod layer;
mod memory;
mod parameters;

pub use config::{BertConfig, Family};
pub use memory::stages;
pub use parameters::parameters;
