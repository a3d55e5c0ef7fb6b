//! The memory of the passes of a training step: the tensors of the trainer's `model/t5` on a card.

use super::T5Config;
use crate::estimate::{Attention, Bias, Stage, StepMemory, Way, WordLoss, Work, recomputed};

/// The layers as `Architecture::adapts` counts them.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const O: usize = 3;
const WI: usize = 4;
const WI_0: usize = 5;
const WI_1: usize = 6;
const WO: usize = 7;

impl StepMemory for T5Config {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let sizes = Sizes::new(self, work);
        let encoder = Stack { name: "encoder", length: work.source, layers: self.num_layers, is_decoder: false };
        let decoder = Stack { name: "decoder", length: work.target, layers: self.num_decoder_layers, is_decoder: true };
        let (mut encoder, mut decoder) = (sizes.stack(&encoder), sizes.stack(&decoder));
        let loss = WordLoss {
            tokens: work.batch * work.target,
            width: sizes.width,
            vocab: sizes.vocab,
            rows: self.loss_rows() as u128,
            trains_head: work.adapter.is_none(),
        };
        // Both embeddings, and a tied head, share a gradient. It waits for the encoder's, beside that of the passes before.
        let waiting = work.beside(sizes.shared());
        encoder.iter_mut().for_each(|stage| stage.backward += waiting);
        if self.tie_word_embeddings {
            decoder.iter_mut().for_each(|stage| stage.backward += waiting);
        }
        encoder.into_iter().chain(decoder).chain(loss.stages(work)).collect()
    }

    fn uncounted_when_deterministic(&self) -> Option<&'static str> {
        Some("deterministic: T5 then keeps all of its attention weights, which are not counted here")
    }
}

struct Stack {
    name: &'static str,
    length: u128,
    layers: i64,
    is_decoder: bool,
}

impl Sizes<'_> {
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

    fn embedding(&self, name: &str, tokens: u128, is_decoder: bool) -> Stage {
        let hidden = self.hidden(tokens);
        // The decoder keeps its tokens: the labels shifted to the right.
        let kept = if is_decoder { self.work.own(tokens * 8) } else { 0 };
        // The first gradient stays, those that come later are added to it.
        let is_first = is_decoder && !self.config.tie_word_embeddings;
        let shared = self.shared();
        let (gradients, added) = if is_first { (shared, self.work.beside(shared)) } else { (0, shared) };
        let name = format!("{name} embeddings");
        Stage { name, kept, forward: kept + 2 * hidden, backward: kept + hidden + added, gradients, logits: 0 }
    }

    fn attends(&self, queries: u128, keys: u128, bias: Bias) -> Attention<'_> {
        let Self { work, heads, .. } = *self;
        Attention { work, heads, width: self.inner / heads, queries, keys, drops: work.drops, bias }
    }

    /// The gradient of the bias of self-attention, as it is held all the while. A frozen bias has none, but of what a kernel makes for a moment.
    fn held_bias(&self, length: u128) -> u128 {
        match self.attends(length, length, Bias::ByDistance).way() {
            Way::Kernel => 2 * length * self.heads * 4,
            Way::Torch | Way::Chunks => self.work.own(self.scores(length)),
        }
    }

    fn bias(&self, name: &str, length: u128) -> Stage {
        if self.attends(length, length, Bias::ByDistance).way() == Way::Kernel {
            return self.bias_by_distance(name, length);
        }
        let whole = self.scores(length);
        let (square, buckets) = (length * length, self.config.relative_attention_num_buckets as u128);
        // The bucket of each distance.
        let kept = square * 8 + whole;
        let values = square * self.heads * (self.weight + self.compute);
        Stage {
            name: format!("{name} bias"),
            kept,
            // Five steps of the way from distances to buckets at a time; the values, and with them and the mask twice the whole.
            forward: (5 * square * 8).max(square * 8 + values + 2 * whole),
            backward: kept + values,
            gradients: self.work.own(buckets * self.heads * self.weight),
            logits: 0,
        }
    }

    /// The bucket and the values of each distance.
    fn bias_by_distance(&self, name: &str, length: u128) -> Stage {
        let (distances, buckets) = (2 * length, self.config.relative_attention_num_buckets as u128);
        let values = distances * self.heads * self.weight;
        Stage {
            name: format!("{name} bias"),
            kept: distances * 8 + values,
            forward: 5 * distances * 8 + values,
            backward: distances * 8 + 2 * values,
            gradients: self.work.own(buckets * self.heads * self.weight),
            logits: 0,
        }
    }

    /// As one stage with checkpointing, as one for each of its layers without.
    fn block(&self, stack: &Stack, number: i64) -> Vec<Stage> {
        let Stack { name, length, layers, is_decoder } = *stack;
        let (batch, checkpointing) = (self.work.batch, self.work.checkpointing);
        let (tokens, source) = (batch * length, batch * self.work.source);
        let path = |part: &str| format!("{name} layer {number}{part}");
        let mut inside = vec![self.attention(path(" attention"), length, length, Bias::ByDistance)];
        if is_decoder {
            inside.push(self.attention(path(" attention to the source"), length, self.work.source, Bias::None));
        }
        inside.push(self.feed_forward(path(" feed-forward"), tokens));

        // Later layers have added up the gradients of the bias and of the encoder's output.
        let is_last = number + 1 == layers;
        let memory = if is_decoder { self.narrow(source) } else { 0 };
        let waiting = if is_last { 0 } else { self.held_bias(length) + memory };
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

    fn attention(&self, name: String, queries: u128, keys: u128, bias: Bias) -> Stage {
        let batch = self.work.batch;
        let (tokens, others) = (batch * queries, batch * keys);
        let attention = self.attends(queries, keys, bias);
        let work = self.work;
        let adapted: u128 =
            [(Q, tokens, self.width), (K, others, self.width), (V, others, self.width), (O, tokens, self.inner)]
                .map(|(layer, rows, inputs)| work.adapter_keeps(layer, rows, inputs))
                .iter()
                .sum();
        let of_input: &[usize] = if bias == Bias::None { &[Q] } else { &[Q, K, V] };
        let projected = 2 * self.projected(tokens) + 2 * self.projected(others);
        let kept = self.normed(tokens, of_input) + projected + attention.kept() + adapted;
        let weights = self.width * self.inner;
        let wide = work.made_wide(weights);
        let output = self.narrow(tokens) + self.hidden(tokens).max(work.narrow_copy(weights)) + wide;
        let given = self.hidden(tokens) + self.projected(tokens);
        let gradient = if bias == Bias::None { 0 } else { self.held_bias(queries) };
        let made = self.projected(tokens) + 2 * self.projected(others) + attention.backward() + gradient;
        // The gradients of three projections come later, and with them those of queries and norm.
        let three: u128 = [Q, K, V].map(|layer| work.trained(layer, self.width, self.inner)).iter().sum();
        let to_come = if work.accum > 1 { 0 } else { three * self.weight };
        let after = self.normed(tokens, of_input)
            + self.hidden(tokens)
            + self.projected(tokens)
            + 2 * self.narrow(tokens)
            + work.beside(three / 3 * self.weight)
            + wide;
        Stage {
            name,
            kept,
            forward: kept + output.max(attention.forward()),
            backward: (kept + given + made).saturating_sub(to_come).max(after),
            gradients: (three + work.trained(O, self.inner, self.width) + work.own(self.width)) * self.weight,
            logits: 0,
        }
    }

    fn feed_forward(&self, name: String, tokens: u128) -> Stage {
        if self.work.adapter.is_some() {
            return self.adapted_feed_forward(name, tokens);
        }
        let inputs = if self.config.feed_forward.gated { 2 } else { 1 };
        let inner = tokens * self.feed * self.compute;
        let weights = self.width * self.feed;
        let kept = self.normed(tokens, &[]) + inputs * inner;
        let inside = inner + self.work.narrow_copy(weights);
        let given = self.hidden(tokens) + self.dropped(tokens);
        // The gradient of the activation alone: all else takes the memory of what was kept.
        let made = inner + self.narrow(tokens) + self.work.narrow_copy(weights);
        let gradients = ((inputs + 1) * weights + self.width) * self.weight;
        Stage {
            name,
            kept,
            forward: kept + self.narrow(tokens) + inside.max(self.hidden(tokens)),
            backward: kept + given + made + self.work.beside(gradients),
            gradients,
            logits: 0,
        }
    }

    /// The same beside an adapter: the activation is an operation of its own, and what goes into either product may be kept.
    fn adapted_feed_forward(&self, name: String, tokens: u128) -> Stage {
        let (work, width, feed) = (self.work, self.width, self.feed);
        let gated = self.config.feed_forward.gated;
        let inner = tokens * feed * self.compute;
        let firsts: &[usize] = if gated { &[WI_0, WI_1] } else { &[WI] };
        let adapted = firsts.iter().map(|layer| work.adapter_keeps(*layer, tokens, width)).sum::<u128>()
            + work.adapter_keeps(WO, tokens, feed);
        // The input of the activation is kept, and with some of it dropped its output, where the adapter does not drop some itself.
        let product = if work.keeps_input(&[WO]) && (gated || work.drops) { inner } else { 0 };
        let activated = if gated { 2 * inner } else { inner };
        let kept = self.normed(tokens, firsts) + activated + product + adapted;
        let wide = work.made_wide(width * feed);
        let given = self.hidden(tokens) + self.dropped(tokens);
        let trained: u128 = firsts.iter().map(|layer| work.trained(*layer, width, feed)).sum();
        let gradients = (trained + work.trained(WO, feed, width)) * self.weight;
        // Going forward the output without dropout is still there. The gradient of a product comes in two parts, the second of which
        // a wide weight makes, and is their sum.
        let undropped = if work.drops { inner } else { 0 };
        Stage {
            name,
            kept,
            forward: kept + undropped + (2 * self.narrow(tokens)).max(self.narrow(tokens) + wide),
            backward: kept - product + given + (3 * inner).max(2 * inner + wide) + work.beside(gradients),
            gradients,
            logits: 0,
        }
    }

    /// `output` is kept by those who take it.
    fn final_norm(&self, name: &str, tokens: u128, output: u128) -> Stage {
        let hidden = self.hidden(tokens);
        let kept = hidden + tokens * 4 + output;
        Stage {
            name: format!("{name} norm"),
            kept,
            forward: kept + 2 * hidden,
            backward: kept + 3 * hidden,
            gradients: self.work.own(self.width * self.weight),
            logits: 0,
        }
    }
}

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
    /// Bytes of a number that is added up along the layers, and of one that is computed with.
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
        self.work.own(self.vocab * self.width * self.weight)
    }

    /// Bytes that a layer keeps of its input: itself, their ratio, and its norm where the products of it want it for their gradients.
    pub fn normed(&self, tokens: u128, products: &[usize]) -> u128 {
        let norm = if self.work.keeps_input(products) { self.narrow(tokens) } else { 0 };
        self.hidden(tokens) + norm + tokens * 4
    }

    /// The gradient of what a layer gave, where it is not that of the sum.
    pub fn dropped(&self, tokens: u128) -> u128 {
        if self.work.drops || self.work.mixed() { self.narrow(tokens) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::json;

    use super::*;

    const WORK: Work = Work {
        precision: Precision::Bf16Mixed,
        optimizer: OptimizerKind::Adamw,
        checkpointing: false,
        batch: 8,
        accum: 1,
        ranks: 1,
        sharded: false,
        source: 256,
        target: 64,
        padded: true,
        drops: true,
        adapter: None,
    };

    fn of(work: Work) -> Vec<Stage> {
        let config = json!({"d_model": 512, "num_layers": 3, "num_decoder_layers": 2});
        T5Config::read(config.as_object().unwrap()).unwrap().stages(&work)
    }

    fn kept(work: Work) -> u128 {
        of(work).iter().map(|stage| stage.kept).sum()
    }

    #[test]
    fn what_is_kept_grows_with_the_batch_alone_but_for_buckets_and_head() {
        // The bias by distance of 8 heads, in fp32.
        let fixed = 2 * (256 + 64) * (8 + 8 * 4) + 32128 * 512 * 2;
        assert_eq!(kept(Work { batch: 16, ..WORK }) - fixed, 2 * (kept(WORK) - fixed));
    }

    #[test]
    fn a_checkpointed_layer_keeps_its_input() {
        let stages = of(Work { checkpointing: true, ..WORK });
        let layer = stages.iter().find(|stage| stage.name == "encoder layer 1").unwrap();
        assert_eq!(layer.kept, 8 * 256 * 512 * 4);
        assert!(layer.backward > 5 * layer.kept);
    }

    #[test]
    fn there_are_never_more_logits_than_the_trainer_computes_at_a_time() {
        let logits = |batch| of(Work { batch, ..WORK }).iter().map(|stage| stage.logits).max().unwrap();
        assert!(logits(1) < logits(32));
        assert_eq!(logits(32), logits(512));
        assert!(logits(512) <= (1 << 25) * 10);
    }
}
