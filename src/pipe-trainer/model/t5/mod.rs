//! T5: the encoder-decoder of Raffel et al. (2020), versions 1.0 and 1.1, as transformers computes it.

mod generate;
mod layers;

use layers::{Rows, Stack};
use pipe_model::t5::{T5Config, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::attention::{self, key_mask, row_multiple};
use super::interface::{Model, TextGenerator};
use super::pass::{Mode, Pass, Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::{IGNORED, Packed, Part};
use crate::error::TrainerError;
use crate::torch;

pub struct T5 {
    config: T5Config,
    weights: Weights,
    dropout: f64,
    setup: Setup,
    shared: SharedTensor,
    encoder: Stack,
    decoder: Stack,
    head: SharedTensor,
}

impl T5 {
    pub fn build(config: T5Config, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        // A file without a head of its own means that the head is `shared`, whatever the config says.
        let tied = match start {
            Start::Random { .. } => config.tie_word_embeddings,
            Start::Tensors { files, .. } => !files.contains("lm_head.weight"),
        };
        let weights = Weights::start(&parameters(&config, tied), start, setup)?;
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.dropout_rate),
            setup: *setup,
            shared: weights.get("shared.weight"),
            encoder: Stack::encoder(&config, &weights),
            decoder: Stack::decoder(&config, &weights),
            head: weights.get(if tied { "shared.weight" } else { "lm_head.weight" }),
            config,
            weights,
        })
    }

    /// The labels one to the right, behind the start token of each sample; ignored ones become padding.
    fn decoder_input(&self, labels: &Tensor, packed: Option<Packed<'_>>) -> Result<Tensor, TrainerError> {
        let (batch, length) = labels.size2()?;
        let start_token = self.config.decoder_start_token_id;
        let start = Tensor::f_full([batch, 1], start_token, (Kind::Int64, labels.device()))?;
        let mut shifted = Tensor::f_cat(&[start, labels.f_narrow(1, 0, length - 1)?], 1)?;
        if let Some(packed) = packed {
            shifted = shifted.f_masked_fill(&packed.positions()?.f_eq(0)?, start_token)?;
        }
        Ok(shifted.f_masked_fill(&shifted.f_eq(IGNORED)?, self.config.pad_token_id)?)
    }

    /// In the kind of the weights, which is added up along the layers.
    fn embed(&self, ids: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let embedded = Tensor::f_embedding(&self.shared, ids, -1, false, false)?;
        pass.drop_out(&embedded.f_to_kind(self.setup.kinds.weights)?)
    }

    /// The input of the head: [batch, target length, d_model], or [1, target tokens, d_model] of packed samples, in the kind that is computed in.
    fn decoded(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = Pass::new(mode, self.dropout, &self.setup);
        let padding = key_mask(part, pass.compute, self.config.d_kv)?;
        let (source, target) = (part.packed("input_ids"), part.packed("labels"));
        let rows = match source {
            Some(source) => Rows::Packed { source, target },
            None => Rows::Each { padding: padding.as_ref() },
        };
        let embedded = pass.first_input(self.embed(part.get("input_ids")?, pass.for_block(0).through(source))?)?;
        let memory = self.encoder.forward(&embedded, rows, None, pass)?.f_to_kind(self.setup.kinds.compute)?;

        let ids = self.decoder_input(part.get("labels")?, target)?;
        let hidden = self.embed(&ids, pass.for_block(self.config.num_layers as u64 + 2).through(target))?;
        let hidden = self.decoder.forward(&hidden, rows, Some(&memory), pass)?;
        let hidden = hidden.f_to_kind(self.setup.kinds.compute)?;
        if self.config.scale_decoder_outputs {
            return Ok(hidden.f_mul_scalar((self.config.d_model as f64).powf(-0.5))?);
        }
        Ok(hidden)
    }

    fn head(&self) -> Result<Tensor, TrainerError> {
        Ok(self.head.f_to_kind(self.setup.kinds.compute)?)
    }
}

impl Model for T5 {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, target length, vocab_size]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let logits = self.decoded(part, mode)?.f_linear(&self.head()?, None::<&Tensor>)?;
        Ok(part.packed("labels").map(|packed| packed.unpacked(&logits)).transpose()?.unwrap_or(logits))
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let hidden = self.decoded(part, mode)?.f_reshape([-1, self.config.d_model])?;
        let labels = part.get("labels")?.f_reshape([-1])?;
        Ok(torch::linear_cross_entropy(&hidden, &self.head()?, &labels, IGNORED, self.config.loss_rows())?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn packs(&self) -> bool {
        attention::packs(self.setup.kinds.compute, self.setup.device, self.config.d_kv)
    }

    fn row_multiple(&self) -> usize {
        row_multiple(self.setup.kinds.compute, self.setup.device, self.config.d_kv)
    }

    fn text_generator(&self) -> Option<&dyn TextGenerator> {
        Some(self)
    }

    fn is_recordable(&self) -> bool {
        true
    }
}
