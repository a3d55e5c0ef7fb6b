//! Decoder models: Llama (Touvron et al., 2023), Mistral (Jiang et al., 2023), Qwen2 and Qwen3 (Yang et al., 2024 and 2025) as
//! transformers' `...ForCausalLM` compute them. Rows are padded at their end, where no token before sees it: no mask is needed.

mod generate;
mod layers;

use std::sync::Arc;

use layers::{Layer, Rotary};
use pipe_model::llama::{LlamaConfig, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::interface::{Model, TextGenerator};
use super::layers::RmsNorm;
use super::pass::{Mode, Pass};
use super::setup::{Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::{IGNORED, Part, next_tokens};
use crate::error::TrainerError;
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

    /// The input of the head: [batch, length, hidden_size], in the kind that is computed in.
    fn read(&self, ids: &Tensor, mode: Mode) -> Result<Tensor, TrainerError> {
        // Something is drawn where either drops.
        let adapter = self.setup.adapter.map_or(0.0, |adapter| adapter.dropout);
        let pass = Pass::new(mode, self.dropout.max(adapter), &self.setup).dropping(self.dropout);
        let length = ids.size2()?.1;
        if length > self.config.max_position_embeddings {
            let message = format!("found {}; a row has {length} tokens", self.config.max_position_embeddings);
            return Err(TrainerError::config("max_position_embeddings", message));
        }
        let [cosines, sines] = self.rotary.turns(0, length, pass.compute)?;
        let mut hidden = self.embed(ids)?;
        for (layer, number) in self.layers.iter().zip(1..) {
            hidden = pass.block(layer, number, &[&hidden, &cosines, &sines])?;
        }
        Ok(self.norm.forward(&hidden)?.f_to_kind(pass.compute)?)
    }

    fn head(&self) -> Result<Tensor, TrainerError> {
        Ok(self.head.f_to_kind(self.setup.kinds.compute)?)
    }
}

/// Rows of tokens have one name in files of transformers, and another one where texts were packed.
fn ids(part: &Part) -> Result<&Tensor, TrainerError> {
    part.find("input_ids").map_or_else(|| part.get("ids"), Ok)
}

impl Model for Llama {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, length, vocab_size]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        Ok(self.read(ids(part)?, mode)?.f_linear(&self.head()?, None::<&Tensor>)?)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let ids = ids(part)?;
        let hidden = self.read(ids, mode)?.f_reshape([-1, self.config.hidden_size])?;
        let labels = next_tokens(part.get("labels")?, ids.size2()?.1)?.f_reshape([-1])?;
        Ok(torch::linear_cross_entropy(&hidden, &self.head()?, &labels, IGNORED, self.config.loss_rows())?)
    }

    fn targets(&self, part: &Part) -> Result<i64, TrainerError> {
        let labels = next_tokens(part.get("labels")?, ids(part)?.size2()?.1)?;
        Ok(labels.f_ne(IGNORED)?.f_sum(Kind::Int64)?.f_int64_value(&[])?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn text_generator(&self) -> Option<&dyn TextGenerator> {
        Some(self)
    }
}
