//! Carries out runs: one way for a training, a command, a pipeline of stages, a study and a prediction.

pub mod children;
pub mod decide;
pub mod inspect;
pub mod launch;
pub mod predict;
pub mod resume;
pub mod single;
pub mod stages;
pub mod study;

use crate::engine::Engine;
use crate::error::Error;
use crate::input::load::{Loaded, ParsedStages, ParsedStudy};
use crate::report::{Reporter, outlive_stdout};
use crate::run::Run;
use crate::system::interrupt::Interrupts;
use single::StartMode;
use single::driver::{Driver, FoundBatch};
use stages::StagesDriver;
use study::StudyDriver;

/// The work of a run, loaded and checked.
pub enum Plan<'a> {
    /// A training, a command, or a search for the largest batch.
    Single { loaded: &'a Loaded, engine: Box<dyn Engine> },
    /// Several of these, each in a run of its own.
    Stages(&'a ParsedStages),
    /// Trials, each in a run of its own.
    Study { parsed: &'a ParsedStudy, engine: Box<dyn Engine> },
}

/// Carries out a run from its state on disk to its end: one that is new, or one that is taken over. Returns what a search for the
/// largest batch has found.
pub async fn drive(
    run: Run,
    plan: Plan<'_>,
    start_mode: StartMode,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Option<FoundBatch>, Error> {
    outlive_stdout();
    reporter.keep_journal(&run.folder.journal());
    if start_mode == StartMode::New {
        let noun = if matches!(plan, Plan::Study { .. }) { "study" } else { "run" };
        reporter.note(&format!("{noun} {}", run.state.id));
    }
    let id = run.state.id.clone();
    let result = match plan {
        Plan::Single { loaded, engine } => {
            Driver::new(loaded, run, start_mode, reporter, interrupts).run(engine.as_ref()).await
        }
        Plan::Stages(parsed) => StagesDriver::new(parsed, run, reporter, interrupts).run().await.map(|()| None),
        Plan::Study { parsed, engine } => {
            let driver = StudyDriver::new(&parsed.study, &parsed.variables, run, engine, reporter, interrupts)?;
            driver.run().await.map(|()| None)
        }
    };
    result.map_err(|error| match error {
        Error::Interrupted => Error::Stopped { id },
        error => error,
    })
}
