//! T5: the encoder-decoder of Raffel et al. (2020), versions 1.0 and 1.1, as transformers computes it.

mod config;
mod layers;
mod parameters;
mod position;

pub use config::T5Config;

use serde_json::{Map, Value};
use tch::{Device, Kind, Reduction, Tensor};

use self::layers::{Dropout, Stack};
use self::parameters::parameters;
use super::{Mode, Model, Start};
use crate::data::{IGNORED, Part};
use crate::error::TrainerError;
use crate::weights::Weights;

pub struct T5 {
    config: T5Config,
    weights: Weights,
    dropout: f64,
    shared: Tensor,
    encoder: Stack,
    decoder: Stack,
    head: Tensor,
}

impl T5 {
    pub fn build(
        config: T5Config,
        start: &Start<'_>,
        dropout: Option<f64>,
        device: Device,
    ) -> Result<Self, TrainerError> {
        // A file without a head of its own means that the head is `shared`, whatever the config says.
        let tied = match start {
            Start::Random { .. } => config.tie_word_embeddings,
            Start::Tensors(files) => !files.contains("lm_head.weight"),
        };
        let parameters = parameters(&config, tied);
        let weights = match start {
            Start::Random { seed } => Weights::initialise(&parameters, *seed, device)?,
            Start::Tensors(files) => Weights::load(&parameters, files, device)?,
        };
        Ok(Self {
            dropout: dropout.unwrap_or(config.dropout_rate),
            shared: weights.get("shared.weight"),
            encoder: Stack::encoder(&config, &weights),
            decoder: Stack::decoder(&config, &weights),
            head: weights.get(if tied { "shared.weight" } else { "lm_head.weight" }),
            config,
            weights,
        })
    }

    /// The labels one to the right, behind the start token; ignored ones become padding.
    fn decoder_input(&self, labels: &Tensor) -> Result<Tensor, TrainerError> {
        let (batch, length) = labels.size2()?;
        let start = Tensor::f_full([batch, 1], self.config.decoder_start_token_id, (Kind::Int64, labels.device()))?;
        let shifted = Tensor::f_cat(&[start, labels.f_narrow(1, 0, length - 1)?], 1)?;
        Ok(shifted.f_masked_fill(&shifted.f_eq(IGNORED)?, self.config.pad_token_id)?)
    }

    fn embed(&self, ids: &Tensor, dropout: Dropout) -> Result<Tensor, TrainerError> {
        dropout.apply(&Tensor::f_embedding(&self.shared, ids, -1, false, false)?)
    }
}

impl Model for T5 {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, target length, vocab_size]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let dropout = Dropout::new(self.dropout, mode);
        let padding = position::padding_bias(&part.attention_mask)?;
        let memory = self.encoder.forward(&self.embed(&part.input_ids, dropout)?, &padding, None, dropout)?;

        let ids = self.decoder_input(&part.labels)?;
        let causal = position::causal_bias(ids.size2()?.1, ids.device())?;
        let hidden = self.embed(&ids, dropout)?;
        let mut hidden = self.decoder.forward(&hidden, &causal, Some((&memory, &padding)), dropout)?;
        if self.config.scale_decoder_outputs {
            hidden = hidden.f_mul_scalar((self.config.d_model as f64).powf(-0.5))?;
        }
        Ok(hidden.f_linear(&self.head, None::<&Tensor>)?)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let logits = self.logits(part, mode)?.f_reshape([-1, self.config.vocab_size])?;
        let labels = part.labels.f_reshape([-1])?;
        Ok(logits.f_cross_entropy_loss(&labels, None::<&Tensor>, Reduction::Sum, IGNORED, 0.0)?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn vocab_size(&self) -> u64 {
        self.config.vocab_size as u64
    }

    fn pad_token_id(&self) -> i64 {
        self.config.pad_token_id
    }
}
