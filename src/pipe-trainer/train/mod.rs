//! Training: one attempt from its spec to its end, the steps of it, and the search for the largest batch that fits.

mod accumulation;
mod agreement;
mod attempt;
mod capacity;
mod cut;
mod evaluation;
mod exchange;
mod export;
mod fit;
mod flat_gradients;
mod gradient_cache;
mod graphs;
mod last_part;
mod longest_samples;
mod measure;
mod measurer;
mod model_card;
mod optimizer_shares;
mod pace;
mod rehearsal;
mod session;
mod state;
mod sums;
mod training;
mod watched_metrics;

pub use attempt::{fit, train};
pub use cut::Cut;
pub use evaluation::{Figures, Predictions, TextScores, contrastive_figures, generation};
pub use flat_gradients::FlatGradients;
pub use gradient_cache::{Parts, backward as contrastive_backward};
pub use graphs::Graphs;
pub use measure::measure;
pub use training::clip_factor;
