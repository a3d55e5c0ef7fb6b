//! The layers of DeBERTa: embeddings, layers of attention and a feed-forward part, each with a residual connection and a
//! norm after it, a convolution beside the first of them in some, and a head.

use pipe_model::Activation;
use pipe_model::deberta::{ConvConfig, DebertaConfig};
use tch::{Kind, Tensor};

use super::attention::{Attention, Distances};
use crate::data::{Packed, Part, UNPACKED_TENSORS, UnpackedRows};
use crate::error::TrainerError;
use crate::model::layers::{LayerNorm, Linear, PostNormOutput, activate};
use crate::model::pass::{self, Pass};
use crate::model::weights::{SharedTensor, Weights};

pub struct Embeddings {
    word_embeddings: SharedTensor,
    position_embeddings: Option<SharedTensor>,
    token_type_embeddings: Option<SharedTensor>,
    embed_proj: Option<Linear>,
    layer_norm: LayerNorm,
    pad_token_id: i64,
}

impl Embeddings {
    pub fn new(config: &DebertaConfig, weights: &Weights) -> Self {
        let of = |name: &str| weights.get(&format!("deberta.embeddings.{name}.weight"));
        Self {
            word_embeddings: of("word_embeddings"),
            position_embeddings: config.position_biased_input.then(|| of("position_embeddings")),
            token_type_embeddings: (config.type_vocab_size > 0).then(|| of("token_type_embeddings")),
            embed_proj: (config.embedding_size != config.hidden_size)
                .then(|| Linear::without_bias(weights, "deberta.embeddings.embed_proj")),
            layer_norm: LayerNorm::new(weights, "deberta.embeddings.LayerNorm", config.layer_norm_eps),
            pad_token_id: config.pad_token_id,
        }
    }

    /// In the kind of the weights; padding becomes 0. Tokens without types are all of the first.
    pub fn forward(&self, part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
        let input_ids = part.get("input_ids")?;
        // Frozen tables are narrow.
        let wide = self.layer_norm.weight.kind();
        let embedded = Tensor::f_embedding(&self.word_embeddings, input_ids, self.pad_token_id, false, false)?;
        let mut embedded = embedded.f_to_kind(wide)?;
        if let Some(table) = &self.position_embeddings {
            let (last, length) = (table.size()[0] - 1, input_ids.size2()?.1);
            // Padding may reach beyond the last position; it is masked.
            let counted = match part.packed("input_ids") {
                Some(packed) => packed.positions()?,
                None => Tensor::f_arange(length, (Kind::Int64, input_ids.device()))?,
            };
            embedded = embedded.f_add(&Tensor::f_embedding(table, &counted.f_clamp_max(last)?, -1, false, false)?)?;
        }
        if let Some(table) = &self.token_type_embeddings {
            let types = match part.find("token_type_ids") {
                Some(types) => Tensor::f_embedding(table, types, -1, false, false)?,
                None => table.f_narrow(0, 0, 1)?,
            };
            embedded = embedded.f_add(&types)?;
        }
        if let Some(projection) = &self.embed_proj {
            embedded = projection.forward(&embedded, pass)?.f_to_kind(wide)?;
        }
        let mut normed = self.layer_norm.forward(&embedded)?;
        if let Some(mask) = part.find("attention_mask") {
            normed = normed.f_mul(&mask.f_unsqueeze(2)?.f_to_kind(normed.kind())?)?;
        }
        pass.drop_out(&normed)
    }
}

pub struct Layer {
    attention: Attention,
    output: PostNormOutput,
    relative: bool,
}

impl Layer {
    pub fn new(config: &DebertaConfig, weights: &Weights, number: i64, attention_dropout: f64) -> Self {
        let path = format!("deberta.encoder.layer.{number}");
        Self {
            attention: Attention::new(config, weights, &format!("{path}.attention.self"), attention_dropout),
            output: PostNormOutput::new(weights, &path, config.hidden_act, config.layer_norm_eps),
            relative: config.relative.is_some(),
        }
    }
}

impl pass::Block for Layer {
    /// `inputs` are hidden states; with relative attention the embeddings of distances and the rows of these; where there is padding, what is added
    /// to scores; and the rows that packed samples are for attention.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let (hidden, distances, rest) = match inputs {
            [hidden, embeddings, rows, rest @ ..] if self.relative => {
                (*hidden, Some(Distances { embeddings, rows }), rest)
            }
            [hidden, rest @ ..] => (*hidden, None, rest),
            [] => panic!("a layer without an input"),
        };
        let rows = rest.get(1..).and_then(unpacked_rows);
        let attended = self.attention.forward(hidden, rest.first().copied(), distances, rows.as_ref(), pass)?;
        self.output.forward(&attended, hidden, pass)
    }
}

/// The rows of packed samples, where `inputs` of a block are these.
fn unpacked_rows(inputs: &[&Tensor]) -> Option<UnpackedRows> {
    <[&Tensor; UNPACKED_TENSORS]>::try_from(inputs).ok().map(UnpackedRows::from_tensors)
}

/// A convolution of the embeddings, added to what the first layer gave.
pub struct Conv {
    weight: SharedTensor,
    bias: SharedTensor,
    norm: LayerNorm,
    config: ConvConfig,
}

impl Conv {
    pub fn new(config: &DebertaConfig, conv: ConvConfig, weights: &Weights) -> Self {
        let of = |name: &str| weights.get(&format!("deberta.encoder.conv.conv.{name}"));
        Self {
            weight: of("weight"),
            bias: of("bias"),
            norm: LayerNorm::new(weights, "deberta.encoder.conv.LayerNorm", config.layer_norm_eps),
            config: conv,
        }
    }
}

impl pass::Block for Conv {
    /// `inputs` are what the first layer gave, the embeddings and, where there is padding, the mask, [batch, length], or where samples are packed, their
    /// rows: none of them reaches into another.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let (output, embeddings) = (inputs[0], inputs[1]);
        let rows = unpacked_rows(&inputs[2..]);
        let mask = inputs.get(2).filter(|_| rows.is_none());
        let mask = mask.map(|mask| mask.f_unsqueeze(2)?.f_to_kind(pass.compute)).transpose()?;
        let masked = |tensor: Tensor| match &mask {
            Some(mask) => tensor.f_mul(mask),
            None => Ok(tensor),
        };
        let (weight, bias) = (self.weight.f_to_kind(pass.compute)?, self.bias.f_to_kind(pass.compute)?);
        let ConvConfig { kernel_size, groups, activation } = self.config;
        let mut input = embeddings.f_to_kind(pass.compute)?;
        if let Some(rows) = &rows {
            input = rows.unpacked(&input)?.f_masked_fill(&rows.is_empty().f_unsqueeze(2)?, 0.0)?;
        }
        let input = input.f_transpose(1, 2)?;
        let found = input.f_conv1d(&weight, Some(&bias), [1], [kernel_size / 2], [1], groups)?.f_transpose(1, 2)?;
        let found = rows.as_ref().map(|rows| rows.packed(&found)).transpose()?.unwrap_or(found);
        let found = activate(activation, &pass.drop_out(&masked(found)?)?)?;
        Ok(masked(self.norm.forward(&output.f_add(&found)?.f_contiguous()?)?)?)
    }
}

/// From the first token, or from every token, to the logits.
pub struct Head {
    /// Absent where every token has a label.
    pooler: Option<Linear>,
    activation: Activation,
    classifier: Linear,
    pooler_dropout: f64,
    dropout: f64,
}

impl Head {
    pub fn new(config: &DebertaConfig, weights: &Weights, pooler_dropout: f64, dropout: f64) -> Self {
        Self {
            pooler: (!config.labels_tokens).then(|| Linear::new(weights, "pooler.dense")),
            activation: config.pooler_hidden_act,
            classifier: Linear::new(weights, "classifier"),
            pooler_dropout,
            dropout,
        }
    }

    pub fn forward(&self, hidden: &Tensor, packed: Option<Packed<'_>>, pass: Pass) -> Result<Tensor, TrainerError> {
        let Some(pooler) = &self.pooler else {
            let dropped = pass.through(packed).dropping(self.dropout).drop_out(hidden)?;
            return self.classifier.forward(&dropped, pass);
        };
        let first = match packed {
            Some(packed) => hidden.f_squeeze_dim(0)?.f_index_select(0, &packed.starts()?)?,
            None => hidden.f_select(1, 0)?,
        };
        let first = pass.dropping(self.pooler_dropout).drop_out(&first)?;
        let pooled = activate(self.activation, &pooler.forward(&first, pass)?)?;
        self.classifier.forward(&pass.dropping(self.dropout).drop_out(&pooled)?, pass)
    }
}
