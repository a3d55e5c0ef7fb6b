//! Trials on a cluster: an array of jobs that waits in its queue, of which each trial takes one when it begins. What is tried next is
//! decided as late as it can be.

use pipe_spec::pipeline::{CLUSTER_SECTION, Pipeline};

use super::{StudyDriver, trial};
use crate::engine::{Places, Several};

/// Places for a study without a number of trials, for each that runs at a time.
const AHEAD: u64 = 4;

impl StudyDriver<'_> {
    /// Puts jobs for the trials that are to come into the queue, where none waits there. `pipeline` is that of one of them.
    pub(super) async fn keep_places(&mut self, pipeline: &Pipeline) {
        let engine = self.engine.clone();
        let Some(queue) = engine.queue_places().filter(|_| !self.keeps_no_places) else { return };
        let folder = self.run.folder.places();
        if self.asks_for_different_jobs() || queue.free(&folder) > 0 {
            return;
        }
        let counts = trial::counts(self.own());
        let parallel = u64::from(self.study.budget.parallel);
        // The one that begins is counted as running.
        let left = self.study.budget.trials.map(|trials| trials.saturating_sub(counts.run()) + 1);
        let count = left.unwrap_or(parallel * AHEAD);
        if count < 2 {
            return;
        }
        let places = Places {
            whole: &self.run.state.id,
            folder,
            part: "trials",
            container: &pipeline.container,
            nodes: if pipeline.command().is_some() { 1 } else { engine.nodes() },
            variables: pipeline.variables_of_jobs(self.variables),
            several: Some(Several {
                count: u32::try_from(count).unwrap_or(u32::MAX),
                at_once: self.study.budget.parallel,
            }),
            after: Vec::new(),
        };
        match queue.keep(&places).await {
            Ok(kept) => self.reporter.note(&format!("trials run as jobs of the array {}", kept.job)),
            Err(error) => {
                self.keeps_no_places = true;
                self.reporter.note(&format!("trials are jobs of their own, because no array can be had: {error}"));
            }
        }
    }

    /// Jobs of an array are alike.
    fn asks_for_different_jobs(&self) -> bool {
        let section = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        self.space
            .parameters
            .iter()
            .any(|parameter| ["container", CLUSTER_SECTION].contains(&section(&parameter.name).as_str()))
    }

    /// Takes the jobs that no trial has taken out of the queue.
    pub(super) async fn give_up_places(&mut self) {
        let engine = self.engine.clone();
        let folder = self.run.folder.places();
        let Some(queue) = engine.queue_places().filter(|_| folder.exists()) else { return };
        if let Err(error) = queue.give_up(&folder).await {
            self.reporter
                .note(&format!("warning: jobs of trials that were never begun are still in the queue: {error}"));
        }
    }
}
