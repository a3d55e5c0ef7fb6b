//! Decoder models: Llama (Touvron et al., 2023), Mistral (Jiang et al., 2023), Qwen2 and Qwen3 (Yang et al., 2024 and 2025) as
//! transformers' `...ForCausalLM` compute them. Where rows are padded it is at their end, where no token before sees it: no mask is needed.

mod generate;
mod layers;

use std::sync::Arc;

use layers::{Layer, Rotary};
use pipe_model::llama::{LlamaConfig, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::attention;
use super::interface::{Model, Scorer, TextGenerator};
use super::layers::RmsNorm;
use super::pass::{Mode, Pass};
use super::setup::{Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::{IGNORED, Packed, Part, next_packed_tokens, next_tokens};
use crate::error::TrainerError;
use crate::model::preference;
use crate::torch;

pub struct Llama {
    config: LlamaConfig,
    weights: Weights,
    /// The share of attention weights that is dropped.
    dropout: f64,
    setup: Setup,
    embeddings: SharedTensor,
    rotary: Rotary,
    layers: Vec<Arc<Layer>>,
    norm: RmsNorm,
    head: SharedTensor,
}

impl Llama {
    pub fn build(config: LlamaConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        let embeddings = "model.embed_tokens.weight";
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.attention_dropout),
            setup: *setup,
            embeddings: weights.get(embeddings),
            rotary: Rotary::new(&config, setup.device)?,
            layers: (0..config.windows.len()).map(|number| Arc::new(Layer::new(&config, &weights, number))).collect(),
            norm: RmsNorm::new(&weights, "model.norm", config.rms_norm_eps),
            head: weights.get(if config.tie_word_embeddings { embeddings } else { "lm_head.weight" }),
            config,
            weights,
        })
    }

    /// In the kind that is added up along the layers.
    fn embed(&self, ids: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(Tensor::f_embedding(&self.embeddings, ids, -1, false, false)?.f_to_kind(self.setup.kinds.weights)?)
    }

    /// The input of the head: [batch, length, hidden_size], or [1, tokens, hidden_size] of packed samples, in the kind that is computed in.
    fn read(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let (name, ids) = ids(part)?;
        let packed = part.packed(name);
        let pass = Pass::new(mode, self.dropout, &self.setup).through(packed);
        let length = packed.map_or(ids.size2()?.1, Packed::longest);
        if length > self.config.max_position_embeddings {
            let message = format!("found {}; a row has {length} tokens", self.config.max_position_embeddings);
            return Err(TrainerError::config("max_position_embeddings", message));
        }
        let [cosines, sines] = match packed {
            Some(packed) => self.rotary.turns_of(&packed.positions()?, pass.compute)?,
            None => self.rotary.turns(0, length, pass.compute)?,
        };
        let mut hidden = pass.first_input(self.embed(ids)?)?;
        for (layer, number) in self.layers.iter().zip(1..) {
            let rows = packed.into_iter().flat_map(Packed::tensors);
            let inputs: Vec<&Tensor> = [&hidden, &cosines, &sines].into_iter().chain(rows).collect();
            hidden = pass.block(layer, number, &inputs)?;
        }
        Ok(self.norm.forward(&hidden)?.f_to_kind(pass.compute)?)
    }

    fn head(&self) -> Result<Tensor, TrainerError> {
        Ok(self.head.f_to_kind(self.setup.kinds.compute)?)
    }
}

/// Tokens have one name in files of transformers, and another one where texts were cut into rows.
fn ids(part: &Part) -> Result<(&'static str, &Tensor), TrainerError> {
    match part.find("input_ids") {
        Some(ids) => Ok(("input_ids", ids)),
        None => Ok(("ids", part.get("ids")?)),
    }
}

/// The token that each token predicts, or `IGNORED`.
fn labels(part: &Part) -> Result<Tensor, TrainerError> {
    let (name, ids) = ids(part)?;
    let labels = part.get("labels")?;
    match part.packed(name) {
        Some(packed) => Ok(next_packed_tokens(labels, packed, part.packed("labels").unwrap_or(packed))?),
        None => Ok(next_tokens(labels, ids.size2()?.1)?),
    }
}

impl Model for Llama {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, length, vocab_size]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let logits = self.read(part, mode)?.f_linear(&self.head()?, None::<&Tensor>)?;
        Ok(part.packed(ids(part)?.0).map(|packed| packed.unpacked(&logits)).transpose()?.unwrap_or(logits))
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let hidden = self.read(part, mode)?.f_reshape([-1, self.config.hidden_size])?;
        let labels = labels(part)?.f_reshape([-1])?;
        Ok(torch::linear_cross_entropy(&hidden, &self.head()?, &labels, IGNORED, self.config.loss_rows())?)
    }

    fn targets(&self, part: &Part) -> Result<i64, TrainerError> {
        Ok(labels(part)?.f_ne(IGNORED)?.f_sum(Kind::Int64)?.f_int64_value(&[])?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn packs(&self) -> bool {
        attention::packs(self.setup.kinds.compute, self.setup.device, self.config.heads.width)
    }

    /// A window is a mask that torch attends with.
    fn is_recordable(&self) -> bool {
        self.packs() && self.config.windows.iter().all(Option::is_none)
    }

    fn text_generator(&self) -> Option<&dyn TextGenerator> {
        Some(self)
    }

    fn scorer(&self) -> Option<&dyn Scorer> {
        Some(self)
    }
}

impl Scorer for Llama {
    fn log_probabilities(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let hidden = self.read(part, mode)?;
        let (rows, labels) = (hidden.f_reshape([-1, self.config.hidden_size])?, labels(part)?);
        let each =
            preference::log_probabilities(&rows, &self.head()?, &labels.f_reshape([-1])?, self.config.loss_rows())?;
        let (name, ids) = ids(part)?;
        let each = each.f_reshape(ids.size())?;
        let Some(packed) = part.packed(name) else { return Ok(each.f_sum_dim_intlist(1i64, false, Kind::Float)?) };
        let is_own = packed.counts.f_unsqueeze(0)?.f_lt_tensor(&packed.lengths()?.f_unsqueeze(1)?)?;
        Ok(packed.unpacked(&each)?.f_mul(&is_own)?.f_sum_dim_intlist(1i64, false, Kind::Float)?)
    }
}
