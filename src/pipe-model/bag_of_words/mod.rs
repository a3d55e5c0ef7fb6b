//! A bag of words: the mean of token embeddings and a linear head. It has no estimate of memory.

mod architecture;
mod config;
mod parameters;

pub use architecture::ARCHITECTURE;
pub use config::BagOfWordsConfig;
pub use parameters::parameters;
