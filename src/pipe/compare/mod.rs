//! Compares two runs: settings, locks, results. Reads their folders and changes nothing.

mod curves;
mod files;
mod results;
mod settings;
mod verdict;

use pipe_spec::RunFolder;
use serde::Serialize;

use crate::lock::{self, Difference, Effect, differences};
use crate::run::Record;
pub use curves::Curves;
pub use files::Files;
pub use results::Results;
pub use settings::{CHANGEABLE_SETTINGS, Setting, flat_settings, may_change, paths_that_differ};
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
        let settings = settings::differing(one.resolved.as_deref(), other.resolved.as_deref());
        Self {
            lock: locks.map(|(one, other)| with_effect_of(settings.as_deref(), differences(&one, &other))),
            settings,
            results: [Results::from_record(one), Results::from_record(other)],
            curves: Curves::compare(one, other),
            model: Files::compare(&first.model(), &second.model()),
            runs: records.map(|record| record.id),
        }
    }
}

/// A lock knows only whether the settings are the same. Where all that differ are settings that a run may be resumed with, such as
/// the number of cards, the computation is the same.
fn with_effect_of(settings: Option<&[Setting]>, mut differences: Vec<Difference>) -> Vec<Difference> {
    let same_training = |setting: &Setting| setting.path == "name" || may_change(&setting.path, &CHANGEABLE_SETTINGS);
    if settings.is_some_and(|settings| settings.iter().all(same_training)) {
        let found = differences.iter_mut().filter(|difference| difference.what == "settings");
        found.for_each(|difference| difference.effect = Effect::Rounding);
        differences.sort_by_key(|difference| difference.effect);
    }
    differences
}
