//! The launch of an attempt: where it runs, its spec and the job that an engine starts.

pub mod environment;
pub mod job_spec;
pub mod placement;
pub mod template;
pub mod workload;

use crate::engine::{Engine, FoundJob, Launch, StartedJob, remove_jobs_of};
use crate::error::Error;
use crate::system::interrupt::Interrupts;

/// Starts a job. An engine with a queue may have to wait until it can take the job: a signal then removes what was submitted.
pub async fn start(engine: &dyn Engine, launch: &Launch, interrupts: &mut Interrupts) -> Result<StartedJob, Error> {
    if !engine.has_queue() {
        return engine.start(launch).await;
    }
    tokio::select! {
        started = engine.start(launch) => started,
        () = interrupts.signal() => {
            if let FoundJob::Job(job) = engine.find(launch, None, None).await? {
                engine.remove(&job.id).await?;
            }
            remove_jobs_of(engine, &launch.run_id, None).await?;
            Err(Error::Interrupted)
        }
    }
}
