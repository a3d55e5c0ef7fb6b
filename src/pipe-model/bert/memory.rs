//! The memory of the passes of a training step. DeBERTa shares the embeddings, the layers and the head.

use super::{BertConfig, Family};
use crate::estimate::{Attention, Bias, Stage, StepMemory, Work, bias_sums, column_sums, embedding_sums};

/// The layers as `Architecture::adapts` counts them, of DeBERTa too.
const QUERY: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
const DENSE: usize = 3;

impl StepMemory for BertConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let [width, inner, heads, words] =
            [self.hidden_size, self.intermediate_size, self.num_attention_heads, self.vocab_size]
                .map(|size| size as u128);
        let flow = Flow { work, width, inner, heads, bias: Bias::None, dense: DENSE };
        let rows = words + (self.max_position_embeddings + self.type_vocab_size) as u128;
        // RoBERTa looks up a position for each token by itself.
        let positions = match self.family {
            Family::Bert => work.source,
            Family::Roberta | Family::XlmRoberta => flow.tokens(),
        };
        let mut stages = vec![flow.embeddings(words, rows * width, positions * width * work.weight())];
        for number in 1..=self.num_hidden_layers as u128 {
            stages.extend(flow.layer(number, attention(&flow, number), flow.unrecorded(4 * flow.hidden())));
        }
        let labels = self.labels.count() as u128;
        stages.push(match self.labels_tokens {
            true => flow.token_head(labels),
            false => flow.head(self.family == Family::Bert || !work.drops, labels),
        });
        stages
    }
}

fn attention(flow: &Flow<'_>, number: u128) -> Stage {
    let held = [flow.attention_kept(), flow.attention_forward(), flow.attention_backward(0)];
    flow.stage(format!("the scores of layer {number}"), held, flow.attention_parameters())
}

/// The sizes of the tensors between layers.
#[derive(Clone, Copy)]
pub(crate) struct Flow<'a> {
    pub work: &'a Work,
    pub width: u128,
    pub inner: u128,
    pub heads: u128,
    pub bias: Bias,
    /// The number of dense layers in `Architecture::adapts`.
    pub dense: usize,
}

impl Flow<'_> {
    pub fn tokens(&self) -> u128 {
        self.work.batch * self.work.source
    }

    /// Bytes of one hidden state of each token.
    pub fn hidden(&self) -> u128 {
        self.tokens() * self.width * self.work.compute()
    }

    /// Bytes of what a norm keeps beside what it normed: a number for each token, in fp32.
    fn spreads(&self) -> u128 {
        self.tokens() * 4
    }

    /// Beside what the stages before it keep, with `parameters` of its own. Where earlier passes have left gradients, those of
    /// this pass are held beside them until they are added.
    pub fn stage(&self, name: String, [kept, forward, backward]: [u128; 3], parameters: u128) -> Stage {
        let gradients = parameters * self.work.weight();
        let backward = backward + self.work.beside(gradients);
        Stage { name, kept, forward: forward.max(kept), backward, gradients, logits: 0 }
    }

    /// The norm keeps what it normed. `words` are the rows of the largest table, `tables` how many numbers all of them have, and
    /// `more` is what else the forward pass holds.
    pub fn embeddings(&self, words: u128, tables: u128, more: u128) -> Stage {
        let embedded = self.tokens() * self.width * self.work.weight();
        // Frozen tables and norms have no gradients, for which something would be kept.
        let kept = self.work.own(embedded + self.spreads());
        // Words, their sum with the others, what the norm keeps and gives, and that with some of it dropped.
        let forward = (4 + u128::from(self.work.drops)) * embedded + self.spreads() + more;
        if self.work.adapter.is_some() {
            return self.stage("the embeddings".to_owned(), [kept, forward, 0], 0);
        }
        let partial = embedding_sums(self.tokens(), words, self.width);
        // The gradient of the words comes last, after that of the one type that all tokens have.
        let before = (3 * embedded + self.norm_sums()).max(embedded + column_sums(self.tokens(), self.width));
        let backward = (embedded + partial).max(before.saturating_sub(words * self.width * self.work.weight()));
        self.stage("the embeddings".to_owned(), [kept, forward, backward], tables + 2 * self.width)
    }

    fn attends(&self) -> Attention<'_> {
        let Self { work, heads, bias, .. } = *self;
        let length = work.source;
        Attention { work, heads, width: self.width / heads, queries: length, keys: length, drops: work.drops, bias }
    }

    /// Bytes that attention keeps: its input, queries, keys and values, its output and the sums of its weights.
    pub fn attention_kept(&self) -> u128 {
        let inputs = [QUERY, KEY, VALUE];
        let adapted: u128 = inputs.map(|layer| self.work.adapter_keeps(layer, self.tokens(), self.width)).iter().sum();
        let input = if self.work.keeps_input(&inputs) { self.hidden() } else { 0 };
        input + 4 * self.hidden() + self.attends().kept() + adapted
    }

    /// Bytes of the forward pass of attention while queries, keys and values are made: their weights in one piece too.
    pub fn attention_forward(&self) -> u128 {
        let adapters = self.attention_kept().saturating_sub(5 * self.hidden() + self.attends().kept());
        4 * self.hidden() + adapters + self.stacked().max(self.hidden() + self.attends().forward())
    }

    /// Bytes of the backward pass of attention. `more` is what it holds beside that until the gradients of queries, keys and
    /// values are there.
    pub fn attention_backward(&self, more: u128) -> u128 {
        // The gradients of the residual, of what it gave, of queries, keys and values; those of parameters come after them.
        let fused = self.attention_kept() + 5 * self.hidden() + self.attends().backward() + more;
        // The input and its gradient, the residual's, and those of queries, keys and values, apart and in one piece.
        let sums = self.work.own(column_sums(self.tokens(), 3 * self.width));
        let gradients = self.attention_parameters() * self.work.weight();
        fused.saturating_sub(gradients).max(9 * self.hidden() + self.stacked().max(sums))
    }

    /// The weights of queries, keys and values in one piece. Beside adapters each of them is a product of its own.
    fn stacked(&self) -> u128 {
        let all = 3 * self.width * self.width * self.work.compute();
        self.work.own(all) + self.work.made_wide(self.width * self.width)
    }

    pub fn attention_parameters(&self) -> u128 {
        [QUERY, KEY, VALUE].map(|layer| self.work.trained_linear(layer, self.width, self.width)).iter().sum()
    }

    /// The stages of a layer, or the one that it is where it is computed again. `unrecorded` is what its forward pass holds
    /// where nothing is kept.
    pub fn layer(&self, number: u128, attention: Stage, unrecorded: u128) -> Vec<Stage> {
        let stages = vec![attention, self.attention_output(number), self.feed_forward(number)];
        if !self.work.checkpointing {
            return stages;
        }
        vec![self.checkpointed(format!("layer {number}"), &stages, unrecorded)]
    }

    fn attention_output(&self, number: u128) -> Stage {
        let (work, hidden) = (self.work, self.hidden());
        let adapted = work.adapter_keeps(self.dense, self.tokens(), self.width);
        let kept = hidden + self.spreads() + adapted;
        let weights = work.narrow_copy(self.width * self.width) + work.made_wide(self.width * self.width);
        let forward = (hidden + weights).max(2 * hidden + kept);
        // The gradients of what it gave, of the residual and of the product; beside an adapter that of its input comes in two parts.
        let product = if work.adapter.is_some() { 4 * hidden + adapted + weights } else { 0 };
        let backward = (kept + 3 * hidden + self.norm_sums()).max(product);
        let parameters = work.trained_linear(self.dense, self.width, self.width) + work.own(2 * self.width);
        self.stage(format!("the attention of layer {number}"), [kept, forward, backward], parameters)
    }

    fn feed_forward(&self, number: u128) -> Stage {
        if self.work.adapter.is_some() {
            return self.adapted_feed_forward(number);
        }
        let hidden = self.hidden();
        let inner = self.tokens() * self.inner * self.work.compute();
        let weights = self.work.narrow_copy(self.width * self.inner);
        let kept = 2 * hidden + inner + self.spreads();
        // The output of attention is still there, and the input and output of the activation.
        let forward = (3 * hidden + 2 * inner + weights).max(2 * hidden + kept);
        // The gradients of the residual and, if some of it was dropped, of the product are no longer the same.
        let given = (1 + u128::from(self.work.drops)) * hidden;
        let made = inner + bias_sums(self.tokens(), self.inner).max(weights);
        let backward = hidden + inner + given + made;
        let parameters = linear(self.width, self.inner) + linear(self.inner, self.width) + 2 * self.width;
        let stage = self.stage(format!("the feed-forward part of layer {number}"), [kept, forward, backward], 0);
        // Products add to gradients that are there.
        Stage { gradients: parameters * self.work.weight(), ..stage }
    }

    /// The same beside an adapter: the activation is an operation of its own, and what goes into either product may be kept.
    fn adapted_feed_forward(&self, number: u128) -> Stage {
        let (work, hidden) = (self.work, self.hidden());
        let inner = self.tokens() * self.inner * work.compute();
        let wide = work.made_wide(self.width * self.inner);
        let [first, second] =
            [self.width, self.inner].map(|inputs| work.adapter_keeps(self.dense, self.tokens(), inputs));
        let [input, activated] = if work.keeps_input(&[self.dense]) { [hidden, inner] } else { [0, 0] };
        let kept = hidden + inner + self.spreads() + input + activated + first + second;
        // The output of attention and the input are still there; a product is made twice, without what the adapter adds and with it.
        let forward = (kept + hidden + (2 * hidden).max(hidden + wide)).max(2 * hidden + kept);
        let given = (1 + u128::from(work.drops)) * hidden;
        // The gradient of the activation comes in two parts, the second of which a wide weight makes, and is their sum. What the second
        // adapter has kept is gone by then.
        let backward = input + first + given + (4 * inner).max(3 * inner + wide);
        let parameters =
            work.trained(self.dense, self.width, self.inner) + work.trained(self.dense, self.inner, self.width);
        self.stage(format!("the feed-forward part of layer {number}"), [kept, forward, backward], parameters)
    }

    /// Bytes of the forward pass of a layer where nothing is kept. In its feed-forward part `others` are still there, beside
    /// what attention gave, its product, the norm of that and what the part gives.
    pub fn unrecorded(&self, others: u128) -> u128 {
        let inner = self.tokens() * self.inner * self.work.compute();
        let weights = self.width * self.inner;
        let feed_forward =
            others + 4 * self.hidden() + 2 * inner + self.work.narrow_copy(weights) + self.work.made_wide(weights);
        feed_forward.max(self.attention_forward())
    }

    /// Stages that are computed again: of them their input is kept. Their gradients do not exist in all moments of their
    /// backward pass.
    pub fn checkpointed(&self, name: String, stages: &[Stage], forward: u128) -> Stage {
        let hidden = self.hidden();
        let gradients: u128 = stages.iter().map(|stage| stage.gradients).sum();
        let made_at_once = |made: u128| if self.work.accum > 1 { 0 } else { made };
        // The output and its gradient stay until all is done.
        let (mut kept, mut highest) = (hidden, 0);
        for stage in stages {
            highest = highest.max(kept + stage.forward);
            kept += stage.kept;
        }
        kept += hidden;
        let mut made = 0;
        for stage in stages.iter().rev() {
            kept -= stage.kept;
            made += stage.gradients;
            highest = highest.max(kept + stage.backward + made_at_once(made));
        }
        let backward = highest.saturating_sub(made_at_once(gradients));
        Stage { name, kept: hidden, forward: forward.max(hidden), backward, gradients, logits: 0 }
    }

    /// `keeps_last`: the first tokens are a view, which keeps all of what the last layer gave.
    pub fn head(&self, keeps_last: bool, labels: u128) -> Stage {
        let hidden = self.hidden();
        let kept = if keeps_last { hidden } else { 0 };
        // A head is trained whole.
        let parameters = linear(self.width, self.width) + linear(self.width, labels);
        self.stage("the head".to_owned(), [kept, hidden, kept + hidden], parameters)
    }

    /// A label for each token: the head takes all of what the last layer gave, a part of it dropped.
    pub fn token_head(&self, labels: u128) -> Stage {
        let (work, hidden) = (self.work, self.hidden());
        let narrow = if work.compute() < 4 { work.compute() } else { 0 };
        // As they are computed where that is narrow, in fp32, and their logarithms, which are kept.
        let logits = self.tokens() * labels * (4 + 4 + narrow);
        let kept = hidden + self.tokens() * labels * 4;
        let given = if work.drops { hidden } else { 0 };
        let weights = self.work.narrow_copy(self.width * labels);
        let forward = given + hidden + weights + logits;
        // The gradient of what it takes, and of that before some of it was dropped.
        let backward = kept + hidden + given + weights + logits;
        let stage = self.stage("the head".to_owned(), [kept, forward, backward], linear(self.width, labels));
        Stage { logits, ..stage }
    }

    /// Bytes of the partial sums from which the gradient of a norm's parameters is made.
    fn norm_sums(&self) -> u128 {
        3 * self.tokens().min(792) * self.width * 4
    }
}

/// The parameters of a linear layer.
pub(crate) fn linear(inputs: u128, outputs: u128) -> u128 {
    inputs * outputs + outputs
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{Arch, OptimizerKind, Precision};
    use serde_json::json;

    use super::*;
    use crate::bert::parameters;

    const WORK: Work = Work {
        precision: Precision::Bf16,
        optimizer: OptimizerKind::Adamw,
        checkpointing: false,
        batch: 8,
        accum: 1,
        ranks: 1,
        sharded: false,
        source: 128,
        target: 0,
        padded: true,
        drops: true,
        adapter: None,
    };

    #[test]
    fn every_parameter_has_a_gradient_and_what_is_kept_grows_with_the_batch() {
        let class = ["BertForSequenceClassification", "BertForTokenClassification"];
        for (arch, class) in [Arch::Bert, Arch::Roberta].into_iter().flat_map(|arch| class.map(|class| (arch, class))) {
            let config = json!({"num_labels": 3, "architectures": [class]});
            let config = BertConfig::read(arch, config.as_object().unwrap()).unwrap();
            let kept = |work: &Work| config.stages(work).iter().map(|stage| stage.kept).sum::<u128>();
            assert_eq!(kept(&Work { batch: 16, ..WORK }), 2 * kept(&WORK));
            assert!(kept(&Work { checkpointing: true, ..WORK }) < kept(&WORK) / 8);
            for checkpointing in [false, true] {
                let stages = config.stages(&Work { checkpointing, ..WORK });
                let gradients: u128 = stages.iter().map(|stage| stage.gradients).sum();
                assert_eq!(gradients, 2 * parameters(&config).iter().map(|one| u128::from(one.count())).sum::<u128>());
            }
        }
    }
}
