//! The config.json of the model that a pipeline names.

use std::path::Path;

use pipe_spec::model_folder::CONFIG;
use pipe_spec::pipeline::Training;
use serde_json::{Map, Value};

use super::Inputs;
use crate::files::bounded;

/// Of a model's config.json.
const MAX_BYTES: u64 = 16 << 20;

/// The keys of the model's config.json, from the pipeline or from the folder that it names.
pub fn model_config(training: &Training, inputs: &Inputs) -> Option<Map<String, Value>> {
    match &inputs.model {
        Some(folder) => read_config(&folder.host),
        None => training.model.config.clone(),
    }
}

/// The keys of the config.json in a model's folder, where it can be read.
pub fn read_config(folder: &Path) -> Option<Map<String, Value>> {
    serde_json::from_slice(&bounded::read(&folder.join(CONFIG), MAX_BYTES).ok()?).ok()
}
