//! How good a model is, as numbers. Pure: knows words, classes and numbers, never tensors.

mod classes;
mod numbers;
mod texts;

pub use classes::Confusion;
pub use numbers::{mean_squared_error, pearson};
pub use texts::{exact_match, rouge_l};
