//! Evaluation on data that is not trained on, by the measures of each task.

mod classification;
mod contrastive;
mod evaluator;
mod generation;
mod pass;
mod token_labels;

pub use classification::{Predictions, SeveralLabels};
pub use contrastive::{Figures, figures as contrastive_figures};
pub use evaluator::{Evaluated, Evaluator, check_metrics, write_details};
pub use generation::{TextScores, generation};
pub use token_labels::{TaggedTexts, are_numbers, predicted_labels};
