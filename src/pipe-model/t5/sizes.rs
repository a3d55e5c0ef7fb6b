//! The tensors of T5 by size.

use super::T5Config;
use crate::memory::Work;

/// Bytes, where nothing else is said.
pub struct Sizes<'a> {
    pub config: &'a T5Config,
    pub work: &'a Work,
    /// Numbers: of hidden states, of all heads together, of the middle of a feed-forward layer.
    pub width: u128,
    pub inner: u128,
    pub feed: u128,
    pub heads: u128,
    pub vocab: u128,
    /// Of a number that is added up along the layers, and of one that is computed with.
    pub weight: u128,
    pub compute: u128,
}

impl<'a> Sizes<'a> {
    pub fn new(config: &'a T5Config, work: &'a Work) -> Self {
        Self {
            config,
            work,
            width: config.d_model as u128,
            inner: config.inner() as u128,
            feed: config.d_ff as u128,
            heads: config.num_heads as u128,
            vocab: config.vocab_size as u128,
            weight: work.weight(),
            compute: work.compute(),
        }
    }

    /// Hidden states, as they are added up along the layers.
    pub fn hidden(&self, tokens: u128) -> u128 {
        tokens * self.width * self.weight
    }

    /// Hidden states, as products take and give them.
    pub fn narrow(&self, tokens: u128) -> u128 {
        tokens * self.width * self.compute
    }

    /// Queries, keys, values, or what attention makes of them.
    pub fn projected(&self, tokens: u128) -> u128 {
        tokens * self.inner * self.compute
    }

    /// The bias of self-attention, or its gradient.
    pub fn scores(&self, length: u128) -> u128 {
        self.work.batch * self.heads * length * length * self.compute
    }

    /// The embeddings.
    pub fn shared(&self) -> u128 {
        self.vocab * self.width * self.weight
    }

    /// Where a narrow copy is made of so many weights for a moment.
    pub fn narrow_copy(&self, weights: u128) -> u128 {
        if self.work.mixed() { weights * self.compute } else { 0 }
    }

    /// New gradients, where those of the passes before are there already.
    pub fn beside(&self, gradients: u128) -> u128 {
        if self.work.accum > 1 { gradients } else { 0 }
    }

    /// What a layer keeps of its input: itself, its norm and their ratio.
    pub fn normed(&self, tokens: u128) -> u128 {
        self.hidden(tokens) + self.narrow(tokens) + tokens * 4
    }

    /// The gradient of what a layer gave, where it is not that of the sum.
    pub fn dropped(&self, tokens: u128) -> u128 {
        if self.work.drops || self.work.mixed() { self.narrow(tokens) } else { 0 }
    }
}
