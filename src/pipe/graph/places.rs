//! Steps on a cluster wait in its queue before their turn: each as a job that depends on those of the steps before it. A step that is ready
//! to begin takes its job.

use std::collections::BTreeMap;

use pipe_spec::pipeline::GraphStep;
use pipe_spec::run::{StepState, StepStatus};

use super::GraphDriver;
use crate::engine::{KeptPlaces, Places};
use crate::run::{self, Listed};

#[derive(Default)]
pub struct StepPlaces {
    /// By the name of the step.
    kept: BTreeMap<String, StepPlace>,
    /// Whether the cluster takes no jobs for steps that are to come.
    is_refused: bool,
}

struct StepPlace {
    kept: KeptPlaces,
    /// The jobs that it waits for.
    after: Vec<String>,
}

impl GraphDriver<'_> {
    /// Puts a job into the queue for each step that waits for others whose jobs are there.
    pub(super) async fn keep_places(&mut self) {
        let parsed = self.parsed;
        for (index, step) in parsed.graph.steps.iter().enumerate() {
            if self.places.is_refused {
                return;
            }
            match self.run.state.graph[index].status {
                StepStatus::Waiting => self.keep_place(step).await,
                // Its own `pipe` takes it.
                StepStatus::Running => {}
                _ => self.give_up_place(&step.name).await,
            }
        }
    }

    async fn keep_place(&mut self, step: &GraphStep) {
        let open: Vec<StepState> = self
            .run
            .state
            .graph
            .iter()
            .filter(|other| step.needs.contains(&other.name) && !other.status.is_done())
            .cloned()
            .collect();
        let Ok(engine) = self.engine_of(step).await else { return };
        let Some(queue) = engine.queue_places().filter(|_| !open.is_empty()) else { return };
        let jobs: Option<Vec<String>> = open.iter().map(|other| self.job_of(other, engine.name())).collect();
        let Some(after) = jobs else { return };
        if let Some(known) = self.places.kept.get(&step.name) {
            if after.iter().all(|job| known.after.contains(job)) {
                return;
            }
            self.give_up_place(&step.name).await;
        }
        let part = run::step_id(&self.run.state.id, &step.name);
        let places = Places {
            whole: &self.run.state.id,
            folder: self.run.folder.places(),
            part: &part,
            container: &step.pipeline.container,
            nodes: if step.pipeline.command().is_some() { 1 } else { engine.nodes() },
            variables: step.pipeline.variables_of_jobs(&self.parsed.variables),
            several: None,
            after: after.clone(),
        };
        match queue.keep(&places).await {
            Ok(kept) => {
                self.reporter.note(&format!(
                    "{}: job {} waits in the queue for {}",
                    step.name,
                    kept.job,
                    after.join(", ")
                ));
                self.places.kept.insert(step.name.clone(), StepPlace { kept, after });
            }
            Err(error) => {
                self.places.is_refused = true;
                self.reporter
                    .note(&format!("steps are submitted when it is their turn, because none can wait: {error}"));
            }
        }
    }

    /// The job of a step in the queue of an engine, if it has one.
    fn job_of(&self, step: &StepState, engine: &str) -> Option<String> {
        match step.status {
            StepStatus::Waiting => self.places.kept.get(&step.name).map(|place| place.kept.job.clone()),
            StepStatus::Running => {
                let found = Listed::read(run::folder_of(step.run.as_ref()?).path())?;
                let attempt = found.state.attempts.last().filter(|attempt| attempt.outcome.is_none())?;
                attempt.container.clone().filter(|_| found.state.engine == engine)
            }
            _ => None,
        }
    }

    async fn give_up_place(&mut self, step: &str) {
        let Some(place) = self.places.kept.remove(step) else { return };
        for (_, _, engine) in self.engines.clone() {
            if let Some(queue) = engine.queue_places() {
                queue.give_up(&place.kept.folder).await.unwrap_or_else(|error| self.warn_of_places(&error));
            }
        }
    }

    /// Takes the jobs that no step has taken out of the queue.
    pub(super) async fn give_up_places(&mut self) {
        self.places.kept.clear();
        let folder = self.run.folder.places();
        let engines = if folder.exists() { self.engines.clone() } else { Vec::new() };
        let engine = engines.iter().find(|(_, _, engine)| engine.queue_places().is_some());
        if let Some(queue) = engine.and_then(|(_, _, engine)| engine.queue_places()) {
            queue.give_up(&folder).await.unwrap_or_else(|error| self.warn_of_places(&error));
        }
    }

    fn warn_of_places(&self, error: &crate::error::Error) {
        self.reporter.note(&format!("warning: jobs of steps that were never begun are still in the queue: {error}"));
    }
}
