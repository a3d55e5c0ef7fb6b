//! What the attempts of a run tell the ledger.

use pipe_spec::OomRecord;

use super::Supervisor;
use crate::attempt::job_spec::JobSpec;
use crate::engine::Ending;
use crate::ledger::{self, LedgerJob};

impl Supervisor<'_> {
    /// The job of an attempt as the ledger knows it.
    pub(super) fn ledger_job(&self, spec: &JobSpec) -> Option<LedgerJob> {
        match (spec, self.template.pipeline.command()) {
            (JobSpec::Training(spec), _) => Some(LedgerJob::of_training(spec, &self.config)),
            (JobSpec::Command(spec), Some(command)) => {
                Some(LedgerJob::of_command(command, spec.expandable_segments, self.template.placement.device))
            }
            (JobSpec::Command(_), None) => None,
        }
    }

    /// Adds the measurements of the attempt to the ledger. A failure does not stop the training.
    pub(super) fn update_ledger(&mut self, spec: &JobSpec, record: Option<&OomRecord>, ending: &Ending) {
        let job = self.ledger_job(spec);
        let (Some(session), Some(attempt)) = (&mut self.session, self.run.state.attempts.last()) else { return };
        let Some(job) = job else { return };
        if let Err(error) = session.attempt_ended(&job, attempt, record, ending.memory_limit) {
            self.reporter.note(&format!("warning: {error}"));
            self.session = None;
        }
    }

    /// Tells the ledger what a command runs on.
    pub(super) fn begin_command(&mut self, spec: &JobSpec) {
        let Some(job) = self.ledger_job(spec).filter(|_| self.template.pipeline.command().is_some()) else { return };
        let card = self.card(self.template.placement.device);
        let memory = self.template.pipeline.container.memory.map(|size| size.0);
        let capacity = ledger::capacity(&job, card.as_ref(), memory);
        if let Some(session) = &mut self.session {
            session.begin_command(card.as_ref(), capacity);
        }
    }
}
