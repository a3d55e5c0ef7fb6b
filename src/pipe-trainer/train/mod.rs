//! Training: one attempt from its spec to its end, the steps of it, and the search for the largest batch that fits.

mod accumulation;
mod attempt;
mod evaluation;
mod export;
mod fit;
mod gradient_cache;
mod graphs;
mod measure;
mod rehearsal;
mod session;
mod state;
mod step_splitter;
mod sums;
mod training;

pub use attempt::{fit, train};
pub use evaluation::{
    Figures, Predictions, SeveralLabels, TaggedTexts, TextScores, are_numbers, contrastive_figures, generation,
    predicted_labels,
};
pub use gradient_cache::{Parts, backward as contrastive_backward};
pub use graphs::Graphs;
pub use measure::measure;
pub use step_splitter::StepSplitter;
pub use sums::FlatGradients;
pub use training::clip_factor;
