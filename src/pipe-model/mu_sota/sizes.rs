//! The tensors of MU-SOTA by size.

use super::MuSotaConfig;
use crate::memory::Work;

/// Bytes, where nothing else is said.
pub struct Sizes<'a> {
    pub config: &'a MuSotaConfig,
    pub work: &'a Work,
    /// Numbers: tokens of a pass, width of hidden states, of all heads of the block attentions with their room, of the
    /// middle of a feed-forward layer.
    pub tokens: u128,
    pub width: u128,
    pub blocks_width: u128,
    pub feed: u128,
    /// Of a number that is added up along the layers, and of one that is computed with.
    pub weight: u128,
    pub compute: u128,
}

impl<'a> Sizes<'a> {
    pub fn new(config: &'a MuSotaConfig, work: &'a Work) -> Self {
        let compute = work.compute();
        let room = ((config.block_dim / config.block_heads) as u128).next_multiple_of(16 / compute);
        Self {
            config,
            work,
            tokens: work.batch * work.source,
            width: config.width() as u128,
            blocks_width: (config.n_blocks * config.block_heads) as u128 * room,
            feed: config.ffn_dim as u128,
            weight: work.weight(),
            compute,
        }
    }

    /// Hidden states, as they are added up along the layers.
    pub fn hidden(&self) -> u128 {
        self.tokens * self.width * self.weight
    }

    /// Hidden states, as products take and give them.
    pub fn narrow(&self) -> u128 {
        self.tokens * self.width * self.compute
    }

    /// The embeddings of words.
    pub fn words(&self) -> u128 {
        self.config.vocab_size as u128 * self.width * self.weight
    }

    /// The block-diagonal projections of a layer.
    pub fn projection(&self) -> u128 {
        4 * self.blocks_width * self.width * self.compute
    }

    /// What a norm keeps: what came in, normed and, where the trainer has a kernel for the width, before that as it is
    /// multiplied with its weights; and what each row was divided by.
    pub fn normed(&self) -> u128 {
        let has_kernel = self.width.is_multiple_of(8) && self.width <= 4096;
        let before = if has_kernel { self.narrow() } else { self.hidden() + self.tokens * 4 };
        self.narrow() + before + self.tokens * 4
    }

    /// The gradient of what a layer gave, where it is not that of the sum.
    pub fn dropped(&self) -> u128 {
        if self.work.drops || self.work.mixed() { self.narrow() } else { 0 }
    }

    /// New gradients, where they are counted apart.
    pub fn new_gradients(&self, gradients: u128) -> u128 {
        if self.work.accum > 1 { 0 } else { gradients }
    }

    /// New gradients, where those of the passes before are there already.
    pub fn beside(&self, gradients: u128) -> u128 {
        if self.work.accum > 1 { gradients } else { 0 }
    }
}
