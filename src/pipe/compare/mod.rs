//! Compares two runs: settings, locks, results. Reads their folders and changes nothing.

mod curves;
mod files;
mod results;
mod settings;
mod verdict;

use pipe_spec::RunFolder;
use serde::Serialize;

use crate::lock::{self, Difference, differences};
use crate::run::Record;
pub use curves::Curves;
pub use files::Files;
pub use results::Results;
pub use settings::{Setting, flat_settings, paths_that_differ};
pub use verdict::{ComputeMode, judge};

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The ids.
    pub runs: [String; 2],
    /// Those that differ; absent where they are not known of both.
    pub settings: Option<Vec<Setting>>,
    /// What differs; absent where not both have one.
    pub lock: Option<Vec<Difference>>,
    pub results: [Results; 2],
    pub curves: Curves,
    /// The files of the exported models; absent where not both have one.
    pub model: Option<Files>,
}

impl Comparison {
    pub fn read(first: &RunFolder, second: &RunFolder) -> Self {
        let records = [Record::read(first), Record::read(second)];
        let locks = lock::read(first).zip(lock::read(second));
        let [one, other] = &records;
        Self {
            settings: settings::differing(one.resolved.as_deref(), other.resolved.as_deref()),
            lock: locks.map(|(one, other)| differences(&one, &other)),
            results: [Results::from_record(one), Results::from_record(other)],
            curves: Curves::compare(one, other),
            model: Files::compare(&first.model(), &second.model()),
            runs: records.map(|record| record.id),
        }
    }
}
