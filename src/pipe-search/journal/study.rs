//! One study in a journal, for reading and for writing, and the state that replaying its lines gives.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::log::{self, JournalError, Log};
use super::ops::{self, Op};
use super::{distribution, python};
use crate::axis::Domain;
use crate::trial::{Direction, Trial, TrialState};

/// One study in a journal file of Optuna. What it says is as of the last `refresh` or write.
#[derive(Debug)]
pub struct Journal {
    log: Log,
    replay: Replay,
    name: String,
    worker: String,
    /// The id of the study, once it is open.
    id: Option<u64>,
    read_only: bool,
}

impl Journal {
    /// Opens the file and the study of that name in it. What is not there is created.
    pub fn open(path: &Path, study: &str, directions: &[Direction]) -> Result<Self, JournalError> {
        let mut journal = Self::new(path, study, false);
        journal.log.create()?;
        let lock = journal.log.lock()?;
        journal.take_in()?;
        journal.log.check_beginning()?;
        journal.log.repair(&lock)?;
        if journal.replay.study().is_none() {
            journal.log.append(&lock, &ops::create_study(&journal.worker, study, directions))?;
            journal.take_in()?;
        }
        drop(lock);
        journal.bind()?;
        let found = journal.directions();
        if found != directions {
            let (path, found, wanted) = (path.into(), found.to_vec(), directions.to_vec());
            return Err(JournalError::Directions { path, study: study.into(), found, wanted });
        }
        Ok(journal)
    }

    /// Opens what is there, for reading only: it takes no lock and writes nothing.
    pub fn read(path: &Path, study: &str) -> Result<Self, JournalError> {
        let mut journal = Self::new(path, study, true);
        journal.take_in()?;
        journal.bind()?;
        Ok(journal)
    }

    /// The same, or none where the file is not there yet or holds no study at all: its study is just being created.
    pub fn read_if_there(path: &Path, study: &str) -> Result<Option<Self>, JournalError> {
        if !path.is_file() {
            return Ok(None);
        }
        match Self::read(path, study) {
            Err(JournalError::NoStudy { others, .. }) if others.is_empty() => Ok(None),
            read => read.map(Some),
        }
    }

    /// Takes in what others have added since. Costs one `stat` where that is nothing.
    pub fn refresh(&mut self) -> Result<(), JournalError> {
        self.take_in()?;
        self.study().map(|_| ())
    }

    pub fn into_trials(self) -> Vec<Trial> {
        self.replay.study.map_or_else(Vec::new, |study| study.trials)
    }

    /// By number.
    pub fn trials(&self) -> &[Trial] {
        self.replay.study().map_or(&[], |study| &study.trials)
    }

    pub fn directions(&self) -> &[Direction] {
        self.replay.study().map_or(&[], |study| &study.directions)
    }

    /// The user attributes of the study.
    pub fn user_attrs(&self) -> &BTreeMap<String, Value> {
        static NONE: BTreeMap<String, Value> = BTreeMap::new();
        self.replay.study().map_or(&NONE, |study| &study.user_attrs)
    }

    pub fn set_study_attr(&mut self, key: &str, value: Value) -> Result<(), JournalError> {
        self.write(|study, worker| Ok(ops::set_study_attr(worker, study.id, key, &value))).map(|_| ())
    }

    /// Adds a trial, all of it in one line, and returns its number, which is the next one of the study and not that of `trial`.
    pub fn add(&mut self, trial: &Trial) -> Result<u64, JournalError> {
        self.check_values(trial.state, &trial.values)?;
        self.write(|study, worker| {
            ops::create_trial(worker, study.id, trial)
                .map_err(|(name, reason)| JournalError::Parameter { name, reason })
        })?;
        self.replay.created().ok_or_else(|| self.deleted())
    }

    /// Takes a trial that waits for this process. False where it waits no more: another was faster.
    pub fn claim(&mut self, number: u64) -> Result<bool, JournalError> {
        self.write(|study, worker| {
            let (trial, id) = study.trial(number)?;
            if trial.state != TrialState::Waiting {
                return Ok(String::new());
            }
            Ok(ops::set_state(worker, id, TrialState::Running, &[], python::now()))
        })
    }

    /// Sets intermediate values by step, all in one write. False where the trial has ended.
    pub fn set_intermediate(&mut self, number: u64, values: &[(u64, f64)]) -> Result<bool, JournalError> {
        self.update(number, |id, worker| {
            values.iter().map(|(step, value)| ops::set_intermediate(worker, id, *step, *value)).collect()
        })
    }

    /// Sets a user attribute of a trial. False where the trial has ended.
    pub fn set_attr(&mut self, number: u64, key: &str, value: Value) -> Result<bool, JournalError> {
        self.update(number, |id, worker| ops::set_attr(worker, id, key, &value))
    }

    /// Sets a parameter of a trial that was claimed. False where the trial has ended.
    pub fn set_param(&mut self, number: u64, name: &str, value: &Value, domain: &Domain) -> Result<bool, JournalError> {
        self.set_params(number, &[(name, value, domain)])
    }

    /// Sets several parameters, all in one write. False where the trial has ended.
    pub fn set_params(&mut self, number: u64, params: &[(&str, &Value, &Domain)]) -> Result<bool, JournalError> {
        self.write(|study, worker| {
            let (trial, id) = study.trial(number)?;
            if trial.state.has_ended() {
                return Ok(String::new());
            }
            let line = |(name, value, domain): &(&str, &Value, &Domain)| {
                let failed = |reason: String| JournalError::Parameter { name: (*name).into(), reason };
                if !study.accepts(name, domain) {
                    return Err(failed(
                        "an earlier trial has it with other choices, of another kind or on another scale".into(),
                    ));
                }
                ops::set_param(worker, id, name, value, domain).map_err(failed)
            };
            params.iter().map(line).collect()
        })
    }

    /// Ends a trial: state and values in one line. False, and nothing is written, where it has ended already.
    pub fn end(&mut self, number: u64, state: TrialState, values: &[f64], at: f64) -> Result<bool, JournalError> {
        self.check_values(state, values)?;
        if !state.has_ended() {
            let reason = "that is not an end".into();
            return Err(JournalError::Values { state, values: values.into(), reason });
        }
        self.update(number, |id, worker| ops::set_state(worker, id, state, values, at))
    }

    /// The same with attributes, and with constraints where they are known, all in one write.
    pub fn end_with(
        &mut self,
        number: u64,
        (state, values, at): (TrialState, &[f64], f64),
        attrs: &[(&str, Value)],
        constraints: Option<&[f64]>,
    ) -> Result<bool, JournalError> {
        self.check_values(state, values)?;
        self.update(number, |id, worker| {
            let attrs = attrs.iter().map(|(key, value)| ops::set_attr(worker, id, key, value));
            let constraints = constraints.map(|constraints| ops::set_constraints(worker, id, constraints));
            attrs.chain(constraints).chain([ops::set_state(worker, id, state, values, at)]).collect()
        })
    }

    fn new(path: &Path, study: &str, read_only: bool) -> Self {
        let worker = format!("pipe-{}-{:016x}", std::process::id(), log::random());
        let replay = Replay::new(study, &worker);
        Self { log: Log::new(path), replay, name: study.into(), worker, id: None, read_only }
    }

    /// Remembers which study it is: one that is deleted and made again under the same name is another.
    fn bind(&mut self) -> Result<(), JournalError> {
        let Some(study) = self.replay.study() else {
            let (path, others) = (self.log.path().into(), self.replay.names());
            return Err(JournalError::NoStudy { path, study: self.name.clone(), others });
        };
        self.id = Some(study.id);
        Ok(())
    }

    fn study(&self) -> Result<&Study, JournalError> {
        self.replay.study().filter(|study| Some(study.id) == self.id).ok_or_else(|| self.deleted())
    }

    fn deleted(&self) -> JournalError {
        JournalError::Deleted { path: self.log.path().into(), study: self.name.clone() }
    }

    fn take_in(&mut self) -> Result<(), JournalError> {
        let mut news = self.log.read()?;
        if news.restarted {
            self.replay = Replay::new(&self.name, &self.worker);
        }
        while let Some(line) = self.log.next(&mut news)? {
            let (number, end, torn) = line.position();
            let applied = Op::parse(line.value).and_then(|op| self.replay.apply(op));
            applied.map_err(|reason| self.log.unreadable(number, reason))?;
            self.log.done(number, end, torn);
        }
        Ok(())
    }

    /// Adds the lines that `lines` makes of the study as it is now, with the lock held. False where it makes none.
    fn write(
        &mut self,
        lines: impl FnOnce(&Study, &str) -> Result<String, JournalError>,
    ) -> Result<bool, JournalError> {
        if self.read_only {
            return Err(JournalError::ReadOnly { path: self.log.path().into() });
        }
        let lock = self.log.lock()?;
        self.take_in()?;
        self.log.repair(&lock)?;
        let lines = lines(self.study()?, &self.worker)?;
        if lines.is_empty() {
            return Ok(false);
        }
        self.log.append(&lock, &lines)?;
        self.take_in()?;
        Ok(true)
    }

    /// Adds lines about a trial, unless it has ended.
    fn update(&mut self, number: u64, lines: impl FnOnce(u64, &str) -> String) -> Result<bool, JournalError> {
        self.write(|study, worker| {
            let (trial, id) = study.trial(number)?;
            Ok(if trial.state.has_ended() { String::new() } else { lines(id, worker) })
        })
    }

    /// A complete trial has one value for each objective, another may have none. Optuna and its dashboard fail on a value that is
    /// not a number.
    fn check_values(&self, state: TrialState, values: &[f64]) -> Result<(), JournalError> {
        let count = self.directions().len();
        let reason = if values.iter().any(|value| value.is_nan()) {
            "one is not a number".into()
        } else if values.len() != count && (state == TrialState::Complete || !values.is_empty()) {
            format!("the study has {count} objectives")
        } else {
            return Ok(());
        };
        Err(JournalError::Values { state, values: values.into(), reason })
    }
}

impl Study {
    /// A trial and its id.
    fn trial(&self, number: u64) -> Result<(&Trial, u64), JournalError> {
        let at = usize::try_from(number).ok();
        at.and_then(|at| self.trials.get(at).zip(self.ids.get(at).copied())).ok_or(JournalError::NoTrial { number })
    }
}

/// The study of a name in a journal, from the first line to the last one read.
#[derive(Debug)]
pub struct Replay {
    name: String,
    worker: String,
    /// The names of the studies that there are, by id.
    studies: BTreeMap<u64, String>,
    next_study: u64,
    study: Option<Study>,
    /// The number in our study of each trial of the file, by id; absent for trials of other studies.
    numbers: Vec<Option<u64>>,
    /// The number of the trial that this worker created last.
    created: Option<u64>,
}

#[derive(Debug)]
pub struct Study {
    pub id: u64,
    pub directions: Vec<Direction>,
    pub user_attrs: BTreeMap<String, Value>,
    pub trials: Vec<Trial>,
    /// The id of each trial in the file.
    pub ids: Vec<u64>,
}

impl Replay {
    pub fn new(name: &str, worker: &str) -> Self {
        Self {
            name: name.into(),
            worker: worker.into(),
            studies: BTreeMap::new(),
            next_study: 0,
            study: None,
            numbers: Vec::new(),
            created: None,
        }
    }

    pub fn study(&self) -> Option<&Study> {
        self.study.as_ref()
    }

    pub fn created(&self) -> Option<u64> {
        self.created
    }

    pub fn names(&self) -> Vec<String> {
        self.studies.values().cloned().collect()
    }

    pub fn apply(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::CreateStudy { name, directions } => self.create_study(name, directions),
            Op::DeleteStudy { study } => {
                self.studies.remove(&study);
                if self.study.as_ref().is_some_and(|ours| ours.id == study) {
                    self.study = None;
                    self.numbers.fill(None);
                }
            }
            Op::StudyAttrs { study, attrs } => {
                if let Some(ours) = self.study.as_mut().filter(|ours| ours.id == study) {
                    ours.user_attrs.extend(attrs);
                }
            }
            Op::CreateTrial { study, worker, fields } => {
                if let Some(ours) = self.study.as_mut().filter(|ours| ours.id == study) {
                    let number = ours.trials.len() as u64;
                    ours.trials.push(ops::parse_trial(number, fields)?);
                    ours.ids.push(self.numbers.len() as u64);
                    self.numbers.push(Some(number));
                    if worker == self.worker {
                        self.created = Some(number);
                    }
                } else if self.studies.contains_key(&study) {
                    self.numbers.push(None);
                }
            }
            Op::Param { trial, name, kept, distribution } => self.set_param(trial, name, &kept, &distribution)?,
            Op::State { trial, state, values, at } => {
                if let Some(trial) = self.open_trial(trial) {
                    set_state(trial, state, values, at);
                }
            }
            Op::Intermediate { trial, step, value } => {
                if let (Some(trial), Some(step)) = (self.open_trial(trial), step) {
                    trial.intermediate.insert(step, value);
                }
            }
            Op::UserAttrs { trial, attrs } => {
                if let Some(trial) = self.open_trial(trial) {
                    trial.user_attrs.extend(attrs);
                }
            }
            Op::SystemAttrs { trial, attrs } => {
                if let Some(trial) = self.open_trial(trial) {
                    trial.system_attrs.extend(attrs);
                    trial.constraints = ops::constraints(&trial.system_attrs);
                }
            }
            Op::Other => {}
        }
        Ok(())
    }

    fn create_study(&mut self, name: String, directions: Vec<Direction>) {
        if self.studies.values().any(|other| *other == name) {
            return;
        }
        let id = self.next_study;
        self.next_study += 1;
        if name == self.name {
            self.study =
                Some(Study { id, directions, user_attrs: BTreeMap::new(), trials: Vec::new(), ids: Vec::new() });
            self.created = None;
        }
        self.studies.insert(id, name);
    }

    fn set_param(&mut self, id: u64, name: String, kept: &Value, distribution: &str) -> Result<(), String> {
        if self.open_trial(id).is_none() {
            return Ok(());
        }
        let domain = distribution::parse(distribution)?;
        if self.study.as_ref().is_some_and(|study| !study.accepts(&name, &domain)) {
            return Ok(());
        }
        let value = distribution::parse_value(&domain, kept)?;
        if let Some(trial) = self.open_trial(id) {
            trial.point.insert(name.clone(), value);
            trial.domains.insert(name, domain);
        }
        Ok(())
    }

    /// The trial of an id, if it is of our study and has not ended: Optuna changes no other.
    fn open_trial(&mut self, id: u64) -> Option<&mut Trial> {
        let number = self.numbers.get(usize::try_from(id).ok()?).copied().flatten()?;
        let trial = self.study.as_mut()?.trials.get_mut(usize::try_from(number).ok()?)?;
        (!trial.state.has_ended()).then_some(trial)
    }
}

impl Study {
    /// Whether Optuna takes a value from `domain`: it asks the first trial that has the parameter.
    pub fn accepts(&self, name: &str, domain: &crate::axis::Domain) -> bool {
        let first =
            self.trials.iter().find_map(|trial| trial.domains.get(name).filter(|_| trial.point.contains_key(name)));
        first.is_none_or(|first| distribution::are_compatible(first, domain))
    }
}

fn set_state(trial: &mut Trial, state: TrialState, values: Option<Vec<f64>>, at: Option<f64>) {
    // Another worker took it from the queue first.
    if state == TrialState::Running && trial.state == TrialState::Running {
        return;
    }
    if state == TrialState::Running {
        trial.began = at;
    }
    if state.has_ended() {
        trial.ended = at;
    }
    trial.state = state;
    if let Some(values) = values {
        trial.values = values;
    }
}
