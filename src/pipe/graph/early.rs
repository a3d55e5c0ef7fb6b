//! Steps on a cluster wait in its queue before their turn: each as a job that depends on those of the steps before it. A step that is ready
//! to begin takes its job.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pipe_spec::pipeline::GraphStep;
use pipe_spec::run::{StepState, StepStatus};

use super::GraphDriver;
use crate::engine::{EarlyJob, Engine, SubmittedEarly};
use crate::error::Error;
use crate::run::{self, Listed};

/// How long a cluster that did not take a job is left alone.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct EarlySteps {
    /// By the name of the step.
    submitted: BTreeMap<String, EarlyStep>,
    /// Whether the cluster refuses such jobs.
    is_refused: bool,
    /// When it did not answer.
    failed: Option<Instant>,
}

struct EarlyStep {
    submitted: SubmittedEarly,
    /// The jobs that it waits for.
    after: Vec<String>,
}

impl GraphDriver<'_> {
    /// Submits a job for each step that waits for others whose jobs are in the queue.
    pub(super) async fn submit_early_jobs(&mut self) {
        let parsed = self.parsed;
        for (index, step) in parsed.graph.steps.iter().enumerate() {
            match self.run.state.graph[index].status {
                StepStatus::Waiting => self.submit_early_job(step).await,
                // Its own `pipe` takes it.
                StepStatus::Running => {}
                StepStatus::Finished
                | StepStatus::Unchanged
                | StepStatus::LeftOut
                | StepStatus::Failed
                | StepStatus::Stopped => self.withdraw_early_job(&step.name).await,
            }
        }
    }

    async fn submit_early_job(&mut self, step: &GraphStep) {
        let needed = self.run.state.graph.iter().filter(|other| step.needs.contains(&other.name));
        let open: Vec<StepState> = needed.filter(|other| !other.status.is_done()).cloned().collect();
        if open.iter().any(|other| !matches!(other.status, StepStatus::Waiting | StepStatus::Running)) {
            // Its turn will not come.
            return self.withdraw_early_job(&step.name).await;
        }
        let rests = self.early.failed.is_some_and(|at| at.elapsed() < RETRY_INTERVAL);
        let Some(engine) = self.known_engine(step).filter(|_| !open.is_empty() && !rests && !self.early.is_refused)
        else {
            return;
        };
        let Some(queue) = engine.early_queue() else { return };
        let jobs: Option<Vec<String>> = open.iter().map(|other| self.job_of(other, engine.name())).collect();
        let Some(after) = jobs else { return };
        if let Some(known) = self.early.submitted.get(&step.name) {
            if after.iter().all(|job| known.after.contains(job)) {
                return;
            }
            self.withdraw_early_job(&step.name).await;
        }
        let job = EarlyJob {
            whole: &self.run.state.id,
            folder: self.run.folder.early_jobs(),
            run: &run::step_id(&self.run.state.id, &step.name),
            container: &step.pipeline.container,
            nodes: if step.pipeline.command().is_some() { 1 } else { engine.nodes() },
            variables: step.pipeline.variables_of_jobs(&self.parsed.variables),
            after: after.clone(),
        };
        match queue.submit(&job).await {
            Ok(submitted) => {
                let waits = format!("{}: job {} waits in the queue for {}", step.name, submitted.job, after.join(", "));
                self.reporter.note(&waits);
                self.early.submitted.insert(step.name.clone(), EarlyStep { submitted, after });
            }
            Err(error) => {
                self.early.is_refused = matches!(error, Error::JobRefused { .. });
                self.early.failed = Some(Instant::now());
                self.reporter.note(&format!("steps are submitted when it is their turn, not earlier: {error}"));
            }
        }
    }

    /// The engine of a step, if it was connected to.
    fn known_engine(&self, step: &GraphStep) -> Option<Rc<dyn Engine>> {
        let (wanted, cluster) = (self.engine_name(step), step.pipeline.cluster_request());
        let mut engines = self.engines.iter();
        engines.find(|(name, of, _)| *name == wanted && *of == cluster).map(|(_, _, engine)| engine.clone())
    }

    /// The job of a step in the queue of an engine, if it has one.
    fn job_of(&self, step: &StepState, engine: &str) -> Option<String> {
        match step.status {
            StepStatus::Waiting => self.early.submitted.get(&step.name).map(|early| early.submitted.job.clone()),
            StepStatus::Running => {
                let found = Listed::read(run::folder_of(step.run.as_ref()?).path())?;
                let attempt = found.state.attempts.last().filter(|attempt| attempt.outcome.is_none())?;
                attempt.container.clone().filter(|_| found.state.engine == engine)
            }
            _ => None,
        }
    }

    async fn withdraw_early_job(&mut self, step: &str) {
        if let Some(early) = self.early.submitted.remove(step) {
            self.withdraw(&early.submitted.folder).await;
        }
    }

    /// Takes the jobs that no step has taken out of the queue.
    pub(super) async fn withdraw_early_jobs(&mut self) {
        self.early.submitted.clear();
        let folder = self.run.folder.early_jobs();
        if folder.exists() {
            self.withdraw(&folder).await;
        }
    }

    async fn withdraw(&self, folder: &std::path::Path) {
        // All of them have one queue.
        let Some(engine) = self.engines.iter().find(|(_, _, engine)| engine.early_queue().is_some()) else { return };
        let Some(queue) = engine.2.early_queue() else { return };
        if let Err(error) = queue.withdraw(folder).await {
            self.reporter.note(&format!("warning: jobs of steps that never began are still in the queue: {error}"));
        }
    }
}
