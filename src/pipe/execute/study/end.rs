//! How trials come to their ends: what their runs have shown, whether they are worth going on with, and what the journal is told.

use pipe_search::{Trial, TrialState, best, prunes_at};
use pipe_spec::study::Keep;
use pipe_spec::{Cause, Outcome, PipeExit, RunFolder, RunState, Status};
use serde_json::{Value, json};

use super::propose::{self, Refused};
use super::trial::{self, Curves};
use super::{Live, MAX_FAILURES, StudyDriver, feasibility};
use crate::engine::registry;
use crate::error::Error;
use crate::execute::children;
use crate::run::{self, Listed};
use crate::system::clock::now;
use crate::system::files::{self, Space};
use crate::system::interrupt::StopRequest;

/// How far above 0 a constraint is where a trial ran out of memory and nobody knows by how much.
const OUT_OF_MEMORY: f64 = 1.0;

fn is_cancelled(run: &RunState) -> bool {
    run.attempts().last().is_some_and(|attempt| attempt.cause == Some(Cause::Cancelled))
}

fn is_killed(run: &RunState) -> bool {
    run.attempts().last().is_some_and(|attempt| attempt.cause == Some(Cause::Killed))
}

impl StudyDriver<'_> {
    /// Looks at the run of a trial that has not ended.
    pub(super) async fn poll_trial(&mut self, number: u64) -> Result<(), Error> {
        let folder = run::folder_of(&self.run_id(number));
        let Some(found) = Listed::read(folder.path()).filter(|found| found.damage.is_empty()) else {
            // It was noted, and `pipe` was killed before its run began, or its folder is gone.
            return match self.stopping {
                None => self.begin_noted(number).await,
                Some(_) => Ok(()),
            };
        };
        let objectives = &self.study.objectives;
        let live = self.running.entry(number).or_insert_with(|| Live::new(Curves::new(&folder, objectives)));
        live.curves.read()?;
        self.note_values(number)?;
        match found.state.status {
            Status::Running => {
                self.prune(number);
                Ok(())
            }
            Status::Orphaned => match self.stopping {
                Some(request) => self.stop_orphan(number, request),
                None => self.take_over(number, &folder),
            },
            Status::Stopped if self.pruned_at(number).is_none() && self.stopping.is_some() => {
                // It goes on when the study does.
                self.running.remove(&number);
                Ok(())
            }
            Status::Stopped if self.pruned_at(number).is_none() && self.was_stopped_before(&found.state) => {
                self.take_over(number, &folder)
            }
            Status::Failed if found.state.machine_failed && self.pruned_at(number).is_none() => {
                match self.was_stopped_before(&found.state) && !self.takeovers.has(&folder) {
                    true => self.take_over(number, &folder),
                    false => {
                        let code = found.state.exit_code.and_then(PipeExit::from_code);
                        let reason = found.state.error.unwrap_or_default();
                        Err(self.halt(number, &reason, code.unwrap_or(PipeExit::Unexpected)))
                    }
                }
            }
            // A signal from elsewhere ended its job, such as that of a machine that goes down: it says nothing of the settings.
            Status::Failed
                if is_killed(&found.state) && self.pruned_at(number).is_none() && !self.takeovers.has(&folder) =>
            {
                let reason = found.state.error.unwrap_or_default();
                self.reporter.note(&format!("trial {number} goes on: {reason}"));
                self.take_over(number, &folder)
            }
            Status::Stopped if self.pruned_at(number).is_none() && is_cancelled(&found.state) => {
                // Who cancels a job of a study wants the study to stop: it goes on with this trial when it is resumed.
                let reason = found.state.error.clone().unwrap_or_default();
                self.cancelled = Some(format!("trial {number}: {reason}"));
                self.running.remove(&number);
                self.stop(StopRequest::Graceful);
                Ok(())
            }
            Status::Finished | Status::Failed | Status::Stopped | Status::Unknown => {
                self.end_trial(number, &found.state)
            }
        }
    }

    /// Starts a `pipe` for a trial that has none.
    fn take_over(&mut self, number: u64, folder: &RunFolder) -> Result<(), Error> {
        self.takeovers.take_over(folder).or_else(|error| self.give_up(number, &error))
    }

    /// Ends a trial that cannot begin or go on. Where the machine is at fault the trial waits, and the study ends.
    pub(super) fn give_up(&mut self, number: u64, error: &Error) -> Result<(), Error> {
        // A `pipe` that cannot write ends without a word.
        let is_full = || Space::is_full(self.run.folder.path());
        match error.is_of_machine() || matches!(error, Error::NotDriven { .. }) && is_full() {
            true => Err(self.halt(number, &error.to_string(), error.exit_code())),
            false => self.fail(number, &error.to_string()),
        }
    }

    /// Why a study ends that can go on elsewhere or later.
    pub(super) fn halt(&self, number: u64, reason: &str, code: PipeExit) -> Error {
        let code = if code == PipeExit::Unavailable { code } else { PipeExit::TrainingFailed };
        let reason = reason.lines().next().unwrap_or_default().to_owned();
        Error::StudyHalted { id: self.run.state.id.clone(), number, reason, code }
    }

    /// Whether a trial that is stopped was so when this process began: it was stopped with the study, and goes on with it.
    fn was_stopped_before(&self, run: &RunState) -> bool {
        let began = now() - self.clock.began.elapsed().as_secs_f64();
        let ended = run.attempts().last().map_or(run.created, |attempt| attempt.began + attempt.figures.seconds);
        ended < began
    }

    /// Writes what a trial has shown into the journal, up to where it is found to be worse than others.
    fn note_values(&mut self, number: u64) -> Result<(), Error> {
        let Some(live) = self.running.get(&number) else { return Ok(()) };
        let values = live.curves.intermediate();
        let Some(known) = self.journal.trials().get(number as usize) else { return Ok(()) };
        let mut trial = known.clone();
        trial.intermediate.extend(values);
        let pruner = propose::pruner(self.study);
        let direction = self.search.directions[0];
        // One that has the values of another has shown nothing itself.
        let counts = |other: &&Trial| other.number != number && !other.user_attrs.contains_key(trial::SAME_AS);
        let others: Vec<Trial> = self.journal.trials().iter().filter(counts).cloned().collect();
        // Values in the journal were judged when they came.
        let judged = known.intermediate.keys().next_back().copied();
        let noted = known.user_attrs.get(trial::PRUNED_AT).and_then(Value::as_u64);
        let pruned_at = noted.or_else(|| prunes_at(pruner, direction, &trial, &others, judged));
        let is_new = |(step, value): &(&u64, &f64)| {
            pruned_at.is_none_or(|last| **step <= last)
                && known.intermediate.get(*step) != Some(*value)
                && value.is_finite()
        };
        let new: Vec<(u64, f64)> =
            trial.intermediate.iter().filter(is_new).map(|(step, value)| (*step, *value)).collect();
        // Noted before the values: what the journal has counts as judged.
        if let Some(step) = pruned_at.filter(|_| noted.is_none()) {
            self.journal.set_attr(number, trial::PRUNED_AT, json!(step))?;
        }
        if !new.is_empty() {
            self.journal.set_intermediate(number, &new)?;
        }
        if let Some(live) = self.running.get_mut(&number) {
            live.pruned_at = live.pruned_at.or(pruned_at);
        }
        Ok(())
    }

    fn pruned_at(&self, number: u64) -> Option<u64> {
        self.running.get(&number).and_then(|live| live.pruned_at)
    }

    /// Ends a trial that is worse than others.
    fn prune(&mut self, number: u64) {
        let id = self.run_id(number);
        let request = if self.study.prune.save { StopRequest::Graceful } else { StopRequest::Hard };
        let Some(live) = self.running.get_mut(&number).filter(|live| live.pruned_at.is_some()) else { return };
        if !live.is_ending {
            live.is_ending = children::signal(&id, request);
        }
    }

    /// Stops a trial whose `pipe` was killed.
    fn stop_orphan(&mut self, number: u64, request: StopRequest) -> Result<(), Error> {
        let folder = run::folder_of(&self.run_id(number));
        match self.running.get_mut(&number) {
            Some(live) if !live.is_ending => {
                live.is_ending = true;
                children::stop_orphan(&folder, request)
            }
            _ => Ok(()),
        }
    }

    fn end_trial(&mut self, number: u64, run: &RunState) -> Result<(), Error> {
        let mut attrs = vec![
            (trial::RUN, json!(run.id)),
            (trial::SECONDS, json!(run.attempts().iter().map(|attempt| attempt.figures.seconds).sum::<f64>())),
            (trial::ATTEMPTS, json!(run.attempts().len())),
        ];
        attrs.extend(trial::peak(run).map(|bytes| (trial::PEAK_MEMORY, json!(bytes))));
        let live = self.running.get(&number);
        attrs.extend(live.and_then(|live| live.curves.capacity).map(|bytes| (trial::CAPACITY, json!(bytes))));
        let values = live.map_or_else(|| Err(String::new()), |live| live.curves.values(run));
        let (state, values) = match (self.pruned_at(number), run.status) {
            (Some(step), _) => {
                attrs.push((trial::PRUNED_AT, json!(step)));
                (TrialState::Pruned, Vec::new())
            }
            (None, Status::Finished) => match values {
                Ok(values) => (TrialState::Complete, values),
                Err(reason) => {
                    attrs.push((trial::ERROR, json!(reason)));
                    (TrialState::Failed, Vec::new())
                }
            },
            (None, _) if run.infeasible().is_some() => {
                attrs.retain(|(name, _)| ![trial::SECONDS, trial::ATTEMPTS].contains(name));
                attrs.push((trial::INFEASIBLE, json!(true)));
                attrs.extend(run.infeasible().map(str::to_owned).map(|why| (trial::ERROR, json!(why))));
                (TrialState::Pruned, Vec::new())
            }
            (None, _) if is_out_of_memory(run) => {
                attrs.push((trial::OOM, self.oom_record(run)));
                attrs.extend(run.error.clone().map(|error| (trial::ERROR, json!(error))));
                (TrialState::Pruned, Vec::new())
            }
            (None, Status::Stopped) => {
                attrs.push((trial::ERROR, json!("stopped by hand")));
                (TrialState::Failed, Vec::new())
            }
            (None, _) => {
                attrs.push((trial::ERROR, json!(run.error.clone().unwrap_or_else(|| "failed".to_owned()))));
                (TrialState::Failed, Vec::new())
            }
        };
        let does_not_fit = attrs.iter().any(|(name, _)| [trial::INFEASIBLE, trial::OOM].contains(name));
        let constraints = does_not_fit.then_some([OUT_OF_MEMORY]);
        let constraints = constraints.as_ref().map(<[f64; 1]>::as_slice);
        self.journal.end_with(number, (state, &values, now()), &attrs, constraints)?;
        self.running.remove(&number);
        let ended = self.journal.trials().get(number as usize).cloned();
        if let Some(ended) = ended.filter(|ended| ended.state == TrialState::Complete) {
            self.recognise(&ended);
        }
        self.clear(number, state);
        match does_not_fit || ran_out_at_first(run) {
            true => self.note_too_large(run),
            false => self.search.refused = Refused::default(),
        }
        if run.infeasible().is_some() {
            self.note_refused();
        }
        match state {
            TrialState::Failed if run.status != Status::Stopped => {
                let reason = run.error.clone().unwrap_or_else(|| self.error_of(number));
                self.note_failure(number, &reason)
            }
            _ => {
                self.search.failures = 0;
                Ok(())
            }
        }
    }

    /// Removes what nobody needs of trials that have ended: checkpoints, which none goes on from, and models of trials that are not the
    /// best. What cannot be removed stays.
    fn clear(&self, number: u64, state: TrialState) {
        if self.study.keep == Keep::All {
            return;
        }
        let saved = state == TrialState::Pruned && self.study.prune.save;
        if state != TrialState::Failed && !saved {
            std::fs::remove_dir_all(run::folder_of(&self.run_id(number)).checkpoints()).ok();
        }
        // Optuna's own trials have no model: the best of ours is kept whatever they show.
        let own: Vec<Trial> = self.own().cloned().collect();
        let best: Vec<u64> =
            best(&own, &self.search.directions).into_iter().filter_map(|index| Some(own.get(index)?.number)).collect();
        for trial in self.own().filter(|trial| trial.state.has_ended() && !best.contains(&trial.number)) {
            std::fs::remove_dir_all(run::folder_of(&self.run_id(trial.number)).model()).ok();
        }
    }

    /// Remembers that trials like this do not fit.
    fn note_too_large(&mut self, run: &RunState) {
        let text = files::read_own_text(&run::folder_of(&run.id).resolved()).unwrap_or_default();
        let name =
            registry::parse_pipeline(&text, &[], self.variables).ok().as_ref().and_then(feasibility::memory_name);
        let batch = run.attempts().first().map_or(String::new(), |attempt| format!("batch {} ", attempt.batch));
        let known = run.infeasible().map(str::to_owned);
        let why = known.unwrap_or_else(|| format!("{batch}ran out of memory with the same settings, in {}", run.id));
        self.search.too_large.extend(name.map(|name| (name, why)));
    }

    fn error_of(&self, number: u64) -> String {
        let trial = self.journal.trials().get(number as usize);
        let error = trial.and_then(|trial| trial.user_attrs.get(trial::ERROR)).and_then(Value::as_str);
        error.unwrap_or("failed").to_owned()
    }

    /// The record of a run's last out-of-memory, as far as it can be read.
    fn oom_record(&self, run: &RunState) -> Value {
        let folder = run::folder_of(&run.id);
        let last = run.attempts().iter().rev().find(|attempt| attempt.outcome == Some(Outcome::Oom));
        let read = last.and_then(|attempt| files::read_own(&folder.attempt(attempt.number).oom()).ok());
        let record = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        record.unwrap_or_else(|| json!({ "cause": last.and_then(|attempt| attempt.cause) }))
    }

    /// Ends a trial that could not begin, or cannot go on.
    pub(super) fn fail(&mut self, number: u64, reason: &str) -> Result<(), Error> {
        self.journal.set_attr(number, trial::ERROR, json!(reason))?;
        self.journal.end(number, TrialState::Failed, &[], now())?;
        self.running.remove(&number);
        self.note_failure(number, reason)
    }

    /// A trial that fails ends nothing, but several one after the other do: what is wrong with them is wrong with all.
    pub(super) fn note_failure(&mut self, number: u64, reason: &str) -> Result<(), Error> {
        self.search.failures += 1;
        if self.search.failures < MAX_FAILURES {
            return Ok(());
        }
        let reason = reason.lines().next().unwrap_or_default().to_owned();
        Err(Error::TrialsFail { id: self.run.state.id.clone(), times: self.search.failures, number, reason })
    }
}

/// Whether what was asked for was too large, though a smaller batch did it.
fn ran_out_at_first(run: &RunState) -> bool {
    run.attempts().first().is_some_and(|attempt| matches!(attempt.cause, Some(Cause::Capacity | Cause::HostMemory)))
}

fn is_out_of_memory(run: &RunState) -> bool {
    run.exit_code == Some(PipeExit::OutOfMemory.code())
        || run.attempts().last().is_some_and(|attempt| attempt.outcome == Some(Outcome::Oom))
}
