//! BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020) with a head that predicts
//! labels of a text or a number, as transformers' `...ForSequenceClassification` compute it, or a label for each token, as
//! `...ForTokenClassification` do. Layers are self-attention and a feed-forward part, each with a residual connection and a norm
//! after it.

use std::sync::Arc;

use pipe_model::Labels;
use pipe_model::bert::{BertConfig, Family, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::attention::{self, Scores, attend, key_mask, row_multiple};
use super::classification;
use super::interface::{Encoder, Model};
use super::layers::{LayerNorm, Linear, PostNormOutput, lay_together, merge_heads, split_heads, together_and_residual};
use super::pass::{self, Mode, Pass, Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::{Packed, Part};
use crate::error::TrainerError;

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
    /// The dropout of the pipeline replaces all of them.
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

    /// [batch, length, hidden_size], or [1, tokens, hidden_size] of packed samples.
    fn encode(&self, part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
        let packed = part.packed("input_ids");
        let pass = pass.dropping(self.dropout.hidden).through(packed);
        let mask = key_mask(part, pass.compute, self.config.head_width())?;
        let (ids, types) = (part.get("input_ids")?, part.find("token_type_ids"));
        let embedded = self.embeddings.forward(ids, types, packed, pass.for_block(0))?.f_to_kind(pass.compute)?;
        let mut hidden = pass.first_input(embedded)?;
        let rows: Vec<&Tensor> = packed.map_or(mask.iter().collect(), |packed| packed.tensors().to_vec());
        for (layer, number) in self.layers.iter().zip(1..) {
            let inputs: Vec<&Tensor> = std::iter::once(&hidden).chain(rows.iter().copied()).collect();
            hidden = pass.block(layer, number, &inputs)?;
        }
        Ok(hidden)
    }

    /// As `encode` gives hidden states, where every token has a label; else [batch, labels].
    fn labels(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = self.pass(mode);
        let hidden = self.encode(part, pass)?;
        let last = self.layers.len() as u64 + 1;
        let pass = pass.for_block(last).dropping(self.dropout.classifier);
        self.head.forward(&hidden, part.packed("input_ids"), pass)
    }

    fn pass(&self, mode: Mode) -> Pass {
        Pass::new(mode, self.dropout.largest(), &self.setup)
    }
}

impl Model for Bert {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, labels], or [batch, length, labels] where tokens have labels.
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let logits = self.labels(part, mode)?;
        classification::unpacked(part, logits, self.config.labels_tokens)
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
        attention::packs(self.setup.kinds.compute, self.setup.device, self.config.head_width())
    }

    fn is_shaped_by_tokens(&self) -> bool {
        let ignores = matches!(&self.config.labels, Labels::Classes(names) if names.len() > 1);
        self.packs() && (ignores || self.config.labels_tokens)
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
        classification::unpacked(part, self.encode(part, self.pass(Mode::Eval))?, true)
    }
}

pub struct Embeddings {
    word_embeddings: SharedTensor,
    position_embeddings: SharedTensor,
    token_type_embeddings: SharedTensor,
    layer_norm: LayerNorm,
    family: Family,
    pad_token_id: i64,
}

impl Embeddings {
    pub fn new(config: &BertConfig, weights: &Weights) -> Self {
        let path = format!("{}.embeddings", config.prefix());
        let of = |name: &str| weights.get(&format!("{path}.{name}.weight"));
        Self {
            word_embeddings: of("word_embeddings"),
            position_embeddings: of("position_embeddings"),
            token_type_embeddings: of("token_type_embeddings"),
            layer_norm: LayerNorm::new(weights, &format!("{path}.LayerNorm"), config.layer_norm_eps),
            family: config.family,
            pad_token_id: config.pad_token_id,
        }
    }

    /// In the kind of the weights. Tokens without types are all of the first.
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        packed: Option<Packed<'_>>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let words = Tensor::f_embedding(&self.word_embeddings, input_ids, self.pad_token_id, false, false)?;
        let types = match token_type_ids {
            Some(types) => Tensor::f_embedding(&self.token_type_embeddings, types, -1, false, false)?,
            None => self.token_type_embeddings.f_narrow(0, 0, 1)?,
        };
        // Frozen tables are narrow.
        let wide = self.layer_norm.weight.kind();
        let embedded = words.f_to_kind(wide)?.f_add(&types)?.f_add(&self.positions(input_ids, packed)?)?;
        pass.drop_out(&self.layer_norm.forward(&embedded)?)
    }

    /// BERT counts all tokens, RoBERTa those that are no padding, from the number behind its padding's.
    fn positions(&self, input_ids: &Tensor, packed: Option<Packed<'_>>) -> Result<Tensor, TrainerError> {
        let table = &self.position_embeddings;
        match self.family {
            Family::Bert => {
                let (last, length) = (table.size()[0] - 1, input_ids.size2()?.1);
                // Padding may reach beyond the last position; it is masked.
                let counted = match packed {
                    Some(packed) => packed.positions()?,
                    None => Tensor::f_arange(length, (Kind::Int64, input_ids.device()))?,
                };
                Ok(Tensor::f_embedding(table, &counted.f_clamp_max(last)?, -1, false, false)?)
            }
            Family::Roberta | Family::XlmRoberta => {
                let tokens = input_ids.f_ne(self.pad_token_id)?.f_to_kind(Kind::Int64)?;
                let mut counted = tokens.f_cumsum(1, Kind::Int64)?;
                if let Some(packed) = packed {
                    // Without those of the samples before.
                    let before = counted.f_sub(&tokens)?.f_squeeze_dim(0)?;
                    let firsts = packed.offsets.f_index_select(0, &packed.sample_numbers()?)?;
                    let firsts = firsts.f_clamp_max(packed.tokens() - 1)?;
                    counted = counted.f_sub(&before.f_index_select(0, &firsts)?.f_unsqueeze(0)?)?;
                }
                let counted = counted.f_mul(&tokens)?.f_add_scalar(self.pad_token_id)?;
                Ok(Tensor::f_embedding(table, &counted, self.pad_token_id, false, false)?)
            }
        }
    }
}

pub struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: PostNormOutput,
    heads: i64,
    attention_dropout: f64,
}

impl Layer {
    pub fn new(config: &BertConfig, weights: &Weights, number: i64, attention_dropout: f64) -> Self {
        let path = format!("{}.encoder.layer.{number}", config.prefix());
        let linear = |name: &str| Linear::new(weights, &format!("{path}.{name}"));
        let [query, key, value] = ["query", "key", "value"].map(|name| linear(&format!("attention.self.{name}")));
        lay_together([&query, &key, &value]);
        Self {
            query,
            key,
            value,
            output: PostNormOutput::new(weights, &path, config.hidden_act, config.layer_norm_eps),
            heads: config.num_attention_heads,
            attention_dropout,
        }
    }
}

impl pass::Block for Layer {
    /// `inputs` are hidden states and where packed samples stand or, where there is padding, what hides it.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let scores = Scores::of_rows(&inputs[1..]);
        let ([q, k, v], hidden) = together_and_residual(inputs[0], [&self.query, &self.key, &self.value], pass)?;
        let [q, k, v] = [split_heads(&q, self.heads)?, split_heads(&k, self.heads)?, split_heads(&v, self.heads)?];
        let attended = attend([&q, &k, &v], scores, pass.dropping(self.attention_dropout))?;
        self.output.forward(&merge_heads(&attended)?, &hidden, pass)
    }
}

/// From the first token, or from every token, to the logits.
pub struct Head {
    /// Absent where every token has a label.
    dense: Option<Linear>,
    out: Linear,
    /// RoBERTa drops a part of the first token too.
    drops_first: bool,
}

impl Head {
    pub fn new(config: &BertConfig, weights: &Weights) -> Self {
        let (dense, out) = match config.family {
            _ if config.labels_tokens => (None, "classifier"),
            Family::Bert => (Some("bert.pooler.dense"), "classifier"),
            Family::Roberta | Family::XlmRoberta => (Some("classifier.dense"), "classifier.out_proj"),
        };
        Self {
            dense: dense.map(|dense| Linear::new(weights, dense)),
            out: Linear::new(weights, out),
            drops_first: config.family != Family::Bert,
        }
    }

    pub fn forward(&self, hidden: &Tensor, packed: Option<Packed<'_>>, pass: Pass) -> Result<Tensor, TrainerError> {
        let Some(dense) = &self.dense else {
            return self.out.forward(&pass.through(packed).drop_out(hidden)?, pass);
        };
        let first = match packed {
            // Spare samples begin behind the last token.
            Some(packed) => {
                let starts = packed.starts()?.f_clamp_max(packed.tokens() - 1)?;
                hidden.f_squeeze_dim(0)?.f_index_select(0, &starts)?
            }
            None => hidden.f_select(1, 0)?,
        };
        let first = if self.drops_first { pass.drop_out(&first)? } else { first };
        let pooled = dense.forward(&first, pass)?.f_tanh()?;
        self.out.forward(&pass.drop_out(&pooled)?, pass)
    }
}
