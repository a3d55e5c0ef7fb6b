//! The loss over a vocabulary, computed for a few rows at a time (`LinearCrossEntropy` in the trainer).

use super::stage::Stage;
use super::work::Work;

pub struct WordLoss {
    pub tokens: u128,
    pub width: u128,
    pub vocab: u128,
    /// Rows whose logits exist at a time.
    pub rows: u128,
}

impl WordLoss {
    /// The gradients of hidden states and head, which are there before the backward pass begins, and the logits.
    pub fn stages(&self, work: &Work) -> [Stage; 2] {
        let Self { tokens, width, vocab, rows } = *self;
        let compute = work.compute();
        let (hidden, head) = (tokens * width * compute, vocab * width * compute);
        let gradient = vocab * width * work.weight();
        let rows = tokens.min(rows);
        // As they are computed where that is narrow, in fp32, and their logarithms.
        let logits = rows * vocab * (4 + 4 + if compute < 4 { compute } else { 0 });
        // Both gradients are multiplied with that of the loss; that of the head is then widened.
        let backward = if work.mixed() { (2 * hidden).max(hidden + head) } else { 2 * hidden + head };
        // The gradient of the passes before is there already.
        let beside = if work.accum > 1 { gradient } else { 0 };
        let narrow_head = if work.mixed() { head } else { 0 };
        [
            Stage {
                name: "the head".to_owned(),
                kept: hidden + head,
                forward: hidden + head,
                backward: backward + beside,
                gradients: gradient,
                logits: 0,
            },
            Stage { name: "the loss".to_owned(), forward: hidden + narrow_head + logits, logits, ..Stage::default() },
        ]
    }
}
