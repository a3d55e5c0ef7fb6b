//! Evaluation on data that is not trained on, by the measures of each task.

mod classification;
mod contrastive;
pub mod details_file;
mod evaluated;
mod evaluator;
mod generation;
mod pass;
mod retrieval;

pub use classification::Predictions;
pub use contrastive::{Figures, figures as contrastive_figures};
pub use evaluated::Evaluated;
pub use evaluator::Evaluator;
pub use generation::{TextScores, generation};
