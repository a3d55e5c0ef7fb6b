//! How a trial ended, as the page tells it.

use pipe_search::{Trial, TrialState};

use super::attributes::flag;

/// How a trial ended. Unlike the state of the journal, it tells what cannot fit from what was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    Pruned,
    /// Never launched since it cannot fit, or launched and outside a constraint.
    Infeasible,
    Failed,
    Running,
    Waiting,
}

impl Outcome {
    pub const ALL: [Self; 6] =
        [Self::Complete, Self::Pruned, Self::Infeasible, Self::Failed, Self::Running, Self::Waiting];

    pub fn of(trial: &Trial) -> Self {
        let infeasible = flag(trial, "infeasible") || !trial.is_feasible();
        match trial.state {
            TrialState::Complete | TrialState::Pruned if infeasible => Self::Infeasible,
            TrialState::Complete => Self::Complete,
            TrialState::Pruned => Self::Pruned,
            TrialState::Failed => Self::Failed,
            TrialState::Running => Self::Running,
            TrialState::Waiting => Self::Waiting,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Pruned => "pruned",
            Self::Infeasible => "infeasible",
            Self::Failed => "failed",
            Self::Running => "running",
            Self::Waiting => "waiting",
        }
    }

    /// The tag with its name, coloured as outcomes of runs are.
    pub fn tag(self) -> String {
        let class = match self {
            Self::Complete => "finished",
            Self::Infeasible => "oom",
            other => other.name(),
        };
        format!("<span class=\"tag {class}\">{}</span>", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::samples::{infeasible, trial};

    #[test]
    fn what_cannot_fit_is_not_what_was_given_up() {
        assert_eq!(Outcome::of(&infeasible(3)), Outcome::Infeasible);
        let mut one = trial(0, 0.5);
        assert_eq!(Outcome::of(&one), Outcome::Complete);
        one.constraints = vec![-1.0, 0.5];
        assert_eq!(Outcome::of(&one), Outcome::Infeasible);
        one.state = TrialState::Failed;
        assert_eq!(Outcome::of(&one), Outcome::Failed);
        one.state = TrialState::Pruned;
        one.constraints = vec![-1.0];
        assert_eq!(Outcome::of(&one), Outcome::Pruned);
    }
}
