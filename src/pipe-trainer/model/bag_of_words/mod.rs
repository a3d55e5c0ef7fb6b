//! A bag of words: the mean of token embeddings and a linear head that predicts classes or a number.

use pipe_model::bag_of_words::{BagOfWordsConfig, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::classification;
use super::interface::Model;
use super::layers::Linear;
use super::pass::{Mode, Pass, Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::Part;
use crate::error::TrainerError;

pub struct BagOfWords {
    config: BagOfWordsConfig,
    weights: Weights,
    dropout: f64,
    setup: Setup,
    embedding: SharedTensor,
    classifier: Linear,
}

impl BagOfWords {
    pub fn build(config: BagOfWordsConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.dropout),
            setup: *setup,
            embedding: weights.get("embedding.weight"),
            classifier: Linear::new(&weights, "classifier"),
            config,
            weights,
        })
    }

    /// The mean over the tokens of each text, in fp32: [batch, hidden_size].
    fn mean(&self, part: &Part) -> Result<Tensor, TrainerError> {
        let ids = part.get("input_ids")?;
        let embedded = Tensor::f_embedding(&self.embedding, ids, -1, false, false)?.f_to_kind(Kind::Float)?;
        // There is no mask where no text is padded.
        let mask = match part.find("attention_mask") {
            Some(mask) => mask.f_to_kind(Kind::Float)?,
            None => ids.f_ones_like()?.f_to_kind(Kind::Float)?,
        };
        let mask = mask.f_unsqueeze(-1)?;
        let sum = embedded.f_mul(&mask)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
        let count = mask.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
        Ok(sum.f_div(&count.f_clamp_min(1)?)?)
    }
}

impl Model for BagOfWords {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, labels]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = Pass::new(mode, self.dropout, &self.setup).for_block(0);
        let mean = pass.drop_out(&self.mean(part)?)?;
        self.classifier.forward(&mean, pass)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        classification::part_loss_sum(&self.logits(part, mode)?, part)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }
}
