//! What the lines of a journal make of one study. The rules are those of Optuna: what it ignores is ignored here.

use std::collections::BTreeMap;

use serde_json::Value;

use super::distribution;
use super::ops::{self, Op};
use crate::trial::{Direction, Trial, TrialState};

/// The study of a name in a journal, from the first line to the last one read.
#[derive(Debug)]
pub struct Replay {
    name: String,
    worker: String,
    /// The names of the studies that there are, by id.
    studies: BTreeMap<u64, String>,
    next_study: u64,
    study: Option<Study>,
    /// Of each trial of the file, by id, its number in our study if it is of ours.
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
    pub fn accepts(&self, name: &str, domain: &crate::space::Domain) -> bool {
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
