//! One token at a time through the decoder: the keys and values of the tokens before are kept, those of the source are
//! computed once. Without dropout; called without gradients.

use tch::{Kind, Tensor};

use super::T5;
use super::layers::{Attention, Block, Rows};
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::attention::{key_mask, padding_mask};
use crate::model::layers::Linear;
use crate::model::pass::Pass;

pub struct Decoder<'a> {
    model: &'a T5,
    layers: Vec<Layer<'a>>,
    /// [sources, 1, 1, source length]
    padding: Tensor,
    /// [1, heads, 1, max_length], of the last of `max_length` positions; its end is that of any position before.
    bias: Tensor,
    /// Tokens so far.
    length: i64,
}

impl<'a> Decoder<'a> {
    /// Reads the sources of `part`; up to `max_length` tokens can follow.
    pub fn begin(model: &'a T5, part: &Part, max_length: i64) -> Result<Self, TrainerError> {
        let pass = quiet(model);
        let padding = padding(part, pass)?;
        let key_mask = key_mask(part, pass.compute, model.config.d_kv)?;
        let rows = Rows::Each { padding: key_mask.as_ref() };
        let memory = model.encoder.forward(&model.embed(part.get("input_ids")?, pass)?, rows, None, pass)?;
        let stack = &model.decoder;
        let bias = stack.buckets.last_row(&stack.relative_attention_bias, max_length)?.f_to_kind(Kind::Float)?;
        let layers = stack.blocks.iter().map(|block| Layer::begin(block, &memory, pass)).collect::<Result<_, _>>()?;
        Ok(Self { model, layers, padding, bias, length: 0 })
    }

    pub fn sources(&self) -> i64 {
        self.padding.size()[0]
    }

    /// The token that every answer starts after, for each of `rows`.
    pub fn start(&self, rows: i64) -> Result<Tensor, TrainerError> {
        let token = self.model.config.decoder_start_token_id;
        Ok(Tensor::f_full([rows], token, (Kind::Int64, self.padding.device()))?)
    }

    pub fn end_token(&self) -> i64 {
        self.model.config.eos_token_id
    }

    /// The scores [rows, vocab_size] in fp32 of what follows `tokens` [rows]. Each source has as many rows as any other,
    /// one after the other.
    pub fn step(&mut self, tokens: &Tensor) -> Result<Tensor, TrainerError> {
        self.length += 1;
        let bias = self.bias.f_narrow(3, self.bias.size()[3] - self.length, self.length)?;
        let pass = quiet(self.model);
        let mut hidden = self.model.embed(&tokens.f_unsqueeze(1)?, pass)?;
        for layer in &mut self.layers {
            hidden = layer.step(&hidden, &bias, &self.padding, pass)?;
        }
        let mut hidden = self.model.decoder.final_layer_norm.forward(&hidden)?.f_squeeze_dim(1)?;
        if self.model.config.scale_decoder_outputs {
            hidden = hidden.f_mul_scalar((self.model.config.d_model as f64).powf(-0.5))?;
        }
        let head = &self.model.head;
        Ok(hidden.f_to_kind(head.kind())?.f_linear(head, None::<&Tensor>)?.f_to_kind(Kind::Float)?)
    }

    /// Goes on with row `rows[i]` in place of row `i`, which must be of the same source.
    pub fn reorder(&mut self, rows: &Tensor) -> Result<(), TrainerError> {
        for layer in &mut self.layers {
            if let Some(tokens) = &mut layer.tokens {
                tokens.keys = tokens.keys.f_index_select(0, rows)?;
                tokens.values = tokens.values.f_index_select(0, rows)?;
            }
        }
        Ok(())
    }
}

/// In the kind of the weights: nothing is saved here by computing in a narrower one. Those beside an adapter are narrow.
fn quiet(model: &T5) -> Pass {
    Pass::quiet(model.head.kind())
}

/// The mask that is added to the scores of attention to the source, [batch, 1, 1, length].
fn padding(part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
    match part.find("attention_mask") {
        Some(mask) => padding_mask(mask, pass.compute),
        None => {
            let ids = part.get("input_ids")?;
            let (batch, length) = ids.size2()?;
            Ok(Tensor::f_zeros([batch, 1, 1, length], (pass.compute, ids.device()))?)
        }
    }
}

/// A block with what it remembers.
struct Layer<'a> {
    block: &'a Block,
    /// Keys and values of the tokens so far, if there are any.
    tokens: Option<Remembered>,
    /// Keys and values of the source, in a decoder's block.
    memory: Option<(&'a Attention, Remembered)>,
}

/// Each [rows, heads, length, d_kv].
struct Remembered {
    keys: Tensor,
    values: Tensor,
}

impl<'a> Layer<'a> {
    fn begin(block: &'a Block, memory: &Tensor, pass: Pass) -> Result<Self, TrainerError> {
        let (sources, length, _) = memory.size3()?;
        let memory = match &block.cross_attention {
            Some(cross) => Some((cross, Remembered::new(cross, memory, [sources, length], pass)?)),
            None => None,
        };
        Ok(Self { block, tokens: None, memory })
    }

    /// `hidden` is [rows, 1, d_model].
    fn step(&mut self, hidden: &Tensor, bias: &Tensor, padding: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let rows = hidden.size()[0];
        let attention = &self.block.attention;
        let normed = attention.layer_norm.forward(hidden)?;
        let new = Remembered::new(attention, &normed, [rows, 1], pass)?;
        let tokens = match &self.tokens {
            Some(before) => before.followed_by(&new)?,
            None => new,
        };
        let query = heads(attention, &normed, &attention.q, [rows, 1], pass)?;
        let mut hidden = added(attention, hidden, &tokens.attend(&query, bias)?, pass)?;
        self.tokens = Some(tokens);
        if let Some((cross, memory)) = &self.memory {
            // All rows of a source ask the same memory: they stand where the positions of a sequence would.
            let sources = memory.keys.size()[0];
            let normed = cross.layer_norm.forward(&hidden)?;
            let query = heads(cross, &normed, &cross.q, [sources, rows / sources], pass)?;
            hidden = added(cross, &hidden, &memory.attend(&query, padding)?, pass)?;
        }
        self.block.feed_forward.forward(&hidden, pass)
    }
}

impl Remembered {
    fn new(attention: &Attention, input: &Tensor, shape: [i64; 2], pass: Pass) -> Result<Self, TrainerError> {
        Ok(Self {
            keys: heads(attention, input, &attention.k, shape, pass)?,
            values: heads(attention, input, &attention.v, shape, pass)?,
        })
    }

    fn followed_by(&self, new: &Self) -> Result<Self, TrainerError> {
        Ok(Self {
            keys: Tensor::f_cat(&[&self.keys, &new.keys], 2)?,
            values: Tensor::f_cat(&[&self.values, &new.values], 2)?,
        })
    }

    /// T5 does not scale the scores: its initialisation does.
    fn attend(&self, query: &Tensor, bias: &Tensor) -> Result<Tensor, TrainerError> {
        let scores = query.f_matmul(&self.keys.f_transpose(2, 3)?)?.f_to_kind(Kind::Float)?.f_add(bias)?;
        Ok(scores.f_softmax(-1, None)?.f_to_kind(self.values.kind())?.f_matmul(&self.values)?)
    }
}

/// `input` projected, as [rows, heads, length, d_kv].
fn heads(
    attention: &Attention,
    input: &Tensor,
    projection: &Linear,
    [rows, length]: [i64; 2],
    pass: Pass,
) -> Result<Tensor, TrainerError> {
    let projected = projection.forward(input, pass)?;
    Ok(projected.f_view([rows, length, attention.heads, attention.d_kv])?.f_transpose(1, 2)?)
}

/// `attended` with its heads merged, projected and added to what came in.
fn added(attention: &Attention, hidden: &Tensor, attended: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
    let inner = attention.heads * attention.d_kv;
    let merged = attended.f_transpose(1, 2)?.f_reshape([hidden.size()[0], 1, inner])?;
    Ok(hidden.f_add(&attention.o.forward(&merged, pass)?)?)
}
