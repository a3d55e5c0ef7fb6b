//! The memory of the passes of a training step, and of the layers of a tower.

use super::{ClipConfig, TextConfig, TowerConfig, VisionConfig};
use crate::estimate::{Attention, Bias, Stage, StepMemory, Way, Work, column_sums};

/// The layers as `Architecture::adapts` counts them; the first of ViT too.
const QUERIES_KEYS_VALUES: [usize; 3] = [0, 1, 2];
const OUT: usize = 3;
const FIRST: usize = 4;
const SECOND: usize = 5;
const VISUAL_PROJECTION: usize = 6;
const TEXT_PROJECTION: usize = 7;

/// Bytes of embeddings, logits, pictures and the sums of norms and attention.
const FLOAT: u128 = 4;

impl StepMemory for ClipConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let ClipConfig { text_config: text, vision_config: vision, .. } = self;
        let texts = Layers::of(&text.tower, work, work.source.min(text.max_position_embeddings as u128), work.padded);
        let pictures = Layers::of(&vision.tower, work, vision.positions() as u128, false);
        let dim = self.projection_dim as u128;
        // Tokens and their mask.
        let mut stages = vec![input(vision, 2 * 8 * texts.tokens, work)];
        stages.extend((work.accum > 1).then(|| loss(self, work)));
        stages.push(patches(vision, &pictures, work));
        stages.extend(pictures.stages("vision"));
        stages.push(pictures.projection("visual projection", |width| work.trained(VISUAL_PROJECTION, width, dim), dim));
        stages.push(words(text, &texts, work));
        stages.extend(texts.stages("text"));
        stages.push(texts.projection("text projection", |width| work.trained(TEXT_PROJECTION, width, dim), dim));
        stages.extend((work.accum == 1).then(|| loss(self, work)));
        stages
    }
}

/// Pictures, and other bytes beside them.
pub(crate) fn input(vision: &VisionConfig, others: u128, work: &Work) -> Stage {
    let bytes = FLOAT * pixels(vision, work) + others;
    Stage { name: "input".to_owned(), kept: bytes, forward: bytes, backward: bytes, ..Stage::default() }
}

fn pixels(vision: &VisionConfig, work: &Work) -> u128 {
    work.batch * (vision.num_channels * vision.image_size.pow(2)) as u128
}

/// The convolution keeps narrow pictures and weights, the norm what it normed.
pub(crate) fn patches(vision: &VisionConfig, layers: &Layers, work: &Work) -> Stage {
    let filter = vision.tower.hidden_size * vision.num_channels * vision.patch_size.pow(2);
    let narrow_pixels = if work.compute() < FLOAT { pixels(vision, work) * work.compute() } else { 0 };
    let narrow_filter = work.narrow_copy(filter as u128);
    // Beside an adapter nothing here is trained, and nothing is kept for a gradient.
    let kept = work.own(narrow_pixels + narrow_filter + layers.residual() + FLOAT * layers.tokens);
    let added = filter + vision.tower.hidden_size * (vision.positions() + 1);
    let gradients = work.own(added as u128 * work.weight());
    Stage {
        name: "patches".to_owned(),
        kept,
        forward: kept.max(narrow_pixels) + 3 * layers.residual(),
        backward: kept + 3 * layers.residual() + layers.new_gradients(gradients),
        gradients,
        logits: 0,
    }
}

/// Nothing is kept of tokens but the mask that is made of them.
fn words(text: &TextConfig, layers: &Layers, work: &Work) -> Stage {
    let tables = ((text.vocab_size + text.max_position_embeddings) * text.tower.hidden_size) as u128;
    let gradients = work.own(tables * work.weight());
    let kept = layers.mask();
    // The first layer that is computed again has an input and a gradient of its own, which stay until the step is done.
    let input = if work.adapter.is_some() && work.checkpointing { 2 * layers.residual() } else { 0 };
    Stage {
        name: "words".to_owned(),
        kept,
        forward: 2 * kept + 2 * layers.residual(),
        backward: kept + layers.residual() + layers.new_gradients(gradients),
        gradients: gradients + input,
        logits: 0,
    }
}

/// Over all samples of a step: in several parts the gradients by embedding stay until each part's turn comes.
fn loss(config: &ClipConfig, work: &Work) -> Stage {
    let samples = work.batch * work.accum;
    let embeddings = 2 * samples * config.projection_dim as u128 * FLOAT;
    let logits = samples * samples * FLOAT;
    // The product, and its log-softmax by rows and by columns.
    let saved = 3 * logits;
    let kept = if work.accum > 1 { embeddings } else { embeddings + saved };
    // Going forward the scaled product and its transpose, going back the gradients of these.
    let most = 2 * embeddings + saved + 3 * logits;
    let backward = if work.accum > 1 { kept } else { most };
    Stage { name: "loss".to_owned(), kept, forward: most, backward, gradients: 0, logits: saved + 3 * logits }
}

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

    /// The projection of one position of each sample, with the numbers of it that are trained.
    pub fn projection(&self, name: &str, trained: impl Fn(u128) -> u128, width: u128) -> Stage {
        let rows = self.batch * (3 * self.width + 3 * width) * FLOAT;
        Stage {
            name: name.to_owned(),
            kept: rows,
            forward: rows + self.residual(),
            backward: rows + self.residual(),
            gradients: trained(self.width) * self.weight,
            logits: 0,
        }
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

    /// Bytes of the mask that is added to the scores, [batch, 1, length, length]. The trainer's own kernel takes lengths instead.
    pub fn mask(&self) -> u128 {
        let added = self.masked && self.attends().way() != Way::Kernel;
        if added { self.batch * self.length * self.length * self.compute } else { 0 }
    }

    /// Gradients that are held beside those of earlier parts until they are added to them.
    pub fn new_gradients(&self, gradients: u128) -> u128 {
        self.work.beside(gradients)
    }

    fn attention(&self) -> Stage {
        let (state, weights) = (self.state(), 4 * self.width * self.width);
        let attends = self.attends();
        // The memory-efficient kernel of torch copies a mask whose rows it cannot read in eights.
        let copies = self.masked && attends.way() == Way::Torch && !self.length.is_multiple_of(8);
        let mask = if copies { self.tokens * self.length.next_multiple_of(8) * self.compute } else { 0 };
        // The norm's input and output, queries, keys and values, and what was attended to.
        let work = &self.work;
        let out = work.adapter_keeps(OUT, self.tokens, self.width);
        let adapted: u128 =
            QUERIES_KEYS_VALUES.map(|layer| work.adapter_keeps(layer, self.tokens, self.width)).iter().sum();
        let normed = if work.keeps_input(&QUERIES_KEYS_VALUES) { state } else { 0 };
        let kept = normed + 5 * state + FLOAT * self.tokens + attends.kept() + mask + adapted + out;
        let wide = work.made_wide(self.width * self.width);
        let attending = 10 * state + attends.backward() + adapted;
        // Gradients of the three apart and side by side, of what went in, and of the biases.
        let projecting = 9 * state + adapted + self.work.own(column_sums(self.tokens, 3 * self.width)) + wide;
        let all = [QUERIES_KEYS_VALUES.as_slice(), &[OUT]].concat();
        let trained: u128 = all.iter().map(|layer| work.trained(*layer, self.width, self.width)).sum();
        let gradients = (trained + work.own(6 * self.width)) * self.weight;
        Stage {
            name: ": attention".to_owned(),
            kept,
            forward: kept + (state + self.residual() + self.work.narrow_copy(weights) + wide).max(attends.forward()),
            backward: self.residual()
                + attending.max(projecting)
                + self.work.narrow_copy(weights)
                + self.new_gradients(trained * self.weight),
            gradients,
            logits: 0,
        }
    }

    fn feed_forward(&self) -> Stage {
        if self.work.adapter.is_some() {
            return self.adapted_feed_forward();
        }
        let (state, weights) = (self.state(), 2 * self.width * self.inner);
        let inside = self.tokens * self.inner * self.compute;
        // The norm's input and output, and what went into the activation.
        let kept = 2 * state + inside + FLOAT * self.tokens;
        let narrow_gradient = if self.compute < self.weight { state } else { 0 };
        let last = column_sums(self.tokens, self.inner).max(state + self.work.narrow_copy(weights / 2));
        let gradients = (weights + 3 * self.width + self.inner) * self.weight;
        Stage {
            name: ": feed-forward".to_owned(),
            kept,
            forward: kept + inside + state + 2 * self.residual() + self.work.narrow_copy(weights / 2),
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

    /// The same beside an adapter: the activation is an operation of its own, and what goes into either product may be kept.
    fn adapted_feed_forward(&self) -> Stage {
        let (work, state) = (&self.work, self.state());
        let inside = self.tokens * self.inner * self.compute;
        let first = work.adapter_keeps(FIRST, self.tokens, self.width);
        let second = work.adapter_keeps(SECOND, self.tokens, self.inner);
        let normed = if work.keeps_input(&[FIRST]) { state } else { 0 };
        let activated = if work.keeps_input(&[SECOND]) { inside } else { 0 };
        let kept = normed + state + inside + activated + FLOAT * self.tokens + first + second;
        let wide = work.made_wide(self.width * self.inner);
        let narrow_gradient = if self.compute < self.weight { state } else { 0 };
        let trained = work.trained(FIRST, self.width, self.inner) + work.trained(SECOND, self.inner, self.width);
        Stage {
            name: ": feed-forward".to_owned(),
            kept,
            forward: kept + inside + state + 2 * self.residual() + wide,
            // The gradient of the activation comes in two parts, the second of which a wide weight makes, and is their sum. It is
            // made beside those of what the layer gave and of what that was added to.
            backward: kept - activated
                + 2 * self.residual()
                + narrow_gradient
                + (3 * inside).max(2 * inside + wide)
                + work.beside(trained * self.weight),
            gradients: trained * self.weight,
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

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::Map;

    use super::*;

    fn kept(change: impl FnOnce(&mut Work)) -> u128 {
        let mut work = Work {
            precision: Precision::Bf16,
            optimizer: OptimizerKind::Adamw,
            checkpointing: false,
            batch: 64,
            accum: 1,
            ranks: 1,
            sharded: false,
            source: 77,
            target: 0,
            padded: true,
            drops: false,
            adapter: None,
        };
        change(&mut work);
        ClipConfig::read(&Map::new()).unwrap().stages(&work).iter().map(|stage| stage.kept).sum()
    }

    #[test]
    fn samples_count_and_checkpointing_keeps_one_state_a_layer() {
        let whole = kept(|_| ());
        assert!(kept(|work| work.batch = 128).abs_diff(2 * whole) < whole / 100);
        assert!(kept(|work| work.checkpointing = true) < whole / 5);
    }

    #[test]
    fn texts_are_no_longer_than_there_are_positions() {
        assert_eq!(kept(|work| work.source = 128), kept(|_| ()));
    }
}
