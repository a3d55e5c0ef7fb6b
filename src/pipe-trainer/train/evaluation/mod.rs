//! Evaluation on data that is not trained on, by the measures of each task.

mod classification;
mod contrastive;
mod evaluator;
mod generation;
mod pass;

pub use evaluator::Evaluator;
