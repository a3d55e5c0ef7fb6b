//! Any of the models.

use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};

use crate::bert::BertConfig;
use crate::clip::ClipConfig;
use crate::deberta::DebertaConfig;
use crate::hybrid_cnn_lstm::HybridConfig;
use crate::memory::{Estimate, Stage, Work};
use crate::mu_sota::MuSotaConfig;
use crate::t5::T5Config;
use crate::{ConfigError, Expects, Parameter, bert, clip, deberta, hybrid_cnn_lstm, mu_sota, t5};

pub enum ModelConfig {
    T5(T5Config),
    Bert(BertConfig),
    Deberta(DebertaConfig),
    Clip(ClipConfig),
    HybridCnnLstm(HybridConfig),
    MuSota(MuSotaConfig),
}

impl ModelConfig {
    pub fn read(arch: Arch, config: &Map<String, Value>) -> Result<Self, ConfigError> {
        Ok(match arch {
            Arch::T5 => Self::T5(T5Config::read(config)?),
            Arch::Bert | Arch::Roberta | Arch::XlmRoberta => Self::Bert(BertConfig::read(arch, config)?),
            Arch::DebertaV3 => Self::Deberta(DebertaConfig::read(config)?),
            Arch::Clip => Self::Clip(ClipConfig::read(config)?),
            Arch::HybridCnnLstm => Self::HybridCnnLstm(HybridConfig::read(config)?),
            Arch::MuSota => Self::MuSota(MuSotaConfig::read(config)?),
        })
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::T5(config) => t5::parameters(config, config.tie_word_embeddings),
            Self::Bert(config) => bert::parameters(config),
            Self::Deberta(config) => deberta::parameters(config),
            Self::Clip(config) => clip::parameters(config),
            Self::HybridCnnLstm(config) => hybrid_cnn_lstm::parameters(config),
            Self::MuSota(config) => mu_sota::parameters(config),
        }
    }

    /// What its data must be like, where the data decides what a classifier tells apart.
    pub fn expects(&self) -> Expects {
        match self {
            Self::T5(config) => config.expects(),
            Self::Bert(config) => config.expects(None),
            Self::Deberta(config) => config.expects(None),
            Self::Clip(config) => config.expects(),
            Self::HybridCnnLstm(config) => config.expects(),
            Self::MuSota(config) => config.expects(),
        }
    }

    /// Whether anything is dropped in training, unless the pipeline says otherwise.
    pub fn drops(&self) -> bool {
        let share = match self {
            Self::T5(config) => config.dropout_rate,
            Self::Bert(config) => config.hidden_dropout_prob,
            Self::Deberta(config) => config.hidden_dropout_prob,
            Self::Clip(_) => 0.0,
            Self::HybridCnnLstm(config) => config.dropout,
            Self::MuSota(config) => config.dropout,
        };
        share > 0.0
    }

    /// The passes of a step, in the order of the forward pass.
    pub fn stages(&self, work: &Work) -> Vec<Stage> {
        match self {
            Self::T5(config) => t5::stages(config, work),
            Self::Bert(config) => bert::stages(config, work),
            Self::Deberta(config) => deberta::stages(config, work),
            Self::Clip(config) => clip::stages(config, work),
            Self::HybridCnnLstm(config) => hybrid_cnn_lstm::stages(config, work),
            Self::MuSota(config) => mu_sota::stages(config, work),
        }
    }

    /// What a training of it holds at its worst moment.
    pub fn estimate(&self, work: &Work) -> Estimate {
        Estimate::of(&self.parameters(), &self.stages(work), work)
    }
}
