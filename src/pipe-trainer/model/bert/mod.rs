//! BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020) with a head that predicts
//! classes or a number, as transformers' `...ForSequenceClassification` compute it.

mod layers;

use std::sync::Arc;

use pipe_model::bert::{BertConfig, parameters};
use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};
use tch::Tensor;

use self::layers::{Embeddings, Head, Layer};
use super::attention::{key_mask, row_multiple};
use super::classification;
use super::interface::{Encoder, Mode, Model};
use super::pass::Pass;
use super::setup::{Setup, Start};
use super::weights::Weights;
use crate::data::Part;
use crate::error::TrainerError;

pub fn build(
    arch: Arch,
    config: &Map<String, Value>,
    start: &Start<'_>,
    setup: &Setup,
) -> Result<Box<dyn Model>, TrainerError> {
    Ok(Box::new(Bert::build(BertConfig::read(arch, config)?, start, setup)?))
}

pub struct Bert {
    config: BertConfig,
    weights: Weights,
    dropout: Dropout,
    setup: Setup,
    embeddings: Embeddings,
    layers: Vec<Arc<Layer>>,
    head: Head,
}

/// The shares that are dropped.
#[derive(Clone, Copy)]
struct Dropout {
    hidden: f64,
    attention: f64,
    classifier: f64,
}

impl Dropout {
    /// What the pipeline says counts for all of them.
    fn of(config: &BertConfig, setup: &Setup) -> Self {
        let hidden = setup.dropout.unwrap_or(config.hidden_dropout_prob);
        Self {
            hidden,
            attention: setup.dropout.unwrap_or(config.attention_probs_dropout_prob),
            classifier: setup.dropout.or(config.classifier_dropout).unwrap_or(hidden),
        }
    }

    fn largest(self) -> f64 {
        self.hidden.max(self.attention).max(self.classifier)
    }
}

impl Bert {
    pub fn build(config: BertConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        let dropout = Dropout::of(&config, setup);
        let layer = |number| Arc::new(Layer::new(&config, &weights, number, dropout.attention));
        Ok(Self {
            dropout,
            setup: *setup,
            embeddings: Embeddings::new(&config, &weights),
            layers: (0..config.num_hidden_layers).map(layer).collect(),
            head: Head::new(&config, &weights),
            config,
            weights,
        })
    }

    /// [batch, length, hidden_size]
    fn encode(&self, part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
        let pass = pass.dropping(self.dropout.hidden);
        let mask = key_mask(part, pass.compute, self.config.head_width())?;
        let (ids, types) = (part.get("input_ids")?, part.find("token_type_ids"));
        let mut hidden = self.embeddings.forward(ids, types, pass.for_block(0))?.f_to_kind(pass.compute)?;
        for (layer, number) in self.layers.iter().zip(1..) {
            let inputs: Vec<&Tensor> = std::iter::once(&hidden).chain(&mask).collect();
            hidden = pass.block(layer, number, &inputs)?;
        }
        Ok(hidden)
    }

    fn pass(&self, mode: Mode) -> Pass {
        Pass::new(mode, self.dropout.largest(), &self.setup)
    }
}

impl Model for Bert {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, labels]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = self.pass(mode);
        let hidden = self.encode(part, pass)?;
        let last = self.layers.len() as u64 + 1;
        self.head.forward(&hidden, pass.for_block(last).dropping(self.dropout.classifier))
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        classification::part_loss_sum(&self.logits(part, mode)?, part)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn row_multiple(&self) -> usize {
        row_multiple(self.setup.kinds.compute, self.setup.device, self.config.head_width())
    }

    fn encoder(&self) -> Option<&dyn Encoder> {
        Some(self)
    }

    fn is_recordable(&self) -> bool {
        true
    }
}

impl Encoder for Bert {
    fn last_hidden_state(&self, part: &Part) -> Result<Tensor, TrainerError> {
        self.encode(part, self.pass(Mode::Eval))
    }
}
