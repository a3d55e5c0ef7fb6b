//! How a model is built: what its weights start from, and what it computes in.

use pipe_spec::pipeline::{Checkpointing, Train};
use tch::Device;

use crate::precision::Kinds;
use crate::storage::TensorFiles;

/// What the weights of a model start from.
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
}

impl Setup {
    pub fn of(train: &Train, device: Device) -> Self {
        let kinds = Kinds::of(train.precision);
        Self { dropout: train.dropout, device, kinds, checkpointing: train.checkpointing == Checkpointing::On }
    }

    /// fp32 on the CPU, as the config says.
    pub fn plain() -> Self {
        Self { dropout: None, device: Device::Cpu, kinds: Kinds::FP32, checkpointing: false }
    }
}
