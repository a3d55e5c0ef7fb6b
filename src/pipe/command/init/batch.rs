//! The batch for a card.

use std::num::NonZeroU32;

use pipe_spec::pipeline::{BatchSetting, Checkpointing};

use super::base_model::config_folder;
use super::draft::Draft;
use crate::engine::registry;
use crate::fit::forecast::{Forecaster, Target};
use crate::input::hub::HubAccess;
use crate::input::{load, read_config};
use crate::report::say;

/// The largest batch that divides a step and is expected to fit, without computing anything again if possible; nothing if there is no
/// estimate.
pub fn largest_batch(draft: &Draft, total: u64) -> Option<u32> {
    let mut pipeline = registry::parse_pipeline(&draft.yaml(), &[], &load::variables()).ok()?;
    let training = pipeline.training_mut()?;
    let config = match &draft.from {
        None => training.model.config.clone()?,
        Some(from) => {
            let folder = config_folder(from, HubAccess::Check)
                .inspect_err(|reason| say(&format!("note: no batch computed: {reason}")));
            read_config(&folder.ok()?)?
        }
    };
    for checkpointing in [Checkpointing::Off, Checkpointing::On] {
        training.train.checkpointing = checkpointing;
        let mut next = NonZeroU32::new(training.train.effective_batch);
        while let Some(batch) = next {
            training.train.batch = BatchSetting::Fixed(batch);
            let target = Target { name: String::new(), total };
            let forecast = Forecaster::new(training, &config)
                .forecast(Some(target))
                .inspect_err(|error| say(&format!("note: no batch computed: {error}")))
                .ok()?;
            if forecast.fits? {
                return Some(batch.get());
            }
            next = NonZeroU32::new(batch.get() / 2);
        }
    }
    None
}
