//! The memory of the passes of a training step: the tensors of the trainer's `model/llama` on a card, with an adapter or without.

use super::LlamaConfig;
use crate::estimate::{Attention, Bias, Stage, StepMemory, Way, WordLoss, Work, embedding_sums, recomputed};

/// The layers as `LLAMA.adapts` counts them.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const O: usize = 3;
const GATE: usize = 4;
const UP: usize = 5;
const DOWN: usize = 6;

impl StepMemory for LlamaConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let sizes = Sizes::new(self, work);
        let loss = WordLoss {
            tokens: sizes.tokens,
            width: sizes.width,
            vocab: self.vocab_size as u128,
            rows: self.loss_rows() as u128,
            trains_head: work.adapter.is_none(),
        };
        let mut stages = vec![sizes.embeddings()];
        for number in 0..self.num_hidden_layers {
            stages.extend(sizes.layer(number as usize));
        }
        stages.push(sizes.final_norm());
        if self.tie_word_embeddings {
            // The gradient of the head waits for that of the embeddings, beside that of the passes before.
            let waiting = work.beside(sizes.words());
            stages.iter_mut().for_each(|stage| stage.backward += waiting);
        }
        stages.into_iter().chain(loss.stages(work)).collect()
    }
}

/// Bytes, where nothing else is said.
struct Sizes<'a> {
    config: &'a LlamaConfig,
    work: &'a Work,
    tokens: u128,
    /// Numbers: of hidden states, of the heads of queries and of those of keys together, of the middle of a feed-forward part.
    width: u128,
    queries: u128,
    keys: u128,
    feed: u128,
    /// Bytes of a number that is added up along the layers, and of one that is computed with.
    weight: u128,
    compute: u128,
}

impl<'a> Sizes<'a> {
    fn new(config: &'a LlamaConfig, work: &'a Work) -> Self {
        let heads = config.heads;
        Self {
            config,
            work,
            tokens: work.batch * work.source,
            width: config.hidden_size as u128,
            queries: (heads.queries * heads.width) as u128,
            keys: (heads.keys * heads.width) as u128,
            feed: config.intermediate_size as u128,
            weight: work.weight(),
            compute: work.compute(),
        }
    }

    /// Hidden states, as they are added up along the layers.
    fn hidden(&self) -> u128 {
        self.tokens * self.width * self.weight
    }

    /// So many numbers of each token, as products take and give them.
    fn narrow(&self, width: u128) -> u128 {
        self.tokens * width * self.compute
    }

    /// The bytes that a norm keeps: its input, what it gives and a number for each token.
    fn normed(&self) -> u128 {
        self.hidden() + self.narrow(self.width) + self.tokens * 4
    }

    fn words(&self) -> u128 {
        self.work.own(self.config.vocab_size as u128 * self.width * self.weight)
    }

    fn embeddings(&self) -> Stage {
        let words = self.words();
        let (gradients, added) =
            if self.config.tie_word_embeddings { (0, words) } else { (words, self.work.beside(words)) };
        let turns = 2 * self.work.source.max(self.tokens) * self.config.heads.width as u128 * self.compute;
        let sums = if words > 0 { embedding_sums(self.tokens, self.config.vocab_size as u128, self.width) } else { 0 };
        Stage {
            name: "embeddings".to_owned(),
            kept: turns,
            forward: 2 * turns + self.hidden(),
            backward: turns + self.hidden() + added + sums,
            gradients,
            logits: 0,
        }
    }

    /// As one stage with checkpointing, as two without.
    fn layer(&self, number: usize) -> Vec<Stage> {
        let inside = vec![self.attention(number), self.feed_forward(number)];
        match self.work.checkpointing {
            true => vec![recomputed(format!("layer {number}"), &inside, self.hidden(), self.work)],
            false => inside,
        }
    }

    fn attention(&self, number: usize) -> Stage {
        let Self { width, queries, keys, .. } = *self;
        let (heads, work) = (self.config.heads, self.work);
        let [of_queries, of_keys] = [queries, keys].map(|size| self.narrow(size));
        let length = work.source;
        let window = self.config.windows[number].filter(|window| u128::from(window.unsigned_abs()) < length);
        let bias = if window.is_some() { Bias::ByPair } else { Bias::None };
        let [head_count, head] = [heads.queries, heads.width].map(|size| size as u128);
        let drops = work.drops;
        let attention = Attention { work, heads: head_count, width: head, queries: length, keys: length, drops, bias };
        let is_kernel = attention.way() == Way::Kernel;
        // Without a kernel each head of queries has keys and values of its own.
        let each = if is_kernel || heads.queries == heads.keys { of_keys } else { of_queries };
        let mask = if window.is_some() { length * length * self.compute } else { 0 };
        // Queries and keys before they are normed, head by head, and a number for each head of each token.
        let unnormed = match self.config.head_norms() {
            true => of_queries + of_keys + self.tokens * (heads.queries + heads.keys) as u128 * 4,
            false => 0,
        };
        let adapted: u128 = [(Q, width), (K, width), (V, width), (O, queries)]
            .map(|(layer, inputs)| work.adapter_keeps(layer, self.tokens, inputs))
            .into_iter()
            .sum();
        let kept = self.normed() + 2 * of_queries + 2 * each + attention.kept() + unnormed + mask + adapted;
        let output = self.narrow(width) + self.hidden().max(work.narrow_copy(width * queries));
        // The gradients of the output, of queries, and of keys and values for each head of queries.
        let wide = if heads.queries == heads.keys { 2 * of_keys } else { 2 * of_queries + of_keys };
        let product = work.made_wide(width * queries);
        let made = 2 * of_queries + wide + attention.backward();
        let given = self.hidden() + if work.mixed() { self.narrow(width) } else { 0 };
        let projections = work.trained(Q, width, queries) + work.trained(K, width, keys) + work.trained(V, width, keys);
        // Where later passes find gradients there already, none is still to come.
        let to_come = if work.accum > 1 { 0 } else { projections * self.weight };
        // The gradients of the input of each of them, added up.
        let after = self.normed() + self.hidden() + of_queries + 2 * of_keys + 2 * self.narrow(width);
        Stage {
            name: format!("attention of layer {number}"),
            kept,
            forward: kept + (of_queries + of_keys + product).max(output + product).max(attention.forward()),
            backward: (kept + given + made)
                .saturating_sub(to_come)
                .max(after + product + self.work.beside(projections * self.weight)),
            gradients: (projections + work.trained(O, queries, width) + work.own(width)) * self.weight,
            logits: 0,
        }
    }

    fn feed_forward(&self, number: usize) -> Stage {
        let Self { work, tokens, width, feed, .. } = *self;
        let inner = self.narrow(feed);
        let trained = work.trained(GATE, width, feed) + work.trained(UP, width, feed) + work.trained(DOWN, feed, width);
        let is_adapted = work.is_any_adapted(&[GATE, UP, DOWN]);
        let adapted: u128 = [(GATE, width), (UP, width), (DOWN, feed)]
            .map(|(layer, inputs)| work.adapter_keeps(layer, tokens, inputs))
            .into_iter()
            .sum();
        // The input of the last product is kept for the gradient of its adapter alone, or dropped and counted above.
        let product = if is_adapted && work.keeps_input(&[DOWN]) { inner } else { 0 };
        let kept = self.normed() + 2 * inner + product + adapted;
        let given = self.hidden() + if work.mixed() { self.narrow(width) } else { 0 };
        // The gradient of the activation, which takes the memory of what was kept; beside an adapter it comes in two parts.
        let wide = work.made_wide(width * feed);
        let made =
            if is_adapted { 2 * inner + wide } else { inner + self.narrow(width) + work.narrow_copy(width * feed) };
        let gradients = (trained + work.own(width)) * self.weight;
        let after = self.narrow(width) + self.hidden().max(inner + work.narrow_copy(width * feed));
        Stage {
            name: format!("feed-forward part of layer {number}"),
            kept,
            forward: kept + after + wide,
            backward: kept + given + made + work.beside(gradients),
            gradients,
            logits: 0,
        }
    }

    fn final_norm(&self) -> Stage {
        let hidden = self.hidden();
        let kept = hidden + self.tokens * 4;
        Stage {
            name: "final norm".to_owned(),
            kept,
            forward: kept + hidden + self.narrow(self.width),
            backward: kept + 2 * hidden,
            gradients: self.work.own(self.width * self.weight),
            logits: 0,
        }
    }
}
