//! The registry of models: one line for each architecture.

use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};

use super::interface::Model;
use super::setup::{Setup, Start};
use crate::error::TrainerError;

type Build = fn(Arch, &Map<String, Value>, &Start<'_>, &Setup) -> Result<Box<dyn Model>, TrainerError>;

/// What builds the models of an architecture from their config.json.
pub fn find(arch: Arch) -> Build {
    match arch {
        Arch::T5 => super::t5::build,
        Arch::Bert | Arch::Roberta | Arch::XlmRoberta => super::bert::build,
        Arch::DebertaV3 => super::deberta::build,
        Arch::Clip => super::clip::build,
        Arch::HybridCnnLstm => super::hybrid_cnn_lstm::build,
        Arch::MuSota => super::mu_sota::build,
        Arch::BagOfWords => super::bag_of_words::build,
    }
}
