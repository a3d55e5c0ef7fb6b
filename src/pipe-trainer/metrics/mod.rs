//! How good a model is, as numbers. Pure: knows words, classes and numbers, never tensors.

mod classes;
mod entities;
mod values;

pub use classes::{Confusion, LabelCounts, Reliability};
pub use entities::{EntityCounts, entities};
pub use values::{exact_match, mean_squared_error, pearson, r_squared, rouge_l, unigram_perplexity, variance};

/// To four digits, as files have it: what rounding in the model changes is not seen. JSON has no other numbers than finite
/// ones: 0 where it is none.
pub fn rounded(value: f64) -> f64 {
    if value.is_finite() { (value * 1e4).round() / 1e4 } else { 0.0 }
}
