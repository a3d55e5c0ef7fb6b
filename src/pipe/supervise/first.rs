//! What a run begins with: the pipeline's settings, as far as nothing speaks against them, or what a `pipe` that is gone
//! had come to.

use std::fs::File;
use std::io::{BufRead, BufReader};

use pipe_spec::event::{Measured, Point, RecordedEvent};
use pipe_spec::{Attempt, Device, EventKind, Outcome, TrainerSpec};

use super::{Entry, Supervisor, Turn};
use crate::card::Card;
use crate::engine::Engine;
use crate::error::Error;
use crate::ledger::{self, Advice};
use crate::outcome::Verdict;
use crate::plan::{first_settings, settings_of};
use crate::retry::Settings;

impl<E: Engine> Supervisor<'_, E> {
    pub(super) fn first_turn(&mut self) -> Result<Turn, Error> {
        let Some(last) = self.run.state.attempts.last().cloned() else {
            return Ok(Turn::Start(self.informed(first_settings(self.plan.pipeline))));
        };
        let settings = self.settings_of(&last);
        self.remember_points(&last);
        let Some(outcome) = last.outcome else { return Ok(Turn::Adopt(settings)) };
        let verdict = Verdict { outcome, cause: last.cause, reason: last.reason };
        Ok(match (self.entry, outcome) {
            (Entry::GoOn, _) | (_, Outcome::Finished) => Turn::Judge(settings, verdict),
            (Entry::Resumed { changed: false }, Outcome::Oom) => Turn::Judge(settings, verdict),
            (Entry::Resumed { .. }, _) => Turn::Start(settings),
        })
    }

    /// What an attempt was started with.
    fn settings_of(&self, attempt: &Attempt) -> Settings {
        let changes = attempt.changes.len();
        let mut settings = match self.spec_of(attempt.number) {
            Some(spec) => settings_of(&spec, changes),
            None => Settings { batch: attempt.batch, auto: false, changes, ..first_settings(self.plan.pipeline) },
        };
        // Where it had found a batch, that one is known; where not, it is to look again.
        if settings.auto && attempt.first_step.is_some() {
            let eval_batch = self.plan.pipeline.evaluate.batch.map_or(attempt.batch, u32::from);
            settings = Settings { batch: attempt.batch, auto: false, eval_batch, ..settings };
        }
        settings.expandable_segments |= self.plan.pipeline.memory.allocator.expandable_segments;
        settings
    }

    pub(super) fn spec_of(&self, number: u32) -> Option<TrainerSpec> {
        serde_json::from_slice(&std::fs::read(self.run.folder.attempt(number).spec()).ok()?).ok()
    }

    /// What was recorded of the last attempt before its `pipe` was killed; when that was.
    pub(super) fn recall(&mut self) -> Option<f64> {
        let number = self.run.state.attempts.last()?.number;
        let recorded = self.recorded(|event| event.attempt == number);
        recorded.iter().for_each(|recorded| self.note_figures(&recorded.event));
        recorded.last().map(|last| last.event.ts)
    }

    /// Whether the last attempt came as far as a model that is loaded.
    pub(super) fn was_ready(&self) -> bool {
        let number = self.run.state.attempts.last().map_or(0, |attempt| attempt.number);
        let is_ready = |event: &RecordedEvent| {
            event.attempt == number && matches!(event.event.kind, EventKind::Started(_) | EventKind::Measured(_))
        };
        !self.recorded(is_ready).is_empty()
    }

    fn recorded(&self, wanted: impl Fn(&RecordedEvent) -> bool) -> Vec<RecordedEvent> {
        let Ok(file) = File::open(self.run.folder.events()) else { return Vec::new() };
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        lines.filter_map(|line| serde_json::from_str(&line).ok()).filter(wanted).collect()
    }

    /// What batches held, in attempts with the same maths.
    fn remember_points(&mut self, last: &Attempt) {
        let same = |number: u32| {
            let attempts = &self.run.state.attempts;
            attempts.iter().any(|attempt| attempt.number == number && attempt.changes == last.changes)
        };
        // An attempt that is found again tells of its own.
        let closed = |number: u32| number != last.number || last.outcome.is_some();
        let recorded = self.recorded(|event| {
            let tells = matches!(event.event.kind, EventKind::Rehearsed(_) | EventKind::Measured(_));
            tells && same(event.attempt) && closed(event.attempt)
        });
        let points = recorded.into_iter().filter_map(|recorded| match recorded.event.kind {
            EventKind::Rehearsed(rehearsed) => Some(Point { batch: rehearsed.batch, peak: rehearsed.peak }),
            EventKind::Measured(Measured { batch, peak: Some(peak), .. }) => Some(Point { batch, peak }),
            _ => None,
        });
        self.points = points.collect();
    }

    /// The first settings, as far as what is known of earlier runs speaks against them. A ledger that cannot be read is no
    /// reason not to train.
    fn informed(&mut self, settings: Settings) -> Settings {
        let Some(diary) = &self.diary else { return settings };
        let pipeline = self.plan.pipeline;
        let spec = self.plan.spec(self.engine, self.run.folder.path(), 1, &settings);
        let card = (spec.device == Device::Cuda).then(|| Card::read(&pipeline.container.gpus)).flatten();
        let (entry, hints) = match diary.ask(&spec, card.as_ref()) {
            Ok(known) => known,
            Err(error) => {
                self.reporter.note(&format!("warning: {error}"));
                self.diary = None;
                return settings;
            }
        };
        hints.iter().for_each(|hint| self.reporter.note(&format!("ledger: {hint}")));
        let Some(entry) = entry else { return settings };
        let memory = pipeline.container.memory.map(|size| size.0);
        let capacity = ledger::capacity(&spec, card.as_ref(), memory);
        let found = ledger::found(&entry, &spec, capacity).filter(|_| settings.auto);
        let (batch, why) = match found {
            Some(batch) => (batch, format!("batch {batch} was found to be the largest that fits")),
            None if settings.auto => return settings,
            None => {
                let least = pipeline.on_oom.min_batch.get();
                match ledger::advise(&entry, &spec, settings.batch, least, capacity) {
                    Advice::Go => return settings,
                    Advice::Instead { batch, why } => (batch, why),
                }
            }
        };
        self.reporter.note(&format!("ledger: {why}"));
        let eval_batch = pipeline.evaluate.batch.map_or(batch, u32::from);
        Settings { batch, auto: false, eval_batch, ..settings }
    }
}
