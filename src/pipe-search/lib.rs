//! The search of `pipe tune`, as numbers and files: what may be tried, what is tried next, when a trial is given up,
//! and the journal that Optuna reads too. Nothing here runs anything.

mod axis;
mod importance;
mod journal;
mod prune;
mod sampler;
mod trial;

pub use axis::{Condition, Domain, Parameter, Point, Space, Test};
pub use importance::importances;
pub use journal::{Journal, JournalError};
pub use prune::{Pruner, prunes_at};
pub use sampler::{Sampler, grid_size, suggest};
pub use trial::{Direction, Trial, TrialState, best};
