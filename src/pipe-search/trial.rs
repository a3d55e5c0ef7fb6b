//! One trial of a study, as the journal keeps it and samplers learn from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::space::{Domain, Point};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Minimize,
    Maximize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialState {
    /// Asked for, and not begun.
    Waiting,
    Running,
    Complete,
    /// Given up before its end, or never begun because it cannot fit.
    Pruned,
    Failed,
}

impl Direction {
    /// The value with the sign that makes smaller ones better.
    pub fn loss(self, value: f64) -> f64 {
        match self {
            Self::Minimize => value,
            Self::Maximize => -value,
        }
    }
}

impl TrialState {
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Complete | Self::Pruned | Self::Failed)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Counted from 0 in the study.
    pub number: u64,
    pub state: TrialState,
    pub point: Point,
    /// What each value of the point was taken from.
    pub domains: BTreeMap<String, Domain>,
    /// One for each objective, of a trial that is complete.
    pub values: Vec<f64>,
    /// The first objective by step, where it is measured on the way.
    pub intermediate: BTreeMap<u64, f64>,
    /// How far it is from being allowed: of each constraint, above 0 where it does not hold.
    pub constraints: Vec<f64>,
    pub user_attrs: BTreeMap<String, Value>,
    pub system_attrs: BTreeMap<String, Value>,
    /// Seconds since the Unix epoch.
    pub began: Option<f64>,
    pub ended: Option<f64>,
}

impl Trial {
    pub fn new(number: u64, point: Point) -> Self {
        Self {
            number,
            state: TrialState::Running,
            point,
            domains: BTreeMap::new(),
            values: Vec::new(),
            intermediate: BTreeMap::new(),
            constraints: Vec::new(),
            user_attrs: BTreeMap::new(),
            system_attrs: BTreeMap::new(),
            began: None,
            ended: None,
        }
    }

    /// The sum of what does not hold; 0 where all constraints do.
    pub fn violation(&self) -> f64 {
        self.constraints.iter().filter(|constraint| **constraint > 0.0).sum()
    }

    pub fn is_feasible(&self) -> bool {
        self.violation() == 0.0
    }
}
