//! The registry of models: one line for each architecture.

use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};

use crate::architecture::{Architecture, ModelConfig, Starter};
use crate::config_keys::ConfigError;

/// The definition of an architecture.
pub fn architecture(arch: Arch) -> &'static Architecture {
    match arch {
        Arch::T5 => &crate::t5::ARCHITECTURE,
        Arch::Bert => &crate::bert::BERT,
        Arch::Roberta => &crate::bert::ROBERTA,
        Arch::XlmRoberta => &crate::bert::XLM_ROBERTA,
        Arch::DebertaV3 => &crate::deberta::ARCHITECTURE,
        Arch::Clip => &crate::clip::ARCHITECTURE,
        Arch::HybridCnnLstm => &crate::hybrid_cnn_lstm::ARCHITECTURE,
        Arch::MuSota => &crate::mu_sota::ARCHITECTURE,
        Arch::Llama => &crate::llama::LLAMA,
        Arch::Mistral => &crate::llama::MISTRAL,
        Arch::Qwen2 => &crate::llama::QWEN2,
        Arch::Qwen3 => &crate::llama::QWEN3,
        Arch::BagOfWords => &crate::bag_of_words::ARCHITECTURE,
        Arch::Tabular => &crate::tabular::ARCHITECTURE,
        Arch::ResNet => &crate::resnet::ARCHITECTURE,
        Arch::Vit => &crate::vit::ARCHITECTURE,
    }
}

/// Reads the config.json of a model.
pub fn read_config(arch: Arch, config: &Map<String, Value>) -> Result<Box<dyn ModelConfig>, ConfigError> {
    (architecture(arch).read)(config)
}

/// The first settings of a new pipeline for a model.
pub fn starter(arch: Arch) -> Starter {
    architecture(arch).starter
}
