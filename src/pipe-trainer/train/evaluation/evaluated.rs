//! What an evaluation gives.

use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::{Eval, Scores};

/// What the measures of a task give.
#[derive(Default)]
pub struct Measures {
    pub loss: f64,
    pub scores: Scores,
    pub details: EvaluationDetails,
    /// How many samples there were, where that is not what the source says.
    pub samples: Option<u64>,
}

/// The event of an evaluation, and what is too large for an event.
pub struct Evaluated {
    pub eval: Eval,
    pub details: EvaluationDetails,
}
