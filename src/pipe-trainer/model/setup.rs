//! How a model is built: what its weights start from, and what it computes in.

use pipe_model::adapter::Lora;
use pipe_spec::pipeline::{Checkpointing, Precision, Preference, Train};
use tch::{Device, Kind};

use super::quantized::QuantizedLayers;
use crate::storage::TensorFiles;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Weights, their gradients and the optimizer's moments.
    pub weights: Kind,
    /// Matrix products and attention. Where it is narrower than the weights, what is added up along the layers stays wide.
    pub compute: Kind,
}

impl Kinds {
    pub const FP32: Self = Self { weights: Kind::Float, compute: Kind::Float };

    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 | Precision::Tf32 => Self::FP32,
            Precision::Bf16 => Self { weights: Kind::BFloat16, compute: Kind::BFloat16 },
            Precision::Bf16Mixed => Self { weights: Kind::Float, compute: Kind::BFloat16 },
            Precision::Fp16Mixed => Self { weights: Kind::Float, compute: Kind::Half },
        }
    }
}

/// Added to the score of what must not be seen: about the least number of the kind.
pub fn hidden_score(kind: Kind) -> f64 {
    match kind {
        Kind::Half => -6.0e4,
        Kind::BFloat16 => -3.0e38,
        _ => f64::from(f32::MIN),
    }
}

/// The start of a model's weights.
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
    /// Whether what a block computes inside is thrown away and recomputed for its gradient.
    pub checkpointing: bool,
    /// The adapter that is trained in place of the weights.
    pub adapter: Option<&'static Lora>,
    /// The layers whose weights are quantized.
    pub quantized: QuantizedLayers,
    /// The loss of pairs of answers, for a training on them.
    pub preference: Preference,
}

impl Setup {
    pub fn of(train: &Train, device: Device) -> Self {
        let kinds = Kinds::of(train.precision);
        Self {
            dropout: train.dropout,
            device,
            kinds,
            checkpointing: train.checkpointing == Checkpointing::On,
            adapter: None,
            quantized: QuantizedLayers::NONE,
            preference: train.preference.unwrap_or_default(),
        }
    }

    /// fp32 on the CPU, as the config says.
    pub fn plain() -> Self {
        Self {
            dropout: None,
            device: Device::Cpu,
            kinds: Kinds::FP32,
            checkpointing: false,
            adapter: None,
            quantized: QuantizedLayers::NONE,
            preference: Preference::default(),
        }
    }
}
