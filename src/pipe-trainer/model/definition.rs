//! Which model: an architecture with its config, from a folder or from the spec.

use std::fs;
use std::path::{Path, PathBuf};

use pipe_model::bert::BertConfig;
use pipe_model::clip::ClipConfig;
use pipe_model::deberta::DebertaConfig;
use pipe_model::hybrid_cnn_lstm::HybridConfig;
use pipe_model::mu_sota::MuSotaConfig;
use pipe_model::t5::T5Config;
use pipe_spec::pipeline::{self, Arch, Train};
use serde_json::{Map, Value};
use tch::Device;

use super::bert::Bert;
use super::clip::Clip;
use super::deberta::Deberta;
use super::hybrid_cnn_lstm::HybridCnnLstm;
use super::mu_sota::MuSota;
use super::t5::T5;
use super::{ConfigKeys, Expects, Labels, Model};
use crate::error::TrainerError;
use crate::precision::Kinds;
use crate::tensor_files::TensorFiles;

pub struct Definition {
    arch: Arch,
    config: Map<String, Value>,
    /// Where trained weights are.
    folder: Option<PathBuf>,
}

/// What a model begins with.
pub enum Start<'a> {
    Random {
        seed: u64,
    },
    /// Trained weights; what may be missing there is drawn with the seed.
    Tensors {
        files: &'a TensorFiles,
        seed: u64,
    },
}

/// How a model is to compute, whatever it is.
#[derive(Clone, Copy)]
pub struct Setup {
    /// Instead of what the config says.
    pub dropout: Option<f64>,
    pub device: Device,
    pub kinds: Kinds,
    /// Whether what a block computes inside is thrown away and computed again for its gradient.
    pub checkpointing: bool,
}

impl Setup {
    pub fn of(train: &Train, device: Device) -> Self {
        let kinds = Kinds::of(train.precision);
        Self { dropout: train.dropout, device, kinds, checkpointing: train.checkpointing }
    }

    /// fp32 on the CPU, as the config says.
    pub fn plain() -> Self {
        Self { dropout: None, device: Device::Cpu, kinds: Kinds::FP32, checkpointing: false }
    }
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
            return Err(fail(folder, "not a folder".to_owned()));
        }
        let file = folder.join("config.json");
        let text = fs::read(&file).map_err(|error| fail(&file, error.to_string()))?;
        let config: Map<String, Value> =
            serde_json::from_slice(&text).map_err(|error| fail(&file, error.to_string()))?;
        let model_type = ConfigKeys(&config).text("model_type")?.unwrap_or_default();
        let arch = match model_type {
            // What transformers calls both.
            "deberta-v2" => Some(Arch::DebertaV3),
            other => serde_json::from_value(Value::String(other.replace('_', "-"))).ok(),
        };
        match arch {
            Some(arch) => Ok(Self { arch, config, folder: Some(folder.to_owned()) }),
            None => Err(TrainerError::NotAvailable { what: format!("model_type {model_type:?}") }),
        }
    }

    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// The folder's weights, if there is one.
    pub fn trained(&self) -> Result<Option<TensorFiles>, TrainerError> {
        self.folder.as_deref().map(TensorFiles::open_folder).transpose()
    }

    /// What its head is to tell apart, where the data decided it.
    pub fn with_labels(mut self, labels: Option<&Labels>) -> Self {
        if let Some(labels) = labels {
            labels.export(&mut self.config);
        }
        self
    }

    /// What a classifier tells apart. Left to the data where the files have no trained `head`, or the config says nothing.
    fn labels(&self, head: &str) -> Result<Option<Labels>, TrainerError> {
        match self.trained()? {
            None => Ok(Labels::read(&self.config)?),
            Some(files) if files.contains(head) => Ok(Some(Labels::read(&self.config)?.unwrap_or_default())),
            Some(_) => Ok(None),
        }
    }

    /// What was read off the data and belongs to the model.
    pub fn with_keys(mut self, keys: Map<String, Value>) -> Self {
        self.config.extend(keys);
        self
    }

    /// What its data must be like.
    pub fn expects(&self) -> Result<Expects, TrainerError> {
        match self.arch {
            Arch::T5 => Ok(T5Config::read(&self.config)?.expects()),
            Arch::Bert | Arch::Roberta | Arch::XlmRoberta => {
                let config = BertConfig::read(self.arch, &self.config)?;
                Ok(config.expects(self.labels(config.head())?))
            }
            Arch::DebertaV3 => {
                let config = DebertaConfig::read(&self.config)?;
                Ok(config.expects(self.labels(config.head())?))
            }
            Arch::Clip => Ok(ClipConfig::read(&self.config)?.expects()),
            Arch::MuSota => Ok(MuSotaConfig::read(&self.config)?.expects()),
            Arch::HybridCnnLstm => Ok(HybridConfig::read(&self.config)?.expects()),
        }
    }

    pub fn build(&self, start: &Start<'_>, setup: &Setup) -> Result<Box<dyn Model>, TrainerError> {
        match self.arch {
            Arch::T5 => Ok(Box::new(T5::build(T5Config::read(&self.config)?, start, setup)?)),
            Arch::Bert | Arch::Roberta | Arch::XlmRoberta => {
                Ok(Box::new(Bert::build(BertConfig::read(self.arch, &self.config)?, start, setup)?))
            }
            Arch::DebertaV3 => Ok(Box::new(Deberta::build(DebertaConfig::read(&self.config)?, start, setup)?)),
            Arch::Clip => Ok(Box::new(Clip::build(ClipConfig::read(&self.config)?, start, setup)?)),
            Arch::MuSota => Ok(Box::new(MuSota::build(MuSotaConfig::read(&self.config)?, start, setup)?)),
            Arch::HybridCnnLstm => Ok(Box::new(HybridCnnLstm::build(HybridConfig::read(&self.config)?, start, setup)?)),
        }
    }
}

/// An architecture as it is written in a pipeline.
fn word(arch: Arch) -> String {
    serde_json::to_value(arch).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
