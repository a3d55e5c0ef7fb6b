//! How good a model is, as numbers. Pure: knows words, classes and numbers, never tensors.

mod calibration;
mod classes;
mod numbers;
mod texts;

pub use calibration::Reliability;
pub use classes::Confusion;
pub use numbers::{mean_squared_error, pearson};
pub use texts::{exact_match, rouge_l};

/// To four digits, as files have it: what rounding in the model changes is not seen. JSON has no other numbers than finite
/// ones: 0 where it is none.
pub fn rounded(value: f64) -> f64 {
    if value.is_finite() { (value * 1e4).round() / 1e4 } else { 0.0 }
}
