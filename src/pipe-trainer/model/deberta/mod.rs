//! DeBERTa-v2 and -v3 (He et al., 2021 and 2023) with a head that predicts labels of a text or a number, as transformers'
//! `DebertaV2ForSequenceClassification` computes it, or a label for each token, as `DebertaV2ForTokenClassification` does.

mod layers;

use std::sync::Arc;

use layers::{Conv, Embeddings, Head, Layer};
use pipe_model::deberta::{DebertaConfig, parameters};
use pipe_model::memory::ROW_MULTIPLE;
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::classification;
use super::interface::{Encoder, Model};
use super::layers::LayerNorm;
use super::pass::{Mode, Pass, Setup, Start, hidden_score};
use super::weights::{SharedTensor, Weights};
use crate::data::{Packed, Part, UnpackedRows};
use crate::error::TrainerError;

pub struct Deberta {
    config: DebertaConfig,
    weights: Weights,
    dropout: Dropout,
    setup: Setup,
    embeddings: Embeddings,
    /// One for each bucket of distances.
    rel_embeddings: Option<SharedTensor>,
    rel_norm: Option<LayerNorm>,
    layers: Vec<Arc<Layer>>,
    conv: Option<Arc<Conv>>,
    head: Head,
}

/// The shares that are dropped.
#[derive(Clone, Copy)]
struct Dropout {
    hidden: f64,
    attention: f64,
    pooler: f64,
    classifier: f64,
}

impl Dropout {
    /// The dropout of the pipeline replaces all of them.
    fn of(config: &DebertaConfig, setup: &Setup) -> Self {
        let hidden = setup.dropout.unwrap_or(config.hidden_dropout_prob);
        Self {
            hidden,
            attention: setup.dropout.unwrap_or(config.attention_probs_dropout_prob),
            pooler: setup.dropout.unwrap_or(config.pooler_dropout),
            // `DebertaV2ForTokenClassification` has no dropout of its own for the head.
            classifier: setup.dropout.or(config.cls_dropout.filter(|_| !config.labels_tokens)).unwrap_or(hidden),
        }
    }

    fn largest(self) -> f64 {
        self.hidden.max(self.attention).max(self.pooler).max(self.classifier)
    }
}

impl Deberta {
    pub fn build(config: DebertaConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        let dropout = Dropout::of(&config, setup);
        let layer = |number| Arc::new(Layer::new(&config, &weights, number, dropout.attention));
        Ok(Self {
            dropout,
            setup: *setup,
            embeddings: Embeddings::new(&config, &weights),
            rel_embeddings: config.relative.map(|_| weights.get("deberta.encoder.rel_embeddings.weight")),
            rel_norm: config
                .norms_relative
                .then(|| LayerNorm::new(&weights, "deberta.encoder.LayerNorm", config.layer_norm_eps)),
            layers: (0..config.num_hidden_layers).map(layer).collect(),
            conv: config.conv.map(|conv| Arc::new(Conv::new(&config, conv, &weights))),
            head: Head::new(&config, &weights, dropout.pooler, dropout.classifier),
            config,
            weights,
        })
    }

    /// [batch, length, hidden_size], or [1, tokens, hidden_size] of packed samples.
    fn encode(&self, part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
        let (ids, packed) = (part.get("input_ids")?, part.packed("input_ids"));
        let pass = pass.dropping(self.dropout.hidden).through(packed);
        // Where positions matter, packed samples are these rows.
        let unpacked = packed.map(UnpackedRows::new).transpose()?;
        let of_rows: Vec<&Tensor> = unpacked.iter().flat_map(UnpackedRows::tensors).collect();
        let mask = part.find("attention_mask");
        let are_tokens = match &unpacked {
            Some(rows) => Some(rows.is_empty().f_logical_not()?),
            None => mask.map(|mask| mask.f_ne(0)).transpose()?,
        };
        let embedded = self.embeddings.forward(part, pass.for_block(0))?.f_to_kind(pass.compute)?;
        // All layers are given these beside the hidden states.
        let mut shared = Vec::new();
        if let (Some(relative), Some(embeddings)) = (self.config.relative, &self.rel_embeddings) {
            shared.push(match &self.rel_norm {
                Some(norm) => norm.forward(embeddings)?,
                None => embeddings.shallow_clone(),
            });
            let length = packed.map_or(ids.size2()?.1, Packed::longest);
            shared.push(layers::rows(relative, length)?.f_to_device(ids.device())?);
        }
        if let Some(are_tokens) = are_tokens {
            shared.push(hidden_pairs(&are_tokens, pass.compute)?);
        }
        let mut hidden = pass.first_input(embedded.shallow_clone())?;
        for (layer, number) in self.layers.iter().zip(1..) {
            let of_rows = of_rows.iter().copied();
            let inputs: Vec<&Tensor> = std::iter::once(&hidden).chain(&shared).chain(of_rows.clone()).collect();
            hidden = pass.block(layer, number, &inputs)?;
            if let (1, Some(conv)) = (number, &self.conv) {
                let inputs: Vec<&Tensor> = [&hidden, &embedded].into_iter().chain(mask).chain(of_rows).collect();
                hidden = pass.block(conv, self.layers.len() as u64 + 1, &inputs)?;
            }
        }
        Ok(hidden)
    }

    /// As `encode` gives hidden states, where every token has a label; else [batch, labels].
    fn labels(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = self.pass(mode);
        let hidden = self.encode(part, pass)?;
        self.head.forward(&hidden, part.packed("input_ids"), pass.for_block(self.layers.len() as u64 + 2))
    }

    fn pass(&self, mode: Mode) -> Pass {
        Pass::new(mode, self.dropout.largest(), &self.setup)
    }
}

/// From whether there are tokens, [batch, length], to what is added to scores, [batch, 1, length, length]: padding neither is
/// looked at nor looks at anything.
fn hidden_pairs(are_tokens: &Tensor, kind: Kind) -> Result<Tensor, TrainerError> {
    let (keys, queries) = (are_tokens.f_unsqueeze(1)?, are_tokens.f_unsqueeze(2)?);
    let hidden = keys.f_logical_and(&queries)?.f_logical_not()?.f_unsqueeze(1)?;
    Ok(hidden.f_to_kind(kind)?.f_mul_scalar(hidden_score(kind))?)
}

impl Model for Deberta {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, labels], or [batch, length, labels] where tokens have labels.
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        classification::unpacked(part, self.labels(part, mode)?, self.config.labels_tokens)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        classification::part_loss_sum(&self.labels(part, mode)?, part)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn packs(&self) -> bool {
        self.setup.device.is_cuda() && matches!(self.setup.kinds.compute, Kind::BFloat16 | Kind::Half)
    }

    fn unpacks_for_attention(&self) -> bool {
        true
    }

    fn row_multiple(&self) -> usize {
        if self.setup.device.is_cuda() { ROW_MULTIPLE } else { 1 }
    }

    fn encoder(&self) -> Option<&dyn Encoder> {
        Some(self)
    }
}

impl Encoder for Deberta {
    fn last_hidden_state(&self, part: &Part) -> Result<Tensor, TrainerError> {
        classification::unpacked(part, self.encode(part, self.pass(Mode::Eval))?, true)
    }
}
