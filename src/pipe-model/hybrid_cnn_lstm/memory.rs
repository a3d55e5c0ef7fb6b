//! The memory of the passes of a training step: convolutions, cuDNN's LSTM, attention and the head.

use super::{HybridConfig, NormKind};
use crate::estimate::{Stage, StepMemory, Work, column_sums, has_attention_kernel, recomputed};

impl StepMemory for HybridConfig {
    /// The estimate is of what is needed: where there is room, cuDNN may take several times as
    /// much for convolutions in fp32, and does with less where there is none.
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let sizes = Sizes::of(self, work);
        let mut stages = vec![input(&sizes, self.input_features as u128)];
        let mut before = self.input_features as u128;
        for (number, channels) in self.conv_channels.iter().map(|channels| *channels as u128).enumerate() {
            let taps = self.kernel_size as u128 * before * channels;
            let computed_again = self.norm == NormKind::Layer && work.checkpointing;
            stages.push(convolution(&sizes, number, [before, channels], taps, computed_again));
            before = channels;
        }
        stages.extend(lstm_stages(&sizes, before));
        stages.extend(attention_stages(&sizes));
        stages.push(head(&sizes, self.num_classes as u128));
        stages
    }
}

fn input(sizes: &Sizes, features: u128) -> Stage {
    let bytes = sizes.times * features * FLOAT;
    let narrow = if sizes.work.compute() < FLOAT { sizes.state(features) } else { 0 };
    let kept = bytes + if sizes.work.checkpointing { 0 } else { narrow };
    Stage { name: "input".to_owned(), kept, forward: bytes + narrow, backward: bytes + narrow, ..Stage::default() }
}

/// A convolution, a norm and gelu: what each gives is kept for the next.
fn convolution(sizes: &Sizes, number: usize, [before, channels]: [u128; 2], taps: u128, computed_again: bool) -> Stage {
    let (state, input) = (sizes.state(channels), sizes.state(before));
    let weights = taps + 3 * channels;
    let narrowed = sizes.work.narrow_copy(weights);
    let inside = 3 * state + narrowed;
    // cuDNN turns in- and output around, channels last.
    let turned = state + input;
    let convolving = state + input + turned + narrowed + sizes.new_gradients(weights);
    // Both gradients of gelu beside what it and the norm took; those of the convolution.
    let backward = (4 * state + narrowed).max(convolving);
    let stage = Stage {
        name: format!("convolution {number}"),
        kept: inside,
        forward: inside.max(state + turned),
        backward,
        gradients: weights * sizes.work.weight(),
        logits: 0,
    };
    if !computed_again {
        return stage;
    }
    // Its output is held a second time.
    Stage { kept: state, backward: backward + state, ..stage }
}

/// The head runs once for each sample.
fn head(sizes: &Sizes, classes: u128) -> Stage {
    let (width, state) = (sizes.width, sizes.state(sizes.width));
    let rows = sizes.work.batch * 2 * width * sizes.work.compute();
    Stage {
        name: "head".to_owned(),
        kept: rows,
        forward: rows + state,
        backward: rows + 2 * state,
        gradients: width / 2 * (width + classes) * sizes.work.weight(),
        logits: 0,
    }
}

pub const FLOAT: u128 = 4;

pub struct Sizes<'a> {
    pub work: &'a Work,
    /// Times of one sample.
    pub length: u128,
    /// Times of all samples.
    pub times: u128,
    pub hidden: u128,
    pub layers: u128,
    pub directions: u128,
    pub width: u128,
    pub heads: u128,
}

impl<'a> Sizes<'a> {
    pub fn of(config: &HybridConfig, work: &'a Work) -> Self {
        let length = config.sequence_length as u128;
        Self {
            work,
            length,
            times: work.batch * length,
            hidden: config.lstm_hidden as u128,
            layers: config.lstm_layers as u128,
            directions: config.directions() as u128,
            width: config.width() as u128,
            heads: config.attention_heads as u128,
        }
    }

    /// Bytes of `channels` numbers for each time, as products take them.
    pub fn state(&self, channels: u128) -> u128 {
        self.times * channels * self.work.compute()
    }

    /// Gradients of `weights` beside those of earlier passes.
    pub fn new_gradients(&self, weights: u128) -> u128 {
        self.work.beside(weights * self.work.weight())
    }
}

/// For the products of each layer and direction, as measured.
const PRODUCTS: u128 = 8 << 20;
/// The same in fp32, where cuDNN takes no more than the former for some sizes: an estimate is too high rather than too low.
const PRODUCTS_OF_FLOATS: u128 = 18 << 20;

/// The LSTM of a row of weights, behind the making of that row.
pub fn lstm_stages(sizes: &Sizes, channels: u128) -> [Stage; 2] {
    let (input, output) = (sizes.state(channels), sizes.state(sizes.width));
    let weights = weights(sizes, channels);
    let row = weights * sizes.work.compute();
    // Hidden numbers and cells begin as the same zeros.
    let ends = ends(sizes);
    let kept = row + reserve(sizes) + output + ends;
    let workspace = workspace(sizes, [input, output]) + row;
    // The gradient of the output is turned around before that of the row is made. What is checkpointed gets it turned around.
    let turned = if sizes.work.checkpointing { 0 } else { output };
    let making = Stage {
        name: "weights of the LSTM".to_owned(),
        forward: row + sizes.work.narrow_copy(weights),
        // Gradients of the row as the LSTM gives them, and put together again.
        backward: input + 2 * row + sizes.new_gradients(weights),
        gradients: weights * sizes.work.weight(),
        ..Stage::default()
    };
    let lstm = Stage {
        name: "LSTM".to_owned(),
        // The next stage counts the output.
        kept: if sizes.work.checkpointing { 0 } else { kept },
        // cuDNN wants times before samples, and gives what there is after the last time.
        forward: kept + sizes.work.narrow_copy(weights) + input + 2 * ends + workspace,
        // The input once more, its gradient, that of the output, and those of both ends.
        backward: kept + output + 2 * input + turned.max(row) + 4 * ends + workspace,
        ..Stage::default()
    };
    [making, lstm]
}

fn weights(sizes: &Sizes, channels: u128) -> u128 {
    let layer = |input: u128| 4 * sizes.hidden * (input + sizes.hidden + 2) * sizes.directions;
    layer(channels) + (sizes.layers - 1) * layer(sizes.width)
}

/// Hidden numbers of all layers at one time.
fn ends(sizes: &Sizes) -> u128 {
    sizes.work.batch * sizes.layers * sizes.width * sizes.work.compute()
}

/// Bytes that cuDNN keeps of every layer: gates, cells and the input of the next.
fn reserve(sizes: &Sizes) -> u128 {
    (6 * sizes.layers - 1) * sizes.state(sizes.width)
}

/// One and the same for both passes, beside a copy of the weights. The multiples are as measured; with one direction and
/// several layers it is up to 3 % less.
fn workspace(sizes: &Sizes, [input, output]: [u128; 2]) -> u128 {
    let directions = sizes.directions;
    // Outputs of two directions side by side, for the next layer.
    let joined = if directions > 1 && sizes.layers > 1 { output } else { 0 };
    let wide_input = 3 * directions * input + 3 * output + joined;
    let wide_output = input + (3 + 2 * directions) * output;
    let products = if sizes.work.compute() == FLOAT { PRODUCTS_OF_FLOATS } else { PRODUCTS };
    wide_input.max(wide_output) + 13 * ends(sizes) + sizes.layers * directions * products
}

/// Heads beyond this are not for flash attention.
const FLASH_HEAD: u128 = 256;
/// Queries and keys that a kernel takes at once.
const QUERIES: u128 = 128;
const KEYS: u128 = 64;

pub fn attention_stages(sizes: &Sizes) -> Vec<Stage> {
    let inside = [projection(sizes), attention(sizes)];
    match sizes.work.checkpointing {
        true => vec![recomputed("attention".to_owned(), &inside, sizes.state(sizes.width), sizes.work)],
        false => inside.into(),
    }
}

/// To queries, keys and values.
fn projection(sizes: &Sizes) -> Stage {
    let (state, weights) = (sizes.state(sizes.width), 3 * sizes.width * sizes.width);
    // Where weights are as narrow as products, a copy of what came in with samples before times.
    let copy = if sizes.work.mixed() { 0 } else { state };
    // Gradients of what comes out, of what goes in and of what goes around it, while those of the biases are added up.
    let multiplying = 5 * state + column_sums(sizes.times, 3 * sizes.width);
    Stage {
        name: "queries, keys and values".to_owned(),
        kept: 3 * state + copy,
        forward: 4 * state + sizes.work.narrow_copy(weights),
        // Gradients of the three one by one and side by side, beside that of what goes around them.
        backward: (7 * state + copy).max(multiplying + sizes.new_gradients(weights)),
        gradients: (weights + 3 * sizes.width) * sizes.work.weight(),
        logits: 0,
    }
}

/// With the product and the norm behind it.
fn attention(sizes: &Sizes) -> Stage {
    let (state, weights) = (sizes.state(sizes.width), sizes.width * sizes.width);
    let sums = sizes.times * sizes.heads * FLOAT;
    // The output of attention and the input of the norm.
    let kept = 2 * state + sums;
    Stage {
        name: "attention".to_owned(),
        kept,
        forward: kept + 3 * state,
        // The output of attention, its gradient and that of the residual, and those of queries, keys and values.
        backward: 6 * state + sums + accumulated(sizes) + sizes.new_gradients(weights),
        gradients: (weights + 3 * sizes.width) * sizes.work.weight(),
        logits: 0,
    }
}

/// Gradients that the kernels add up in fp32, in whole blocks.
fn accumulated(sizes: &Sizes) -> u128 {
    let padded = |block: u128| sizes.work.batch * sizes.length.next_multiple_of(block) * sizes.width * FLOAT;
    let (half, flash) = (sizes.work.compute() < FLOAT, sizes.width / sizes.heads <= FLASH_HEAD);
    match half {
        // Two numbers for each row.
        true if has_attention_kernel((sizes.width / sizes.heads) as i64) => 2 * sizes.times * sizes.heads * FLOAT,
        true if flash => padded(KEYS),
        // Memory-efficient attention: of queries, and where its result is narrower of keys and values too.
        true => padded(QUERIES) + 2 * padded(KEYS),
        false => padded(QUERIES),
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::json;

    use super::*;

    fn kept(norm: &str, batch: u128, checkpointing: bool) -> u128 {
        let config = json!({"input_features": 8, "num_classes": 3, "conv_channels": [2048, 2048], "norm": norm});
        let config = HybridConfig::read(config.as_object().unwrap()).unwrap();
        let work = Work {
            precision: Precision::Bf16,
            optimizer: OptimizerKind::Adamw,
            checkpointing,
            batch,
            accum: 1,
            ranks: 1,
            sharded: false,
            source: 0,
            target: 0,
            padded: false,
            drops: true,
            adapter: None,
        };
        config.stages(&work).iter().map(|stage| stage.kept).sum()
    }

    #[test]
    fn convolutions_with_batch_norm_are_not_computed_again() {
        let conv = 2 * 3 * 2048 * 32 * 60 * 2;
        assert!(kept("layer", 32, true) < conv / 2);
        assert!(kept("batch", 32, true) > conv);
    }

    #[test]
    fn all_but_the_lstms_weights_grows_with_the_samples() {
        let weights = 2 * 4 * 128 * ((2048 + 128 + 2) + (256 + 128 + 2));
        assert_eq!(2 * kept("layer", 64, false) - kept("layer", 128, false), 2 * weights);
    }
}
