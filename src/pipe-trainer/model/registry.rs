//! The registry of models: one line for each architecture.

use pipe_model::bag_of_words::BagOfWordsConfig;
use pipe_model::bert::BertConfig;
use pipe_model::clip::ClipConfig;
use pipe_model::deberta::DebertaConfig;
use pipe_model::hybrid_cnn_lstm::HybridConfig;
use pipe_model::llama::LlamaConfig;
use pipe_model::mu_sota::MuSotaConfig;
use pipe_model::resnet::ResNetConfig;
use pipe_model::t5::T5Config;
use pipe_model::tabular::TabularConfig;
use pipe_model::vit::VitConfig;
use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};

use super::bag_of_words::BagOfWords;
use super::bert::Bert;
use super::clip::Clip;
use super::deberta::Deberta;
use super::hybrid_cnn_lstm::HybridCnnLstm;
use super::interface::Model;
use super::llama::Llama;
use super::mu_sota::MuSota;
use super::pass::{Setup, Start};
use super::resnet::ResNet;
use super::t5::T5;
use super::tabular::Tabular;
use super::vit::Vit;
use crate::error::TrainerError;

/// Builds a model of an architecture from its config.json.
pub fn build(
    arch: Arch,
    config: &Map<String, Value>,
    start: &Start<'_>,
    setup: &Setup,
) -> Result<Box<dyn Model>, TrainerError> {
    Ok(match arch {
        Arch::T5 => Box::new(T5::build(T5Config::read(config)?, start, setup)?),
        Arch::Bert | Arch::Roberta | Arch::XlmRoberta => {
            Box::new(Bert::build(BertConfig::read(arch, config)?, start, setup)?)
        }
        Arch::DebertaV3 => Box::new(Deberta::build(DebertaConfig::read(config)?, start, setup)?),
        Arch::Clip => Box::new(Clip::build(ClipConfig::read(config)?, start, setup)?),
        Arch::HybridCnnLstm => Box::new(HybridCnnLstm::build(HybridConfig::read(config)?, start, setup)?),
        Arch::MuSota => Box::new(MuSota::build(MuSotaConfig::read(config)?, start, setup)?),
        Arch::Llama | Arch::Mistral | Arch::Qwen2 | Arch::Qwen3 => {
            Box::new(Llama::build(LlamaConfig::read(arch, config)?, start, setup)?)
        }
        Arch::BagOfWords => Box::new(BagOfWords::build(BagOfWordsConfig::read(config)?, start, setup)?),
        Arch::Tabular => Box::new(Tabular::build(TabularConfig::read(config)?, start, setup)?),
        Arch::ResNet => Box::new(ResNet::build(ResNetConfig::read(config)?, start, setup)?),
        Arch::Vit => Box::new(Vit::build(VitConfig::read(config)?, start, setup)?),
    })
}
