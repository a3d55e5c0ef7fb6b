//! Trials on a cluster: an array of jobs that waits in its queue, of which each trial takes one when it begins. What is tried next is
//! decided as late as it can be.

use pipe_spec::pipeline::CLUSTER_SECTION;

use super::{StudyDriver, trial};
use crate::engine::EarlyArray;
use crate::run::{self, Listed};

/// Jobs of an array for a study without a number of trials, for each trial that runs at a time.
const ARRAY_FACTOR: u64 = 4;

impl StudyDriver<'_> {
    /// Lets the trial that begins now submit an array for itself and those that are to come, where no job waits for them.
    pub(super) fn request_array(&mut self) {
        let engine = self.engine.clone();
        let Some(queue) = engine.early_queue().filter(|_| !self.has_no_array) else { return };
        let folder = self.run.folder.early_jobs();
        if let Some(refusal) = queue.refusal(&folder) {
            return self.go_without_array(&refusal);
        }
        if self.searches_what_jobs_ask_for() || queue.untaken(&folder) > 0 {
            return;
        }
        let counts = trial::counts(self.own());
        let parallel = self.study.budget.parallel;
        // The one that begins is counted as running.
        let left = self.study.budget.trials.map(|trials| trials.saturating_sub(counts.run()) + 1);
        let count = left.unwrap_or(u64::from(parallel) * ARRAY_FACTOR);
        if count < 2 {
            return;
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let array = EarlyArray { whole: self.run.state.id.clone(), count, at_once: parallel };
        match queue.request_array(&folder, &array) {
            Ok(()) if counts.run() == 1 => {
                self.reporter.note(&format!("trials are jobs of an array, {parallel} at a time"));
            }
            Ok(()) => {}
            Err(error) => self.go_without_array(&error.to_string()),
        }
    }

    fn go_without_array(&mut self, why: &str) {
        self.has_no_array = true;
        self.reporter.note(&format!("trials are jobs of their own, because no array can be submitted: {why}"));
    }

    /// Jobs of an array are alike.
    fn searches_what_jobs_ask_for(&self) -> bool {
        let of_jobs = |name: &str| ["container", CLUSTER_SECTION].contains(&name.split('.').next().unwrap_or_default());
        self.space.parameters.iter().any(|parameter| of_jobs(&parameter.name))
    }

    /// Takes the jobs that no trial has taken out of the queue.
    pub(super) async fn withdraw_early_jobs(&mut self) {
        let engine = self.engine.clone();
        let folder = self.run.folder.early_jobs();
        let Some(queue) = engine.early_queue().filter(|_| folder.exists()) else { return };
        if let Err(error) = queue.withdraw(&folder).await {
            self.reporter.note(&format!("warning: jobs of trials that never began are still in the queue: {error}"));
        }
    }

    /// Withdraws them once no further trial begins, and those that have begun have their jobs.
    pub(super) async fn withdraw_unneeded(&mut self) {
        if self.has_no_array || (self.stopping.is_none() && self.has_budget()) {
            return;
        }
        if self.stopping.is_some() || self.running.keys().all(|number| self.has_job(*number)) {
            self.has_no_array = true;
            self.withdraw_early_jobs().await;
        }
    }

    fn has_job(&self, number: u64) -> bool {
        let found = Listed::read(run::folder_of(&self.run_id(number)).path());
        found.is_some_and(|found| {
            let attempt = found.state.attempts.last();
            attempt.is_some_and(|attempt| attempt.outcome.is_some() || attempt.container.is_some())
        })
    }
}
