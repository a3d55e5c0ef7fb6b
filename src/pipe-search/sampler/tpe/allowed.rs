//! Whether a point may run at all, learned from trials that could not.

use super::mixture::{Candidate, Mixture};
use crate::axis::Axis;
use crate::space::Space;
use crate::trial::{Trial, TrialState};

/// How probable it is that a candidate is allowed, judging from the trials near it that were and were not. The gain is multiplied by it:
/// Gelbart et al., "Bayesian Optimization with Unknown Constraints" (2014).
pub(super) struct Allowed<'a> {
    feasible: Mixture<'a>,
    infeasible: Mixture<'a>,
    /// How many were for each one that was not.
    odds: f64,
}

impl<'a> Allowed<'a> {
    /// Absent where all trials were allowed, or none.
    pub(super) fn of(space: &'a Space, axes: &'a [Axis<'a>], trials: &[Trial]) -> Option<Self> {
        let ended = trials.iter().filter(|trial| matches!(trial.state, TrialState::Complete | TrialState::Pruned));
        let (feasible, infeasible): (Vec<&Trial>, Vec<&Trial>) = ended.partition(|trial| trial.is_feasible());
        if feasible.is_empty() || infeasible.is_empty() {
            return None;
        }
        let mixture = |trials: &[&Trial]| Mixture::of(space, axes, trials, &vec![1.0; trials.len()]);
        let odds = feasible.len() as f64 / infeasible.len() as f64;
        Some(Self { feasible: mixture(&feasible), infeasible: mixture(&infeasible), odds })
    }

    pub(super) fn log_probability(&self, candidate: &Candidate) -> f64 {
        let against = self.infeasible.log_density(candidate) - self.feasible.log_density(candidate);
        -libm::log1p(libm::exp(against) / self.odds)
    }
}
