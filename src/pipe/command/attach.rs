//! `pipe attach`: watches a run in the background; if its `pipe` process was killed, it starts another one.

use std::path::PathBuf;
use std::time::Duration;

use pipe_search::Journal;
use pipe_spec::pipeline::WorkKind;
use pipe_spec::{RunState, Status};

use crate::error::Error;
use crate::execute::children::{self, Watcher};
use crate::execute::stages::StagesWatcher;
use crate::execute::study::{StudyView, StudyWatcher, storage};
use crate::execute::supervised;
use crate::input::load::{self, ParsedStudy};
use crate::report::{Output, Reporter, say};
use crate::run::{self, Listed};
use crate::system::interrupt::Interrupts;

/// How often the run folder is read.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// A run whose `pipe` ends so often without a word is left alone.
const MAX_TAKEOVERS: u32 = 5;

pub fn run(wanted: &str, output: Output) -> Result<(), Error> {
    // On another machine: `ENGINE://RUN`.
    let fetched = match wanted.split_once("://") {
        Some((engine, wanted)) => Some(super::runtime()?.block_on(supervised::fetch(engine, wanted))?),
        None => None,
    };
    let found = run::find(fetched.as_deref().unwrap_or(wanted))?;
    found.check_is_no_copy()?;
    if !found.damage.is_empty() {
        return Err(Error::Damaged { id: found.state.id, damage: found.damage });
    }
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let reporter = Reporter::new(output);
        tokio::select! {
            ended = watch(&found, reporter, output.is_json()) => ended,
            _ = interrupts.next() => {
                if output != Output::Quiet {
                    say(&format!("the run continues: `pipe attach {0}` watches it again, `pipe stop {0}` stops it", found.state.id));
                }
                Ok(())
            }
        }
    })
}

async fn watch(found: &Listed, reporter: Reporter, json: bool) -> Result<(), Error> {
    let mut watcher = Watcher::new(found, reporter, json);
    let mut parts = Parts::of(found, json)?;
    watcher.catch_up()?;
    let mut takeovers = 0;
    loop {
        let state = watcher.look()?;
        if state.status == Status::Orphaned {
            takeovers += 1;
            if takeovers > MAX_TAKEOVERS {
                return Err(Error::NotDriven { log: found.folder().driver_log() });
            }
            watcher.reporter.note(match state.choices.supervised {
                true => "following the job that supervises this run, by a process in the background",
                false => "no pipe process is running this run: starting one in the background",
            });
            children::start_watched(&found.folder())?;
            continue;
        }
        watcher.show(&state)?;
        parts.show(&state, &mut watcher.reporter)?;
        if state.status != Status::Running {
            parts.end(&state, &found.folder, &mut watcher.reporter);
            return children::over(&state);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The runs that a run consists of, where it does nothing itself.
enum Parts {
    None,
    Steps(StagesWatcher),
    Study(Box<(ParsedStudy, Option<Journal>, StudyWatcher)>),
}

impl Parts {
    fn of(found: &Listed, json: bool) -> Result<Self, Error> {
        Ok(match found.state.work() {
            WorkKind::Training | WorkKind::Command => Self::None,
            WorkKind::Stages => Self::Steps(StagesWatcher::new(json, &found.state)),
            WorkKind::Study => match load::parse_study(&found.folder().resolved(), &[])? {
                Some(mut parsed) => {
                    // Beside it, wherever its folder was moved.
                    let journal = storage(&parsed.study, &found.folder());
                    parsed.study = parsed.study.with_storage(journal.display().to_string());
                    let watcher = StudyWatcher::new(json, &found.state.id, &parsed.study, &[]);
                    Self::Study(Box::new((parsed, None, watcher)))
                }
                None => return Err(Error::NotStudyRun { id: found.state.id.clone() }),
            },
        })
    }

    fn show(&mut self, state: &RunState, reporter: &mut Reporter) -> Result<(), Error> {
        match self {
            Self::None => Ok(()),
            Self::Steps(steps) => steps.show(state, reporter),
            Self::Study(study) => {
                let (parsed, journal, watcher) = study.as_mut();
                let storage = PathBuf::from(parsed.study.storage.clone().unwrap_or_default());
                if journal.is_none() {
                    *journal = Journal::read_if_there(&storage, parsed.study.name.as_str())?;
                }
                let Some(journal) = journal else { return Ok(()) };
                journal.refresh()?;
                watcher.show(state, journal.trials(), reporter)
            }
        }
    }

    fn end(&self, state: &RunState, folder: &str, reporter: &mut Reporter) {
        match self {
            Self::None | Self::Steps(_) => reporter.run_ended(state, folder),
            Self::Study(study) => {
                let trials = study.1.as_ref().map(Journal::trials).unwrap_or_default();
                let view = StudyView { study: &study.0.study, trials, state };
                reporter.study_ended(state, folder, &view.summary());
            }
        }
    }
}
