//! What the layers of a tower hold.

use super::TowerConfig;
use crate::memory::column_sums;
use crate::memory::{Attention, Bias, Stage, Way, Work};

/// Of what norms and attention keep of each row.
const FLOAT: u128 = 4;

/// The layers of one tower, all alike.
pub struct Layers {
    pub batch: u128,
    length: u128,
    pub tokens: u128,
    pub width: u128,
    inner: u128,
    heads: u128,
    count: u128,
    masked: bool,
    work: Work,
    /// Bytes of a weight, and of what products take.
    pub weight: u128,
    compute: u128,
    again: bool,
    accumulates: bool,
}

impl Layers {
    pub fn of(tower: &TowerConfig, work: &Work, length: u128, masked: bool) -> Self {
        Self {
            batch: work.batch,
            length,
            tokens: work.batch * length,
            width: tower.hidden_size as u128,
            inner: tower.intermediate_size as u128,
            heads: tower.num_attention_heads as u128,
            count: tower.num_hidden_layers as u128,
            masked,
            work: *work,
            weight: work.weight(),
            compute: work.compute(),
            again: work.checkpointing,
            accumulates: work.accum > 1,
        }
    }

    pub fn stages(&self, tower: &str) -> Vec<Stage> {
        let named =
            |number: u128, stage: Stage| Stage { name: format!("{tower} layer {number}{}", stage.name), ..stage };
        let (attention, feed_forward) = (self.attention(), self.feed_forward());
        let layer = if self.again {
            vec![self.computed_again(&attention, &feed_forward)]
        } else {
            vec![attention, feed_forward]
        };
        (0..self.count).flat_map(|number| layer.iter().map(move |stage| named(number, stage.clone()))).collect()
    }

    /// Bytes of what is added up along the layers.
    pub fn residual(&self) -> u128 {
        self.tokens * self.width * self.weight
    }

    /// The same as products take it.
    fn state(&self) -> u128 {
        self.tokens * self.width * self.compute
    }

    fn attends(&self) -> Attention<'_> {
        let Self { heads, length, width, .. } = *self;
        let drops = self.work.drops;
        Attention {
            work: &self.work,
            heads,
            width: width / heads,
            queries: length,
            keys: length,
            drops,
            bias: Bias::None,
        }
    }

    /// What is added to the scores, [batch, 1, length, length]; a kernel of the trainer's own takes lengths instead.
    pub fn mask(&self) -> u128 {
        let added = self.masked && self.attends().way() != Way::Kernel;
        if added { self.batch * self.length * self.length * self.compute } else { 0 }
    }

    /// Gradients that are held beside those of earlier parts until they are added to them.
    pub fn new_gradients(&self, gradients: u128) -> u128 {
        if self.accumulates { gradients } else { 0 }
    }

    fn narrowed(&self, weights: u128) -> u128 {
        if self.compute < self.weight { weights * self.compute } else { 0 }
    }

    fn attention(&self) -> Stage {
        let (state, weights) = (self.state(), 4 * self.width * self.width);
        let attends = self.attends();
        // The memory-efficient kernel of torch copies a mask whose rows it cannot read in eights.
        let copies = self.masked && attends.way() == Way::Torch && !self.length.is_multiple_of(8);
        let mask = if copies { self.tokens * self.length.next_multiple_of(8) * self.compute } else { 0 };
        // The norm's input and output, queries, keys and values, and what was attended to.
        let kept = 6 * state + FLOAT * self.tokens + attends.kept() + mask;
        let attending = 10 * state + attends.backward();
        // Gradients of the three apart and side by side, of what went in, and of the biases.
        let projecting = 9 * state + column_sums(self.tokens, 3 * self.width);
        let gradients = (weights + 6 * self.width) * self.weight;
        Stage {
            name: ": attention".to_owned(),
            kept,
            forward: kept + (state + self.residual() + self.narrowed(weights)).max(attends.forward()),
            backward: self.residual()
                + attending.max(projecting)
                + self.narrowed(weights)
                + self.new_gradients(weights * self.weight),
            gradients,
            logits: 0,
        }
    }

    fn feed_forward(&self) -> Stage {
        let (state, weights) = (self.state(), 2 * self.width * self.inner);
        let inside = self.tokens * self.inner * self.compute;
        // The norm's input and output, and what went into the activation.
        let kept = 2 * state + inside + FLOAT * self.tokens;
        let narrow_gradient = if self.compute < self.weight { state } else { 0 };
        let last = column_sums(self.tokens, self.inner).max(state + self.narrowed(weights / 2));
        let gradients = (weights + 3 * self.width + self.inner) * self.weight;
        Stage {
            name: ": feed-forward".to_owned(),
            kept,
            forward: kept + inside + state + 2 * self.residual() + self.narrowed(weights / 2),
            backward: kept
                + self.residual()
                + narrow_gradient
                + inside
                + last
                + self.new_gradients(weights * self.weight),
            gradients,
            logits: 0,
        }
    }

    /// Both as one that keeps only what came in; going back, what it gave is there a second time.
    fn computed_again(&self, attention: &Stage, feed_forward: &Stage) -> Stage {
        let kept = self.residual();
        Stage {
            name: String::new(),
            kept,
            forward: kept + attention.forward.max(feed_forward.forward),
            backward: 2 * kept + attention.backward.max(attention.kept + feed_forward.backward),
            gradients: attention.gradients + feed_forward.gradients,
            logits: 0,
        }
    }
}
