//! What the passes of a training step hold: the tensors of the trainer's `model/t5` on a card.

use super::T5Config;
use crate::memory::{Stage, Work};
use crate::recomputed::recomputed;
use crate::word_loss::WordLoss;

/// As in the trainer.
const LOGITS_AT_A_TIME: u64 = 1 << 25;

/// In the order of the forward pass.
pub fn stages(config: &T5Config, work: &Work) -> Vec<Stage> {
    let sizes = Sizes::new(config, work);
    let encoder = Stack { name: "encoder", length: work.source, layers: config.num_layers, is_decoder: false };
    let decoder = Stack { name: "decoder", length: work.target, layers: config.num_decoder_layers, is_decoder: true };
    let (mut encoder, mut decoder) = (sizes.stack(&encoder), sizes.stack(&decoder));
    let loss = WordLoss {
        tokens: work.batch * work.target,
        width: sizes.width,
        vocab: sizes.vocab,
        at_a_time: LOGITS_AT_A_TIME,
    };
    // Both embeddings, and a tied head, share a gradient. It waits for the encoder's, beside that of the passes before.
    let waiting = sizes.beside(sizes.shared());
    encoder.iter_mut().for_each(|stage| stage.backward += waiting);
    if config.tie_word_embeddings {
        decoder.iter_mut().for_each(|stage| stage.backward += waiting);
    }
    encoder.into_iter().chain(decoder).chain(loss.stages(work)).collect()
}

struct Stack {
    name: &'static str,
    length: u64,
    layers: i64,
    is_decoder: bool,
}

/// Bytes, where nothing else is said.
struct Sizes<'a> {
    config: &'a T5Config,
    work: &'a Work,
    /// Numbers: of hidden states, of all heads together, of the middle of a feed-forward layer.
    width: u64,
    inner: u64,
    feed: u64,
    heads: u64,
    vocab: u64,
    /// Of a number that is added up along the layers, and of one that is computed with.
    weight: u64,
    compute: u64,
}

impl<'a> Sizes<'a> {
    fn new(config: &'a T5Config, work: &'a Work) -> Self {
        Self {
            config,
            work,
            width: config.d_model as u64,
            inner: config.inner() as u64,
            feed: config.d_ff as u64,
            heads: config.num_heads as u64,
            vocab: config.vocab_size as u64,
            weight: work.weight(),
            compute: work.compute(),
        }
    }

    /// Hidden states, as they are added up along the layers.
    fn hidden(&self, tokens: u64) -> u64 {
        tokens * self.width * self.weight
    }

    /// Hidden states, as products take and give them.
    fn narrow(&self, tokens: u64) -> u64 {
        tokens * self.width * self.compute
    }

    /// Queries, keys, values, or what attention makes of them.
    fn projected(&self, tokens: u64) -> u64 {
        tokens * self.inner * self.compute
    }

    /// The bias of self-attention, or its gradient.
    fn scores(&self, length: u64) -> u64 {
        self.work.batch * self.heads * length * length * self.compute
    }

    /// The embeddings.
    fn shared(&self) -> u64 {
        self.vocab * self.width * self.weight
    }

    /// Where a narrow copy is made of so many weights for a moment.
    fn narrow_copy(&self, weights: u64) -> u64 {
        if self.work.mixed() { weights * self.compute } else { 0 }
    }

    /// New gradients, where those of the passes before are there already.
    fn beside(&self, gradients: u64) -> u64 {
        if self.work.accum > 1 { gradients } else { 0 }
    }

    fn stack(&self, stack: &Stack) -> Vec<Stage> {
        let Stack { name, length, layers, is_decoder } = *stack;
        let tokens = self.work.batch * length;
        let source = self.work.batch * self.work.source;
        let mut stages = vec![self.embedding(name, tokens, is_decoder), self.bias(name, length)];
        for layer in 0..layers {
            stages.extend(self.block(stack, layer));
        }
        let output = if is_decoder { 0 } else { self.narrow(tokens) };
        stages.push(self.final_norm(name, tokens, output));
        if is_decoder {
            // The encoder's output as it was before it was made narrow.
            let wide = if self.work.mixed() { self.hidden(source) } else { 0 };
            stages.iter_mut().for_each(|stage| stage.forward += wide);
            // Its gradient, which the encoder takes when all of the decoder has added to it.
            stages.iter_mut().take(2).for_each(|stage| stage.backward += self.narrow(source));
        }
        stages
    }

    fn embedding(&self, name: &str, tokens: u64, is_decoder: bool) -> Stage {
        let hidden = self.hidden(tokens);
        // Of the decoder are the tokens themselves, the labels one to the right.
        let kept = if is_decoder { tokens * 8 } else { 0 };
        // The first gradient stays, those that come later are added to it.
        let is_first = is_decoder && !self.config.tie_word_embeddings;
        let (gradients, added) = if is_first { (self.shared(), 0) } else { (0, self.shared()) };
        let name = format!("{name} embeddings");
        Stage { name, kept, forward: kept + 2 * hidden, backward: kept + hidden + added, gradients, logits: 0 }
    }

    fn bias(&self, name: &str, length: u64) -> Stage {
        let whole = self.scores(length);
        let (square, buckets) = (length * length, self.config.relative_attention_num_buckets as u64);
        // The bucket of each distance.
        let kept = square * 8 + whole;
        let values = square * self.heads * (self.weight + self.compute);
        Stage {
            name: format!("{name} bias"),
            kept,
            // Five steps of the way from distances to buckets at a time; the values, and with them and the mask twice the whole.
            forward: (5 * square * 8).max(square * 8 + values + 2 * whole),
            backward: kept + values,
            gradients: buckets * self.heads * self.weight,
            logits: 0,
        }
    }

    /// As one stage with checkpointing, as one for each of its layers without.
    fn block(&self, stack: &Stack, number: i64) -> Vec<Stage> {
        let Stack { name, length, layers, is_decoder } = *stack;
        let (batch, checkpointing) = (self.work.batch, self.work.checkpointing);
        let (tokens, source) = (batch * length, batch * self.work.source);
        let path = |part: &str| format!("{name} layer {number}{part}");
        let mut inside = vec![self.attention(path(" attention"), length, length, self.scores(length))];
        if is_decoder {
            inside.push(self.attention(path(" attention to the source"), length, self.work.source, 0));
        }
        inside.push(self.feed_forward(path(" feed-forward"), tokens));

        // What later layers have added up: the gradients of the bias and of the encoder's output.
        let is_last = number + 1 == layers;
        let memory = if is_decoder { self.narrow(source) } else { 0 };
        let waiting = if is_last { 0 } else { self.scores(length) + memory };
        inside.iter_mut().for_each(|stage| stage.backward += waiting);
        // The block's own part of the latter, which is added to the rest when the block or the layer is done.
        if is_last || checkpointing {
            inside[0].backward += memory;
        }
        match checkpointing {
            true => vec![recomputed(path(""), &inside, self.hidden(tokens), self.work)],
            false => inside,
        }
    }

    /// What a layer keeps of its input: itself, its norm and their ratio.
    fn normed(&self, tokens: u64) -> u64 {
        self.hidden(tokens) + self.narrow(tokens) + tokens * 4
    }

    /// `gradient` is that of its bias.
    fn attention(&self, name: String, queries: u64, keys: u64, gradient: u64) -> Stage {
        let batch = self.work.batch;
        let (rows, tokens, others) = (batch * self.heads, batch * queries, batch * keys);
        let log_sums = rows * queries.next_multiple_of(32) * 4;
        let kept = self.normed(tokens) + 2 * self.projected(tokens) + 2 * self.projected(others) + log_sums;
        let weights = self.width * self.inner;
        let output = self.narrow(tokens) + self.hidden(tokens).max(self.narrow_copy(weights));
        // The fused kernel adds up the gradient of queries in fp32, and takes a number of each row.
        let summed = if self.compute < 4 { tokens * self.inner * 4 } else { 0 } + rows * queries * 4;
        let given = self.hidden(tokens) + self.projected(tokens);
        let made = self.projected(tokens) + 2 * self.projected(others) + summed + gradient;
        // The gradients of three projections come later, and with them those of queries and norm.
        let to_come = if self.work.accum > 1 { 0 } else { 3 * weights * self.weight };
        let after = self.normed(tokens)
            + self.hidden(tokens)
            + self.projected(tokens)
            + 2 * self.narrow(tokens)
            + self.beside(weights * self.weight);
        Stage {
            name,
            kept,
            forward: kept + output,
            backward: (kept + given + made).saturating_sub(to_come).max(after),
            gradients: (4 * weights + self.width) * self.weight,
            logits: 0,
        }
    }

    fn feed_forward(&self, name: String, tokens: u64) -> Stage {
        let inputs = if self.config.feed_forward.gated { 2 } else { 1 };
        let inner = tokens * self.feed * self.compute;
        let weights = self.width * self.feed;
        let kept = self.normed(tokens) + inputs * inner;
        let inside = inner + self.narrow_copy(weights);
        let given = self.hidden(tokens) + self.dropped(tokens);
        let made = inputs * inner + self.narrow(tokens) + self.narrow_copy(weights);
        let gradients = ((inputs + 1) * weights + self.width) * self.weight;
        Stage {
            name,
            kept,
            forward: kept + self.narrow(tokens) + inside.max(self.hidden(tokens)),
            backward: kept + given + made + self.beside(gradients),
            gradients,
            logits: 0,
        }
    }

    /// The gradient of what a layer gave, where it is not that of the sum.
    fn dropped(&self, tokens: u64) -> u64 {
        if self.work.drops || self.work.mixed() { self.narrow(tokens) } else { 0 }
    }

    /// `output` is kept by those who take it.
    fn final_norm(&self, name: &str, tokens: u64, output: u64) -> Stage {
        let hidden = self.hidden(tokens);
        let kept = hidden + tokens * 4 + output;
        Stage {
            name: format!("{name} norm"),
            kept,
            forward: kept + 2 * hidden,
            backward: kept + 3 * hidden,
            gradients: self.width * self.weight,
            logits: 0,
        }
    }
}
