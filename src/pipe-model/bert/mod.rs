//! BERT, RoBERTa and XLM-RoBERTa.

mod architecture;
mod config;
pub(crate) mod layer;
mod memory;
mod parameters;

pub use architecture::{BERT, ROBERTA, XLM_ROBERTA};
pub use config::{BertConfig, Family};
pub use parameters::parameters;
