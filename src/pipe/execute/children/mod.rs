//! A run that is part of another: a stage of a pipeline, or a trial of a study. It is done by a `pipe` of its own in the background, so
//! that it outlives the one that began it.
//!
//! A `pipe` process in the background that runs a run after this process and its terminal end.
//!
//! Shows a run that another process runs, from its folder: what it says, its attempts and its events.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pipe_spec::event::RecordedEvent;
use pipe_spec::pipeline::WorkKind;
use pipe_spec::{PipeExit, RunFolder, RunState, Status};

use crate::error::Error;
use crate::report::Reporter;
use crate::run::{self, Follow, Listed, Owner};
use crate::system::interrupt::StopRequest;

/// A part whose `pipe` ends so often without a word has failed.
const MAX_TAKEOVERS: u32 = 5;

/// The run in this folder, if one was begun there.
pub fn find(folder: &RunFolder) -> Result<Option<Listed>, Error> {
    let Some(begun) = Listed::read(folder.path()) else { return Ok(None) };
    match begun.damage.is_empty() {
        true => Ok(Some(begun)),
        false if has_never_run(folder) => {
            std::fs::remove_dir_all(folder.path()).ok();
            Ok(None)
        }
        false => Err(Error::DamagedPart { id: begun.state.id, damage: begun.damage }),
    }
}

/// Whether a `pipe` was killed while it made the folder: it has no record, no owner and nothing that a job or its `pipe` writes. What
/// cannot be read may be anything.
fn has_never_run(folder: &RunFolder) -> bool {
    let is_missing = |path: PathBuf| path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let is_empty = |path: PathBuf| match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    let written = [folder.path().join("attempts"), folder.checkpoints(), folder.model(), folder.output()];
    is_missing(folder.state())
        && std::fs::metadata(folder.events())
            .map_or_else(|error| error.kind() == ErrorKind::NotFound, |found| found.len() == 0)
        && !Owner::exists(folder)
        && written.into_iter().all(is_empty)
}

/// Starts a `pipe` for a part, unless it has one or has finished. `begun` is what was found in its folder.
pub fn start(folder: &RunFolder, begun: Option<&Listed>) -> Result<(), Error> {
    let needs_none = begun.is_some_and(|begun| begun.state.status == Status::Finished || begun.is_owned());
    if needs_none { Ok(()) } else { start_watched(folder) }
}

/// Asks a part to stop; false where it has no `pipe` here that could be asked.
pub fn signal(id: &str, request: StopRequest) -> bool {
    let owner = Owner::process(&run::folder_of(id)).filter(run::OwnerProcess::is_here);
    owner.is_some_and(|owner| request.send(owner.pid))
}

/// Stops a part whose `pipe` was killed, and whose job may still run: by a `pipe stop` in the background, which takes it over.
pub fn stop_orphan(folder: &RunFolder, request: StopRequest) -> Result<(), Error> {
    let program = std::env::current_exe().map_err(|source| Error::Read { path: "this program".into(), source })?;
    let mut command = std::process::Command::new(&program);
    command.arg("stop").arg(folder.path().file_name().unwrap_or_default()).arg("--quiet");
    if request == StopRequest::Hard {
        command.arg("--now");
    }
    let none = std::process::Stdio::null;
    command
        .env("PIPE_RUNS", folder.path().parent().unwrap_or(folder.path()))
        .stdin(none())
        .stdout(none())
        .stderr(none());
    command.spawn().map(drop).map_err(|source| Error::Spawn { program, source })
}

/// How often each part was taken over from a `pipe` that had been killed.
#[derive(Default)]
pub struct Takeovers(BTreeMap<PathBuf, u32>);

impl Takeovers {
    /// Whether a part was taken over by this process.
    pub fn has(&self, folder: &RunFolder) -> bool {
        self.0.contains_key(folder.path())
    }

    /// Starts a `pipe` for a part whose own was killed.
    pub fn take_over(&mut self, folder: &RunFolder) -> Result<(), Error> {
        let times = self.0.entry(folder.path().to_owned()).or_default();
        *times += 1;
        if *times > MAX_TAKEOVERS {
            return Err(Error::NotDriven { log: folder.driver_log() });
        }
        start_watched(folder)
    }
}

/// How long the background process may take until it owns the run.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts `pipe resume` in the background, and returns when it owns the run or has ended.
pub fn start_detached(folder: &RunFolder, set: &[String]) -> Result<(), Error> {
    spawn(folder, set)?.map_or(Ok(()), |_| ended(folder))
}

/// The same for those who watch the run: one that is killed before it owns the run leaves it orphaned, as one that is killed later.
pub fn start_watched(folder: &RunFolder) -> Result<(), Error> {
    match spawn(folder, &[])? {
        Some(status) if status.signal().is_none() => ended(folder),
        _ => Ok(()),
    }
}

/// How the process in the background has ended, where it does not own the run.
fn spawn(folder: &RunFolder, set: &[String]) -> Result<Option<ExitStatus>, Error> {
    let program = std::env::current_exe().map_err(|source| Error::Read { path: "this program".into(), source })?;
    let fail = |source| Error::Spawn { program: program.clone(), source };
    let log = std::fs::File::options().create(true).append(true).open(folder.driver_log()).map_err(fail)?;
    let mut command = Command::new(&program);
    command.args(["resume", "--quiet"]);
    set.iter().for_each(|set| {
        command.args(["--set", set]);
    });
    command
        // A name that begins like an option is none.
        .arg("--")
        .arg(folder.path().file_name().unwrap_or_default())
        .env("PIPE_RUNS", folder.path().parent().unwrap_or(folder.path()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Its messages are in the journal. This log gets panics and the like.
        .stderr(log);
    // SAFETY: setsid is async-signal-safe and touches nothing of ours.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn().map_err(fail)?;
    let began = Instant::now();
    while !Owner::exists(folder) && began.elapsed() < START_TIMEOUT {
        if let Some(status) = child.try_wait().map_err(fail)? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}

/// How a run that another process has carried out is over.
pub fn over(state: &RunState) -> Result<(), Error> {
    let code = state.exit_code.and_then(PipeExit::from_code);
    match state.status {
        Status::Finished => Ok(()),
        Status::Stopped if state.error.as_deref() == Some(&Error::Interrupted.to_string()) => {
            Err(Error::Stopped { id: state.id.clone() })
        }
        _ => Err(Error::RunEnded {
            reason: state.error.clone().unwrap_or_else(|| state.status.name().to_owned()),
            code: code.unwrap_or(PipeExit::TrainingFailed),
        }),
    }
}

/// The background process has ended already: the run is over, or it could not start.
fn ended(folder: &RunFolder) -> Result<(), Error> {
    let status = run::Listed::read(folder.path()).map(|found| found.state.status);
    match status {
        Some(pipe_spec::Status::Orphaned) | None => Err(Error::NotDriven { log: folder.driver_log() }),
        Some(_) => Ok(()),
    }
}

pub struct Watcher {
    pub found: Listed,
    pub reporter: Reporter,
    json: bool,
    events: Follow,
    journal: Follow,
    /// Messages of the process that follows a supervising job.
    follower: Follow,
    /// How many attempts were shown to begin and to end.
    begun: usize,
    ended: usize,
    doing: Option<String>,
    /// Whether what a command prints is shown.
    pub shows_output: bool,
    /// The number of its attempt, and its log.
    output: Option<(u32, Follow)>,
}

impl Watcher {
    pub fn new(found: &Listed, mut reporter: Reporter, json: bool) -> Self {
        let folder = found.folder();
        reporter.set_unit(run::unit(&folder));
        Self {
            found: found.clone(),
            reporter,
            json,
            events: Follow::new(folder.events()),
            journal: Follow::new(folder.journal()),
            follower: Follow::new(folder.follower_journal()),
            begun: 0,
            ended: 0,
            doing: None,
            shows_output: false,
            output: None,
        }
    }

    pub fn look(&self) -> Result<RunState, Error> {
        match Listed::read(self.found.folder().path()) {
            Some(found) if found.damage.is_empty() => Ok(found.state),
            Some(found) => Err(Error::Damaged { id: found.state.id, damage: found.damage }),
            None => Err(Error::NoRun { wanted: self.found.state.id.clone(), runs: run::runs_folder() }),
        }
    }

    /// Replays past events, as far as the display needs them. A script gets all of them.
    pub fn catch_up(&mut self) -> Result<(), Error> {
        let state = self.look()?;
        let live = matches!(state.status, Status::Running | Status::Orphaned);
        if !self.json {
            self.reporter.note(&format!("run {} in {}", state.id, self.found.folder));
            self.journal.skip()?;
            self.follower.skip()?;
            self.begun = state.attempts().len().saturating_sub(usize::from(live));
            self.ended = self.begun;
            self.show_begun(&state);
            while let Some(events) = self.next_events()? {
                events.iter().for_each(|recorded| self.reporter.replay(recorded));
            }
        }
        Ok(())
    }

    /// Passes over the attempts that have ended, and over all that was said in them.
    pub fn skip_ended(&mut self) -> Result<(), Error> {
        let state = self.look()?;
        let ended = state.attempts().iter().take_while(|attempt| attempt.outcome.is_some()).count();
        if ended == 0 {
            return Ok(());
        }
        (self.begun, self.ended) = (ended, ended);
        self.journal.skip()?;
        while let Some(events) = self.next_events()? {
            events.iter().for_each(|recorded| self.reporter.replay(recorded));
        }
        let last = state.attempts()[ended - 1].number;
        let mut log = Follow::new(self.found.folder().attempt(last).log());
        log.skip()?;
        self.output = Some((last, log));
        Ok(())
    }

    pub fn show(&mut self, state: &RunState) -> Result<(), Error> {
        self.follower.lines()?.iter().for_each(|line| self.reporter.note(line));
        self.journal.lines()?.iter().for_each(|line| self.reporter.note(line));
        self.show_begun(state);
        if state.doing != self.doing {
            self.doing.clone_from(&state.doing);
            self.doing.iter().for_each(|doing| self.reporter.doing(doing));
        }
        if self.shows_output && state.work() == WorkKind::Command && !self.json {
            self.show_output(state)?;
        }
        while let Some(events) = self.next_events()? {
            events.iter().for_each(|recorded| self.reporter.event(recorded));
        }
        for attempt in state.attempts().iter().skip(self.ended).filter(|attempt| attempt.outcome.is_some()) {
            self.reporter.attempt_ended(attempt);
            self.ended += 1;
        }
        Ok(())
    }

    /// Shows the lines that a command has printed since the last time.
    fn show_output(&mut self, state: &RunState) -> Result<(), Error> {
        for attempt in state.attempts() {
            let known = self.output.as_ref().map_or(0, |(number, _)| *number);
            if attempt.number > known {
                let log = self.found.folder().attempt(attempt.number).log();
                self.output = Some((attempt.number, Follow::new(log)));
            }
            let Some((_, log)) = self.output.as_mut().filter(|(number, _)| *number == attempt.number) else { continue };
            loop {
                let lines = log.lines()?;
                if lines.is_empty() {
                    break;
                }
                lines.iter().for_each(|line| self.reporter.job_line(line));
            }
        }
        Ok(())
    }

    fn show_begun(&mut self, state: &RunState) {
        for (index, attempt) in state.attempts().iter().enumerate().skip(self.begun) {
            let before = index.checked_sub(1).map(|before| &state.attempts()[before]);
            self.reporter.attempt_started(attempt, state.at_most(), false, before);
            self.begun += 1;
        }
    }

    /// Events that were added, some at a time.
    fn next_events(&mut self) -> Result<Option<Vec<RecordedEvent>>, Error> {
        let lines = self.events.lines()?;
        let parsed = lines.iter().filter_map(|line| serde_json::from_str(line).ok());
        Ok((!lines.is_empty()).then(|| parsed.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder is started over only if nothing has run in it.
    #[test]
    fn checkpoints_of_a_part_whose_record_is_damaged_are_kept() {
        let all = tempfile::tempdir().unwrap();
        for (number, (file, text, damage)) in [
            ("checkpoints/step-00000200/model.safetensors", "weights", ""),
            ("attempts/01/log.txt", "step 1", ""),
            ("events.jsonl", "{}\n", ""),
            ("pipeline.yaml", "version: 1", "{"),
            ("pipeline.yaml", "version: 1", "{\"status\": \"paused\"}"),
        ]
        .into_iter()
        .enumerate()
        {
            let folder = RunFolder::new(all.path().join(format!("run-{number}")));
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(folder.pipeline(), "version: 1").unwrap();
            std::fs::write(&path, text).unwrap();
            if !damage.is_empty() {
                std::fs::write(folder.state(), damage).unwrap();
            }
            for _ in 0..2 {
                assert!(matches!(find(&folder), Err(Error::DamagedPart { .. })), "{file} {damage}");
                assert!(path.exists(), "{file} {damage}");
            }
        }
        let begun = RunFolder::new(all.path().join("begun"));
        std::fs::create_dir_all(begun.checkpoints()).unwrap();
        std::fs::write(begun.pipeline(), "version: 1").unwrap();
        assert!(find(&begun).unwrap().is_none() && !begun.path().exists());
    }
}
