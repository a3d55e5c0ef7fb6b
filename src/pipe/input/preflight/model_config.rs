//! Whether the sizes in the model's config are ones that a model can be built with.

use pipe_model::ConfigError;
use pipe_spec::model_folder::CONFIG;
use pipe_spec::pipeline::{Arch, Model};
use serde_json::{Map, Value};

use super::{Finder, Input};
use crate::input::read_config;

impl Finder<'_> {
    /// The keys of the pipeline, or those of config.json in the folder where it is there already.
    pub(super) fn model_config(&mut self, model: &Model, folder: Option<&Input>) {
        if let Some(config) = &model.config {
            if let Some(ConfigError { key, message }) = wrong(model.arch, config) {
                self.problem(&format!("model.config.{key}"), message);
            }
        } else if let Some(folder) = folder
            && let Some(config) = read_config(&folder.host)
            && let Some(ConfigError { key, message }) = wrong(model.arch, &config)
        {
            let file = folder.written.join(CONFIG);
            self.problem("model.from", format!("{}: {key}: {message}", file.display()));
        }
    }
}

/// The first wrong value of the config. Missing keys are left to the trainer: another trainer may need fewer.
fn wrong(arch: Arch, config: &Map<String, Value>) -> Option<ConfigError> {
    pipe_model::read_config(arch, config).err().filter(|error| !error.is_missing())
}
