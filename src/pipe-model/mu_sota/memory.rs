//! The memory of the passes of a training step: the tensors of the trainer's `model/mu_sota` on a card.

use super::MuSotaConfig;
use crate::estimate::{Stage, StepMemory, WordLoss, Work, column_sums, has_attention_kernel, recomputed};

impl StepMemory for MuSotaConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let sizes = Sizes::new(self, work);
        let loss = WordLoss {
            tokens: sizes.tokens,
            width: sizes.width,
            vocab: self.vocab_size as u128,
            rows: self.loss_rows() as u128,
            trains_head: true,
        };
        let mut stages = vec![sizes.embeddings(), sizes.projections()];
        for layer in 0..self.n_layers {
            stages.extend(sizes.layer(layer));
        }
        stages.push(sizes.final_norm());
        // The gradient of the head waits for that of the embeddings, beside that of the passes before.
        let waiting = work.beside(sizes.words());
        stages.iter_mut().for_each(|stage| stage.backward += waiting);
        stages.into_iter().chain(loss.stages(work)).collect()
    }
}

impl Sizes<'_> {
    fn embeddings(&self) -> Stage {
        let positions = self.config.max_seq_len as u128 * self.width * self.weight;
        Stage {
            name: "embeddings".to_owned(),
            forward: 2 * self.hidden(),
            // The gradient of the words is added to that of the head.
            backward: self.hidden() + self.words(),
            gradients: positions,
            ..Stage::default()
        }
    }

    fn projections(&self) -> Stage {
        let layers = self.config.n_layers as u128;
        let all = layers * self.projection();
        let (n, size) = (self.config.n_blocks as u128, self.config.block_dim as u128);
        Stage {
            name: "projections of blocks".to_owned(),
            kept: all,
            forward: self.hidden() + 2 * all,
            // Those of the layers, and together.
            backward: self.hidden() + 2 * all,
            gradients: layers * n * (4 * size * size + 3 * size) * self.weight,
            logits: 0,
        }
    }

    /// As one stage with checkpointing, as one for each of its parts without.
    fn layer(&self, number: i64) -> Vec<Stage> {
        let path = |part: &str| format!("layer {number}{part}");
        let MuSotaConfig { n_blocks, block_heads, cross_heads, n_layers, .. } = *self.config;
        let (width, weights) = (self.width, 4 * self.width * self.width + 4 * self.width);
        let mut inside = [
            self.attention(path(" block attention"), self.blocks_width, (n_blocks * block_heads) as u128, width),
            self.attention(path(" attention"), width, cross_heads as u128, weights),
            self.feed_forward(path(" feed-forward")),
        ];
        // The gradients of later layers' projections, and the input of a layer that is recomputed.
        let mut waiting = (n_layers - 1 - number) as u128 * self.projection();
        if self.work.checkpointing {
            waiting += self.hidden();
        }
        inside.iter_mut().for_each(|stage| stage.backward += waiting);
        if !self.work.checkpointing {
            return inside.to_vec();
        }
        // Names inside a layer live until its end, those of both attentions as well.
        let named = 4 * self.tokens * (self.blocks_width + width) * self.compute;
        let forward = inside[2].forward + named;
        vec![Stage { forward, ..recomputed(path(""), &inside, self.hidden(), self.work) }]
    }

    /// `width` is that of all heads together, `weights` how many parameters it has.
    fn attention(&self, name: String, width: u128, heads: u128, weights: u128) -> Stage {
        let projected = self.tokens * width * self.compute;
        let rows = self.tokens * heads;
        let kept = self.normed() + 4 * projected + rows * 4;
        // In kinds of 16 bits heads have room for the trainer's own kernel, with two numbers for each row, unless they are too wide:
        // flash attention adds up the gradient of queries in fp32, in heads of whole 32.
        let summed = match self.compute < 4 {
            true if has_attention_kernel((width / heads) as i64) => 2 * rows * 4,
            true => rows * ((width / heads).next_multiple_of(32) + 1) * 4,
            false => rows * 4,
        };
        // The gradients of the output, of queries, keys and values; then of these three apart and together.
        let inside = kept + 4 * projected + summed;
        let joined = self.normed() + 6 * projected;
        let biases = self.normed() + 3 * projected + self.narrow() + column_sums(self.tokens, 3 * width);
        Stage {
            name,
            kept,
            forward: kept + 2 * (self.hidden() + self.narrow()),
            backward: self.hidden() + inside.max(joined).max(biases),
            gradients: (weights + 2 * self.width) * self.weight,
            logits: 0,
        }
    }

    fn feed_forward(&self, name: String) -> Stage {
        let weights = self.width * self.feed;
        let narrow_weights = self.work.narrow_copy(2 * weights + self.feed);
        let rows = self.config.feed_forward_rows() as u128;
        let inner = rows.min(self.tokens) * self.feed * self.compute;
        let kept = self.normed() + narrow_weights;
        // Gradients of weights are added up in fp32 where there are several chunks.
        let summed = 2 * weights * if self.tokens > rows { 4 } else { self.compute };
        let first = if self.tokens > rows { summed } else { summed / 2 };
        // The input of the activation, its gradient and that of the output; then the first of them for the bias.
        let inside = (3 * inner + first).max(inner + summed + column_sums(rows.min(self.tokens), self.feed));
        let gradients = (2 * weights + self.feed + 3 * self.width) * self.weight;
        let given = self.hidden() + self.dropped();
        // The input of the layer and of this part of it, and what its attentions gave, live until the end of the layer.
        let named = 2 * (self.hidden() + self.narrow());
        Stage {
            name,
            kept,
            forward: kept + named + self.hidden() + self.narrow() + inner.max(self.hidden()),
            backward: (kept + given + self.narrow() + inside).saturating_sub(self.new_gradients(gradients)),
            gradients,
            logits: 0,
        }
    }

    fn final_norm(&self) -> Stage {
        let hidden = self.hidden();
        let kept = hidden + self.tokens * 4;
        Stage {
            name: "norm".to_owned(),
            kept,
            forward: kept + 2 * hidden,
            backward: kept + 2 * hidden,
            gradients: 2 * self.width * self.weight,
            logits: 0,
        }
    }
}

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
    /// Bytes of a number that is added up along the layers, and of one that is computed with.
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

    /// Bytes that a norm keeps: its input, normed and, where the trainer has a kernel for the width, before that as it is
    /// multiplied by its weights; and what each row was divided by.
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
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::Map;

    use super::*;

    fn largest(checkpointing: bool, batch: u128) -> u128 {
        let config = MuSotaConfig::read(&Map::new()).unwrap();
        let work = Work {
            precision: Precision::Fp16Mixed,
            optimizer: OptimizerKind::Adamw,
            checkpointing,
            batch,
            accum: 1,
            ranks: 1,
            sharded: false,
            source: 512,
            target: 0,
            padded: false,
            drops: false,
            adapter: None,
        };
        crate::estimate::peak(&config.stages(&work), 0, &work).bytes()
    }

    /// The inner width is 117 times the outer: kept whole, the middle of the feed-forward layers would be most.
    #[test]
    fn the_middle_of_feed_forward_layers_is_not_kept() {
        let middle = 24 * 32 * 512 * 7488 * 2;
        assert!(largest(false, 32) < middle / 3);
        assert!(largest(true, 32) < largest(false, 32) / 3);
    }
}
