//! The layers of BERT and RoBERTa: embeddings, and layers of self-attention and a feed-forward part, each with a residual
//! connection and a norm after it.

use pipe_model::bert::{BertConfig, Family};
use tch::{Kind, Tensor};

use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{FeedForward, LayerNorm, Linear, merge_heads, split_heads, together};
use crate::model::pass::{self, Pass};
use crate::model::weights::{SharedTensor, Weights};

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
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let words = Tensor::f_embedding(&self.word_embeddings, input_ids, self.pad_token_id, false, false)?;
        let types = match token_type_ids {
            Some(types) => Tensor::f_embedding(&self.token_type_embeddings, types, -1, false, false)?,
            None => self.token_type_embeddings.f_narrow(0, 0, 1)?,
        };
        let embedded = words.f_add(&types)?.f_add(&self.positions(input_ids)?)?;
        pass.drop_out(&self.layer_norm.forward(&embedded)?)
    }

    /// BERT counts all tokens, RoBERTa those that are no padding, from the number behind its padding's.
    fn positions(&self, input_ids: &Tensor) -> Result<Tensor, TrainerError> {
        let table = &self.position_embeddings;
        match self.family {
            Family::Bert => {
                let (last, length) = (table.size()[0] - 1, input_ids.size2()?.1);
                // Padding may reach beyond the last position; it is masked.
                let counted = Tensor::f_arange(length, (Kind::Int64, input_ids.device()))?.f_clamp_max(last)?;
                Ok(Tensor::f_embedding(table, &counted, -1, false, false)?)
            }
            Family::Roberta | Family::XlmRoberta => {
                let tokens = input_ids.f_ne(self.pad_token_id)?.f_to_kind(Kind::Int64)?;
                let counted = tokens.f_cumsum(1, Kind::Int64)?.f_mul(&tokens)?.f_add_scalar(self.pad_token_id)?;
                Ok(Tensor::f_embedding(table, &counted, self.pad_token_id, false, false)?)
            }
        }
    }
}

pub struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    feed_forward: FeedForward,
    norm: LayerNorm,
    heads: i64,
    attention_dropout: f64,
}

impl Layer {
    pub fn new(config: &BertConfig, weights: &Weights, number: i64, attention_dropout: f64) -> Self {
        let path = format!("{}.encoder.layer.{number}", config.prefix());
        let linear = |name: &str| Linear::new(weights, &format!("{path}.{name}"));
        let norm = |name: &str| LayerNorm::new(weights, &format!("{path}.{name}"), config.layer_norm_eps);
        Self {
            query: linear("attention.self.query"),
            key: linear("attention.self.key"),
            value: linear("attention.self.value"),
            attention_output: linear("attention.output.dense"),
            attention_norm: norm("attention.output.LayerNorm"),
            feed_forward: FeedForward {
                first: linear("intermediate.dense"),
                gate: None,
                second: linear("output.dense"),
                activation: config.hidden_act,
                drops: false,
            },
            norm: norm("output.LayerNorm"),
            heads: config.num_attention_heads,
            attention_dropout,
        }
    }
}

impl pass::Block for Layer {
    /// `inputs` are hidden states and, where there is padding, what hides it.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let (hidden, scores) = (inputs[0], Scores { key_mask: inputs.get(1).copied(), ..Scores::default() });
        let [q, k, v] = together(hidden, [&self.query, &self.key, &self.value], pass)?;
        let [q, k, v] = [split_heads(&q, self.heads)?, split_heads(&k, self.heads)?, split_heads(&v, self.heads)?];
        let attended = attend([&q, &k, &v], scores, pass.dropping(self.attention_dropout))?;
        let attended = self.attention_output.product(&merge_heads(&attended)?, pass)?;
        let hidden = self.attention_norm.after(&attended, hidden, pass)?;
        self.norm.after(&self.feed_forward.product(&hidden, pass)?, &hidden, pass)
    }
}

/// From the first token to the logits.
pub struct Head {
    dense: Linear,
    out: Linear,
    /// RoBERTa drops a part of the first token too.
    drops_first: bool,
}

impl Head {
    pub fn new(config: &BertConfig, weights: &Weights) -> Self {
        let (dense, out) = match config.family {
            Family::Bert => ("bert.pooler.dense", "classifier"),
            Family::Roberta | Family::XlmRoberta => ("classifier.dense", "classifier.out_proj"),
        };
        Self {
            dense: Linear::new(weights, dense),
            out: Linear::new(weights, out),
            drops_first: config.family != Family::Bert,
        }
    }

    pub fn forward(&self, hidden: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let first = hidden.f_select(1, 0)?;
        let first = if self.drops_first { pass.drop_out(&first)? } else { first };
        let pooled = self.dense.forward(&first, pass)?.f_tanh()?;
        self.out.forward(&pass.drop_out(&pooled)?, pass)
    }
}
