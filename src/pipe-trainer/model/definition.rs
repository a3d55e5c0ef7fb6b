//! Which model: an architecture with its config, from a folder or from the spec.

use std::fs;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::{self, Arch};
use serde_json::{Map, Value};
use tch::Device;

use super::t5::{T5, T5Config};
use super::{ConfigKeys, Model};
use crate::error::TrainerError;
use crate::tensor_files::TensorFiles;

pub struct Definition {
    arch: Arch,
    config: Map<String, Value>,
    /// Where trained weights are.
    folder: Option<PathBuf>,
}

/// What a model begins with.
pub enum Start<'a> {
    Random { seed: u64 },
    Tensors(&'a TensorFiles),
}

impl Definition {
    pub fn from_spec(model: &pipeline::Model) -> Result<Self, TrainerError> {
        let definition = match (&model.from, &model.config) {
            (Some(from), _) => Self::from_folder(Path::new(from))?,
            (None, config) => Self { arch: model.arch, config: config.clone().unwrap_or_default(), folder: None },
        };
        if definition.arch != model.arch {
            let path = definition.folder.unwrap_or_default();
            let message = format!("it is {}, the pipeline says {}", word(definition.arch), word(model.arch));
            return Err(TrainerError::Model { path, message });
        }
        Ok(definition)
    }

    /// A folder in Hugging Face layout; `model_type` says what it holds.
    pub fn from_folder(folder: &Path) -> Result<Self, TrainerError> {
        let fail = |path: &Path, message: String| TrainerError::Model { path: path.to_owned(), message };
        if !folder.is_dir() {
            return Err(fail(folder, "not a folder; hub ids are not available yet".to_owned()));
        }
        let file = folder.join("config.json");
        let text = fs::read(&file).map_err(|error| fail(&file, error.to_string()))?;
        let config: Map<String, Value> =
            serde_json::from_slice(&text).map_err(|error| fail(&file, error.to_string()))?;
        let model_type = ConfigKeys(&config).text("model_type")?.unwrap_or_default();
        let arch = serde_json::from_value(Value::String(model_type.replace('_', "-"))).ok();
        match arch {
            Some(arch) => Ok(Self { arch, config, folder: Some(folder.to_owned()) }),
            None => Err(TrainerError::NotAvailable { what: format!("model_type {model_type:?}") }),
        }
    }

    /// The folder's weights, if there is one.
    pub fn trained(&self) -> Result<Option<TensorFiles>, TrainerError> {
        self.folder.as_deref().map(TensorFiles::open_folder).transpose()
    }

    pub fn build(
        &self,
        start: &Start<'_>,
        dropout: Option<f64>,
        device: Device,
    ) -> Result<Box<dyn Model>, TrainerError> {
        match self.arch {
            Arch::T5 => Ok(Box::new(T5::build(T5Config::read(&self.config)?, start, dropout, device)?)),
            Arch::Bert
            | Arch::Roberta
            | Arch::XlmRoberta
            | Arch::DebertaV3
            | Arch::Clip
            | Arch::HybridCnnLstm
            | Arch::MuSota => Err(TrainerError::NotAvailable { what: format!("the architecture {}", word(self.arch)) }),
        }
    }
}

/// An architecture as it is written in a pipeline.
fn word(arch: Arch) -> String {
    serde_json::to_value(arch).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
